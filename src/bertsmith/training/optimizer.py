"""AdamW with BERT's parameter groups: no decay on biases and LayerNorm (google-research/bert,
optimization.py), and with learning rates that fall towards the embeddings where asked for; beside it Muon for
the matrices of the layers, where asked for. Or a user's own optimiser, on the same groups.

R rows and C columns of a matrix, R ≤ C.
"""

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.door import own_class
from bertsmith.errors import RecipeError
from bertsmith.model.cpu.onednn_matmul import fast_products
from bertsmith.model.layers.attention import SelfAttention
from bertsmith.model.layers.layer import FeedForward
from bertsmith.training.settings import OptimizerSettings
from bertsmith.training.sharding import divided_like

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_EMBEDDINGS = re.compile(r"(?:^|\.)embeddings\.")
# Muon's:
# A quintic that draws singular values to 1 from far below it in few steps: to between 0.7 and 1.2.
_LINEAR, _CUBIC, _QUINTIC = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
_SHORTEST = 1e-7  # a gradient of zero stays zero


class Optimizers:
    """torch's optimisers as one: each steps weights of its own, and all keep their state in one table."""

    def __init__(self, *each: torch.optim.Optimizer) -> None:
        self.each = each
        self.param_groups = [group for one in each for group in one.param_groups]
        self.state = each[0].state
        for one in each:
            one.state = self.state
        self._settings = self._group_settings()
        self._has_stepped = False

    def step(self) -> None:
        for one in self.each:
            one.step()
        if not self._has_stepped:
            self.require_resumable()
            self._has_stepped = True

    def require_resumable(self) -> None:
        """Raises RecipeError where a user's own optimiser remembers what a checkpoint doesn't hold: anything
        but tensors by weight. Found here rather than by a run that goes on otherwise than it would have.
        """
        name = type(self.each[0]).__name__
        rule = "A checkpoint holds tensors by weight: keep it in state[weight], a count as torch.zeros(())."
        for owner, state in self.state.items():
            if not isinstance(owner, Tensor):
                raise RecipeError(f"{name} keeps state[{owner!r}], which is of no weight. {rule}")
            for key, value in state.items():
                if not isinstance(value, Tensor):
                    raise RecipeError(f"{name} keeps {key!r} as {type(value).__name__}. {rule}")
        if self._group_settings() != self._settings:
            raise RecipeError(f"{name} changes its groups' settings as it steps. {rule}")

    def _group_settings(self) -> list[dict[str, Any]]:
        """All but the weights and their rate, which the schedule sets."""
        return [
            {key: value for key, value in group.items() if key not in ("params", "lr")}
            for group in self.param_groups
        ]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self.each:
            one.zero_grad(set_to_none)


def find_optimizer(kind: str) -> type[torch.optim.Optimizer] | None:
    """A user's own by `module:Class`, made by `Class(groups, lr=…)`; None for ours. Raises InputError."""
    if ":" not in kind:
        return None
    found: type[torch.optim.Optimizer] = own_class(kind, torch.optim.Optimizer, "optimizer")
    return found


def make_optimizer(
    model: nn.Module, settings: OptimizerSettings, precision: torch.dtype = torch.float32
) -> Optimizers:
    """Fused: on a CPU 7 ms a step for 11 M weights, where the plain one takes 51. The rate is the schedule's.

    `layer_decay` multiplies the learning rate once for each layer below the head (Howard and Ruder 2018,
    section 3.2; Zhang et al. 2021): with 0.9 and 12 layers the top one learns at 0.9 of the rate, the
    embeddings at 0.9 ** 13 = 0.25 of it. `precision` is that of Muon's products.
    """
    depths = layer_depths(model)
    muons = layer_matrices(model) if settings.kind == "muon" else {}
    groups: dict[tuple[int, float, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            matrices = muons.get(name, 0)
            own = getattr(parameter, "learning_rate_factor", 1.0)  # a CRF's few scores learn faster
            own *= settings.matrix_rate_factor if matrices else 1.0
            factor, decayed = own * settings.layer_decay ** depths[name], decays(name)
            group: dict[str, Any] = {
                "params": [],
                "weight_decay": settings.weight_decay if decayed else 0.0,
                "factor": factor,
                "matrices": matrices,
            }
            groups.setdefault((matrices, factor, decayed), group)["params"].append(parameter)
    # the decayed ones first, from the head down
    ordered = [groups[key] for key in sorted(groups, key=lambda key: (key[0], -key[1], not key[2]))]
    if (own := find_optimizer(settings.kind)) is not None:
        return Optimizers(own(ordered, lr=settings.learning_rate))  # type: ignore[call-arg]
    betas = (settings.beta1, settings.beta2)
    for_adamw = [group for group in ordered if not group["matrices"]]
    for_muon = [group for group in ordered if group["matrices"]]
    each: list[torch.optim.Optimizer] = []
    if for_adamw:
        each.append(torch.optim.AdamW(for_adamw, lr=0.0, betas=betas, eps=settings.epsilon, fused=True))
    if for_muon:
        each.append(Muon(for_muon, settings.momentum, precision))
    return Optimizers(*each)


def layer_depths(model: nn.Module) -> dict[str, int]:
    """How far below the head each parameter lies: heads and pooler 0, the top layer 1, embeddings last.

    Counted by names (`layers.0.`, `embeddings.`), frozen layers included.
    """
    names = [name for name, _ in model.named_parameters()]
    numbers = {name: int(found[1]) for name in names if (found := _LAYER.search(name))}
    count = max(numbers.values(), default=-1) + 1
    below = {name: count + 1 if _EMBEDDINGS.search(name) else 0 for name in names}
    return below | {name: count - number for name, number in numbers.items()}


def decays(name: str) -> bool:
    """Whether the parameter of this name is decayed: every weight matrix, embeddings among them."""
    part = name.rsplit(".", 2)[-2:]
    return part[-1] != "bias" and "norm" not in part[0]


def set_learning_rate(optimizer: Optimizers, learning_rate: float) -> None:
    """The same rate for every group, times the group's own factor where `make_optimizer` gave it one."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("factor", 1.0)


def optimizer_tensors(model: nn.Module, optimizer: Optimizers) -> dict[str, Tensor]:
    """The optimiser's state: `NAME.exp_avg`, `NAME.exp_avg_sq` and `NAME.step` of each parameter of AdamW's,
    `NAME.momentum_buffer` of each of Muon's, and what a user's own keeps.
    """
    optimizer.require_resumable()
    return {
        f"{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(model: nn.Module, optimizer: Optimizers, tensors: dict[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`, of a divided model from this rank's rows of the moments."""
    states: dict[str, dict[str, Tensor]] = {}
    for full_name, value in tensors.items():
        name, _, key = full_name.rpartition(".")
        states.setdefault(name, {})[key] = value
    for name, parameter in model.named_parameters():
        if name in states:
            optimizer.state[parameter] = {
                key: divided_like(parameter, value) if value.ndim else value.to(parameter.device)  # a count
                for key, value in states[name].items()
            }


# -- Muon ----------------------------------------------------------------------------------------------


def layer_matrices(model: nn.Module) -> dict[str, int]:
    """Muon's weights by name, those of the layers' products, and how many matrices lie stacked in each."""
    found: dict[str, int] = {}
    for name, part in model.named_modules():
        stacked: dict[str, int] = {}
        if isinstance(part, SelfAttention):
            stacked = {"qkv": 3, "output": 1}
        elif isinstance(part, FeedForward):
            stacked = {"up": 1 + part.gated, "down": 1}
        found |= {f"{name}.{product}.weight": matrices for product, matrices in stacked.items()}
    return found


class Muon(torch.optim.Optimizer):
    """The step of a weight matrix has its gradient's directions, and the same length in each of them (Jordan
    et al. 2024, https://kellerjordan.github.io/posts/muon/). As torch.optim.Muon, with its adjustment
    "original" of the rate, in two things otherwise.

    A group's `matrices` says how many matrices lie below one another in each of its weights. Query, key and
    value have directions of their own, and so have the two of a gated feed-forward: as one, the part with the
    largest gradient would take the step of all. And products are in `precision`, for bfloat16 is a hundred
    times slower on a processor without it.
    One matrix after the other: on a processor, batched products of equal shapes took longer.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], momentum: float, precision: torch.dtype) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "matrices": 1})
        self.momentum, self.precision = momentum, precision

    @torch.no_grad()
    @fast_products()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Decay, which is no part of the gradient, then a step; weights without a gradient stay."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    self._move(weight, weight.grad, group["lr"], group["matrices"])

    def _move(self, weight: Tensor, gradient: Tensor, rate: float, matrices: int) -> None:
        """By Nesterov's momentum, made orthogonal; the rate is that of an entry, in a tall matrix too."""
        state = self.state[weight]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        mean = state["momentum_buffer"].lerp_(gradient, 1 - self.momentum)
        ahead = gradient.lerp(mean, self.momentum)
        for part, direction in zip(weight.chunk(matrices), ahead.chunk(matrices), strict=True):
            rows, columns = part.shape
            part.add_(orthogonal(direction, self.precision), alpha=-rate * math.sqrt(max(1, rows / columns)))


def orthogonal(matrix: Tensor, precision: torch.dtype = torch.float32) -> Tensor:
    """The same left and right singular vectors, and every singular value near 1, by Newton-Schulz."""
    if len(matrix) > matrix.shape[1]:
        return orthogonal(matrix.t(), precision).t()
    found: Tensor = (matrix / matrix.norm().clamp(min=_SHORTEST)).to(precision)  # (R, C)
    for _ in range(_ITERATIONS):
        gram = found @ found.T  # (R, R)
        powers = torch.addmm(gram, gram, gram, beta=_CUBIC, alpha=_QUINTIC)
        found = torch.addmm(found, powers, found, beta=_LINEAR)
    return found

"""The optimisers: AdamW with BERT's parameter groups, which have no decay on biases and LayerNorm
(google-research/bert, optimization.py) and, by `layer_decay`, lower learning rates towards the embeddings;
Muon for the layers' matrices; or a user's own optimiser on the same groups.

R rows and C columns of a matrix, R ≤ C.
"""

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.argument_checks import import_class
from bertsmith.errors import RecipeError
from bertsmith.model.cpu.onednn_matmul import fast_matmul
from bertsmith.model.layers.attention import SelfAttention
from bertsmith.model.layers.disentangled import Distances
from bertsmith.model.layers.layer import FeedForward
from bertsmith.training.settings import OptimizerSettings
from bertsmith.training.sharding import shard_like

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_EMBEDDINGS = re.compile(r"(?:^|\.)(?:embeddings|relative)\.")
# The coefficients of Muon's quintic. It moves singular values from far below 1 to between 0.7 and 1.2 in few
# iterations.
_LINEAR, _CUBIC, _QUINTIC = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
_SMALLEST_NORM = 1e-7  # so that a gradient of zero stays zero


class Optimizers:
    """Several torch optimisers used as one. Each steps weights of its own; `param_groups` and `state` are
    those of all of them.
    """

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers
        self.param_groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self.state = optimizers[0].state
        for optimizer in optimizers:
            optimizer.state = self.state
        self._settings = self._group_settings()
        self._has_stepped = False

    def step(self) -> None:
        """Takes a step with every optimiser. The first one raises RecipeError as `require_resumable` does."""
        for optimizer in self.optimizers:
            optimizer.step()
        if not self._has_stepped:
            self.require_resumable()
            self._has_stepped = True

    def require_resumable(self) -> None:
        """Raises RecipeError when a user's own optimiser keeps state that a checkpoint doesn't hold, which is
        anything but tensors by weight: a resumed run would silently differ from an uninterrupted one.
        """
        name = type(self.optimizers[0]).__name__
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
        """The groups' settings, without the weights and without the rate, which the schedule sets."""
        return [
            {key: value for key, value in group.items() if key not in ("params", "lr")}
            for group in self.param_groups
        ]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Removes the gradients of all weights, or sets them to zero."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)


def find_optimizer(kind: str) -> type[torch.optim.Optimizer] | None:
    """The class of a user's own optimiser that `kind` names as `module:Class`; None for adamw and muon. It is
    made by `Class(groups, lr=…)`. Raises InputError when there is no such optimiser.
    """
    if ":" not in kind:
        return None
    own: type[torch.optim.Optimizer] = import_class(kind, torch.optim.Optimizer, "optimizer")
    return own


def make_optimizer(
    model: nn.Module, settings: OptimizerSettings, precision: torch.dtype = torch.float32
) -> Optimizers:
    """Makes the optimiser of a model's trainable weights. Its rate is 0 until `set_learning_rate` sets it.

    `layer_decay` multiplies the learning rate once for each layer below the head (Howard and Ruder 2018,
    section 3.2; Zhang et al. 2021): with 0.9 and 12 layers the top one learns at 0.9 of the rate, the
    embeddings at 0.9 ** 13 = 0.25 of it. `precision` is that of Muon's products.
    AdamW is the fused one: for 11 M weights it takes 7 ms a step on a CPU, the plain one 51.
    """
    depths = count_layer_depths(model)
    matrix_counts = find_layer_matrices(model) if settings.kind == "muon" else {}
    groups: dict[tuple[int, float, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            matrices = matrix_counts.get(name, 0)
            factor = getattr(parameter, "learning_rate_factor", 1.0)  # a CRF's few scores learn faster
            factor *= settings.matrix_rate_factor if matrices else 1.0
            factor *= settings.layer_decay ** depths[name]
            decayed = is_decayed(name)
            group: dict[str, Any] = {
                "params": [],
                "weight_decay": settings.weight_decay if decayed else 0.0,
                "factor": factor,
                "matrices": matrices,
            }
            groups.setdefault((matrices, factor, decayed), group)["params"].append(parameter)
    # decayed weights first, from the head down
    ordered = [groups[key] for key in sorted(groups, key=lambda key: (key[0], -key[1], not key[2]))]
    if (own := find_optimizer(settings.kind)) is not None:
        return Optimizers(own(ordered, lr=settings.learning_rate))  # type: ignore[call-arg]
    betas = (settings.beta1, settings.beta2)
    for_adamw = [group for group in ordered if not group["matrices"]]
    for_muon = [group for group in ordered if group["matrices"]]
    optimizers: list[torch.optim.Optimizer] = []
    if for_adamw:
        optimizers.append(torch.optim.AdamW(for_adamw, lr=0.0, betas=betas, eps=settings.epsilon, fused=True))
    if for_muon:
        optimizers.append(Muon(for_muon, settings.momentum, precision))
    return Optimizers(*optimizers)


def count_layer_depths(model: nn.Module) -> dict[str, int]:
    """How many layers below the head each parameter lies, by its name: heads and pooler 0, the top layer 1,
    the embeddings one more than the lowest layer.

    Layers are known by their names (`layers.0.`, `embeddings.`); frozen ones count.
    """
    names = [name for name, _ in model.named_parameters()]
    numbers = {name: int(match[1]) for name in names if (match := _LAYER.search(name))}
    count = max(numbers.values(), default=-1) + 1
    depths = {name: count + 1 if _EMBEDDINGS.search(name) else 0 for name in names}
    return depths | {name: count - number for name, number in numbers.items()}


def is_decayed(name: str) -> bool:
    """Whether weight decay applies to the parameter of this name: to all but biases, those of scores too, and
    LayerNorms.
    """
    part = name.rsplit(".", 2)[-2:]
    return part[-1] != "bias" and "norm" not in part[0] and part[0] != "bias"


def set_learning_rate(optimizer: Optimizers, learning_rate: float) -> None:
    """Sets the rate of every group: `learning_rate` times the group's own factor, where it has one."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("factor", 1.0)


def collect_optimizer_tensors(model: nn.Module, optimizer: Optimizers) -> dict[str, Tensor]:
    """The optimiser's state as tensors by name: `NAME.exp_avg`, `NAME.exp_avg_sq` and `NAME.step` for each of
    AdamW's parameters, `NAME.momentum_buffer` for each of Muon's, and what a user's own optimiser keeps.

    Raises RecipeError as `Optimizers.require_resumable` does.
    """
    optimizer.require_resumable()
    return {
        f"{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(model: nn.Module, optimizer: Optimizers, tensors: dict[str, Tensor]) -> None:
    """Puts the state that `collect_optimizer_tensors` returned back into the optimiser; for a sharded model,
    `tensors` are this rank's rows.
    """
    states: dict[str, dict[str, Tensor]] = {}
    for full_name, value in tensors.items():
        name, _, key = full_name.rpartition(".")
        states.setdefault(name, {})[key] = value
    for name, parameter in model.named_parameters():
        if name in states:
            optimizer.state[parameter] = {
                key: shard_like(parameter, value) if value.ndim else value.to(parameter.device)  # a count
                for key, value in states[name].items()
            }


# -- Muon ----------------------------------------------------------------------------------------------


def find_layer_matrices(model: nn.Module) -> dict[str, int]:
    """The weights that Muon trains, those of the layers' matrix products: how many matrices are stacked in
    each, by its name.
    """
    counts: dict[str, int] = {}
    for name, module in model.named_modules():
        stacked: dict[str, int] = {}
        if isinstance(module, SelfAttention):
            stacked = {"qkv": 3, "output": 1}
        elif isinstance(module, FeedForward):
            stacked = {"up": 1 + module.gated, "down": 1}
        elif isinstance(module, Distances):
            stacked = {kind: 1 for kind, part in module.named_children() if isinstance(part, nn.Linear)}
        counts |= {f"{name}.{product}.weight": matrices for product, matrices in stacked.items()}
    return counts


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/): steps a weight matrix by its
    momentum, orthogonalised, so that the step has the same length in each of the gradient's directions.

    Differs from torch.optim.Muon, with its adjustment "original" of the rate, in two things. A group's
    `matrices` says how many matrices are stacked in each of its weights, which are orthogonalised one by one:
    query, key and value have directions of their own, and so have the two of a gated feed-forward. As one
    matrix, the part with the largest gradient would take up the whole step. And products are computed in
    `precision`, since bfloat16 is a hundred times slower on a processor without it.
    Matrices are stepped one after the other: on a CPU, batched products of equal shapes took longer.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], momentum: float, precision: torch.dtype) -> None:
        super().__init__(groups, {"lr": 0.0, "weight_decay": 0.0, "matrices": 1})
        self.momentum, self.precision = momentum, precision

    @torch.no_grad()
    @fast_matmul()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Decays each weight, apart from its gradient, then steps it. Weights without a gradient stay as they
        are, undecayed.
        """
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    self._move(weight, weight.grad, group["lr"], group["matrices"])

    def _move(self, weight: Tensor, gradient: Tensor, rate: float, matrices: int) -> None:
        """Steps one weight by its orthogonalised Nesterov momentum. Scaled by √(rows / columns) in a tall
        matrix, so that an entry's step doesn't depend on the shape.
        """
        state = self.state[weight]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        mean = state["momentum_buffer"].lerp_(gradient, 1 - self.momentum)
        ahead = gradient.lerp(mean, self.momentum)
        for part, direction in zip(weight.chunk(matrices), ahead.chunk(matrices), strict=True):
            rows, columns = part.shape
            part.add_(
                orthogonalize(direction, self.precision), alpha=-rate * math.sqrt(max(1, rows / columns))
            )


def orthogonalize(matrix: Tensor, precision: torch.dtype = torch.float32) -> Tensor:
    """Replaces every singular value of the matrix by one near 1 and keeps the singular vectors, by five
    iterations of Newton and Schulz. Returns a matrix of the same shape, in `precision`.
    """
    if len(matrix) > matrix.shape[1]:
        return orthogonalize(matrix.t(), precision).t()
    estimate: Tensor = (matrix / matrix.norm().clamp(min=_SMALLEST_NORM)).to(precision)  # (R, C)
    for _ in range(_ITERATIONS):
        gram = estimate @ estimate.T  # (R, R)
        powers = torch.addmm(gram, gram, gram, beta=_CUBIC, alpha=_QUINTIC)
        estimate = torch.addmm(estimate, powers, estimate, beta=_LINEAR)
    return estimate

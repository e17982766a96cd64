"""LoRA: a finished encoder with small trained products beside its frozen weights (Hu et al. 2021).

N rows, I and O the width of a linear module's input and output, r the rank.

W x becomes W x + alpha / r · B A x, with A (r, I) and B (O, r); B starts at zero, so the edited model begins
as the finished one. Query, key and value are one stacked product here: where the family's class has a module
for each, the low-rank part of the stack is one product as well, whose B is block-diagonal, with no columns in
the blocks that are not adapted; where it has one for all (ModernBERT), so has LoRA. The factors
stay apart in training: a gradient for W + B A would cost the full product of (O, N) and (N, I) which LoRA is
there to avoid.

The added weights are kept as a folder in PEFT's format: a few hundred kilobytes beside the model.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.errors import ModelError, did_you_mean
from bertsmith.files import atomic_folder, tensors_written_to, write_json
from bertsmith.model.bert import Bert
from bertsmith.model.layers.elementwise import Dropout
from bertsmith.model.weights import adapter_names, listed

# A layer's linear modules, and what each can be adapted for: by how many modules of the family's class it is
# made of, since adapters name these.
_LAYER: dict[str, tuple[tuple[str, ...], ...]] = {
    "attention.qkv": (("query", "key", "value"), ("qkv",)),
    "attention.output": (("attention_output",),),
    "feed_forward.up": (("feed_forward_up",), ("feed_forward_gate", "feed_forward_up")),
    "feed_forward.down": (("feed_forward_down",),),
}
_USUAL = ("query", "value", "qkv")  # Hu et al. 2021, section 7.1
TARGETS = tuple(
    dict.fromkeys((*(target for ways in _LAYER.values() for targets in ways for target in targets), "pooler"))
)
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_ROOT = "base_model.model."  # before every name in PEFT's files


@dataclass(frozen=True)
class LoraSettings:
    """Raises ModelError for impossible values: a rank below 1, alpha not above 0, unknown targets."""

    rank: int
    alpha: float
    dropout: float
    targets: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.rank < 1 or not 0 < self.alpha < math.inf or not 0 <= self.dropout < 1:
            raise ModelError(
                "LoRA needs a rank of at least 1, an alpha above 0 and a dropout from 0 to below 1; found "
                f"rank {self.rank}, alpha {self.alpha}, dropout {self.dropout}."
            )
        if not self.targets:
            raise ModelError(f"LoRA needs at least one target. There are: {', '.join(TARGETS)}.")
        for target in self.targets:
            if target not in TARGETS:
                meant = did_you_mean(str(target), TARGETS)
                raise ModelError(f"LoRA has no target {target!r}.{meant} There are: {', '.join(TARGETS)}.")

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank


class LoraLinear(nn.Linear):
    """A linear module with its weights frozen, under their old names, and a low-rank part added.

    `blocks` names the target in each block of the output, None for one that stays as it is. Dropout falls on
    the input of the low-rank part, once for all blocks. A and B are zero until they are drawn or loaded.
    """

    def __init__(self, linear: nn.Linear, blocks: Sequence[str | None], settings: LoraSettings) -> None:
        nn.Module.__init__(self)  # not Linear's, which would draw weights: these are taken over
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.blocks = tuple(blocks)
        self.settings = settings
        self.rows = linear.out_features // len(self.blocks)  # of one block
        self.dropout = Dropout(settings.dropout)
        adapted = [block for block in self.blocks if block]
        zeros = linear.weight.new_zeros
        self.lora_A = nn.ParameterDict({name: zeros(settings.rank, self.in_features) for name in adapted})
        self.lora_B = nn.ParameterDict({name: zeros(self.rows, settings.rank) for name in adapted})

    def forward(self, x: Tensor) -> Tensor:
        """The outputs (N, O) of x (N, I): the frozen product plus the scaled low-rank one."""
        low = F.linear(self.dropout(x), self.stacked_a())
        return torch.addmm(super().forward(x), low, self.stacked_b().T, alpha=self.settings.scaling)

    def stacked_a(self) -> Tensor:
        """The A of all adapted blocks, P of them, by rows: (P r, I)."""
        return torch.cat([self.lora_A[block] for block in self.blocks if block])

    def stacked_b(self) -> Tensor:
        """Each block's B where its outputs are: (O, P r)."""
        nothing = self.weight.new_zeros(self.rows, 0)
        blocks = (self.lora_B[block] if block else nothing for block in self.blocks)
        stacked: Tensor = torch.block_diag(*blocks)
        return stacked

    @torch.no_grad()
    def draw(self) -> None:
        """A as Hu et al.'s code and PEFT draw it: Kaiming's uniform, within ±1 / sqrt(I). B zero."""
        bound = 1 / math.sqrt(self.in_features)
        for a in self.lora_A.values():
            a.uniform_(-bound, bound)
        for b in self.lora_B.values():
            b.zero_()

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """A plain linear module that computes the same."""
        linear = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        added = self.settings.scaling * self.stacked_b() @ self.stacked_a()
        linear.weight = nn.Parameter(self.weight + added)
        if self.bias is not None:
            linear.bias = nn.Parameter(self.bias.clone())
        return linear

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.settings.rank}, blocks={self.blocks}"


def add_lora(
    model: Bert,
    rank: int = 8,
    alpha: float = 16.0,
    dropout: float = 0.0,
    targets: Sequence[str] | None = None,
) -> None:
    """Freezes the whole encoder and adds low-rank parts to `targets` in every layer; None is `usual_targets`.

    The outputs stay what they were until training moves B. Draws A from torch's generator. Heads are outside
    the encoder and go on being trained in full. Raises ModelError for impossible settings, a target that
    the model lacks, and a model that has LoRA already.
    """
    chosen = usual_targets(model) if targets is None else tuple(targets)
    insert_lora(model, LoraSettings(rank, alpha, dropout, chosen))
    for _, linear in adapted_modules(model):
        linear.draw()


def insert_lora(model: Bert, settings: LoraSettings) -> None:
    """As `add_lora`, with A and B zero and no random number drawn: for weights that come from a file."""
    if lora_settings(model) is not None:
        raise ModelError("This model has LoRA already. Merge it first (merge_lora).")
    there = targets_of(model)
    lacking = [target for target in settings.targets if target not in there]
    if lacking:
        raise ModelError(
            f"This {model.config.model_type} model has no {lacking[0]} for LoRA to adapt. "
            f"There are: {', '.join(there)}."
        )
    model.requires_grad_(False)
    for path, targets in adaptable(model).items():
        blocks = [target if target in settings.targets else None for target in targets]
        if any(blocks):
            linear = model.get_submodule(path)
            assert isinstance(linear, nn.Linear)
            model.set_submodule(path, LoraLinear(linear, blocks, settings).train(model.training))


def merge_lora(model: Bert) -> None:
    """Puts the low-rank parts into the weights: a plain encoder with the same outputs, all of it trainable.

    Merge a copy to go on training with LoRA afterwards. A model without LoRA stays as it is.
    """
    adapted = list(adapted_modules(model))
    for path, linear in adapted:
        model.set_submodule(path, linear.merged().train(model.training))
    if adapted:
        model.requires_grad_(True)


def lora_tensors(model: Bert) -> dict[str, Tensor]:
    """The added weights alone: `layers.0.attention.qkv.lora_A.query` (r, I), `…lora_B.query` (O, r)."""
    return {
        f"{path}.{name}": tensor
        for path, linear in adapted_modules(model)
        for name, tensor in linear.state_dict().items()
        if name.startswith("lora_")
    }


def lora_settings(model: Bert) -> LoraSettings | None:
    """What LoRA was added with; None for a plain model."""
    return next((linear.settings for _, linear in adapted_modules(model)), None)


def adapted_modules(model: Bert) -> Iterator[tuple[str, LoraLinear]]:
    """Each module with a low-rank part, and its name in the model."""
    return ((path, part) for path, part in model.named_modules() if isinstance(part, LoraLinear))


def adaptable(model: Bert) -> dict[str, tuple[str, ...]]:
    """Each linear module that can be adapted -> the targets of its blocks."""
    pieces = {row.ours: len(row.theirs) for row in model.config.family.adapted_layer}
    places = {
        f"layers.{number}.{module}": targets
        for number in range(len(model.layers))
        for module, ways in _LAYER.items()
        for targets in ways
        if len(targets) == pieces[f"encoder.layers.{{}}.{module}"]
    }
    return places | ({"pooler": ("pooler",)} if model.pooler is not None else {})


def targets_of(model: Bert) -> tuple[str, ...]:
    """What of this model can be adapted."""
    return tuple(dict.fromkeys(target for targets in adaptable(model).values() for target in targets))


def usual_targets(model: Bert) -> tuple[str, ...]:
    """Query and value, or the one module that makes both."""
    return tuple(target for target in _USUAL if target in targets_of(model))


@dataclass(frozen=True)
class Place:
    """Where one adapted module of theirs is in our model: a module, and the target within it."""

    path: str
    target: str

    def ours(self, factor: str) -> str:
        """Our name of its A or B."""
        return f"{self.path}.lora_{factor}.{self.target}"


def save_adapter(
    folder: Path | str,
    model: Bert,
    *,
    heads: Mapping[str, Tensor] | None = None,
    base_model: str | None = None,
    overwrite: bool = False,
) -> None:
    """Writes what LoRA added to `model`, and no weight of the model itself.

    `heads` are tensors trained beside it under Hugging Face's names (`classifier.weight`); PEFT then opens
    the folder on a model with that head, and without them on a bare encoder. `base_model` is noted for
    people and PEFT. Raises ModelError when there is no LoRA or a value is not finite; InputError when the
    folder exists and `overwrite` is False; ResourceError when the disk is full.
    """
    settings = lora_settings(model)
    if settings is None:
        raise ModelError("This model has no LoRA to save: add it first (add_lora), or save the whole model.")
    prefix = "" if heads else model.config.family.prefix + "."
    ours = lora_tensors(model)
    adapted = {  # by the modules' full names in transformers
        name: Place(path, target)
        for path, targets in adaptable(model).items()
        for name, target in zip(adapter_names(f"encoder.{path}", model.config), targets, strict=True)
        if target in settings.targets
    }
    tensors = {
        f"{module.removeprefix(prefix)}.lora_{factor}.weight": ours[place.ours(factor)]
        for module, place in adapted.items()
        for factor in "AB"
    } | dict(heads or {})
    if broken := [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]:
        raise ModelError(f"The adapter was not saved: {listed(broken)} holds values that are not finite.")
    ready = {f"{_ROOT}{name}": tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        # each in full: PEFT compares ends of names, and `output.dense` would be two modules of a layer
        "target_modules": [module.removeprefix(prefix) for module in adapted],
        "modules_to_save": sorted({name.rpartition(".")[0] for name in heads or {}}) or None,
        "base_model_name_or_path": base_model,
        "inference_mode": True,
    }
    with atomic_folder(Path(folder), overwrite=overwrite) as partial:
        with tensors_written_to(partial / ADAPTER_WEIGHTS):
            save_file(ready, partial / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        write_json(partial / ADAPTER_CONFIG, config)


def pooler_tensors(model: Bert) -> dict[str, Tensor]:
    """The pooler under Hugging Face's names, for `heads` of `save_adapter` where it is new."""
    assert model.pooler is not None
    (name,) = adapter_names("encoder.pooler", model.config)
    return {f"{name}.{leaf}": tensor for leaf, tensor in model.pooler.state_dict().items()}

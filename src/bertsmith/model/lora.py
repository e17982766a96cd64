"""LoRA: low-rank products that are trained beside the frozen weights of an encoder (Hu et al. 2021).

N rows, I and O the width of a linear module's input and output, r the rank.

W x becomes W x + alpha / r · B A x, with A (r, I) and B (O, r). B starts at zero, so the model's outputs are
unchanged at first. Query, key and value are one stacked product here. Where the family's class has a module
for each, the low-rank part of the stack is one product too, whose B is block-diagonal, without columns for
blocks that aren't adapted; where the class has one module for all three (ModernBERT), so has LoRA. The
factors stay separate in training: a gradient for W + B A would take the full product of (O, N) and (N, I),
which LoRA avoids.

The added weights are saved as a folder in PEFT's format: a few hundred kilobytes beside the model.
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
from bertsmith.model.untrusted import plain_file, read_settings, read_tensors
from bertsmith.model.weights import adapter_names, listed

# A layer's linear modules and the targets in each: one for each module of the family's class that it is made
# of, since adapters name these.
_LAYER_TARGETS: dict[str, tuple[tuple[str, ...], ...]] = {
    "attention.qkv": (("query", "key", "value"), ("qkv",)),
    "attention.output": (("attention_output",),),
    "feed_forward.up": (("feed_forward_up",), ("feed_forward_gate", "feed_forward_up")),
    "feed_forward.down": (("feed_forward_down",),),
}
_USUAL_TARGETS = ("query", "value", "qkv")  # Hu et al. 2021, section 7.1
TARGETS = tuple(
    dict.fromkeys(
        (
            *(target for choices in _LAYER_TARGETS.values() for targets in choices for target in targets),
            "pooler",
        )
    )
)
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_ROOT = "base_model.model."  # before every name in PEFT's files


@dataclass(frozen=True)
class LoraSettings:
    """The settings of LoRA: rank, alpha, dropout of the low-rank part's input, and the adapted targets.

    Raises ModelError for impossible values: a rank below 1, alpha not above 0, unknown targets.
    """

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

    `blocks` names the target of each block of the output, None for one that isn't adapted. Dropout is applied
    to the input of the low-rank part, once for all blocks. A and B are zero until they are drawn or loaded.
    """

    def __init__(self, linear: nn.Linear, blocks: Sequence[str | None], settings: LoraSettings) -> None:
        nn.Module.__init__(self)  # not Linear's, which would draw weights
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
        """The matrices A of the P adapted blocks, stacked by rows: (P r, I)."""
        return torch.cat([self.lora_A[block] for block in self.blocks if block])

    def stacked_b(self) -> Tensor:
        """The matrices B of all blocks as a block-diagonal matrix (O, P r)."""
        nothing = self.weight.new_zeros(self.rows, 0)
        blocks = (self.lora_B[block] if block else nothing for block in self.blocks)
        stacked: Tensor = torch.block_diag(*blocks)
        return stacked

    @torch.no_grad()
    def draw(self) -> None:
        """Draws A as Hu et al.'s code and PEFT do, from Kaiming's uniform distribution within ±1 / sqrt(I),
        and sets B to zero.
        """
        bound = 1 / math.sqrt(self.in_features)
        for a in self.lora_A.values():
            a.uniform_(-bound, bound)
        for b in self.lora_B.values():
            b.zero_()

    @torch.no_grad()
    def merge(self) -> nn.Linear:
        """A plain linear module with the same outputs."""
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

    The outputs stay the same until training changes B. A is drawn from torch's generator. Heads are outside
    the encoder and are still trained in full. Raises ModelError for impossible settings, a target that
    the model lacks, and a model that has LoRA already.
    """
    chosen_targets = usual_targets(model) if targets is None else tuple(targets)
    insert_lora(model, LoraSettings(rank, alpha, dropout, chosen_targets))
    for _, linear in adapted_modules(model):
        linear.draw()


def insert_lora(model: Bert, settings: LoraSettings) -> None:
    """Adds LoRA as `add_lora` does, but with A and B zero and without drawing random numbers, for weights
    that are loaded from a file. Raises ModelError as `add_lora` does.
    """
    if lora_settings(model) is not None:
        raise ModelError("This model has LoRA already. Merge it first (merge_lora).")
    available = targets_of(model)
    lacking = [target for target in settings.targets if target not in available]
    if lacking:
        raise ModelError(
            f"This {model.config.model_type} model has no {lacking[0]} for LoRA to adapt. "
            f"There are: {', '.join(available)}."
        )
    model.requires_grad_(False)
    for path, targets in adaptable_modules(model).items():
        blocks = [target if target in settings.targets else None for target in targets]
        if any(blocks):
            linear = model.get_submodule(path)
            assert isinstance(linear, nn.Linear)
            model.set_submodule(path, LoraLinear(linear, blocks, settings).train(model.training))


def merge_lora(model: Bert) -> None:
    """Adds the low-rank parts to the weights: the model is then a plain encoder with the same outputs, and
    all of it is trainable.

    To go on training with LoRA afterwards, merge a copy. A model without LoRA stays as it is.
    """
    adapted = list(adapted_modules(model))
    for path, linear in adapted:
        model.set_submodule(path, linear.merge().train(model.training))
    if adapted:
        model.requires_grad_(True)


def lora_tensors(model: Bert) -> dict[str, Tensor]:
    """The added weights alone: `layers.0.attention.qkv.lora_A.query` (r, I), `…lora_B.query` (rows of the
    query, r).
    """
    return {
        f"{path}.{name}": tensor
        for path, linear in adapted_modules(model)
        for name, tensor in linear.state_dict().items()
        if name.startswith("lora_")
    }


def lora_settings(model: Bert) -> LoraSettings | None:
    """The settings of the model's LoRA; None for a plain model."""
    return next((linear.settings for _, linear in adapted_modules(model)), None)


def adapted_modules(model: Bert) -> Iterator[tuple[str, LoraLinear]]:
    """The modules with a low-rank part, and their names in the model."""
    return ((path, part) for path, part in model.named_modules() if isinstance(part, LoraLinear))


def adaptable_modules(model: Bert) -> dict[str, tuple[str, ...]]:
    """The targets of the blocks of each linear module that can be adapted, by the module's name."""
    counts = {row.ours: len(row.theirs) for row in model.config.family.adapted_layer}
    modules = {
        f"layers.{number}.{module}": targets
        for number in range(len(model.layers))
        for module, choices in _LAYER_TARGETS.items()
        for targets in choices
        if len(targets) == counts[f"encoder.layers.{{}}.{module}"]
    }
    return modules | ({"pooler": ("pooler",)} if model.pooler is not None else {})


def targets_of(model: Bert) -> tuple[str, ...]:
    """The targets that this model has."""
    return tuple(dict.fromkeys(target for targets in adaptable_modules(model).values() for target in targets))


def usual_targets(model: Bert) -> tuple[str, ...]:
    """The default targets: query and value, or the one module that makes both."""
    return tuple(target for target in _USUAL_TARGETS if target in targets_of(model))


@dataclass(frozen=True)
class AdaptedModule:
    """An adapted module of transformers' class, as the name of our module and the target in it."""

    path: str
    target: str

    def ours(self, factor: str) -> str:
        """Our name of the module's factor A or B."""
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

    `heads` are the tensors of heads that were trained with it, under Hugging Face's names
    (`classifier.weight`): with them PEFT opens the folder on a model with that head, without them on a bare
    encoder. `base_model` is written for readers and PEFT. Raises ModelError when there is no LoRA or a value
    is not finite; InputError when the folder exists and `overwrite` is False; ResourceError when the disk is
    full.
    """
    settings = lora_settings(model)
    if settings is None:
        raise ModelError("This model has no LoRA to save: add it first (add_lora), or save the whole model.")
    prefix = "" if heads else model.config.family.prefix + "."
    ours = lora_tensors(model)
    adapted = {  # by the modules' full names in transformers
        name: AdaptedModule(path, target)
        for path, targets in adaptable_modules(model).items()
        for name, target in zip(adapter_names(f"encoder.{path}", model.config), targets, strict=True)
        if target in settings.targets
    }
    tensors = {
        f"{name.removeprefix(prefix)}.lora_{factor}.weight": ours[module.ours(factor)]
        for name, module in adapted.items()
        for factor in "AB"
    } | dict(heads or {})
    if broken := [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]:
        raise ModelError(f"The adapter was not saved: {listed(broken)} holds values that are not finite.")
    renamed = {f"{_ROOT}{name}": tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        # full names, since PEFT compares the ends of names: `output.dense` would be two modules of a layer
        "target_modules": [name.removeprefix(prefix) for name in adapted],
        "modules_to_save": sorted({name.rpartition(".")[0] for name in heads or {}}) or None,
        "base_model_name_or_path": base_model,
        "inference_mode": True,
    }
    with atomic_folder(Path(folder), overwrite=overwrite) as partial:
        with tensors_written_to(partial / ADAPTER_WEIGHTS):
            save_file(renamed, partial / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        write_json(partial / ADAPTER_CONFIG, config)


def read_adapter(folder: Path, model: Bert) -> dict[str, Tensor]:
    """Adds the low-rank parts in a folder of `save_adapter` to a model, and returns the other tensors of the
    folder, those of heads, under Hugging Face's names. Raises ModelError for a folder that doesn't fit.
    """
    settings = read_settings(plain_file(folder, ADAPTER_CONFIG))
    tensors = {
        name.removeprefix(_ROOT): tensor
        for name, tensor in read_tensors(plain_file(folder, ADAPTER_WEIGHTS)).items()
    }
    prefix = model.config.family.prefix + "."
    modules = {
        name.removeprefix(without): AdaptedModule(path, target)
        for path, targets in adaptable_modules(model).items()
        for name, target in zip(adapter_names(f"encoder.{path}", model.config), targets, strict=True)
        for without in ("", prefix)
    }
    parts = {name: tensor for name, tensor in tensors.items() if ".lora_" in name}
    found = dict[str, Tensor]()
    for name, tensor in parts.items():
        module, _, factor = name.removesuffix(".weight").rpartition(".lora_")
        if module not in modules or factor not in "AB":
            raise ModelError(
                f"{folder}: {name} belongs to no module of this {model.config.model_type} model."
            )
        found[modules[module].ours(factor)] = tensor.float()
    targets = dict.fromkeys(module.target for module in modules.values() if module.ours("A") in found)
    try:
        insert_lora(model, LoraSettings(settings["r"], settings["lora_alpha"], 0.0, tuple(targets)))
    except (KeyError, TypeError) as error:
        raise ModelError(f"{folder}/{ADAPTER_CONFIG} has no usable r and lora_alpha.") from error
    expected = lora_tensors(model)
    if {name: tensor.shape for name, tensor in expected.items()} != {
        name: tensor.shape for name, tensor in found.items()
    }:
        raise ModelError(
            f"{folder}: its tensors don't fit the model {settings.get('base_model_name_or_path')}."
        )
    if broken := [name for name, tensor in found.items() if not bool(tensor.isfinite().all())]:
        raise ModelError(f"{folder}: {listed(broken)} holds values that are not finite.")
    with torch.no_grad():
        for name, tensor in expected.items():
            tensor.copy_(found[name])
    return {name: tensor for name, tensor in tensors.items() if name not in parts}


def pooler_tensors(model: Bert) -> dict[str, Tensor]:
    """The pooler's tensors under Hugging Face's names, for `heads` of `save_adapter` where the pooler is
    new.
    """
    assert model.pooler is not None
    (name,) = adapter_names("encoder.pooler", model.config)
    return {f"{name}.{leaf}": tensor for leaf, tensor in model.pooler.state_dict().items()}

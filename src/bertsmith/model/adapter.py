"""LoRA's added weights as a folder in PEFT's format: a few hundred kilobytes beside the model they belong to.

adapter_config.json         rank, alpha, targets; read by an allow-list
adapter_model.safetensors   A and B of each adapted module, and heads trained beside them

`peft.PeftModel.from_pretrained(model, folder)` opens what is written here, and adapters that PEFT has written
for a model of a known family open here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import save_file
from torch import Tensor

from bertsmith.errors import ModelError
from bertsmith.files import atomic_folder, tensors_written_to, write_json
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig
from bertsmith.model.families import Family
from bertsmith.model.lora import (
    LoraSettings,
    adaptable,
    insert_lora,
    lora_settings,
    lora_tensors,
)
from bertsmith.model.untrusted import plain_file, read_settings, read_tensors
from bertsmith.model.weights import adapter_names, listed
from bertsmith.validation import first_problem

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

_ROOT = "base_model.model."  # before every name in PEFT's files
_MAX_RANK = 65_536

# Keys of adapter_config.json that say where an adapter came from, or belong to what `AdapterConfig` refuses.
# A base model named here is never looked for.
_HARMLESS = frozenset(
    (
        *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode"),
        *("peft_version", "megatron_core", "qalora_group_size", "runtime_config"),
    )
)
_Off = Literal[False]
_Empty = Annotated[dict[str, Any], Field(max_length=0)]


class AdapterConfig(BaseModel):
    """What of PEFT's LoRA we compute; a key that asks for more is refused, by its value or as unknown."""

    model_config = ConfigDict(extra="forbid", strict=True)

    peft_type: Literal["LORA"]
    r: int = Field(ge=1, le=_MAX_RANK)
    lora_alpha: float
    lora_dropout: float = 0.0
    target_modules: list[str]
    modules_to_save: list[str] = []
    bias: Literal["none"] = "none"
    init_lora_weights: Literal[True, False, "gaussian"] = True  # others change the base model as well
    fan_in_fan_out: _Off = False
    use_rslora: _Off = False
    use_dora: _Off = False
    use_qalora: _Off = False
    lora_bias: _Off = False
    ensure_weight_tying: _Off = False
    rank_pattern: _Empty = {}
    alpha_pattern: _Empty = {}
    loftq_config: _Empty = {}


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
    replace: bool = False,
) -> None:
    """Writes what LoRA added to `model`, and no weight of the model itself.

    `heads` are tensors trained beside it under Hugging Face's names (`classifier.weight`); PEFT then opens
    the folder on a model with that head, and without them on a bare encoder. `base_model` is noted for
    people and PEFT. Raises ModelError when there is no LoRA or a value is not finite; InputError when the
    folder exists and `replace` is False; ResourceError when the disk is full.
    """
    settings = lora_settings(model)
    if settings is None:
        raise ModelError("This model has no LoRA to save: add it first (add_lora), or save the whole model.")
    prefix = "" if heads else model.config.family.prefix + "."
    ours, places = lora_tensors(model), _places(model)
    adapted = {name: place for name, place in places.items() if place.target in settings.targets}
    tensors = {
        f"{module.removeprefix(prefix)}.lora_{factor}.weight": ours[place.ours(factor)]
        for module, place in adapted.items()
        for factor in "AB"
    } | dict(heads or {})
    _require_finite(tensors, "The adapter was not saved")
    ready = {f"{_ROOT}{name}": tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    config = AdapterConfig(
        peft_type="LORA",
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        # each in full: PEFT compares ends of names, and `output.dense` would be two modules of a layer
        target_modules=[module.removeprefix(prefix) for module in adapted],
        modules_to_save=sorted({name.rpartition(".")[0] for name in heads or {}}),
    )
    written = config.model_dump(exclude_defaults=True) | {
        "base_model_name_or_path": base_model,
        "inference_mode": True,
    }
    with atomic_folder(Path(folder), replace=replace) as partial:
        with tensors_written_to(partial / ADAPTER_WEIGHTS):
            save_file(ready, partial / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        write_json(partial / ADAPTER_CONFIG, written)


def pooler_tensors(model: Bert) -> dict[str, Tensor]:
    """The pooler under Hugging Face's names, for `heads` of `save_adapter` where it is new."""
    assert model.pooler is not None
    (name,) = adapter_names("encoder.pooler", model.config)
    return {f"{name}.{leaf}": tensor for leaf, tensor in model.pooler.state_dict().items()}


def load_adapter(folder: Path | str, model: Bert) -> dict[str, Tensor]:
    """Adds the LoRA of a folder to a plain model and returns the heads in it, under the file's names.

    Strict: raises ModelError naming what is missing, unexpected, mis-shaped or not finite, and settings that
    we do not compute; the model is then unchanged. The encoder is frozen, the added weights can be trained
    on.
    """
    folder = Path(folder)
    config = _read_config(folder)
    where = f"{folder}/{ADAPTER_WEIGHTS}"
    places = _places(model)
    wanted = {name: place for name, place in places.items() if _is_target(name, config)}
    settings = _settings(config, wanted, places, where)
    expected = {
        f"{name}.lora_{factor}": place.ours(factor) for name, place in wanted.items() for factor in "AB"
    }
    found, heads = _sort_out(_read_weights(folder), expected, config, model.config, where)
    _check(found, heads, _shapes(model, wanted, settings.rank), where)
    insert_lora(model, settings)
    model.load_state_dict({expected[name]: tensor for name, tensor in found.items()}, strict=False)
    return heads


def _places(model: Bert) -> dict[str, Place]:
    """Every module that can be adapted, by its full name in transformers."""
    return {
        name: Place(path, target)
        for path, targets in adaptable(model).items()
        for name, target in zip(adapter_names(f"encoder.{path}", model.config), targets, strict=True)
    }


def _read_config(folder: Path) -> AdapterConfig:
    """A key with the value null asks for nothing and is skipped."""
    path = plain_file(folder, ADAPTER_CONFIG)
    values = {
        key: value for key, value in read_settings(path).items() if value is not None and key not in _HARMLESS
    }
    try:
        return AdapterConfig.model_validate(values)
    except ValidationError as error:
        raise ModelError(
            f"{path}: {first_problem(error, AdapterConfig)} Bertsmith opens plain LoRA adapters, with "
            "modules by name."
        ) from error


def _read_weights(folder: Path) -> dict[str, Tensor]:
    if not (folder / ADAPTER_WEIGHTS).exists() and (folder / "adapter_model.bin").exists():
        raise ModelError(
            f"{folder} holds an adapter_model.bin, a format that can run code. Save the adapter again with a "
            "newer PEFT, which writes safetensors."
        )
    return read_tensors(plain_file(folder, ADAPTER_WEIGHTS))


def _is_target(module: str, config: AdapterConfig) -> bool:
    """PEFT's rule: the end of a module's name, unless the module is saved whole."""
    if any(_within(module, saved) for saved in config.modules_to_save):
        return False
    return any(f".{module}".endswith(f".{name}") for name in config.target_modules)


def _is_head(module: str, family: Family, config: AdapterConfig) -> bool:
    """Saved whole, and not a piece of the encoder: which would be a changed base model."""
    rows = (*family.encoder, *family.layer, *family.class_layer)
    encoder = {name.partition(".")[0] for row in rows if row.ours != "encoder.pooler" for name in row.theirs}
    first = module.removeprefix(f"{family.prefix}.").partition(".")[0]
    return first not in encoder and any(_within(module, saved) for saved in config.modules_to_save)


def _within(name: str, module: str) -> bool:
    return f".{module}." in f".{name}."


def _settings(
    config: AdapterConfig, wanted: Mapping[str, Place], places: Mapping[str, Place], where: str
) -> LoraSettings:
    targets = dict.fromkeys(place.target for place in wanted.values())
    left_out = [name for name, place in places.items() if place.target in targets and name not in wanted]
    if not wanted or left_out:
        found = f"leaves out {listed(left_out)}" if left_out else f"names {listed(config.target_modules)}"
        raise ModelError(
            f"{where}: target_modules must name modules of this encoder, the same in every layer; it {found}."
        )
    return LoraSettings(config.r, config.lora_alpha, config.lora_dropout, tuple(targets))


def _sort_out(
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, str],
    config: AdapterConfig,
    shape: BertConfig,
    where: str,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A and B under `MODULE.lora_A`, MODULE with its family's prefix; heads under their own names."""
    prefix = shape.family.prefix + "."
    found: dict[str, Tensor] = {}
    heads: dict[str, Tensor] = {}
    unexpected = []
    for name, tensor in tensors.items():
        short = name.removeprefix(_ROOT)
        module = f"{prefix}{short.removeprefix(prefix)}".removesuffix(".weight")
        if not name.startswith(_ROOT):
            unexpected.append(name)
        elif module in expected and module not in found:
            found[module] = tensor
        elif _is_head(module, shape.family, config):
            heads[short] = tensor
        else:
            unexpected.append(name)
    if unexpected:
        raise ModelError(
            f"{where} holds tensors that its {ADAPTER_CONFIG} and this encoder don't account for: "
            f"{listed(unexpected)}. Use an adapter and a model that belong together."
        )
    return found, heads


def _shapes(model: Bert, wanted: Mapping[str, Place], rank: int) -> dict[str, tuple[int, int]]:
    """The shape of each A and B, before anything is allocated."""
    shapes = {}
    for name, place in wanted.items():
        weight = model.get_submodule(place.path).weight
        assert isinstance(weight, Tensor)
        rows = weight.shape[0] // len(adaptable(model)[place.path])
        shapes[f"{name}.lora_A"] = (rank, weight.shape[1])
        shapes[f"{name}.lora_B"] = (rows, rank)
    return shapes


def _check(
    found: Mapping[str, Tensor],
    heads: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, int]],
    where: str,
) -> None:
    missing = shapes.keys() - found.keys()
    if missing:
        raise ModelError(f"{where} lacks {listed(missing)}. It may have been cut, or is for a larger model.")
    for name, shape in shapes.items():
        if found[name].shape != shape:
            raise ModelError(
                f"{where}: {name} must have the shape {shape}, found {tuple(found[name].shape)}. "
                "Use an adapter that was trained on a model of this size."
            )
    _require_finite({**found, **heads}, where)


def _require_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    integers = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]
    if integers:
        raise ModelError(f"{where}: {listed(integers)} must hold floating-point numbers.")
    broken = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    if broken:
        raise ModelError(f"{where}: {listed(broken)} holds values that are not finite.")

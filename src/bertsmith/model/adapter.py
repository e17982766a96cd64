"""LoRA's added weights as a folder in PEFT's format: a few hundred kilobytes beside the model they belong to.

adapter_config.json         rank, alpha, targets
adapter_model.safetensors   A and B of each adapted module, and heads trained beside them

`peft.PeftModel.from_pretrained(model, folder)` opens what is written here. Nothing here reads it again: a run
saves the whole model too, with the adapter merged into it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from bertsmith.errors import ModelError
from bertsmith.files import atomic_folder, tensors_written_to, write_json
from bertsmith.model.bert import Bert
from bertsmith.model.lora import adaptable, lora_settings, lora_tensors
from bertsmith.model.weights import adapter_names, listed

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

_ROOT = "base_model.model."  # before every name in PEFT's files


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
    ours, places = lora_tensors(model), _places(model)
    adapted = {name: place for name, place in places.items() if place.target in settings.targets}
    tensors = {
        f"{module.removeprefix(prefix)}.lora_{factor}.weight": ours[place.ours(factor)]
        for module, place in adapted.items()
        for factor in "AB"
    } | dict(heads or {})
    _require_finite(tensors, "The adapter was not saved")
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


def _places(model: Bert) -> dict[str, Place]:
    """Every module that can be adapted, by its full name in transformers."""
    return {
        name: Place(path, target)
        for path, targets in adaptable(model).items()
        for name, target in zip(adapter_names(f"encoder.{path}", model.config), targets, strict=True)
    }


def _require_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    broken = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    if broken:
        raise ModelError(f"{where}: {listed(broken)} holds values that are not finite.")

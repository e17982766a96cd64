"""What sentence-transformers writes of a cross-encoder: what it is, and what becomes of its outputs.

config_sentence_transformers.json   version 6: model_type and activation_fn, beside a modules.json
config.json                         before: activation_fn in sentence_transformers (4 and 5), or the older
                                    sbert_ce_default_activation_function
"""

import re
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertsmith.errors import ModelError
from bertsmith.model.untrusted import plain_file, read_settings

KEYS = ("sentence_transformers", "sbert_ce_default_activation_function")
_MODULES = "modules.json"
_SAID = "config_sentence_transformers.json"
_OF_TORCH = re.compile(r"torch\.nn\.(?:modules\.\w+\.)?(\w+)")


def makes_vectors(folder: Path) -> bool:
    """Whether modules.json says how texts become vectors: a cross-encoder has one too, and gives none."""
    return (folder / _MODULES).exists() and _said(folder).get("model_type") != "CrossEncoder"


def is_cross_encoder(folder: Path) -> bool:
    """Whether sentence-transformers wrote the folder, and not for vectors."""
    if (folder / _MODULES).exists():
        return not makes_vectors(folder)
    config = folder / "config.json"
    return config.exists() and any(key in read_settings(plain_file(folder, config.name)) for key in KEYS)


def refuse_activations(values: Mapping[str, Any], where: str) -> None:
    """Of a config.json. Raises ModelError for a function that would change what the outputs say."""
    for activation in _activations(values):
        _refuse(activation, _outputs(values), where)


def refuse_activation(folder: Path, outputs: int) -> None:
    """Of a folder of version 6. Raises as `refuse_activations` does."""
    if (folder / _MODULES).exists() and not makes_vectors(folder):
        _refuse(_said(folder).get("activation_fn"), outputs, str(folder / _SAID))


def _said(folder: Path) -> dict[str, Any]:
    return read_settings(plain_file(folder, _SAID)) if (folder / _SAID).exists() else {}


def _activations(values: Mapping[str, Any]) -> Iterator[Any]:
    newer, older = (values.get(key) for key in KEYS)
    yield newer.get("activation_fn") if isinstance(newer, dict) else newer
    yield older


def _outputs(values: Mapping[str, Any]) -> int:
    """As transformers counts them: two where nothing is said."""
    names, number = values.get("id2label"), values.get("num_labels")
    if isinstance(names, dict):
        return len(names)
    return number if isinstance(number, int) else 2


def _refuse(activation: Any, outputs: int, where: str) -> None:
    """Identity changes nothing, and by a sigmoid a single score keeps its order."""
    if activation is None:
        return
    found = _OF_TORCH.fullmatch(activation) if isinstance(activation, str) else None
    name = found[1] if found else None
    if name == "Identity" or (name == "Sigmoid" and outputs == 1):
        return
    raise ModelError(
        f"{where}: this cross-encoder puts its {outputs} output{'s' if outputs != 1 else ''} through "
        f"{reprlib.repr(activation)}, which Bertsmith doesn't have. Expected torch's Identity, or its "
        "Sigmoid of one output. Use another model."
    )

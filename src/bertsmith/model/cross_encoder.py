"""What sentence-transformers says of a cross-encoder: what becomes of its outputs, what stands before a pair.

config_sentence_transformers.json   version 6: model_type, activation_fn and prompts, beside a modules.json
config.json                         before: activation_fn in sentence_transformers (4 and 5), or the older
                                    sbert_ce_default_activation_function
"""

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import ModelError
from bertsmith.model.folder_keys import ACTIVATIONS, CONFIG, SENTENCE_TRANSFORMERS
from bertsmith.model.untrusted import plain_file, read_settings

_MODULES = "modules.json"
_OF_TORCH = re.compile(r"torch\.nn\.(?:modules\.\w+\.)?(\w+)")


@dataclass(frozen=True)
class CrossEncoder:
    """`has_sigmoid`: its one output is put through a sigmoid. `prompt` stands before a pair's first text."""

    has_sigmoid: bool
    prompt: str


def makes_vectors(folder: Path) -> bool:
    """Whether modules.json says how texts become vectors: a cross-encoder has one too, and gives none."""
    return (folder / _MODULES).exists() and read_sentence_config(folder).get("model_type") != "CrossEncoder"


def is_cross_encoder(folder: Path) -> bool:
    """Whether sentence-transformers wrote the folder, and not for vectors."""
    if (folder / _MODULES).exists():
        return not makes_vectors(folder)
    config = folder / CONFIG.file
    settings = read_settings(plain_file(folder, config.name)) if config.exists() else {}
    return any(settings.get(key) for key in ACTIVATIONS)


def read_sentence_config(folder: Path) -> dict[str, Any]:
    """What config_sentence_transformers.json says; nothing where there is none. Raises ModelError."""
    if not (folder / SENTENCE_TRANSFORMERS.file).exists():
        return {}
    path = plain_file(folder, SENTENCE_TRANSFORMERS.file)
    settings = read_settings(path)
    SENTENCE_TRANSFORMERS.require(settings, str(path))
    return settings


def read_prompts(folder: Path) -> dict[str, str]:
    """By name: what stands before a text of some kind. Raises ModelError for what are no prompts, and for a
    `default_prompt_name` that is none, as sentence-transformers refuses it.
    """
    config, path = read_sentence_config(folder), folder / SENTENCE_TRANSFORMERS.file
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(each, str | None) for each in prompts.values()):
        raise ModelError(
            f"{path}: prompts must be texts by their names, found {reprlib.repr(prompts)}. It may have been "
            "altered."
        )
    if default is not None and default not in ("query", "document", *prompts):
        raise ModelError(
            f"{path}: default_prompt_name is {str(default)[:80]!r}, but the prompts are "
            f"{', '.join(dict.fromkeys(('query', 'document', *prompts)))}. It may have been altered."
        )
    return {name: text for name, text in prompts.items() if text is not None}


def read_default_prompt(folder: Path) -> str:
    """What stands before a text of no kind. Raises ModelError as `read_prompts` does."""
    return read_prompts(folder).get(read_sentence_config(folder).get("default_prompt_name") or "", "")


def read_cross_encoder(folder: Path, config: Mapping[str, Any], outputs: int) -> CrossEncoder | None:
    """Of a model's `config`.json with so many outputs; None where nothing says that it is a cross-encoder.

    Without a function for its outputs sentence-transformers takes a sigmoid of one, and changes several not.
    Raises ModelError for another function.
    """
    if not is_cross_encoder(folder):
        return None
    said = read_sentence_config(folder) if (folder / _MODULES).exists() else {}
    newer, older = (config.get(key) for key in ACTIVATIONS)
    newer = newer.get("activation_fn") if isinstance(newer, Mapping) else newer
    named = next(filter(None, (said.get("activation_fn"), newer, older)), None)
    name = _name_in_torch(named)
    if name not in ("Identity", "Sigmoid") or (name == "Sigmoid" and outputs > 1):
        if named is not None:
            what = "1 output" if outputs == 1 else f"{outputs} outputs"
            raise ModelError(
                f"{folder}: this cross-encoder puts its {what} through "
                f"{reprlib.repr(named)}, which Bertsmith doesn't have. Expected torch's Identity, or its "
                "Sigmoid of one output. Use another model."
            )
        name = "Sigmoid" if outputs == 1 else "Identity"
    return CrossEncoder(name == "Sigmoid", read_default_prompt(folder) if said else "")


def _name_in_torch(activation: Any) -> str:
    match = _OF_TORCH.fullmatch(activation) if isinstance(activation, str) else None
    return match[1] if match else ""

"""What sentence-transformers says of a model, in its files: what makes an embedding model of an encoder, from
one folder to another; what becomes of a cross-encoder's outputs, and what stands before a pair.

modules.json and the folders of its parts (1_Pooling, 2_Dense, …), the longest text, small letters, prompts.
What they mean is read by `tasks/checkpoints/sentence_folder.py`; here they are only kept, weights as
safetensors.
"""

import re
import reprlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from bertsmith.errors import ModelError
from bertsmith.files import read_json, write_json
from bertsmith.model.checkpoint import WEIGHTS
from bertsmith.model.folder_keys import ACTIVATIONS, CONFIG, SENTENCE_TRANSFORMERS, TOKENIZER_CONFIG
from bertsmith.model.locate import SENTENCE_SETTINGS
from bertsmith.model.untrusted import plain_file, read_settings, read_small_json

MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_OLD_ENCODERS = ("BERT", "RoBERTa", "DistilBERT")  # sentence-transformers before 0.4: a module a family
_OLD_WEIGHTS = "pytorch_model.bin"
_MODULES = "modules.json"
_OF_TORCH = re.compile(r"torch\.nn\.(?:modules\.\w+\.)?(\w+)")


def encoder_folder(folder: Path) -> Path:
    """Where an embedding model has its encoder: `folder` itself or, as first versions left it, one deeper.

    Raises ModelError for a modules.json that isn't one.
    """
    inside = [module["path"] for module in _modules(folder) if _is_encoder(module)]
    return folder / inside[0] if inside else folder


def copy_sentence_files(source: Path, out: Path, read_weights: Callable[[Path], dict[str, Tensor]]) -> None:
    """All of them into `out`, whose encoder lies in `out` itself; of a plain encoder its longest text alone.

    `read_weights` reads a part's weights of old, which become safetensors. Raises ModelError for a part's
    file that can't be carried: without it the vectors would be others.
    """
    encoder = encoder_folder(source)
    for folder, names in ((source, (MODULES, _PROMPTS)), (encoder, SENTENCE_SETTINGS)):
        for name in names:
            if (folder / name).exists():
                shutil.copyfile(plain_file(folder, name), out / name)
    modules, todays = _modules(source), []
    for module in modules:
        if _is_encoder(module):  # in the folder itself, by the one name that those of all families have now
            is_old = str(module["type"]).rpartition(".")[2] in _OLD_ENCODERS
            named = {"type": "sentence_transformers.models.Transformer"} if is_old else {}
            todays.append(module | named | {"path": ""})
            continue
        if module["path"]:
            _copy_part(source, module["path"], out, read_weights)
        todays.append(module)
    if todays != modules:
        write_json(out / MODULES, todays)
    keep_longest(encoder, out)


def keep_longest(encoder: Path, out: Path) -> None:
    """Where its tokenizer cuts, if the model has positions for more: as many are what was saved."""
    before, after = (folder / TOKENIZER_CONFIG.file for folder in (encoder, out))
    if not (before.exists() and after.exists()):
        return
    said, settings = read_settings(plain_file(encoder, before.name)), read_json(after)
    limits = (said.get(key) for key in ("model_max_length", "max_len"))  # the latter before transformers 3
    longest = next((limit for limit in limits if limit is not None), None)
    if type(longest) is int and 0 < longest < settings["model_max_length"]:
        write_json(after, settings | {"model_max_length": longest})


def _copy_part(source: Path, name: str, out: Path, read_weights: Callable[[Path], dict[str, Tensor]]) -> None:
    """Git and the hub keep no empty folders: where a part has none, it has no files."""
    (out / name).mkdir()
    files = sorted((source / name).iterdir()) if (source / name).is_dir() else []
    is_safe = (source / name / WEIGHTS).exists()
    for file in files:
        path = plain_file(source / name, file.name)
        if file.name == _OLD_WEIGHTS and not is_safe:
            tensors = {key: tensor.contiguous() for key, tensor in read_weights(path).items()}
            save_file(tensors, out / name / WEIGHTS, metadata={"format": "pt"})
        elif file.suffix in (".json", ".safetensors"):
            shutil.copyfile(path, out / name / file.name)
        elif file.name != _OLD_WEIGHTS:
            raise ModelError(
                f"{path} belongs to a part of an embedding model that can't be carried over: expected .json, "
                f"{WEIGHTS} or {_OLD_WEIGHTS}. If its vectors don't need the file, remove it and try again."
            )


def _modules(folder: Path) -> list[dict[str, Any]]:
    """The parts in their order; none of a plain encoder."""
    if not (folder / MODULES).exists():
        return []
    path = plain_file(folder, MODULES)
    found = read_small_json(path)
    if not isinstance(found, list) or not all(map(_is_module, found)):
        raise ModelError(
            f"{path} is not a list of parts, each with its type and a folder beside it. It may have been "
            "altered."
        )
    return found


def _is_module(found: object) -> bool:
    return (
        isinstance(found, dict)
        and isinstance(found.get("type"), str)
        and isinstance(found.get("path"), str)
        and re.fullmatch(r"[\w-]*", found["path"]) is not None
    )


def _is_encoder(module: dict[str, Any]) -> bool:
    return str(module["type"]).rpartition(".")[2] in ("Transformer", *_OLD_ENCODERS)


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
    if not isinstance(prompts, dict) or not all(
        isinstance(prompt, str | None) for prompt in prompts.values()
    ):
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
    in_torch = _OF_TORCH.fullmatch(named) if isinstance(named, str) else None
    name = in_torch[1] if in_torch else ""
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

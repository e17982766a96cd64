"""sentence-transformers' files in a model folder: copying those of an embedding model, and reading prompts
and the settings of a cross-encoder.

These are modules.json with the folders of its modules (1_Pooling, 2_Dense, …), the maximum length,
lower-casing, and prompts. `tasks/checkpoints/sentence_folder.py` interprets modules; here they are only
copied, with weights converted to safetensors.
"""

import re
import reprlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.errors import ModelError
from bertsmith.files import read_json, write_json
from bertsmith.model.folder_keys import ACTIVATIONS, CONFIG, SENTENCE_TRANSFORMERS, TOKENIZER_CONFIG
from bertsmith.model.locate import SENTENCE_SETTINGS
from bertsmith.model.untrusted import WEIGHTS, plain_file, read_settings, read_small_json

if TYPE_CHECKING:
    from torch import Tensor

    from bertsmith.text.tokens.tokenizer import Tokenizer

MODULES = "modules.json"
LONGEST = 512  # tokens of a text where a static table's folder gives no maximum, as in model2vec
NO_LIMIT = 1_000_000  # tokens; a table has no positions that would limit a text
MODEL2VEC = "model2vec"
STATIC_MODULE = "StaticEmbedding"
STATIC_NORMALIZE = "Normalize"
PACKAGE = "sentence_transformers."  # the prefix of modules that aren't custom code in the folder
_PROMPTS = "config_sentence_transformers.json"
_OLD_ENCODERS = (
    "BERT",
    "RoBERTa",
    "DistilBERT",
)  # sentence-transformers before 0.4 had a module for each family
_OLD_WEIGHTS = "pytorch_model.bin"
_OF_FILE_MANAGERS = ("desktop.ini", "Thumbs.db", ".DS_Store")  # left by Windows and macOS
_MODULES = "modules.json"
_TORCH_MODULE = re.compile(r"torch\.nn\.(?:modules\.\w+\.)?(\w+)")


def source_encoder_folder(folder: Path) -> Path:
    """The encoder's folder in an embedding model: `folder` itself or, from first versions, a folder in it.

    Raises ModelError for a damaged modules.json.
    """
    paths = [module["path"] for module in _read_modules(folder) if _is_encoder(module)]
    return folder / paths[0] if paths else folder


def copy_sentence_files(source: Path, out: Path, read_weights: "Callable[[Path], dict[str, Tensor]]") -> None:
    """Copies sentence-transformers' files from `source` to `out`, where the encoder is in `out` itself. For a
    plain encoder only the maximum length is taken over.

    `read_weights` reads a module's weights in old formats, which are written as safetensors. Raises
    ModelError for a module's file that can't be copied, since without it the vectors would differ.
    """
    encoder = source_encoder_folder(source)
    for folder, names in ((source, (MODULES, _PROMPTS)), (encoder, SENTENCE_SETTINGS)):
        for name in names:
            if (folder / name).exists():
                shutil.copyfile(plain_file(folder, name), out / name)
    modules, new_modules = _read_modules(source), []
    for module in modules:
        if _is_encoder(module):  # moves to the folder itself, under today's class for all families
            is_old = str(module["type"]).rpartition(".")[2] in _OLD_ENCODERS
            new_type = {"type": "sentence_transformers.models.Transformer"} if is_old else {}
            new_modules.append(module | new_type | {"path": ""})
            continue
        if module["path"]:
            _copy_module(source, module["path"], out, read_weights)
        new_modules.append(module)
    if new_modules != modules:
        write_json(out / MODULES, new_modules)
    keep_lower_max_length(encoder, out)


def keep_lower_max_length(encoder: Path, out: Path) -> None:
    """Takes over the length to which the encoder's tokenizer cuts texts, where it is below the one
    in `out`.
    """
    before, after = (folder / TOKENIZER_CONFIG.file for folder in (encoder, out))
    if not (before.exists() and after.exists()):
        return
    old_settings, settings = read_settings(plain_file(encoder, before.name)), read_json(after)
    # max_len is the key before transformers 3
    limits = (old_settings.get(key) for key in ("model_max_length", "max_len"))
    longest = next((limit for limit in limits if limit is not None), None)
    if type(longest) is int and 0 < longest < settings["model_max_length"]:
        write_json(after, settings | {"model_max_length": longest})


def has_legacy_modules(source: Path) -> bool:
    """Whether a module behind the encoder has its weights in the old format alone."""
    folders = [source / module["path"] for module in _read_modules(source) if not _is_encoder(module)]
    return any(
        (folder / _OLD_WEIGHTS).exists() and not (folder / WEIGHTS).exists()
        for folder in folders
        if folder != source
    )


def _copy_module(
    source: Path, name: str, out: Path, read_weights: "Callable[[Path], dict[str, Tensor]]"
) -> None:
    """Copies the folder of a module. It may be missing, since Git and the hub don't keep empty folders."""
    (out / name).mkdir()
    files = sorted((source / name).iterdir()) if (source / name).is_dir() else []
    files = [file for file in files if file.name not in _OF_FILE_MANAGERS]
    is_safe = (source / name / WEIGHTS).exists()
    for file in files:
        path = plain_file(source / name, file.name)
        if file.name == _OLD_WEIGHTS and not is_safe:
            from safetensors.torch import save_file

            tensors = {key: tensor.contiguous() for key, tensor in read_weights(path).items()}
            save_file(tensors, out / name / WEIGHTS, metadata={"format": "pt"})
        elif file.suffix in (".json", ".safetensors"):
            shutil.copyfile(path, out / name / file.name)
        elif file.name != _OLD_WEIGHTS:
            raise ModelError(
                f"{path} belongs to a part of an embedding model that can't be carried over: expected .json, "
                f"{WEIGHTS} or {_OLD_WEIGHTS}. If its vectors don't need the file, remove it and try again."
            )


def _read_modules(folder: Path) -> list[dict[str, Any]]:
    """The entries of modules.json; empty for a plain encoder. Raises ModelError for a damaged file."""
    if not (folder / MODULES).exists():
        return []
    path = plain_file(folder, MODULES)
    modules = read_small_json(path)
    if not isinstance(modules, list) or not all(map(_is_module, modules)):
        raise ModelError(
            f"{path} is not a list of parts, each with its type and a folder beside it. It may have been "
            "altered."
        )
    return modules


def _is_module(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("type"), str)
        and isinstance(entry.get("path"), str)
        and re.fullmatch(r"[\w-]*", entry["path"]) is not None
    )


def _is_encoder(module: dict[str, Any]) -> bool:
    return str(module["type"]).rpartition(".")[2] in ("Transformer", *_OLD_ENCODERS)


@dataclass(frozen=True)
class CrossEncoder:
    """A cross-encoder's settings. `has_sigmoid`: its one output goes through a sigmoid. `prompt` is put
    before the first text of a pair.
    """

    has_sigmoid: bool
    prompt: str


def makes_vectors(folder: Path) -> bool:
    """Whether the folder is an embedding model: it has a modules.json, and isn't a cross-encoder."""
    return (folder / _MODULES).exists() and read_sentence_config(folder).get("model_type") != "CrossEncoder"


def is_cross_encoder(folder: Path) -> bool:
    """Whether sentence-transformers wrote the folder as a cross-encoder."""
    if (folder / _MODULES).exists():
        return not makes_vectors(folder)
    config = folder / CONFIG.file
    settings = read_settings(plain_file(folder, config.name)) if config.exists() else {}
    return any(settings.get(key) for key in ACTIVATIONS)


def torch_module_name(dotted_name: object) -> str:
    """The class that a dotted name of torch.nn means, such as Tanh; empty for anything else. Nothing is
    imported.
    """
    torch_class = _TORCH_MODULE.fullmatch(dotted_name) if isinstance(dotted_name, str) else None
    return torch_class[1] if torch_class else ""


def read_sentence_config(folder: Path) -> dict[str, Any]:
    """The content of config_sentence_transformers.json; empty without one. Raises ModelError for a damaged
    one.
    """
    if not (folder / SENTENCE_TRANSFORMERS.file).exists():
        return {}
    path = plain_file(folder, SENTENCE_TRANSFORMERS.file)
    settings = read_settings(path)
    SENTENCE_TRANSFORMERS.require(settings, str(path))
    return settings


def read_prompts(folder: Path) -> dict[str, str]:
    """The prompts by name, the prefixes of queries, documents and other texts. Raises ModelError for prompts
    that aren't texts, and for an unknown `default_prompt_name`, as sentence-transformers does.
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
    """The prefix of a text that is neither query nor document. Raises ModelError as `read_prompts` does."""
    return read_prompts(folder).get(read_sentence_config(folder).get("default_prompt_name") or "", "")


def read_cross_encoder(folder: Path, config: Mapping[str, Any], outputs: int) -> CrossEncoder | None:
    """The settings of a cross-encoder with this many outputs, from the folder's files and the content
    `config` of its config.json; None where it isn't a cross-encoder.

    Without an activation in the files, sentence-transformers applies a sigmoid to a single output and nothing
    to several. Raises ModelError for an activation that we don't have.
    """
    if not is_cross_encoder(folder):
        return None
    settings = read_sentence_config(folder) if (folder / _MODULES).exists() else {}
    newer, older = (config.get(key) for key in ACTIVATIONS)
    newer = newer.get("activation_fn") if isinstance(newer, Mapping) else newer
    activation = next(filter(None, (settings.get("activation_fn"), newer, older)), None)
    name = torch_module_name(activation)
    if name not in ("Identity", "Sigmoid") or (name == "Sigmoid" and outputs > 1):
        if activation is not None:
            what = "1 output" if outputs == 1 else f"{outputs} outputs"
            raise ModelError(
                f"{folder}: this cross-encoder puts its {what} through "
                f"{reprlib.repr(activation)}, which Bertsmith doesn't have. Expected torch's Identity, or "
                "its Sigmoid of one output. Use another model."
            )
        name = "Sigmoid" if outputs == 1 else "Identity"
    return CrossEncoder(name == "Sigmoid", read_default_prompt(folder) if settings else "")


# -- static tables, which static_table.py computes -------------------------------------------------------


def is_static(folder: Path) -> bool:
    """Whether a folder holds a static table by us, model2vec or sentence-transformers."""
    if (folder / MODULES).is_file():
        return [kind for kind, _ in _read_kinds(folder)[:1]] == [STATIC_MODULE]
    return read_table_settings(folder).get("model_type") == MODEL2VEC


def table_folder(folder: Path) -> Path:
    """The folder of the table and its tokenizer: `folder` itself or, from older versions of
    sentence-transformers, a folder in it.

    Raises ModelError where the table is missing, or where anything but a normalisation follows it.
    """
    if not (folder / MODULES).is_file():
        return folder
    (_, subfolder), *following = _read_kinds(folder)
    if (other := next((kind for kind, _ in following if kind != STATIC_NORMALIZE), None)) is not None:
        raise ModelError(
            f"{folder} has a module {other} after its table of vectors, which Bertsmith doesn't support: "
            "without it the vectors would differ. Use a table with nothing after it but normalisation."
        )
    if not re.fullmatch(r"[\w-]*|\.", subfolder):
        raise ModelError(
            f"{folder / MODULES} names no folder beside it for the module {STATIC_MODULE}. It may have been "
            "altered."
        )
    return plain_file(folder, f"{subfolder}/{WEIGHTS}".lstrip("/")).parent


@dataclass(frozen=True)
class StaticConfig:
    """The part of an encoder's config that a static table has too."""

    vocab_size: int
    hidden_size: int
    max_length: int = NO_LIMIT


def unread_rows(folder: Path, tokenizer: "Tokenizer") -> list[int]:
    """The tokens of another tool's table that are no part of a vector. Neither sentence-transformers nor
    model2vec reads the special tokens around a text, so that their rows were never trained. model2vec leaves
    out unknown tokens too.
    """
    template, settings = tokenizer.template, read_table_settings(folder)
    unread = [*template.before, *template.between, *template.behind]
    # a model2vec table that wasn't distilled has no model_type, but an embedding_dtype
    if settings.get("model_type") == MODEL2VEC or "embedding_dtype" in settings:
        unread.append(tokenizer.unk_id)
    return unread


def refuse_static(folder: Path) -> None:
    """Raises ModelError for a static table, where layers are needed."""
    if is_static(folder):
        raise ModelError(
            f"{folder} is a static table of vectors, which has no layers, and this needs an encoder. "
            "Predict, embed, index, search and serve with it; for anything else take the model that it was "
            "made from."
        )


def read_table_max_length(folder: Path) -> int:
    """The maximum number of tokens of a text, from config.json. Raises ModelError for one that isn't a
    number.
    """
    path = folder / CONFIG.file
    max_length = read_table_settings(folder).get("max_length", LONGEST) if path.exists() else None
    if max_length is None:
        return NO_LIMIT
    if not isinstance(max_length, int) or max_length < 1:
        raise ModelError(f"{path}: max_length must be a whole number from 1 on, found {max_length!r}.")
    return min(max_length, NO_LIMIT)


def read_table_settings(folder: Path) -> dict[str, Any]:
    """The content of config.json; empty without one, as in folders by sentence-transformers."""
    return read_settings(plain_file(folder, CONFIG.file)) if (folder / CONFIG.file).is_file() else {}


def _read_kinds(folder: Path) -> list[tuple[str, str]]:
    """The class and the subfolder of each module in modules.json, in order; empty where it holds no list."""
    entries = read_small_json(plain_file(folder, MODULES))
    if not isinstance(entries, list):
        return []
    modules = [entry if isinstance(entry, dict) else {} for entry in entries]
    kinds = [str(module.get("type")) for module in modules]
    names = [kind.rpartition(".")[2] if kind.startswith(PACKAGE) else kind for kind in kinds]
    return [(name, str(module.get("path"))) for name, module in zip(names, modules, strict=True)]

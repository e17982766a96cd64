"""What sentence-transformers needs beside an encoder to make the same vectors of it.

modules.json                          which steps there are
1_Pooling/config.json                 how hidden states become a vector
2_Dense/                              where vectors have other dimensions than hidden states
2_Normalize/ or 3_Normalize/          where vectors get length 1; an empty folder
3_Dense/                              where a head's last layer turns them into outputs
sentence_bert_config.json             the longest input
config_sentence_transformers.json     prefixes of queries and documents, as prompts
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from safetensors.torch import save_file
from torch import nn

from bertsmith.errors import ModelError
from bertsmith.files import sha256, tensors_written_to, write_json
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.config import BertConfig
from bertsmith.model.folder_keys import (
    DENSE,
    MATRYOSHKA,
    MODULES,
    NORMALIZE,
    POOLING,
    TRANSFORMER,
    FileKeys,
)
from bertsmith.model.locate import SENTENCE_SETTINGS
from bertsmith.model.sentence_files import (
    makes_vectors,
    read_prompts,
    read_sentence_config,
)
from bertsmith.model.static_table import (
    PACKAGE,
    StaticTable,
    is_static,
    load_static,
    read_table_max_length,
    table_folder,
)
from bertsmith.model.untrusted import plain_file, read_settings, read_small_json, read_tensors
from bertsmith.tasks.heads.pooling import Pooling

_WEIGHTS = "model.safetensors"
_MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
_TOKENIZER = "tokenizer_config.json"
_LEGACY_MODE = re.compile("pooling_mode_(.+?)(?:_tokens?)?")
SHORTEST = 8  # tokens of a text, special ones included, that can be asked for
_TOKENIZER_LIMITS = ("model_max_length", "max_len")  # the latter before transformers 3
_NO_LIMIT = 1_000_000  # transformers writes 10**30 for a tokenizer without a longest input
# What sentence-transformers' encode_document means to look for. In its version 6.2 it finds "document" only,
# for there that name always exists, empty if need be: a "passage" prompt is then left out, here it is not.
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")
_DOT = ("dot", "dot_product")
_NAMES = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}


def read_projection(folder: Path, width: int) -> nn.Linear:
    """The linear layer H -> D for a model of this width, see `SentenceSettings.projection`.

    Raises ModelError for an activation, for a layer of another width, and for broken files.
    """
    path = plain_file(folder, "config.json")
    settings = read_settings(path)
    DENSE.require(settings, str(path))
    activation = str(settings.get("activation_function", "")).rpartition(".")[2]
    if activation != "Identity":
        raise ModelError(
            f"{path}: activation_function is {activation or 'not given, which means Tanh'}. Bertsmith "
            "computes a linear layer at the end without one alone (Identity), and others not yet. Use "
            "another model."
        )
    weights = plain_file(folder, _WEIGHTS)
    tensors = read_tensors(weights)
    weight, bias = tensors.pop("linear.weight", None), tensors.pop("linear.bias", None)
    if tensors or weight is None or weight.ndim != 2 or weight.shape[1] != width:
        found = "nothing" if weight is None else str(tuple(weight.shape))
        raise ModelError(
            f"{weights}: expected linear.weight of shape (dimensions, {width}) and linear.bias alone; found "
            f"{found}. Use a folder whose files belong together."
        )
    sizes = settings.get("in_features"), settings.get("out_features"), settings.get("bias", True)
    if sizes != (width, weight.shape[0], bias is not None):
        raise ModelError(
            f"{path} says in_features {sizes[0]}, out_features {sizes[1]}, bias {sizes[2]}, but "
            f"{weights.name} has the shape {tuple(weight.shape)} and {'a' if bias is not None else 'no'} "
            "bias. Use a folder whose files belong together."
        )
    if (bias is not None and bias.shape != weight.shape[:1]) or not all(
        bool(tensor.isfinite().all()) for tensor in (weight, bias) if tensor is not None
    ):
        raise ModelError(
            f"{weights}: a value isn't finite, or linear.bias has another shape. Take another copy."
        )
    linear = nn.Linear(width, weight.shape[0], bias=bias is not None)
    linear.weight.data = weight.float()
    if bias is not None:
        linear.bias.data = bias.float()
    return linear.eval().requires_grad_(False)


def refuse_projection(folder: Path, projection: Path | None, product: str) -> None:
    """Raises ModelError if there is a `projection`, which `product` (a noun with its article, such as "an
    explanation") would leave out.
    """
    if projection is not None:
        raise ModelError(
            f"{folder} ends in a linear layer that changes the vectors' dimensions ({projection.name}), "
            f"which {product} doesn't have. Use a model without it."
        )


def _no_prompts() -> dict[str, str]:
    """The two names that sentence-transformers always has."""
    return {"query": "", "document": ""}


@dataclass(frozen=True)
class SentenceSettings:
    """How a folder's vectors are made. `max_length` counts tokens, special ones included; None if the folder
    doesn't say. `encoder` is the folder of the encoder itself, which may be a subfolder. `projection` is the
    folder of a linear layer that changes the dimensions of the pooled vectors (`read_projection`). `by_dot`:
    vectors were trained to be compared by dot products, so their lengths count. `truncate_dim`: how many of
    their first dimensions are kept, before they are normalised. `prompts` are all that the folder names, and
    `default_prompt_name` the one for a text of which no role is known.
    """

    encoder: Path
    pooling: Pooling = "mean"
    max_length: int | None = None
    query_prefix: str = ""
    document_prefix: str = ""
    projection: Path | None = None
    by_dot: bool = False
    truncate_dim: int | None = None
    prompts: Mapping[str, str] = field(default_factory=_no_prompts)
    default_prompt_name: str | None = None

    @property
    def default_prompt(self) -> str:
        """The prompt before a text of which no role is known; empty if there is none."""
        return self.prompts.get(self.default_prompt_name or "", "")

    def weights_sha256(self) -> str:
        """A hash of all weights in the folder that vectors depend on: that of the encoder's file, if there is
        nothing else.
        """
        folders = [folder for folder in (self.encoder, self.projection) if folder is not None]
        hashes = [sha256(folder / _WEIGHTS) for folder in folders]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256(" ".join(hashes).encode()).hexdigest()


def read_sentence_settings(folder: Path) -> SentenceSettings:
    """Reads how a folder's vectors are made. A plain encoder has mean pooling. Raises ModelError for modules
    that are unknown, missing or in another order, and for broken files.
    """
    if is_static(folder):
        return _read_table_settings(folder)
    if not makes_vectors(folder):
        return SentenceSettings(folder, max_length=read_max_length(folder))
    modules = _read_checked_modules(folder)
    encoder = _find_transformer_folder(folder, modules)
    prompts = read_prompts(folder)
    query, document = _prefixes(prompts)
    return SentenceSettings(
        encoder,
        pooling=_read_pooling_mode(folder, modules["Pooling"], any(prompts.values())),
        max_length=_find_max_length(_read_sentence_bert_config(encoder), encoder),
        query_prefix=query,
        document_prefix=document,
        projection=folder / modules["Dense"] if "Dense" in modules else None,
        by_dot=_is_by_dot(folder),
        truncate_dim=read_truncate_dim(folder),
        prompts={**_no_prompts(), **prompts},
        default_prompt_name=read_sentence_config(folder).get("default_prompt_name"),
    )


def load_sentence_model(folder: Path) -> tuple[Bert | StaticTable, nn.Linear | None, SentenceSettings]:
    """A folder's encoder or static table, its final linear layer, if there is one, and the settings. Raises
    ModelError.
    """
    settings = read_sentence_settings(folder)
    encoder = load_static(folder) if is_static(folder) else load_encoder(settings.encoder)
    if settings.projection is None:
        return encoder, None, settings
    return encoder, read_projection(settings.projection, encoder.config.hidden_size), settings


def find_encoder_folder(folder: Path) -> Path:
    """The folder of the encoder itself: that of the module Transformer in an embedding model, else `folder`.
    Raises ModelError.
    """
    if is_static(folder) or not makes_vectors(folder):
        return folder
    return _find_transformer_folder(folder, _read_module_folders(folder)[0])


def read_max_length(folder: Path) -> int | None:
    """The number of tokens, special ones included, to which sentence-transformers and transformers' pipelines
    cut a text: `max_seq_length` of sentence_bert_config.json, which is read only beside a modules.json, else
    the tokenizer's `model_max_length`; None if neither is given. The encoder's positions are another limit.
    Raises ModelError for a value that isn't a number.
    """
    return _find_max_length(
        _read_sentence_bert_config(folder) if (folder / _MODULES).exists() else {}, folder
    )


def is_matryoshka(folder: Path) -> bool:
    """Whether the first dimensions of a folder's vectors are useful alone (Matryoshka representations): the
    folder has a truncate_dim, or one of the two keys of config.json that models have for it. So is a static
    table, whose dimensions are principal components in their order.
    """
    if is_static(folder) or (makes_vectors(folder) and read_truncate_dim(folder)):
        return True
    config = read_settings(plain_file(find_encoder_folder(folder), "config.json"))
    return any(config.get(key) for key in MATRYOSHKA)


def _read_table_settings(folder: Path) -> SentenceSettings:
    prompts = read_prompts(folder)
    query, document = _prefixes(prompts)
    return SentenceSettings(
        table_folder(folder),
        max_length=max(read_table_max_length(folder), SHORTEST),
        query_prefix=query,
        document_prefix=document,
        by_dot=_is_by_dot(folder),
        truncate_dim=read_truncate_dim(folder) if (folder / _MODULES).exists() else None,
        prompts={**_no_prompts(), **prompts},
        default_prompt_name=read_sentence_config(folder).get("default_prompt_name"),
    )


def read_truncate_dim(folder: Path) -> int | None:
    """How many of the first dimensions sentence-transformers keeps; None for all."""
    value = read_sentence_config(folder).get("truncate_dim")
    if value is not None and (type(value) is not int or value < 1):
        raise ModelError(
            f"{folder / _PROMPTS}: truncate_dim must be a whole number from 1 on, found {value!r}. It may "
            "have been altered."
        )
    return value


def _is_by_dot(folder: Path) -> bool:
    """Whether vectors are compared by dot products; normalised ones are compared by cosines only."""
    if not (folder / _MODULES).exists() or "Normalize" in _read_module_folders(folder)[0]:
        return False
    return read_sentence_config(folder).get("similarity_fn_name") in _DOT


def _prefixes(prompts: Mapping[str, str]) -> tuple[str, str]:
    """The prefix of queries, and that of documents."""
    document = next((prompts[name] for name in _DOCUMENT_PROMPTS if name in prompts), "")
    return prompts.get("query", ""), document


def read_pooling(folder: Path) -> Pooling | None:
    """The pooling of an embedding model, by its modules; None if the folder isn't an embedding model."""
    if not makes_vectors(folder):
        return None
    return _read_pooling_mode(folder, _read_checked_modules(folder, {"Dense"})["Pooling"], has_prompts=False)


def has_dense_module(folder: Path) -> bool:
    """Whether a Dense module follows the pooling of an embedding model: a projection of the vectors, or a
    head's last layer.
    """
    return makes_vectors(folder) and "Dense" in _read_checked_modules(folder, {"Dense"})


def _read_module_folders(folder: Path) -> tuple[dict[str, str], int]:
    """The subfolder of each kind of module, in their order, and how many modules there are. The kinds aren't
    checked, but all are classes of sentence-transformers.
    """
    path = plain_file(folder, _MODULES)
    modules = read_small_json(path)
    for module in modules if isinstance(modules, list) else []:
        if isinstance(module, dict):
            MODULES.require(module, str(path))
            if not str(module.get("type", PACKAGE)).startswith(PACKAGE):
                raise ModelError(
                    f"{path}: {str(module['type'])[:80]!r} is a module with code of its own, which Bertsmith "
                    "never runs. Use a model of sentence-transformers' own modules."
                )
    try:
        # "sentence_transformers.models.Pooling", or a longer way to the class in newer folders
        folders = {str(module["type"]).rpartition(".")[2]: str(module["path"]) for module in modules}
        return folders, len(modules)
    except (KeyError, TypeError) as error:
        raise ModelError(f"{path} is not a list of modules ({error!r}). It may have been altered.") from error


def _find_transformer_folder(folder: Path, modules: Mapping[str, str]) -> Path:
    inside = modules.get("Transformer", "")
    _require_inside(folder, "Transformer", inside)
    return plain_file(folder, f"{inside}/config.json".lstrip("/")).parent


def _require_inside(folder: Path, name: str, inside: str) -> None:
    if not re.fullmatch(r"[\w-]*", inside):
        raise ModelError(
            f"{folder / _MODULES} names no folder beside it for the module {name}. It may have been altered."
        )


def _read_checked_modules(folder: Path, also: Collection[str] = ()) -> dict[str, str]:
    """Kind of module -> its subfolder, for the kinds that can be computed, and those in `also`. Normalize is
    accepted and otherwise ignored: the caller decides whether vectors are normalised.
    """
    modules, count = _read_module_folders(folder)
    names = list(modules)
    known = {"Transformer", "Pooling", "Normalize", *also}
    known |= {"Dense"} if names[2:3] == ["Dense"] else set()  # of what was pooled
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ModelError(
            f"{folder} has a module {unknown[0]} after its encoder, which Bertsmith doesn't compute yet: "
            "without it the vectors would differ. Use a model of encoder, pooling, one linear layer and "
            "normalisation, in this order."
        )
    if len(modules) < count:
        raise ModelError(
            f"{folder / _MODULES} has a module twice, which Bertsmith doesn't support. Use another model."
        )
    for name in ("Transformer", "Pooling", *({"Dense"} & modules.keys())):
        if name not in modules:
            raise ModelError(
                f"{folder / _MODULES} names no module {name}, so it doesn't say how texts become vectors. "
                "Use a model of encoder and pooling."
            )
        _require_inside(folder, name, modules[name])
    if names[:2] != ["Transformer", "Pooling"]:
        raise ModelError(
            f"{folder / _MODULES} has its modules in the order {', '.join(names)}, which Bertsmith doesn't "
            "compute: expected Transformer and Pooling first. Use a model of encoder, pooling, one linear "
            "layer and normalisation, in this order."
        )
    if "Normalize" in modules:
        _require_inside(folder, "Normalize", modules["Normalize"])
        name = f"{modules['Normalize']}/config.json"
        if (folder / name).exists():
            _read_checked(NORMALIZE, plain_file(folder, name))
    return modules


def _read_pooling_mode(folder: Path, module: str, has_prompts: bool) -> Pooling:
    path = plain_file(folder, f"{module}/config.json")
    settings = _read_checked(POOLING, path)
    # Older versions have flags such as pooling_mode_mean_tokens; without any it is the mean.
    flags = {match[1]: settings[key] for key in settings if (match := _LEGACY_MODE.fullmatch(key))}
    flagged = [name for name, is_on in flags.items() if is_on] or ["mean"]
    modes = settings.get("pooling_mode", flagged)
    names = modes if isinstance(modes, list) else [modes]
    if len(names) != 1 or names[0] not in get_args(Pooling):
        raise ModelError(
            f"{path}: expected one pooling of {', '.join(get_args(Pooling))}; "
            f"found {' and '.join(map(str, names))}."
        )
    if has_prompts and settings.get("include_prompt") is False:
        raise ModelError(
            f"{path}: include_prompt is false: leaving prompts out of the pooling is not supported."
        )
    return cast(Pooling, names[0])


def _read_sentence_bert_config(encoder: Path) -> Mapping[str, Any]:
    """The content of sentence_bert_config.json, or of the file of older versions; empty without one."""
    file_name = next((name for name in SENTENCE_SETTINGS if (encoder / name).exists()), None)
    return {} if file_name is None else _read_checked(TRANSFORMER, plain_file(encoder, file_name))


def _find_max_length(settings: Mapping[str, Any], encoder: Path) -> int | None:
    limit, name = settings.get("max_seq_length"), "max_seq_length"
    if limit is None and (encoder / _TOKENIZER).exists():
        tokenizer_config = read_settings(plain_file(encoder, _TOKENIZER))
        name = next((key for key in _TOKENIZER_LIMITS if tokenizer_config.get(key) is not None), "")
        limit = tokenizer_config.get(name)
    if limit is None or (isinstance(limit, int | float) and limit >= _NO_LIMIT):
        return None
    if type(limit) is not int or limit < SHORTEST:
        raise ModelError(
            f"{encoder}: {name} must be a whole number from {SHORTEST} on, found {limit!r}. It may have been "
            "altered."
        )
    return limit


def _read_checked(keys: FileKeys, path: Path) -> dict[str, Any]:
    """The content of a file. Raises ModelError for a key or value that `keys` doesn't accept."""
    settings = read_settings(path)
    keys.require(settings, str(path))
    return settings


def write_sentence_folder(
    folder: Path,
    config: BertConfig,
    pooling: str,
    max_length: int,
    *,
    normalise: bool = False,
    prompts: Mapping[str, str] | None = None,
    default_prompt_name: str | None = None,
    projection: nn.Linear | None = None,
    classifier: nn.Linear | None = None,
) -> None:
    """Writes modules.json and the modules' folders into the folder of a saved encoder.

    `prompts` are prefixes by name, "query" and "document"; texts without a role get the one called
    `default_prompt_name`. Both `projection` and `classifier` are Dense modules: a projection comes before
    Normalize and changes the vectors' dimensions, a classifier comes after Normalize and turns vectors into
    outputs.
    """
    modules = [_module_entry(0, "", "Transformer"), _module_entry(1, "1_Pooling", "Pooling")]
    (folder / "1_Pooling").mkdir()
    if projection is not None:
        modules.append(_module_entry(2, "2_Dense", "Dense"))
        _write_dense(folder / "2_Dense", projection)
    if normalise:
        path = f"{len(modules)}_Normalize"
        modules.append(_module_entry(len(modules), path, "Normalize"))
        (folder / path).mkdir()
    if classifier is not None:
        modules.append(_module_entry(len(modules), "3_Dense", "Dense"))
        _write_dense(folder / "3_Dense", classifier)
    write_json(folder / "modules.json", modules)
    chosen = {f"pooling_mode_{name}": name == _NAMES[pooling] for name in _NAMES.values()}
    write_json(
        folder / "1_Pooling" / "config.json", {"word_embedding_dimension": config.hidden_size, **chosen}
    )
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    if prompts is not None:
        similarity = "cosine" if normalise else "dot"
        write_json(
            folder / "config_sentence_transformers.json",
            {
                "prompts": dict(prompts),
                "default_prompt_name": default_prompt_name,
                "similarity_fn_name": similarity,
            },
        )


def _write_dense(folder: Path, dense: nn.Linear) -> None:
    folder.mkdir()
    settings = {
        "in_features": dense.in_features,
        "out_features": dense.out_features,
        "bias": dense.bias is not None,
    }
    activation = {"activation_function": "torch.nn.modules.linear.Identity"}
    write_json(folder / "config.json", settings | activation)
    weights = {f"linear.{name}": tensor.detach().contiguous() for name, tensor in dense.state_dict().items()}
    with tensors_written_to(folder / "model.safetensors"):
        save_file(weights, folder / "model.safetensors")


def _module_entry(number: int, path: str, kind: str) -> dict[str, Any]:
    return {
        "idx": number,
        "name": str(number),
        "path": path,
        "type": f"sentence_transformers.models.{kind}",
    }

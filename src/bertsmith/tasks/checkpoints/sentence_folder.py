"""What sentence-transformers needs beside an encoder to make the same vectors of it.

modules.json                          which steps there are
1_Pooling/config.json                 how hidden states become a vector
2_Dense/, 3_LayerNorm/, …             a projection: layers between the pooled vector and a text's vector
3_Normalize/                          where vectors get length 1; an empty folder
4_Dense/                              where a head's last layer turns them into outputs
sentence_bert_config.json             the longest input
config_sentence_transformers.json     prefixes of queries and documents, as prompts
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from bertsmith.errors import ModelError
from bertsmith.files import sha256, write_json
from bertsmith.model.folder_keys import MATRYOSHKA, MODULES, POOLING, TRANSFORMER
from bertsmith.model.locate import SENTENCE_SETTINGS
from bertsmith.model.manifest import read_unverified_manifest
from bertsmith.model.sentence_files import (
    PACKAGE,
    is_static,
    makes_vectors,
    read_prompts,
    read_sentence_config,
    read_table_max_length,
    table_folder,
)
from bertsmith.model.untrusted import plain_file, read_settings, read_small_json
from bertsmith.tasks.checkpoints.projection_folders import (
    LAYER_KEYS,
    WEIGHTS,
    WITHOUT_FILES,
    SentenceModule,
    as_projection,
    read_checked,
    read_layer_settings,
    read_layer_weights,
    read_projection,
    write_layer,
)
from bertsmith.tasks.examples.encoding import Pooling

if TYPE_CHECKING:  # who computes without torch reads these folders too
    from torch import nn

    from bertsmith.model.bert import Bert
    from bertsmith.model.config import BertConfig
    from bertsmith.model.static_table import StaticTable
    from bertsmith.tasks.heads.pooling import Projection

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
_EXPECTED = "an encoder, a pooling, and then Dense, LayerNorm, Normalize and Dropout in any order"
_LAYER_WEIGHTS = "WeightedLayerPooling"
_WITH_WEIGHTS = ("Dense", "LayerNorm")
_TASKS_OF_VECTORS = ("encoder", "pretraining", "imported", "similarity", "retrieval")
_NOT_COMPUTED = {
    "WordEmbeddings": "looks words up in a table in place of an encoder",
    "BoW": "counts words in place of an encoder",
    "WordWeights": "weights words by a list of its own",
    "CNN": "convolves the vectors of tokens",
    "LSTM": "reads the vectors of tokens one after the other",
    "Router": "sends queries and documents through different models",
    "Asym": "sends queries and documents through different models",
    "CLIPModel": "reads images",
}
_NAMES = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}


def _no_prompts() -> dict[str, str]:
    """The two names that sentence-transformers always has."""
    return {"query": "", "document": ""}


@dataclass(frozen=True)
class SentenceSettings:
    """How a folder's vectors are made. `max_length` counts tokens, special ones included; None if the folder
    doesn't say. `encoder` is the folder of the encoder itself, which may be a subfolder. `projection` are the
    modules between the pooled vectors and the final ones (`read_projection`), without a normalisation at the
    end. `by_dot`:
    vectors were trained to be compared by dot products, so their lengths count. `truncate_dim`: how many of
    their first dimensions are kept, before they are normalised. `prompts` are all that the folder names, and
    `default_prompt_name` the one for a text of which no role is known. Without `include_prompt` the tokens of
    a prompt, and those before them, aren't pooled. `layer_weights` is the folder of a WeightedLayerPooling.
    """

    encoder: Path
    pooling: Pooling = "mean"
    max_length: int | None = None
    query_prefix: str = ""
    document_prefix: str = ""
    projection: tuple[SentenceModule, ...] = ()
    by_dot: bool = False
    truncate_dim: int | None = None
    prompts: Mapping[str, str] = field(default_factory=_no_prompts)
    default_prompt_name: str | None = None
    include_prompt: bool = True
    layer_weights: Path | None = None

    @property
    def default_prompt(self) -> str:
        """The prompt before a text of which no role is known; empty if there is none."""
        return self.prompts.get(self.default_prompt_name or "", "")

    def weights_sha256(self) -> str:
        """A hash of all weights in the folder that vectors depend on, and of what else the projection
        computes: that of the encoder's file, if there is nothing else.
        """
        parts = [sha256(self.encoder / WEIGHTS)]
        if self.layer_weights is not None:
            parts.append(sha256(self.layer_weights / WEIGHTS))
        if not self.include_prompt:
            parts.append("without prompts")
        for module in self.projection:
            settings, _ = read_layer_settings(module)
            if module.kind in _WITH_WEIGHTS:
                parts.append(sha256(module.folder / WEIGHTS))
            is_linear = settings.get("activation_function") == "Identity"
            if module.kind != "Dropout" and (not is_linear or settings.get("use_residual")):
                parts.append(f"{module.kind} {json.dumps(settings, sort_keys=True)}")
        return parts[0] if len(parts) == 1 else hashlib.sha256(" ".join(parts).encode()).hexdigest()


def read_sentence_settings(folder: Path) -> SentenceSettings:
    """Reads how a folder's vectors are made. A plain encoder has mean pooling. Raises ModelError for modules
    that are unknown, missing or in another order, and for broken files.
    """
    if is_static(folder):
        return _read_table_settings(folder)
    if not makes_vectors(folder):
        return SentenceSettings(folder, max_length=read_max_length(folder))
    modules = _read_checked_modules(folder)
    encoder, pooling = _find_transformer_folder(folder, modules), _pooling_folder(modules)
    prompts = read_prompts(folder)
    query, document = _prefixes(prompts)
    return SentenceSettings(
        encoder,
        pooling=_read_pooling_mode(pooling),
        max_length=_find_max_length(_read_sentence_bert_config(encoder), encoder),
        query_prefix=query,
        document_prefix=document,
        projection=_projection_of(modules),
        by_dot=_is_by_dot(folder),
        truncate_dim=read_truncate_dim(folder),
        prompts={**_no_prompts(), **prompts},
        default_prompt_name=read_sentence_config(folder).get("default_prompt_name"),
        include_prompt=_includes_prompt(pooling) or not any(prompts.values()),
        layer_weights=_find_layer_weights(encoder, modules),
    )


def load_sentence_model(folder: Path) -> tuple[Bert | StaticTable, Projection | None, SentenceSettings]:
    """A folder's encoder or static table, its projection, if there is one, and the settings. Raises
    ModelError.
    """
    from bertsmith.model.static_table import load_static

    settings = read_sentence_settings(folder)
    encoder = load_static(folder) if is_static(folder) else load_vector_encoder(settings)
    return encoder, read_projection(settings.projection, encoder.config.hidden_size), settings


def load_vector_encoder(settings: SentenceSettings, *, table_in_file: bool = False) -> Bert:
    """An embedding model's encoder, with its weights of layers if it has any. `table_in_file` is as in
    `read_checkpoint`. Raises ModelError.
    """
    from bertsmith.model.checkpoint import encoder_of, read_checkpoint

    folder = settings.encoder
    checkpoint = read_checkpoint(folder, table_in_file=table_in_file)
    encoder = encoder_of(checkpoint, f"{folder}/{WEIGHTS}")
    if settings.layer_weights is not None:
        count = len(encoder.layer_sequence) + 1
        encoder.layer_weights = read_layer_weights(settings.layer_weights, count)
    return encoder


def refuse_unpooled_prompts(folder: Path, settings: SentenceSettings, product: str) -> None:
    """Raises ModelError if prompts aren't pooled, of which `product` (a noun with its article, such as "a
    teacher") knows nothing.
    """
    if not settings.include_prompt:
        raise ModelError(
            f"{folder} leaves its prompts out of the pooling (include_prompt is false), which {product} "
            "can't do. Use another model."
        )


def read_starting_projection(folder: Path, width: int) -> Projection | None:
    """The projection of an embedding model, which training goes on with; None for other models, such as a
    classifier, whose last layer is no part of a text's vector. Raises ModelError.
    """
    manifest = read_unverified_manifest(folder)
    makes_labels = manifest is not None and manifest.task not in _TASKS_OF_VECTORS
    if makes_labels or is_static(folder) or not makes_vectors(folder):
        return None
    projection = read_projection(_projection_of(_read_checked_modules(folder)), width)
    return None if projection is None else projection.train().requires_grad_(True)


def find_encoder_folder(folder: Path) -> Path:
    """The folder of the encoder itself: that of the module Transformer in an embedding model, else `folder`.
    Raises ModelError.
    """
    if is_static(folder) or not makes_vectors(folder):
        return folder
    return _find_transformer_folder(folder, _read_modules(folder))


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
    if not (folder / _MODULES).exists():
        return False
    kinds = [module.kind for module in _read_modules(folder) if module.kind != "Dropout"]
    if kinds[-1:] == ["Normalize"]:
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
    return _read_pooling_mode(_pooling_folder(_read_checked_modules(folder)))


def _read_modules(folder: Path) -> list[SentenceModule]:
    """The modules in their order. Their kinds aren't checked, but all are classes of sentence-transformers,
    in folders beside modules.json.
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
        named = [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in modules]
    except (KeyError, TypeError) as error:
        raise ModelError(f"{path} is not a list of modules ({error!r}). It may have been altered.") from error
    for kind, name in named:
        if not re.fullmatch(r"[\w-]*|\.", name):
            raise ModelError(
                f"{path} names no folder beside it for the module {kind}. It may have been altered."
            )
    return [SentenceModule(kind, folder / name) for kind, name in named]


def _find_transformer_folder(folder: Path, modules: Sequence[SentenceModule]) -> Path:
    encoder = next((module.folder for module in modules if module.kind == "Transformer"), folder)
    name = "config.json" if encoder == folder else f"{encoder.name}/config.json"
    return plain_file(folder, name).parent


def _pooling_folder(modules: Sequence[SentenceModule]) -> Path:
    return next(module.folder for module in modules if module.kind == "Pooling")


def _projection_of(modules: Sequence[SentenceModule]) -> tuple[SentenceModule, ...]:
    """The modules behind the pooling but for the normalisation at the end, which the caller decides on."""
    kinds = [module.kind for module in modules]
    start, end = kinds.index("Pooling") + 1, len(kinds)
    while end > start and kinds[end - 1] in WITHOUT_FILES:
        end -= 1
    return (*modules[start:end], *(module for module in modules[end:] if module.kind == "Dropout"))


def _read_checked_modules(folder: Path) -> list[SentenceModule]:
    """The modules, checked for being an encoder, a pooling, and layers that can be computed behind it."""
    modules = _read_modules(folder)
    kinds = [module.kind for module in modules]
    for kind in kinds:
        if kind in _NOT_COMPUTED:
            raise ModelError(
                f"{folder} has a module {kind}, which {_NOT_COMPUTED[kind]}: Bertsmith doesn't compute that. "
                f"Use a model of {_EXPECTED}."
            )
        if kind not in ("Transformer", _LAYER_WEIGHTS, "Pooling", *LAYER_KEYS):
            raise ModelError(
                f"{folder} has a module {kind}, which Bertsmith doesn't compute yet: without it the vectors "
                f"would differ. Use a model of {_EXPECTED}."
            )
    for name in ("Transformer", "Pooling"):
        if name not in kinds:
            raise ModelError(
                f"{folder / _MODULES} names no module {name}, so it doesn't say how texts become vectors. "
                "Use a model of encoder and pooling."
            )
        if kinds.count(name) > 1:
            raise ModelError(
                f"{folder / _MODULES} has a module {name} twice, which Bertsmith doesn't support. Use "
                "another model."
            )
    behind = kinds[: kinds.index("Pooling")]
    if behind not in (["Transformer"], ["Transformer", _LAYER_WEIGHTS]) or kinds.count(_LAYER_WEIGHTS) > 1:
        raise ModelError(
            f"{folder / _MODULES} has its modules in the order {', '.join(kinds)}, which Bertsmith doesn't "
            f"compute: expected Transformer and Pooling first. Use a model of {_EXPECTED}."
        )
    for module in modules:
        if module.kind == "Normalize":
            read_layer_settings(module)
    return modules


def _find_layer_weights(encoder: Path, modules: Sequence[SentenceModule]) -> Path | None:
    """The folder of a WeightedLayerPooling that has an effect: sentence-transformers hands it the layers only
    of an encoder whose config.json says output_hidden_states.
    """
    folder = next((module.folder for module in modules if module.kind == _LAYER_WEIGHTS), None)
    if folder is None or not read_settings(plain_file(encoder, "config.json")).get("output_hidden_states"):
        return None
    return folder


def _includes_prompt(pooling: Path) -> bool:
    """Whether the tokens of a prompt are pooled too."""
    includes = read_checked(POOLING, plain_file(pooling, "config.json")).get("include_prompt")
    return includes is None or bool(includes)


def _read_pooling_mode(module: Path) -> Pooling:
    path = plain_file(module, "config.json")
    settings = read_checked(POOLING, path)
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
    return cast(Pooling, names[0])


def _read_sentence_bert_config(encoder: Path) -> Mapping[str, Any]:
    """The content of sentence_bert_config.json, or of the file of older versions; empty without one."""
    file_name = next((name for name in SENTENCE_SETTINGS if (encoder / name).exists()), None)
    return {} if file_name is None else read_checked(TRANSFORMER, plain_file(encoder, file_name))


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


def write_sentence_folder(
    folder: Path,
    config: BertConfig,
    pooling: str,
    max_length: int,
    *,
    normalise: bool = False,
    prompts: Mapping[str, str] | None = None,
    default_prompt_name: str | None = None,
    projection: Projection | nn.Linear | None = None,
    classifier: nn.Linear | None = None,
) -> None:
    """Writes modules.json and the modules' folders into the folder of a saved encoder.

    `prompts` are prefixes by name, "query" and "document"; texts without a role get the one called
    `default_prompt_name`. A `projection` comes between pooling and Normalize, a linear one as a Dense; a
    `classifier` is a Dense after Normalize that turns vectors into outputs.
    """
    from torch import nn

    modules = [_module_entry(0, "", "Transformer"), _module_entry(1, "1_Pooling", "Pooling")]
    (folder / "1_Pooling").mkdir()
    if isinstance(projection, nn.Linear):
        projection = as_projection(projection)
    for layer in () if projection is None else projection.layers:
        path = f"{len(modules)}_{layer.kind}"
        modules.append(_module_entry(len(modules), path, layer.kind))
        write_layer(folder / path, layer)
    if normalise:
        path = f"{len(modules)}_Normalize"
        modules.append(_module_entry(len(modules), path, "Normalize"))
        (folder / path).mkdir()
    if classifier is not None:
        path = f"{len(modules)}_Dense"
        modules.append(_module_entry(len(modules), path, "Dense"))
        write_layer(folder / path, *as_projection(classifier).layers)
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


def _module_entry(number: int, path: str, kind: str) -> dict[str, Any]:
    return {
        "idx": number,
        "name": str(number),
        "path": path,
        "type": f"sentence_transformers.models.{kind}",
    }

"""Reads and writes model folders, which transformers opens too. Reading checks everything; writing is atomic.

config.json         the model's shape, in Hugging Face's format
model.safetensors   float32 tensors under Hugging Face's names, tied ones once
tokenizer.json …    the tokenizer's files
bertsmith.json      task, provenance, and the hash of each file (see bertsmith.model.manifest)
README.md           the model card, not hashed (see bertsmith.model.card)
"""

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bertsmith.argument_checks import check_arguments, check_path
from bertsmith.errors import ModelError
from bertsmith.files import atomic_folder, require_free_space, tensors_written_to, write_json
from bertsmith.model.bert import Bert
from bertsmith.model.card import write_card
from bertsmith.model.config import BertConfig
from bertsmith.model.config_json import (
    by_its_authors,
    choose_architecture,
    config_from_hugging_face,
    config_to_hugging_face,
    find_architecture,
    read_labels,
)
from bertsmith.model.families.family import TOKENS
from bertsmith.model.file_table import FileTable, find_table
from bertsmith.model.folder_keys import MATRYOSHKA
from bertsmith.model.layers.initialisation import meta_init
from bertsmith.model.manifest import Manifest, verify_while_loading, write_manifest
from bertsmith.model.static_table import refuse_static
from bertsmith.model.untrusted import WEIGHTS as WEIGHTS
from bertsmith.model.untrusted import plain_file, read_settings, read_tensors
from bertsmith.model.weights import file_names, from_hugging_face, listed, part_of, to_hugging_face

CONFIG = "config.json"
_ADAPTER = "adapter_config.json"


class FindsEncoder(Protocol):
    """Whoever knows the prepared encoders that are in use."""

    def find(self, weights: Path, config: BertConfig) -> tuple[Bert, Collection[str]] | None:
        """A copy of the encoder in use with the weights in this file, without the weights of a pooler, and
        the names that its tensors have there; None if there is none.
        """


class SavesItself(Protocol):
    """The part of a tokenizer that saving a checkpoint needs."""

    vocab_size: int

    def save(self, folder: Path, *, segments: bool = True, max_length: int = 512) -> None: ...


@dataclass(frozen=True)
class Checkpoint:
    """The checked content of a model folder, not yet loaded into a module.

    `tensors` are float32 under our names. `carried` are the tensors of heads that Bertsmith has no module
    for, under the file's names; `labels` are config.json's entries for these heads, and the dimensions to
    which vectors may be truncated. `notes` are sentences for the user. `table` are the token embeddings if
    they stay in the file; then they aren't among `tensors`. `encoder` is the prepared encoder in use that has
    the same weights, if one was asked for and found; then `tensors` has only what is not in it.
    """

    config: BertConfig
    architecture: str
    tensors: dict[str, Tensor]
    carried: dict[str, Tensor] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    manifest: Manifest | None = None
    table: FileTable | None = None
    encoder: Bert | None = None

    @property
    def parts(self) -> frozenset[str]:
        """The parts of the model: encoder, pooler, masked_language, next_sentence, and the names of other
        heads.
        """
        shared = () if self.encoder is None else ("encoder",)
        return _list_parts(self.tensors, self.carried).union(shared)


def refuse_adapter(folder: Path) -> None:
    """Raises ModelError for an adapter alone. It predicts on the model that it was trained on; whatever reads
    or counts the weights of a model needs the merged one.
    """
    if (folder / _ADAPTER).exists() and not (folder / CONFIG).exists():
        raise ModelError(
            f"{folder} holds an adapter (LoRA) alone, which is no model without the one that it was trained "
            f"on. Give the folder of the merged model: of a run of Bertsmith's, {folder.parent / 'model'}."
        )


@check_arguments(folder=check_path)
def read_checkpoint(
    folder: Path | str, *, table_in_file: bool = False, in_use: FindsEncoder | None = None
) -> Checkpoint:
    """Reads a model folder written by Bertsmith or transformers. With `table_in_file` a large table of token
    embeddings isn't read (see FileTable), for models that are only computed with. An encoder that is `in_use`
    with the same weights is taken instead of reading it.

    Raises ModelError where a file is missing, unsafe, truncated or altered, and where the tensors don't fit
    config.json.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder. A model is a folder with {CONFIG} and {WEIGHTS}.")
    refuse_static(folder)
    refuse_adapter(folder)
    with verify_while_loading(folder) as manifest:
        settings = read_settings(plain_file(folder, CONFIG))
        weights = _find_weights(folder)
        if manifest is not None and not {CONFIG, WEIGHTS} <= manifest.files.keys():
            raise ModelError(f"{folder}/bertsmith.json has no hash of {CONFIG} or {WEIGHTS}. It was altered.")
        if in_use is not None:
            config = config_from_hugging_face(settings, f"the settings of {weights}")
            shared = in_use.find(weights, config)
            if shared is not None:
                encoder, names = shared
                rest = read_tensors(weights, without=names)
                return interpret(rest, settings, str(weights), manifest, encoder)
        if not table_in_file:
            return interpret(read_tensors(weights), settings, str(weights), manifest)
        config = config_from_hugging_face(settings, f"the settings of {weights}")
        name = find_table(weights, config.vocab_size, config.embedding_width)
        rest = read_tensors(weights, without=() if name is None else (name,))
        checkpoint = interpret(rest, settings, str(weights), manifest)
        return checkpoint if name is None else replace(checkpoint, table=FileTable(weights, name))


def interpret(
    tensors: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    where: str,
    manifest: Manifest | None = None,
    encoder: Bert | None = None,
) -> Checkpoint:
    """Makes a checkpoint of tensors under Hugging Face's names and the content of a config.json; `where`
    names the file in errors. With `encoder` the tensors of this one are left out. Warns of a layout that was
    never compared with a published checkpoint.

    Raises ModelError where the two don't fit together, or hold something that we don't compute.
    """
    config = config_from_hugging_face(dict(settings), f"the settings of {where}")
    floats, notes = _convert_to_float32(tensors, where)
    sign = by_its_authors(settings, config.family)
    if sign is not None and manifest is None:  # not of our own folders, which name the authors' code too
        warnings.warn(  # commands print it as a line of their own
            f"{where} is laid out as the authors of {config.model_type} have it ({sign} in its "
            f"{CONFIG}), which is read after their code and was never compared with a published checkpoint: "
            "compare some of its answers with the original's",
            stacklevel=2,
        )
    translated = from_hugging_face(floats, config, where)
    parts = _list_parts(translated.tensors, translated.carried)
    if encoder is not None:
        parts |= {"encoder"}
    if "encoder" not in parts:
        raise ModelError(f"{where} holds no encoder of the family {config.model_type}.")
    declared = settings.get("architectures")
    claim = str(declared[0]) if isinstance(declared, list) and declared else ""
    labels = {key: settings[key] for key in MATRYOSHKA if key in settings}
    if translated.carried:
        labels |= read_labels(settings, where)
    return Checkpoint(
        config,
        choose_architecture(config.model_type, parts, claim).name,
        translated.tensors,
        translated.carried,
        labels,
        notes,
        manifest,
        encoder=encoder,
    )


def load_encoder(folder: Path | str) -> Bert:
    """Loads the encoder of a model folder without its heads, in evaluation mode.

    Its `pooler` is None where the file has none. Raises ModelError as `read_checkpoint` and `load_into` do.
    """
    return encoder_of(read_checkpoint(folder), f"{folder}/{WEIGHTS}")


def encoder_of(checkpoint: Checkpoint, where: str) -> Bert:
    """The encoder of a checkpoint, in evaluation mode; `where` names its file in errors. Raises ModelError as
    `load_into` does.
    """
    model = meta_init(lambda: Bert(checkpoint.config))
    if "pooler" not in checkpoint.parts:
        model.pooler = None
    load_encoder_into(model, checkpoint, where)
    return model.eval()


def load_encoder_into(encoder: Bert, checkpoint: Checkpoint, where: str, *, without: str = "") -> None:
    """Loads a checkpoint's encoder into one on the meta device, as `load_into` does, but for tensors whose
    names begin with `without`, if that is given. Of an encoder in use only the pooler is loaded.
    """
    tensors = {
        name: tensor
        for name, tensor in checkpoint.tensors.items()
        if name.startswith("encoder.") and not (without and name.startswith(without))
    }
    may_lack = () if checkpoint.table is None else (TOKENS,)
    module: nn.Module = encoder
    if checkpoint.encoder is not None:
        module = nn.ModuleDict({} if encoder.pooler is None else {"pooler": encoder.pooler})
    load_into(nn.ModuleDict({"encoder": module}), tensors, checkpoint.config, where, may_lack=may_lack)
    if checkpoint.table is not None:
        encoder.embeddings.token = checkpoint.table


def load_into(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    config: BertConfig,
    where: str,
    *,
    may_lack: Collection[str] = (),
) -> None:
    """Loads tensors under our names into a module, strictly.

    `may_lack` names tensors that may be missing; the module keeps its own values of these. A module on the
    meta device takes the tensors themselves, without a copy. Raises ModelError that names all missing,
    unexpected, misshapen (with both shapes) and non-finite tensors; the module is unchanged then.
    """
    expected = module.state_dict()
    problems = []
    if missing := expected.keys() - tensors.keys() - set(may_lack):
        problems.append(f"missing {listed(_file_names(missing, config))}")
    if unexpected := tensors.keys() - expected.keys():
        problems.append(f"unexpected {listed(_file_names(unexpected, config))}")
    problems += _describe_shapes(expected, tensors, config)
    if broken := [name for name, tensor in tensors.items() if not _is_finite(tensor)]:
        problems.append(f"values that are not finite in {listed(_file_names(broken, config))}")
    if problems:
        raise ModelError(
            f"{where} doesn't fit its {CONFIG}: {'; '.join(problems)}. "
            "Use a checkpoint whose files belong together."
        )
    on_meta = any(tensor.is_meta for tensor in expected.values())
    module.load_state_dict(dict(tensors), strict=not may_lack, assign=on_meta)


@check_arguments(folder=check_path)
def save_checkpoint(
    folder: Path | str,
    tensors: Mapping[str, Tensor],
    config: BertConfig,
    architecture: str,
    *,
    task: str,
    tokenizer: SavesItself | None = None,
    provenance: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    carried: Mapping[str, Tensor] | None = None,
    labels: Mapping[str, Any] | None = None,
    write_extra_files: Callable[[Path], None] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a model folder that transformers opens as `architecture`, atomically.

    `tensors` are under our names, `carried` (with `labels`) under the file's names. `write_extra_files` adds
    a task's files before the hashes are computed. Raises ModelError where a head of the architecture is
    missing, a value isn't finite, or the tokenizer has more tokens than the model has rows; InputError where
    the folder exists and `overwrite` is False; ResourceError for lack of space.
    """
    model_class = find_architecture(architecture)
    carried = carried or {}
    missing = model_class.heads - _list_parts(tensors, carried)
    if missing:
        raise ModelError(f"A {architecture} needs {listed(missing)}, which this model doesn't have.")
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise ModelError(
            f"The tokenizer has {tokenizer.vocab_size:,} pieces, the model only {config.vocab_size:,} rows. "
            "Save the model with its own tokenizer."
        )
    renamed = to_hugging_face(tensors, config, bare=model_class.bare and not carried) | dict(carried)
    saved = {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in renamed.items()}
    if broken := [name for name, tensor in saved.items() if not _is_finite(tensor)]:
        raise ModelError(f"The model was not saved: {listed(broken)} holds values that are not finite.")
    require_free_space(Path(folder), sum(tensor.nbytes for tensor in saved.values()), "Saving the model")
    manifest = Manifest(
        architecture=architecture, task=task, settings=dict(settings or {}), provenance=dict(provenance or {})
    )
    with atomic_folder(Path(folder), overwrite=overwrite) as partial:
        with tensors_written_to(partial / WEIGHTS):
            save_file(saved, partial / WEIGHTS, metadata={"format": "pt"})
        write_json(partial / CONFIG, config_to_hugging_face(config, architecture) | dict(labels or {}))
        if tokenizer is not None:
            tokenizer.save(partial, segments=config.type_vocab_size > 1, max_length=config.max_length)
        if write_extra_files is not None:
            write_extra_files(partial)
        write_manifest(partial, manifest)
        write_card(partial, manifest, _describe_size(config, saved))


def _find_weights(folder: Path) -> Path:
    """The path of model.safetensors. Raises ModelError that tells how to convert other formats, if there are
    any.
    """
    if (folder / WEIGHTS).exists() or (folder / WEIGHTS).is_symlink():
        return plain_file(folder, WEIGHTS)
    if (folder / "pytorch_model.bin").exists():
        raise ModelError(
            f"{folder} holds a pytorch_model.bin, a format that can run code. Convert it once, safely: "
            f"bertsmith import {folder} --out MODEL"
        )
    if (
        any(folder.glob("*.index.json"))
        or any(folder.glob("*-of-*.safetensors"))
        or any(folder.glob("*-of-*.bin"))
    ):
        raise ModelError(
            f"{folder} holds its weights in several files, which Bertsmith doesn't read yet. Save them as "
            f"one {WEIGHTS} first: model.save_pretrained(FOLDER, max_shard_size='100GB') of transformers."
        )
    raise ModelError(f"{folder} has no {WEIGHTS}: it is not a model folder, or not a whole one.")


def _convert_to_float32(
    tensors: Mapping[str, Tensor], where: str
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors in float32, and a note for each type that was converted.

    Integers are accepted only as buffers of indices, which are dropped later. Raises ModelError for others.
    """
    result, converted = {}, dict[torch.dtype, int]()
    for name, tensor in tensors.items():
        if tensor.dtype in (torch.float16, torch.bfloat16, torch.float64):
            converted[tensor.dtype] = converted.get(tensor.dtype, 0) + 1
        elif tensor.dtype != torch.float32 and not name.endswith(("position_ids", "token_type_ids")):
            raise ModelError(
                f"{where}: {name} is {_dtype_name(tensor.dtype)}; expected float32, float16 or bfloat16."
            )
        result[name] = tensor.float()
    notes = (
        f"{count} tensors were {_dtype_name(dtype)} and are now float32" for dtype, count in converted.items()
    )
    return result, tuple(notes)


def _describe_size(config: BertConfig, tensors: Mapping[str, Tensor]) -> str:
    weights = sum(tensor.numel() for tensor in tensors.values())
    count = f"{weights / 1e6:.1f} million" if weights >= 1e6 else f"{weights:,}"
    return (
        f"A `{config.model_type}` of {config.num_hidden_layers} layers, {config.hidden_size} wide, with "
        f"{count} weights"
    )


def _list_parts(tensors: Mapping[str, Tensor], carried: Mapping[str, Tensor]) -> frozenset[str]:
    return frozenset(map(part_of, tensors)) | {name.partition(".")[0] for name in carried}


def _describe_shapes(
    expected: Mapping[str, Tensor], actual: Mapping[str, Tensor], config: BertConfig
) -> list[str]:
    """Sentences on tensors of a wrong shape, with shapes as in the file: a stack of three counts as three
    tensors of a third of the rows.
    """
    wrong = sorted(
        name for name in expected.keys() & actual.keys() if expected[name].shape != actual[name].shape
    )
    sentences = []
    for name in wrong[:4]:
        theirs = file_names(name, config)
        sentences.append(
            f"{', '.join(theirs)} must have the shape {_piece_shape(expected[name], len(theirs))}, "
            f"found {_piece_shape(actual[name], len(theirs))}"
        )
    return sentences + ([f"{len(wrong) - 4} more of a wrong shape"] if len(wrong) > 4 else [])


def _is_finite(tensor: Tensor) -> bool:
    """Whether all values are finite. The sum is checked first, which needs no memory for a mask of the
    values.
    """
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def _file_names(names: Collection[str], config: BertConfig) -> list[str]:
    return [theirs for name in names for theirs in file_names(name, config)]


def _piece_shape(tensor: Tensor, pieces: int) -> tuple[int, ...]:
    return (tensor.shape[0] // pieces, *tensor.shape[1:]) if tensor.dim() else ()


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

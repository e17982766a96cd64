"""Converts checkpoints in old formats to safe model folders: pytorch_model.bin, TensorFlow's files, Flax'
msgpack.

Only here is a pickle opened, and only for tensors: torch.load(weights_only=True) builds tensors and plain
containers and refuses everything else. Two more checks are made here: the container's size before it is
opened, and that its content is a flat dictionary of ordinary tensors, no larger than the file.
"""

import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertsmith.errors import ModelError, TokenizerError
from bertsmith.files import sha256
from bertsmith.model.checkpoint import CONFIG, WEIGHTS, Checkpoint, encoder_of, interpret, save_checkpoint
from bertsmith.model.flax_msgpack import read_flax_tensors
from bertsmith.model.manifest import IMPORTED
from bertsmith.model.own_tokenizer import read_own_tokenizer
from bertsmith.model.sentence_files import copy_sentence_files, has_legacy_modules, source_encoder_folder
from bertsmith.model.tensorflow import INDEX, is_weight, read_bundle, to_hugging_face_names
from bertsmith.model.untrusted import plain_file, read_settings, read_tensors
from bertsmith.text.tokens.tokenizer import Tokenizer

LEGACY_WEIGHTS = "pytorch_model.bin"

# A pickle that describes 200 tensors has 50 kB; a larger one than this describes something else.
MAX_PICKLE_BYTES = 16 << 20

GOOGLE_CONFIG = "bert_config.json"

FLAX_WEIGHTS = "flax_model.msgpack"

# Files with weights of other frameworks, and the names of their formats.
_OTHER_FORMATS = {
    "*.ckpt*": "a form of TensorFlow's checkpoints without an .index",
    "*.h5": "Keras' format",
    "*.onnx": "the ONNX format",
}
Reader = Callable[[Path], dict[str, Tensor]]


@dataclass(frozen=True)
class ConversionResult:
    """The converted checkpoint, whether a tokenizer came with it, and sentences for the user."""

    checkpoint: Checkpoint
    with_tokenizer: bool
    notes: tuple[str, ...]


def convert_legacy(folder: Path | str, out: Path | str) -> ConversionResult:
    """Converts a folder with weights in an old format, their config.json and, if there is one, a vocabulary
    to the model folder `out`, atomically.

    The weights are a pytorch_model.bin, a flax_model.msgpack, or TensorFlow's PREFIX.index with its data
    files, whose config may be named bert_config.json; where a folder has several of these, give
    FOLDER/PREFIX. Every tensor is kept: those of heads that Bertsmith has no module for stay under their own
    names, with their labels. An embedding model keeps its pooling, its dense layer, its maximum length and
    its prompts.

    Raises ModelError for a file that holds anything but tensors, is truncated, doesn't fit its config.json or
    can't be converted; InputError where `out` exists.
    """
    folder, out = Path(folder), Path(out)
    source = folder
    weights, read = _find_legacy_weights(source_encoder_folder(folder), has_legacy_modules(folder))
    folder = weights.parent
    settings = read_settings(_find_config(folder))
    checkpoint = interpret(read(weights), settings, str(weights))
    encoder_of(checkpoint, str(weights))  # raises now what opening the new folder would raise
    tokenizer, tokenizer_note = _read_tokenizer(folder, checkpoint)
    labels = _make_labels(checkpoint)

    def write_extra_files(partial: Path) -> None:
        copy_sentence_files(source if source.is_dir() else folder, partial, read_legacy_tensors)

    save_checkpoint(
        out,
        checkpoint.tensors,
        checkpoint.config,
        checkpoint.architecture,
        task=IMPORTED,
        tokenizer=tokenizer,
        provenance={"imported_from": f"{folder.name}/{weights.name}", "sha256": sha256(weights)},
        carried=checkpoint.carried,
        labels=checkpoint.labels | labels,
        write_extra_files=write_extra_files,
    )
    notes = list(checkpoint.notes)
    if checkpoint.carried:
        heads = ", ".join(sorted({name.partition(".")[0] for name in checkpoint.carried}))
        notes.append(f"the head {heads} ({checkpoint.architecture}) was kept under its own names")
    if labels:
        names = " to ".join(dict.fromkeys((labels["id2label"]["0"], list(labels["label2id"])[-1])))
        notes.append(
            f"the config names no labels, so the head's outputs are called {names}. To name them, give "
            "id2label in the config and import again"
        )
    return ConversionResult(checkpoint, tokenizer is not None, (*notes, *tokenizer_note))


def read_legacy_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a pytorch_model.bin, on the CPU. Raises ModelError for any other content."""
    _check_container(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{path} holds Python objects beside its tensors, or is not what torch.save wrote. Opening it "
            "could run code, so it was refused. Ask its maker for a model.safetensors."
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # torch raises many kinds for a damaged file
        first_line = str(error).partition("\n")[0][:200]
        raise ModelError(f"{path} can't be read ({first_line}). It may have been cut or altered.") from error
    return _require_plain_tensors(content, path)


def read_tensorflow_tensors(index: Path) -> dict[str, Tensor]:
    """The weights of a TensorFlow checkpoint of Google's BERT, under Hugging Face's names; the optimiser's
    state is left out.

    Raises ModelError for truncated or altered files, and for a tensor that BERT doesn't have.
    """
    return to_hugging_face_names(read_bundle(index, is_weight), str(index))


def _find_legacy_weights(folder: Path, has_old_modules: bool = False) -> tuple[Path, Reader]:
    """The file of weights in an old format, and the function that reads it; of an embedding model whose other
    modules alone are in such a format (`has_old_modules`) the usual file. Raises ModelError where there is
    none.
    """
    index = folder if folder.suffix == INDEX else folder.parent / (folder.name + INDEX)
    if not folder.is_dir() and index.is_file():
        return plain_file(index.parent, index.name), read_tensorflow_tensors
    if not folder.is_dir():
        raise ModelError(
            f"{folder} is not a folder. Give the folder that holds {LEGACY_WEIGHTS} and {CONFIG}, or "
            "TensorFlow's files."
        )
    if (folder / LEGACY_WEIGHTS).exists() or (folder / LEGACY_WEIGHTS).is_symlink():
        return plain_file(folder, LEGACY_WEIGHTS), read_legacy_tensors
    if (folder / WEIGHTS).exists() and has_old_modules:
        return plain_file(folder, WEIGHTS), read_tensors
    if (folder / WEIGHTS).exists():
        raise ModelError(
            f"{folder} already holds a {WEIGHTS}: there is nothing to import. Use the folder as it is."
        )
    indexes = sorted(folder.glob(f"*{INDEX}"))
    if not indexes and (folder / FLAX_WEIGHTS).exists():
        return plain_file(folder, FLAX_WEIGHTS), read_flax_tensors
    if len(indexes) > 1:
        names = ", ".join(path.name.removesuffix(INDEX) for path in indexes)
        raise ModelError(f"{folder} holds several checkpoints: {names}. Name one as FOLDER/NAME.")
    if indexes:
        return plain_file(folder, indexes[0].name), read_tensorflow_tensors
    for pattern, name in _OTHER_FORMATS.items():
        if any(folder.glob(pattern)):
            raise ModelError(
                f"{folder} holds weights in {name}, which Bertsmith doesn't read. Convert them to "
                f"{LEGACY_WEIGHTS} once where that framework is installed, with transformers 4, then import "
                "that."
            )
    if any(folder.glob("*-of-*.bin")):
        raise ModelError(
            f"{folder} holds its weights in several files, which Bertsmith doesn't read yet. Save them as "
            f"one {WEIGHTS} first: model.save_pretrained(FOLDER, max_shard_size='100GB') of transformers."
        )
    raise ModelError(f"{folder} has no {LEGACY_WEIGHTS}: there is nothing to import.")


def _find_config(folder: Path) -> Path:
    """The path of config.json, or of Google's bert_config.json, which TensorFlow's training doesn't write."""
    if not (folder / CONFIG).exists() and (folder / GOOGLE_CONFIG).exists():
        return plain_file(folder, GOOGLE_CONFIG)
    if not (folder / CONFIG).exists() and any(folder.glob(f"*{INDEX}")):
        raise ModelError(
            f"{folder} has no {GOOGLE_CONFIG}, which says the model's shape. Copy it from the model that the "
            "training began with, and vocab.txt with it."
        )
    return plain_file(folder, CONFIG)


def _check_container(path: Path) -> None:
    """Raises ModelError for a file that torch.save didn't write: since 1.6 it writes zip archives without
    compression, and before a bare pickle stream.
    """
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            # torch's magic number as a pickle: protocol 2, then the integer 0x1950a86a20f9469cfc6c
            if file.read(14) != b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19":
                raise ModelError(
                    f"{path} is not a file that torch.save wrote. It may have been cut or altered."
                )
        return
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ModelError(f"{path} is a broken archive ({error}). It may have been cut or altered.") from error
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ModelError(f"{path} is a compressed archive, which torch.save never writes; it was refused.")
    if sum(entry.file_size for entry in entries) > size:
        raise ModelError(f"{path} claims to hold more than its {size:,} bytes; it was refused.")
    if any(entry.filename.endswith(".pkl") and entry.file_size > MAX_PICKLE_BYTES for entry in entries):
        raise ModelError(f"{path} has a description of more than {MAX_PICKLE_BYTES:,} bytes; it was refused.")


def _require_plain_tensors(content: object, path: Path) -> dict[str, Tensor]:
    """Checks that a file's content is a flat dictionary of dense tensors, together at most twice as large as
    the file, and returns copies of them.

    Twice, since tied tensors are two names for one storage. A hostile file may hold a view that repeats a few
    values a billion times.
    """
    if not isinstance(content, Mapping):
        raise ModelError(f"{path} holds a {type(content).__name__}; expected a dictionary of tensors.")
    budget = 2 * path.stat().st_size
    tensors: dict[str, Tensor] = {}
    for name, value in content.items():
        is_plain = (
            type(value) in (Tensor, torch.nn.Parameter)
            and value.layout is torch.strided
            and value.device.type == "cpu"
            and not value.is_quantized
        )
        if not isinstance(name, str) or not is_plain:
            kind = type(value).__name__
            if isinstance(value, Tensor):
                kind = f"a tensor of an unusual kind ({value.layout})"
            raise ModelError(
                f"{path}: {name!r} is {kind}; expected nothing but dense tensors by name. "
                "A training state must be reduced to the model's state_dict by its maker."
            )
        budget -= value.numel() * value.element_size()
        if budget < 0:
            raise ModelError(f"{path} claims tensors that are larger than the file; it was refused.")
        tensors[name] = value.detach()
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _read_tokenizer(folder: Path, checkpoint: Checkpoint) -> tuple[Tokenizer | None, tuple[str, ...]]:
    """The folder's tokenizer, or None with a note that says why it can't be used."""
    try:
        tokenizer = read_own_tokenizer(folder)
    except TokenizerError as error:
        return None, (f"no tokenizer was imported: {error}",)
    rows = checkpoint.config.vocab_size
    if tokenizer.vocab_size > rows:
        return None, (
            f"no tokenizer was imported: it has {tokenizer.vocab_size:,} pieces, the model {rows:,} rows. "
            f"Remove the pieces from {tokenizer.id_to_token(rows)!r} on and import again",
        )
    return tokenizer, ()


def _make_labels(checkpoint: Checkpoint) -> dict[str, Any]:
    """config.json's entries for labels LABEL_0, … of a classifier whose config has none, as Google's: without
    them two labels would be assumed. Empty for a head of two outputs, and where there are names.
    """
    family, kind = checkpoint.config.family, checkpoint.architecture
    head = family.token_head if kind.endswith("ForTokenClassification") else family.sequence_head
    rows = checkpoint.carried.get(f"{head.out}.weight")
    has_names = checkpoint.labels.get("id2label") or checkpoint.labels.get("label2id")
    if rows is None or has_names or len(rows) == 2:
        return {}
    names = [f"LABEL_{number}" for number in range(len(rows))]
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }

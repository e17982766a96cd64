"""A model, or a tokenizer alone, gets the words of a domain as pieces, and is freed of them again.

out/extension.json   what was added, and how well the vocabulary fitted before and after
out/report.html      the same to look at
out/                 and whatever a model's or a tokenizer's folder holds
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bertsmith.door import door, flag, function, kind, optional, place
from bertsmith.errors import InputError, TokenizerError
from bertsmith.files import atomic_folder, atomic_write, read_json, require_free, write_json
from bertsmith.model.added_rows import resized, with_rows, without_rows
from bertsmith.model.checkpoint import Checkpoint, read_checkpoint, save_checkpoint
from bertsmith.model.legacy import read_legacy_tensors
from bertsmith.model.locate import locate_model
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.model.sentence_files import copy_sentence_files
from bertsmith.model.untrusted import plain_file
from bertsmith.progress import Progress
from bertsmith.reporting.extension_report import extension_page
from bertsmith.tasks.golden.records import write_golden
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.tokens.extension import (
    Extension,
    ExtensionSettings,
    extend_tokenizer,
    without_extension,
)
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.validation import first_problem

EXTENSION = "extension.json"
REPORT = "report.html"
# Of a model, in files that read_checkpoint reads, or refuses with the way on.
_WEIGHTS = (".safetensors", ".bin", ".h5", ".msgpack")
_HEAD = "head.safetensors"


@dataclass(frozen=True)
class _Source:
    """What is to be extended; `checkpoint` is None for a tokenizer alone."""

    folder: Path
    tokenizer: Tokenizer
    checkpoint: Checkpoint | None
    extension: Extension | None


@door(
    source=place,
    corpus=place,
    out=place,
    settings=optional(kind(ExtensionSettings)),
    overwrite=flag,
    progress=optional(function),
)
def extend_vocabulary(
    source: Path | str,
    corpus: Path | str,
    out: Path | str,
    settings: ExtensionSettings | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Extension:
    """Writes `source`, a model by folder, alias or hub name or a tokenizer's folder or file, with those words
    of a corpus that save most pieces.

    A model gets a row for each new piece, the mean of those of its old ones. transformers opens the folder.
    Raises InputError when `out` exists, TokenizerError where no word would save anything, and as
    `read_checkpoint` and `Corpus.open` do.
    """
    if not overwrite:
        require_free(Path(out))
    found = _open(source)
    tokenizer, extension = extend_tokenizer(found.tokenizer, Corpus.open(corpus), settings, progress=progress)
    extension = extension.model_copy(update={"earlier": found.extension})
    checkpoint = found.checkpoint
    if checkpoint is not None:
        tensors = with_rows(checkpoint.tensors, extension.base_pieces, extension.parts)
        config = resized(checkpoint.config, len(extension.pieces), str(found.folder))
        checkpoint = _with(checkpoint, tensors, config)

    def describe(folder: Path) -> None:
        write_extension(folder, extension)
        atomic_write(folder / REPORT, extension_page(extension, str(source), str(corpus)))

    _write(found, tokenizer, checkpoint, Path(out), describe, overwrite)
    return extension


@door(source=place, out=place, overwrite=flag)
def undo_extension(source: Path | str, out: Path | str, *, overwrite: bool = False) -> Extension:
    """Writes an extended model or tokenizer without the words that were added, and returns what those were.

    Of one that was only extended, every number and every id is again that of the original. One that was
    trained since keeps what it learned elsewhere. Raises InputError when `source` has no extension.json or
    `out` exists, TokenizerError when its pieces are others.
    """
    if not overwrite:
        require_free(Path(out))
    found = _open(source)
    extension = found.extension
    if extension is None:
        raise InputError(
            f"{source} has no {EXTENSION}: its vocabulary was not extended. Give the folder that "
            "`bertsmith tokenizer extend` wrote, or a model pre-trained from it."
        )
    tokenizer = without_extension(found.tokenizer, extension)
    checkpoint, count = found.checkpoint, len(extension.pieces)
    if checkpoint is not None:
        tensors = without_rows(checkpoint.tensors, extension.base_pieces, count)
        checkpoint = _with(checkpoint, tensors, resized(checkpoint.config, -count, str(found.folder)))
    earlier = extension.earlier

    def describe(folder: Path) -> None:
        if earlier is not None:
            write_extension(folder, earlier)

    _write(found, tokenizer, checkpoint, Path(out), describe, overwrite)
    return extension


def read_extension(folder: Path) -> Extension | None:
    """What was added to the vocabulary of this folder; None where nothing was.

    Raises TokenizerError for an extension.json that is damaged.
    """
    if not (folder / EXTENSION).exists():
        return None
    path = plain_file(folder, EXTENSION)
    try:
        return Extension.model_validate(read_json(path))
    except ValidationError as error:
        raise TokenizerError(
            f"{path}: {first_problem(error, Extension)} It was altered, or written by a newer Bertsmith."
        ) from error


def write_extension(folder: Path, extension: Extension) -> None:
    """What was added, where `read_extension` looks for it."""
    write_json(folder / EXTENSION, extension.model_dump(mode="json"))


def _open(source: Path | str) -> _Source:
    path = Path(source)
    if path.is_file() or (path.is_dir() and not any(file.suffix in _WEIGHTS for file in path.iterdir())):
        folder = path.parent if path.is_file() else path
        return _Source(folder, Tokenizer.load(path), None, read_extension(folder))
    folder = path if path.is_dir() else locate_model(source).folder
    checkpoint = read_checkpoint(folder)
    return _Source(folder, load_own_tokenizer(folder, checkpoint.config), checkpoint, read_extension(folder))


def _with(checkpoint: Checkpoint, tensors: dict[str, Any], config: Any) -> Checkpoint:
    return replace(checkpoint, tensors=tensors, config=config)


def _write(
    found: _Source,
    tokenizer: Tokenizer,
    checkpoint: Checkpoint | None,
    out: Path,
    describe: Callable[[Path], None],
    overwrite: bool,
) -> None:
    """The folder, whole or not at all."""
    if checkpoint is None:
        with atomic_folder(out, overwrite=overwrite) as folder:
            tokenizer.save(folder)
            describe(folder)
        return

    def write_beside(folder: Path) -> None:
        _copy_kept(found.folder, folder)
        describe(folder)

    manifest = checkpoint.manifest
    save_checkpoint(
        out,
        checkpoint.tensors,
        checkpoint.config,
        checkpoint.architecture,
        task="extended" if manifest is None else manifest.task,
        tokenizer=tokenizer,
        provenance={} if manifest is None else manifest.provenance,
        settings={} if manifest is None else manifest.settings,
        carried=checkpoint.carried,
        labels=checkpoint.labels,
        write_extra_files=write_beside,
        overwrite=overwrite,
    )
    write_golden(out)


def _copy_kept(source: Path, folder: Path) -> None:
    """Of a model's folder, what has nothing to do with its vocabulary: a head of ours, pooling, prompts."""
    if (source / _HEAD).exists():
        shutil.copyfile(plain_file(source, _HEAD), folder / _HEAD)
    copy_sentence_files(source, folder, read_legacy_tensors)

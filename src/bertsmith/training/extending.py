"""A model, or a tokenizer alone, gets the words of a domain as pieces, and is freed of them again.

out/extension.json   what was added, and how well the vocabulary fitted before and after
out/report.html      the same to look at
out/                 and whatever a model's or a tokenizer's folder holds
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

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
from bertsmith.reporting import formatting
from bertsmith.reporting.page import render_page
from bertsmith.reporting.tables import Table
from bertsmith.tasks.golden.records import write_golden
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.tokens.extension import (
    Extension,
    ExtensionSettings,
    extend_tokenizer,
    remove_extension,
)
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.validation import first_problem

EXTENSION = "extension.json"
REPORT = "report.html"
# Of a model, in files that read_checkpoint reads, or refuses with the way on.
_WEIGHTS = (".safetensors", ".bin", ".h5", ".msgpack")
_HEAD = "head.safetensors"
_WORDS_SHOWN, _BROKEN_SHOWN = 200, 20  # on the page


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
    found = _open_source(source)
    tokenizer, extension = extend_tokenizer(found.tokenizer, Corpus.open(corpus), settings, progress=progress)
    extension = extension.model_copy(update={"earlier": found.extension})
    checkpoint = found.checkpoint
    if checkpoint is not None:
        tensors = with_rows(checkpoint.tensors, extension.base_pieces, extension.parts)
        config = resized(checkpoint.config, len(extension.pieces), str(found.folder))
        checkpoint = replace(checkpoint, tensors=tensors, config=config)

    def describe(folder: Path) -> None:
        write_extension(folder, extension)
        atomic_write(folder / REPORT, render_extension_page(extension, str(source), str(corpus)))

    _write_folder(found, tokenizer, checkpoint, Path(out), describe, overwrite)
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
    found = _open_source(source)
    extension = found.extension
    if extension is None:
        raise InputError(
            f"{source} has no {EXTENSION}: its vocabulary was not extended. Give the folder that "
            "`bertsmith tokenizer extend` wrote, or a model pre-trained from it."
        )
    tokenizer = remove_extension(found.tokenizer, extension)
    checkpoint, count = found.checkpoint, len(extension.pieces)
    if checkpoint is not None:
        tensors = without_rows(checkpoint.tensors, extension.base_pieces, count)
        config = resized(checkpoint.config, -count, str(found.folder))
        checkpoint = replace(checkpoint, tensors=tensors, config=config)
    earlier = extension.earlier

    def describe(folder: Path) -> None:
        if earlier is not None:
            write_extension(folder, earlier)

    _write_folder(found, tokenizer, checkpoint, Path(out), describe, overwrite)
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


def extension_writer(folder: Path | None) -> Callable[[Path], None] | None:
    """What writes the words that the model of this folder was extended by beside a model that goes on from
    it, to be taken out again by them; None where there are none. Raises as `read_extension` does.
    """
    extension = None if folder is None else read_extension(folder)
    if extension is None:
        return None
    return lambda written: write_extension(written, extension)


def _open_source(source: Path | str) -> _Source:
    path = Path(source)
    if path.is_file() or (path.is_dir() and not any(file.suffix in _WEIGHTS for file in path.iterdir())):
        folder = path.parent if path.is_file() else path
        return _Source(folder, Tokenizer.load(path), None, read_extension(folder))
    folder = path if path.is_dir() else locate_model(source).folder
    checkpoint = read_checkpoint(folder)
    return _Source(folder, load_own_tokenizer(folder, checkpoint.config), checkpoint, read_extension(folder))


def _write_folder(
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
        # what has nothing to do with the vocabulary: a head of ours, pooling, prompts
        if (found.folder / _HEAD).exists():
            shutil.copyfile(plain_file(found.folder, _HEAD), folder / _HEAD)
        copy_sentence_files(found.folder, folder, read_legacy_tensors)
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


# -- the page ------------------------------------------------------------------------------------------


def render_extension_page(extension: Extension, source: str, corpus: str) -> str:
    """The page as text; `source` and `corpus` are what the command was given."""
    before, after = extension.before, extension.after
    added = [
        [each.word, " ".join(each.pieces), formatting.count(each.count), formatting.count(each.saved)]
        for each in extension.words[:_WORDS_SHOWN]
    ]
    more = len(extension.words) - len(added)
    broken = [
        [each.word, " ".join(each.pieces), formatting.count(each.count)]
        for each in after.costliest[:_BROKEN_SHOWN]
    ]
    return render_page(
        "extension.html.jinja",
        title="Extended vocabulary",
        status=f"{source}, by the words of {corpus}",
        headline=[
            ("words added", formatting.count(len(extension.words))),
            ("pieces per word", f"{before.pieces_per_word:.3f} → {after.pieces_per_word:.3f}"),
            (
                "tokens per character",
                f"{before.tokens_per_character:.4f} → {after.tokens_per_character:.4f}",
            ),
            ("tokens for the same text", format_change(before.tokens, after.tokens)),
        ],
        warnings=[],
        fit=Table("", ["", "before", "after", "change"], format_fit_rows(extension)),
        words=Table("", ["word", "was", "times", "pieces saved"], added, more, frozenset({0, 1})),
        broken=Table("", ["word", "pieces", "times"], broken, 0, frozenset({0, 1})) if broken else None,
        measured=f"{after.sentences:,} sentences of the {after.split} split",
    )


def format_fit_rows(extension: Extension) -> list[list[str]]:
    """Figure, before, after, change: what page and terminal show."""
    before, after = extension.before, extension.after
    figures = [
        ("pieces", before.vocab_size, after.vocab_size, "{:,}"),
        ("pieces per word", before.pieces_per_word, after.pieces_per_word, "{:.4f}"),
        ("tokens per character", before.tokens_per_character, after.tokens_per_character, "{:.4f}"),
        ("tokens per sentence", before.tokens_per_sentence, after.tokens_per_sentence, "{:.2f}"),
        ("words in one piece", before.whole_words, after.whole_words, "{:.2%}"),
        ("unknown words", before.unknown_words, after.unknown_words, "{:.3%}"),
    ]
    return [
        [name, form.format(old), form.format(new), format_change(old, new)]
        for name, old, new, form in figures
    ]


def format_change(before: float, after: float) -> str:
    """'-7.5 %' of what was before; a dash where that was nothing."""
    return f"{100 * (after / before - 1):+.1f} %" if before else formatting.UNKNOWN

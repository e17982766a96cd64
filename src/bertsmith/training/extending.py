"""Extends the vocabulary of a model, or of a tokenizer alone, by words of a domain, and removes them again.

out/extension.json   the added words, and how well the vocabulary fitted before and after
out/report.html      the same as a page
out/                 the files of a model folder, or of a tokenizer's folder

The embedding of a new token, and its bias in the masked-language head, start as the mean of those of the old
tokens that spell it (Gee et al. 2022, "Fast vocabulary transfer", section 3), so that the model reads the
word nearly as before. Spare rows behind the vocabulary, which some models have, stay behind it.

V rows, H hidden size, P added tokens.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import ValidationError

from bertsmith.argument_checks import (
    check_arguments,
    check_flag,
    check_function,
    check_path,
    instance_of,
    optional,
)
from bertsmith.errors import InputError, ModelError, TokenizerError
from bertsmith.files import atomic_folder, atomic_write, read_json, require_new_folder, write_json
from bertsmith.model.card import unmeasured
from bertsmith.model.checkpoint import Checkpoint, read_checkpoint, save_checkpoint
from bertsmith.model.config import BertConfig
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
from bertsmith.validation import describe_problem

EXTENSION = "extension.json"
REPORT = "report.html"
# Endings of weights in a model folder, which read_checkpoint reads or refuses with advice.
_WEIGHTS = (".safetensors", ".bin", ".h5", ".msgpack", ".index", ".onnx")  # .index is TensorFlow's
_HEAD = "head.safetensors"
# Tensors with a row or a value for each token. The head's matrix is tied to the embeddings.
_VOCABULARY_TENSORS = ("encoder.embeddings.token.weight", "masked_language.bias")
_WORDS_SHOWN, _BROKEN_SHOWN = 200, 20  # on the page


@dataclass(frozen=True)
class _Source:
    """The model or tokenizer to extend, with its extension if it has one. `checkpoint` is None for a
    tokenizer alone.
    """

    folder: Path
    tokenizer: Tokenizer
    checkpoint: Checkpoint | None
    extension: Extension | None


@check_arguments(
    source=check_path,
    corpus=check_path,
    out=check_path,
    settings=optional(instance_of(ExtensionSettings)),
    overwrite=check_flag,
    progress=optional(check_function),
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
    """Writes `source` to `out` with the words of a corpus that save most tokens added to its vocabulary.
    `source` is a model (by folder, alias or hub name) or a tokenizer (by folder or file).

    A model gets an embedding for each new token: the mean of the embeddings of the tokens that the word had
    before. transformers opens the folder. Raises InputError if `out` exists, TokenizerError if no word would
    save anything, and what `read_checkpoint` and `Corpus.open` raise.
    """
    if not overwrite:
        require_new_folder(Path(out))
    original = _open_source(source)
    tokenizer, extension = extend_tokenizer(
        original.tokenizer, Corpus.open(corpus), settings, progress=progress
    )
    extension = extension.model_copy(update={"earlier": original.extension})
    checkpoint = original.checkpoint
    if checkpoint is not None:
        tensors = with_rows(checkpoint.tensors, extension.base_pieces, extension.parts)
        config = resize_config(checkpoint.config, len(extension.pieces), str(original.folder))
        checkpoint = replace(checkpoint, tensors=tensors, config=config)

    def write_description(folder: Path) -> None:
        write_extension(folder, extension)
        atomic_write(folder / REPORT, render_extension_page(extension, str(source), str(corpus)))

    _write_folder(original, tokenizer, checkpoint, Path(out), write_description, overwrite)
    return extension


@check_arguments(source=check_path, out=check_path, overwrite=check_flag)
def undo_extension(source: Path | str, out: Path | str, *, overwrite: bool = False) -> Extension:
    """Writes an extended model or tokenizer to `out` without the added words, and returns the extension.

    If the model was only extended, every weight and every id is that of the original again. If it was trained
    since, the other weights keep what they learned. Raises InputError if `source` has no extension.json or
    `out` exists, and TokenizerError if its vocabulary isn't that of its extension.json.
    """
    if not overwrite:
        require_new_folder(Path(out))
    extended = _open_source(source)
    extension = extended.extension
    if extension is None:
        raise InputError(
            f"{source} has no {EXTENSION}: its vocabulary was not extended. Give the folder that "
            "`bertsmith tokenizer extend` wrote, or a model pre-trained from it."
        )
    tokenizer = remove_extension(extended.tokenizer, extension)
    checkpoint, count = extended.checkpoint, len(extension.pieces)
    if checkpoint is not None:
        tensors = without_rows(checkpoint.tensors, extension.base_pieces, count)
        config = resize_config(checkpoint.config, -count, str(extended.folder))
        checkpoint = replace(checkpoint, tensors=tensors, config=config)
    earlier = extension.earlier

    def write_description(folder: Path) -> None:
        if earlier is not None:
            write_extension(folder, earlier)

    _write_folder(extended, tokenizer, checkpoint, Path(out), write_description, overwrite)
    return extension


def read_extension(folder: Path) -> Extension | None:
    """Reads what was added to the vocabulary of the model or tokenizer in this folder; None if nothing was.

    Raises TokenizerError for an extension.json that is damaged.
    """
    if not (folder / EXTENSION).exists():
        return None
    path = plain_file(folder, EXTENSION)
    try:
        return Extension.model_validate(read_json(path))
    except ValidationError as error:
        raise TokenizerError(
            f"{path}: {describe_problem(error, Extension)} It was altered, or written by a newer Bertsmith."
        ) from error


def write_extension(folder: Path, extension: Extension) -> None:
    """Writes extension.json to the folder, for `read_extension`."""
    write_json(folder / EXTENSION, extension.model_dump(mode="json"))


def extension_writer(folder: Path | None) -> Callable[[Path], None] | None:
    """A function that copies the extension of the model in `folder` to the folder of a model that is trained
    from it, so that it can be undone there too. None if the model has no extension. Raises as
    `read_extension` does.
    """
    extension = None if folder is None else read_extension(folder)
    if extension is None:
        return None
    return lambda trained_folder: write_extension(trained_folder, extension)


def _open_source(source: Path | str) -> _Source:
    """Reads a tokenizer from a file or a folder without weights, and a model from any other source."""
    path = Path(source)
    if path.is_file() or (path.is_dir() and not any(file.suffix in _WEIGHTS for file in path.iterdir())):
        folder = path.parent if path.is_file() else path
        return _Source(folder, Tokenizer.load(path), None, read_extension(folder))
    folder = path if path.is_dir() else locate_model(source).folder
    checkpoint = read_checkpoint(folder)
    return _Source(folder, load_own_tokenizer(folder, checkpoint.config), checkpoint, read_extension(folder))


def _write_folder(
    source: _Source,
    tokenizer: Tokenizer,
    checkpoint: Checkpoint | None,
    out: Path,
    write_description: Callable[[Path], None],
    overwrite: bool,
) -> None:
    """Writes the tokenizer, and the checkpoint if there is one, to `out` atomically. What doesn't depend on
    the vocabulary is copied from the source's folder. `write_description` adds files to the new folder.
    """
    if checkpoint is None:
        with atomic_folder(out, overwrite=overwrite) as folder:
            tokenizer.save(folder)
            write_description(folder)
        return

    def write_extra_files(folder: Path) -> None:
        # files that don't depend on the vocabulary: a head of ours, pooling, prompts
        if (source.folder / _HEAD).exists():
            shutil.copyfile(plain_file(source.folder, _HEAD), folder / _HEAD)
        copy_sentence_files(source.folder, folder, read_legacy_tensors)
        write_description(folder)

    manifest = checkpoint.manifest
    save_checkpoint(
        out,
        checkpoint.tensors,
        checkpoint.config,
        checkpoint.architecture,
        task="extended" if manifest is None else manifest.task,
        tokenizer=tokenizer,
        provenance={} if manifest is None else unmeasured(manifest.provenance),
        settings={} if manifest is None else manifest.settings,
        carried=checkpoint.carried,
        labels=checkpoint.labels,
        write_extra_files=write_extra_files,
        overwrite=overwrite,
    )
    write_golden(out)


# -- the page ------------------------------------------------------------------------------------------


def render_extension_page(extension: Extension, source: str, corpus: str) -> str:
    """Renders the page as HTML. `source` and `corpus` are the arguments of the command."""
    before, after = extension.before, extension.after
    added = [
        [word.word, " ".join(word.pieces), formatting.count(word.count), formatting.count(word.saved)]
        for word in extension.words[:_WORDS_SHOWN]
    ]
    more = len(extension.words) - len(added)
    broken = [
        [word.word, " ".join(word.pieces), formatting.count(word.count)]
        for word in after.costliest[:_BROKEN_SHOWN]
    ]
    return render_page(
        "extension.html.jinja",
        title="Extended vocabulary",
        status=f"{source}, by the words of {corpus}",
        headline=[
            ("words added", formatting.count(len(extension.words))),
            (
                "pieces per word",
                f"{formatting.mean(before.pieces_per_word)} → {formatting.mean(after.pieces_per_word)}",
            ),
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
    """The rows of the table of how well the vocabulary fits: name, before, after, change."""
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
        if old is not None and new is not None  # as in scripts without blanks
    ]


def format_change(before: float, after: float) -> str:
    """Formats a change in percent of `before`, as '-7.5 %'; a dash if `before` is 0."""
    return f"{100 * (after / before - 1):+.1f} %" if before else formatting.UNKNOWN


def with_rows(
    tensors: Mapping[str, torch.Tensor], base: int, parts: Sequence[Sequence[int]]
) -> dict[str, torch.Tensor]:
    """The tensors, under our names, with rows for P more tokens from row `base` on: (V, H) -> (V + P, H).

    `parts` lists for each new token the rows of which it is the mean. Other tensors are returned as they are.
    """

    def extend(rows: torch.Tensor) -> torch.Tensor:
        added = torch.stack([rows[list(part)].double().mean(0) for part in parts]).to(rows.dtype)
        return torch.cat([rows[:base], added, rows[base:]])

    return {name: extend(rows) if name in _VOCABULARY_TENSORS else rows for name, rows in tensors.items()}


def without_rows(tensors: Mapping[str, torch.Tensor], base: int, count: int) -> dict[str, torch.Tensor]:
    """The tensors without the `count` rows from row `base` on; all other rows stay as they are, to
    the bit.
    """

    def cut(rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([rows[:base], rows[base + count :]])

    return {name: cut(rows) if name in _VOCABULARY_TENSORS else rows for name, rows in tensors.items()}


def resize_config(config: BertConfig, change: int, where: str) -> BertConfig:
    """The config with `change` rows more. Raises ModelError where less than one row is left."""
    size = config.vocab_size + change
    if size < 1:
        raise ModelError(
            f"{where} has {config.vocab_size:,} rows, {-change:,} of which are to go. Its extension.json is "
            "that of another model."
        )
    return config.model_copy(update={"vocab_size": size})

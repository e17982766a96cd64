"""A model without the pieces of its vocabulary that texts of its kind don't have.

Of a small model the vocabulary is the larger part: of MiniLM's 23 million parameters 12 million are rows of
30,522 pieces, of a multilingual BERT's 178 million 92 million. Nothing is trained: texts of the pieces that
were counted have the same ids but for their numbering, and the same hidden states to the bit.

V pieces, K of them kept, H hidden size.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from bertsmith.arrays import Ints
from bertsmith.door import door, kind, optional, place
from bertsmith.errors import InputError, ModelError
from bertsmith.files import require_free
from bertsmith.inference.engine import require_texts
from bertsmith.model.checkpoint import read_checkpoint, save_checkpoint
from bertsmith.model.legacy import read_legacy_tensors
from bertsmith.model.locate import locate_model
from bertsmith.model.manifest import Manifest, read_manifest, stated_manifest
from bertsmith.model.own_tokenizer import load_own_tokenizer, read_own_tokenizer
from bertsmith.model.sentence_files import copy_sentence_files, read_prompts
from bertsmith.model.static_table import (
    StaticTable,
    is_static,
    load_static,
    read_longest,
    save_static,
    table_folder,
)
from bertsmith.model.untrusted import plain_file
from bertsmith.tasks.checkpoints.infer_task import model_kind
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model, save_task_model
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.tagging import Tagging
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.pruning import count_pieces, prune

_OF_VOCABULARY = ("encoder.embeddings.token.weight", "masked_language.bias")
_PREFIXES = ("query_prefix", "document_prefix")  # settings of a task
_OF_MANIFEST = {"embedding": "encoder", "masked-language": "pretraining"}
# What sentence-transformers needs beside the weights: nothing of it counts pieces.
_PROMPTS = "config_sentence_transformers.json"


@dataclass(frozen=True)
class PrunedModel:
    """`parameters` of the token table and all else, before and after; `texts` that were counted."""

    folder: Path
    pieces_before: int
    pieces: int
    parameters_before: int
    parameters: int
    texts: int


@door(model=place, out=place, task=optional(kind(type)))
def prune_vocabulary(
    model: str | Path, texts: Iterable[str], out: Path | str, task: type[Task[Any]] | None = None
) -> PrunedModel:
    """Writes the model with the pieces that the texts have (see bertsmith.text.tokens.pruning), whole or not
    at all. What the model was made for stays: a task, masked words, vectors, a static table.

    Texts are counted as they stand, behind each of the model's prefixes, and word by word for a tagger and
    for an encoder, which may become one. A word that they don't have is spelled by the pieces that are left,
    and understood less well: give many texts. `task` is for a model of a task of your own. Raises InputError
    where there are no texts, for one text in place of a list, and for an `out` that exists, ModelError for a
    model that can't be opened.
    """
    require_texts(texts)
    folder = locate_model(model).folder
    require_free(Path(out))
    tokenizer = read_own_tokenizer(table_folder(folder) if is_static(folder) else folder)
    reading: Task[Any] | None = None
    if model_kind(folder) == "task":
        reading = load_task_model(folder, task)[1]
    elif not is_static(folder):  # an encoder may become a tagger, or be asked by Features
        reading = Tagging(Tagging.Settings())
    counted = _CountedTexts(texts, _prefixes(folder), reading)
    counts = count_pieces(tokenizer, counted)
    if not counted.number:
        raise InputError("There are no texts to count pieces in: every piece would go. Give texts.")
    return prune_counted(folder, counts, Path(out), counted.number, task)


class _CountedTexts:
    """The texts, counted as they pass; each goes on by itself, behind each prefix, with which its first word
    may be spelled by other pieces, and as the `task` reads it too.
    """

    def __init__(self, texts: Iterable[str], prefixes: Sequence[str], task: Task[Any] | None) -> None:
        self._texts, self._prefixes, self._task = texts, prefixes, task
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.number += 1
            yield text
            for prefix in self._prefixes:
                yield prefix + text
            if self._task is not None:
                yield from self._task.spellings(text)


def _prefixes(folder: Path) -> list[str]:
    """What the model puts before a text: prompts of sentence-transformers, and a task's settings."""
    manifest = stated_manifest(folder)
    state = {} if manifest is None else manifest.settings
    settings = state.get("settings", {})
    found = [*read_prompts(folder).values(), state.get("prompt"), *(settings.get(name) for name in _PREFIXES)]
    return list(dict.fromkeys(prefix for prefix in found if isinstance(prefix, str) and prefix))


def prune_counted(
    folder: Path, counts: Ints, out: Path, texts: int, task: type[Task[Any]] | None = None
) -> PrunedModel:
    """The same, of pieces (V,) that were counted in so many texts; `task` for a task of one's own. Raises
    ModelError where positions count from the padding piece's id and that one would move.
    """
    if is_static(folder):
        return _prune_table(folder, counts, out, texts, task)
    checkpoint = read_checkpoint(folder)
    before = checkpoint.config
    pruned = prune(load_own_tokenizer(folder, before), counts)
    pad = pruned.tokenizer.pad_id
    if before.family.positions_after_padding and pad != before.pad_token_id:
        raise ModelError(
            f"The positions of a {before.model_type} model begin behind the id of its padding piece, which "
            f"is {before.pad_token_id} and would be {pad}: its vocabulary can't be pruned."
        )
    config = before.model_copy(update={"vocab_size": len(pruned.kept), "pad_token_id": pad})
    rows, tensors = torch.from_numpy(pruned.kept), dict(checkpoint.tensors)
    for name in _OF_VOCABULARY:  # (V, …) -> (K, …); spare rows behind the last piece go too
        if name in tensors and tensors[name].shape[0] == before.vocab_size:
            tensors[name] = tensors[name][rows].clone()
    note = {"pruned_from": str(folder), "pieces_before": before.vocab_size, "texts": texts}
    kind = model_kind(folder)
    if kind == "task":  # with its head, labels and thresholds, as it was
        model, own = load_task_model(folder, task)
        model.encoder.config = config
        model.encoder.embeddings.token = torch.nn.Embedding.from_pretrained(
            tensors["encoder.embeddings.token.weight"], freeze=False
        )
        smaller = TaskModel(model.encoder, model.head)
        save_task_model(out, smaller, own, pruned.tokenizer, _noted(read_manifest(folder), note))
    else:  # with its head for masked words, or with what sentence-transformers needs
        manifest = checkpoint.manifest
        save_checkpoint(
            out,
            tensors,
            config,
            checkpoint.architecture,
            task=_OF_MANIFEST[kind] if manifest is None else manifest.task,
            tokenizer=pruned.tokenizer,
            provenance=_noted(manifest, note),
            settings={} if manifest is None else manifest.settings,
            carried=checkpoint.carried,
            labels=checkpoint.labels,
            write_extra_files=lambda partial: copy_sentence_files(folder, partial, read_legacy_tensors),
        )
    write_golden(out, task)
    size, left = (
        sum(tensor.numel() for tensor in (*some.values(), *checkpoint.carried.values()))
        for some in (checkpoint.tensors, tensors)
    )
    return PrunedModel(out, before.vocab_size, len(pruned.kept), size, left, texts)


def _prune_table(
    folder: Path, counts: Ints, out: Path, texts: int, given: type[Task[Any]] | None
) -> PrunedModel:
    """A table with a task's head keeps it, with its labels."""
    table = load_static(folder)
    pruned = prune(load_own_tokenizer(table_folder(folder), table.config), counts)
    note = {"pruned_from": str(folder), "pieces_before": len(table.table), "texts": texts}
    rows = table.table[torch.from_numpy(pruned.kept)]
    rest = 0
    if model_kind(folder) == "task":
        model, task = load_task_model(folder, given)
        smaller = TaskModel(cast(Any, StaticTable(rows)), model.head)
        save_task_model(out, smaller, task, pruned.tokenizer, _noted(read_manifest(folder), note))
        rest = sum(parameter.numel() for parameter in model.head.parameters())
    else:

        def write_extra_files(partial: Path) -> None:
            if (folder / _PROMPTS).exists():
                (partial / _PROMPTS).write_bytes(plain_file(folder, _PROMPTS).read_bytes())

        save_static(
            out,
            rows,
            pruned.tokenizer,
            provenance=note,
            max_length=read_longest(folder),
            write_extra_files=write_extra_files,
        )
    write_golden(out, given)
    sizes = table.table.numel() + rest, rows.numel() + rest
    return PrunedModel(out, len(table.table), len(rows), *sizes, texts)


def _noted(manifest: Manifest | None, note: dict[str, Any]) -> dict[str, Any]:
    """Where a model comes from, and that it was pruned."""
    return ({} if manifest is None else manifest.provenance) | {"pruning": note}

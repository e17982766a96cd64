"""A model without the pieces of its vocabulary that texts of its kind don't have.

Of a small model the vocabulary is the larger part: of MiniLM's 23 million parameters 12 million are rows of
30,522 pieces, of a multilingual BERT's 178 million 92 million. Nothing is trained: texts of the pieces that
were counted have the same ids but for their numbering, and the same hidden states to the bit.

V pieces, K of them kept, H hidden size.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from bertsmith.arrays import Ints
from bertsmith.door import door, kind, optional, place
from bertsmith.errors import InputError, ModelError
from bertsmith.files import require_free
from bertsmith.inference.engine import require_texts
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import Checkpoint, read_checkpoint, save_checkpoint
from bertsmith.model.config import BertConfig
from bertsmith.model.legacy import read_legacy_tensors
from bertsmith.model.locate import locate_model
from bertsmith.model.manifest import read_manifest, stated_manifest
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
from bertsmith.text.tokens.pruning import Pruned, count_pieces, prune

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
    counted = _Counted(texts, _prefixes(folder), _reading_task(folder, task))
    counts = count_pieces(tokenizer, counted)
    if not counted.number:
        raise InputError("There are no texts to count pieces in: every piece would go. Give texts.")
    return prune_counted(folder, counts, Path(out), counted.number, task)


def prune_counted(
    folder: Path, counts: Ints, out: Path, texts: int, task: type[Task[Any]] | None = None
) -> PrunedModel:
    """The same, of pieces (V,) that were counted in so many texts; `task` for a task of one's own."""
    if is_static(folder):
        return _prune_table(folder, counts, out, texts, task)
    checkpoint = read_checkpoint(folder)
    pruned = prune(load_own_tokenizer(folder, checkpoint.config), counts)
    config = _smaller(checkpoint.config, pruned)
    tensors = _without_rows(checkpoint.tensors, checkpoint.config, pruned.kept)
    note = {"pruned_from": str(folder), "pieces_before": checkpoint.config.vocab_size, "texts": texts}
    kind = model_kind(folder)
    if kind == "task":
        _save_task(folder, config, tensors, pruned, note, out, task)
    else:
        _save_plain(folder, checkpoint, config, tensors, _OF_MANIFEST[kind], pruned, note, out)
    write_golden(out, task)
    before, after = (
        sum(tensor.numel() for tensor in (*some.values(), *checkpoint.carried.values()))
        for some in (checkpoint.tensors, tensors)
    )
    return PrunedModel(out, checkpoint.config.vocab_size, len(pruned.kept), before, after, texts)


class _Counted:
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


def _reading_task(folder: Path, given: type[Task[Any]] | None) -> Task[Any] | None:
    """A model's own; of an encoder that of Features, and of a tagger made of it."""
    if model_kind(folder) == "task":
        return load_task_model(folder, given)[1]
    return None if is_static(folder) else Tagging(Tagging.Settings())


def _prefixes(folder: Path) -> list[str]:
    """What the model puts before a text: prompts of sentence-transformers, and a task's settings."""
    manifest = stated_manifest(folder)
    state = {} if manifest is None else manifest.settings
    settings = state.get("settings", {})
    found = [*read_prompts(folder).values(), state.get("prompt"), *(settings.get(name) for name in _PREFIXES)]
    return list(dict.fromkeys(prefix for prefix in found if isinstance(prefix, str) and prefix))


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
        smaller = TaskModel(cast(Bert, StaticTable(rows)), model.head)
        save_task_model(out, smaller, task, pruned.tokenizer, _noted(folder, note))
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


def _noted(folder: Path, note: Mapping[str, Any]) -> dict[str, Any]:
    """Where a task's model comes from, and that it was pruned."""
    manifest = read_manifest(folder)
    return ({} if manifest is None else manifest.provenance) | {"pruning": dict(note)}


def _smaller(config: BertConfig, pruned: Pruned) -> BertConfig:
    """Raises ModelError where positions count from the padding piece's id and that one moved."""
    pad = pruned.tokenizer.pad_id
    if config.family.positions_after_padding and pad != config.pad_token_id:
        raise ModelError(
            f"The positions of a {config.model_type} model begin behind the id of its padding piece, which "
            f"is {config.pad_token_id} and would be {pad}: its vocabulary can't be pruned."
        )
    return config.model_copy(update={"vocab_size": len(pruned.kept), "pad_token_id": pad})


def _without_rows(tensors: Mapping[str, Tensor], config: BertConfig, kept: Ints) -> dict[str, Tensor]:
    """The rows of kept pieces (V, …) -> (K, …); spare rows behind the last piece go too."""
    rows = torch.from_numpy(kept)
    return {
        name: tensor[rows].clone()
        if name in _OF_VOCABULARY and tensor.shape[0] == config.vocab_size
        else tensor
        for name, tensor in tensors.items()
    }


def _save_task(
    folder: Path,
    config: BertConfig,
    tensors: Mapping[str, Tensor],
    pruned: Pruned,
    note: Mapping[str, Any],
    out: Path,
    given: type[Task[Any]] | None,
) -> None:
    """A fine-tuned model with its head, labels and thresholds, as it was."""
    model, task = load_task_model(folder, given)
    encoder = model.encoder
    encoder.config = config
    encoder.embeddings.token = torch.nn.Embedding.from_pretrained(
        tensors["encoder.embeddings.token.weight"], freeze=False
    )
    save_task_model(out, TaskModel(encoder, model.head), task, pruned.tokenizer, _noted(folder, note))


def _save_plain(
    folder: Path,
    checkpoint: Checkpoint,
    config: BertConfig,
    tensors: Mapping[str, Tensor],
    task: str,
    pruned: Pruned,
    note: Mapping[str, Any],
    out: Path,
) -> None:
    """An encoder, with its head for masked words or with what sentence-transformers needs."""

    def write_extra_files(partial: Path) -> None:
        copy_sentence_files(folder, partial, read_legacy_tensors)

    manifest = checkpoint.manifest
    before = {} if manifest is None else manifest.provenance
    save_checkpoint(
        out,
        tensors,
        config,
        checkpoint.architecture,
        task=task if manifest is None else manifest.task,
        tokenizer=pruned.tokenizer,
        provenance=before | {"pruning": dict(note)},
        settings={} if manifest is None else manifest.settings,
        carried=checkpoint.carried,
        labels=checkpoint.labels,
        write_extra_files=write_extra_files,
    )

"""Removes from a model's vocabulary the tokens that the given texts don't use.

The token table is the larger part of a small model: 12 of MiniLM's 23 million parameters, 92 of multilingual
BERT's 178 million. Nothing is trained: a text of kept tokens gets the same tokens under other ids, and the
same hidden states to the bit.

V tokens, K of them kept, H hidden size.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from bertsmith.argument_checks import check_arguments, check_path, instance_of, optional
from bertsmith.arrays import Ints
from bertsmith.errors import InputError, ModelError
from bertsmith.files import require_new_folder
from bertsmith.inference.engine import require_texts
from bertsmith.model.card import unmeasured
from bertsmith.model.checkpoint import read_checkpoint, save_checkpoint
from bertsmith.model.legacy import read_legacy_tensors
from bertsmith.model.locate import locate_model
from bertsmith.model.manifest import Manifest, read_unverified_manifest, read_verified_manifest
from bertsmith.model.own_tokenizer import load_own_tokenizer, read_own_tokenizer
from bertsmith.model.sentence_files import (
    copy_sentence_files,
    read_prompts,
    read_table_max_length,
    table_folder,
)
from bertsmith.model.static_table import (
    StaticTable,
    is_static,
    load_static,
    save_static,
)
from bertsmith.model.untrusted import plain_file
from bertsmith.tasks.checkpoints.infer_task import model_kind
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model, save_task_model
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.tagging import Tagging
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel
from bertsmith.text.tokens.pruning import count_pieces, prune

_VOCABULARY_TENSORS = ("encoder.embeddings.token.weight", "masked_language.bias")
_PREFIXES = ("query_prefix", "document_prefix")  # settings of a task
_MANIFEST_TASKS = {"embedding": "encoder", "masked-language": "pretraining"}
# What sentence-transformers needs beside the weights; it doesn't depend on the vocabulary.
_PROMPTS = "config_sentence_transformers.json"


@dataclass(frozen=True)
class PrunedModel:
    """The pruned model's folder; the vocabulary's size and the number of all parameters, before and after
    pruning; the number of texts whose tokens were counted.
    """

    folder: Path
    pieces_before: int
    pieces: int
    parameters_before: int
    parameters: int
    texts: int


@check_arguments(model=check_path, out=check_path, task=optional(instance_of(type)))
def prune_vocabulary(
    model: str | Path, texts: Iterable[str], out: Path | str, task: type[Task[Any]] | None = None
) -> PrunedModel:
    """Writes the model with only the tokens that the texts use (see bertsmith.text.tokens.pruning) to `out`,
    atomically. It does what it did before: a task, masked words, vectors, or a static table.

    Tokens are counted in each text as it is, behind each of the model's prefixes, and word by word for a
    tagger and for an encoder, which may become one. A word that the texts don't have is spelled with the
    tokens that are left, and understood less well: give many texts. `task` is the class of a task of your
    own. Raises InputError where there are no texts, for one text in place of a list, and for an `out` that
    exists, ModelError for a model that can't be opened.
    """
    require_texts(texts)
    folder = locate_model(model).folder
    require_new_folder(Path(out))
    tokenizer = read_own_tokenizer(table_folder(folder) if is_static(folder) else folder)
    reader: Task[Any] | None = None
    if model_kind(folder) == "task":
        reader = load_task_model(folder, task)[1]
    elif not is_static(folder):  # an encoder may become a tagger, or extract `Features` of words
        reader = Tagging(Tagging.Settings())
    spellings = _TextSpellings(texts, _read_prefixes(folder), reader)
    counts = count_pieces(tokenizer, spellings)
    if not spellings.number:
        raise InputError("There are no texts to count pieces in: every piece would go. Give texts.")
    return prune_by_counts(folder, counts, Path(out), spellings.number, task)


class _TextSpellings:
    """Iterates over all forms in which the model may read the texts, and counts the texts in `number`: each
    text by itself, behind each prefix, which may change the tokens of its first word, and as the `task` reads
    it.
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


def _read_prefixes(folder: Path) -> list[str]:
    """What the model puts before a text: sentence-transformers' prompts, and prefixes in a task's
    settings.
    """
    manifest = read_unverified_manifest(folder)
    state = {} if manifest is None else manifest.settings
    settings = state.get("settings", {})
    values = [
        *read_prompts(folder).values(),
        state.get("prompt"),
        *(settings.get(name) for name in _PREFIXES),
    ]
    return list(dict.fromkeys(prefix for prefix in values if isinstance(prefix, str) and prefix))


def prune_by_counts(
    folder: Path, counts: Ints, out: Path, texts: int, task: type[Task[Any]] | None = None
) -> PrunedModel:
    """Prunes by the `counts` (V,) of each token in `texts` texts; `task` is the class of a task of one's own.

    Raises ModelError where positions are counted from the padding token's id (RoBERTa), and it would change.
    """
    if is_static(folder):
        return _prune_table(folder, counts, out, texts, task)
    checkpoint = read_checkpoint(folder)
    old_config = checkpoint.config
    pruned = prune(load_own_tokenizer(folder, old_config), counts)
    pad_id = pruned.tokenizer.pad_id
    if old_config.family.positions_after_padding and pad_id != old_config.pad_token_id:
        raise ModelError(
            f"The positions of a {old_config.model_type} model begin behind the id of its padding piece, "
            f"which is {old_config.pad_token_id} and would be {pad_id}: its vocabulary can't be pruned."
        )
    config = old_config.model_copy(update={"vocab_size": len(pruned.kept), "pad_token_id": pad_id})
    rows, tensors = torch.from_numpy(pruned.kept), dict(checkpoint.tensors)
    for name in _VOCABULARY_TENSORS:  # (V, …) -> (K, …); spare rows behind the last piece go too
        if name in tensors and tensors[name].shape[0] == old_config.vocab_size:
            tensors[name] = tensors[name][rows].clone()
    note = {"pruned_from": str(folder), "pieces_before": old_config.vocab_size, "texts": texts}
    kind = model_kind(folder)
    if kind == "task":  # keeps its head, labels and thresholds
        model, loaded_task = load_task_model(folder, task)
        model.encoder.config = config
        model.encoder.embeddings.token = torch.nn.Embedding.from_pretrained(
            tensors["encoder.embeddings.token.weight"], freeze=False
        )
        pruned_model = TaskModel(model.encoder, model.head)
        provenance = _extend_provenance(read_verified_manifest(folder), note)
        save_task_model(out, pruned_model, loaded_task, pruned.tokenizer, provenance)
    else:  # keeps its head for masked words, or its sentence-transformers files
        manifest = checkpoint.manifest
        save_checkpoint(
            out,
            tensors,
            config,
            checkpoint.architecture,
            task=_MANIFEST_TASKS[kind] if manifest is None else manifest.task,
            tokenizer=pruned.tokenizer,
            provenance=_extend_provenance(manifest, note),
            settings={} if manifest is None else manifest.settings,
            carried=checkpoint.carried,
            labels=checkpoint.labels,
            write_extra_files=lambda partial: copy_sentence_files(folder, partial, read_legacy_tensors),
        )
    write_golden(out, task)
    size_before, size = (
        sum(tensor.numel() for tensor in (*state.values(), *checkpoint.carried.values()))
        for state in (checkpoint.tensors, tensors)
    )
    return PrunedModel(out, old_config.vocab_size, len(pruned.kept), size_before, size, texts)


def _prune_table(
    folder: Path, counts: Ints, out: Path, texts: int, task_class: type[Task[Any]] | None
) -> PrunedModel:
    """Prunes a static table; a task's head above it stays as it is, with its labels."""
    table = load_static(folder)
    pruned = prune(load_own_tokenizer(table_folder(folder), table.config), counts)
    note = {"pruned_from": str(folder), "pieces_before": len(table.table), "texts": texts}
    rows = table.table[torch.from_numpy(pruned.kept)]
    head_size = 0
    if model_kind(folder) == "task":
        model, task = load_task_model(folder, task_class)
        pruned_model = TaskModel(cast(Any, StaticTable(rows)), model.head)
        provenance = _extend_provenance(read_verified_manifest(folder), note)
        save_task_model(out, pruned_model, task, pruned.tokenizer, provenance)
        head_size = sum(parameter.numel() for parameter in model.head.parameters())
    else:

        def write_extra_files(partial: Path) -> None:
            if (folder / _PROMPTS).exists():
                (partial / _PROMPTS).write_bytes(plain_file(folder, _PROMPTS).read_bytes())

        save_static(
            out,
            rows,
            pruned.tokenizer,
            provenance=note,
            max_length=read_table_max_length(folder),
            write_extra_files=write_extra_files,
        )
    write_golden(out, task_class)
    sizes = table.table.numel() + head_size, rows.numel() + head_size
    return PrunedModel(out, len(table.table), len(rows), *sizes, texts)


def _extend_provenance(manifest: Manifest | None, note: dict[str, Any]) -> dict[str, Any]:
    """A model's provenance, if it has one, with the pruning added to it, and without the figures: texts with
    words that were taken out have other answers.
    """
    return ({} if manifest is None else unmeasured(manifest.provenance)) | {"pruning": note}

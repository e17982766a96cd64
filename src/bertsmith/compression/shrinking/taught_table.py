"""A static table with a linear head for classes, which learns a fine-tuned model's answers.

The table is that of the encoder before it was fine-tuned, learned from the texts at hand (see
bertsmith.compression.static); the head is the best linear model of its vectors by the answers and the labels.

CANDIDATE/encoder/   that encoder with the pieces that occur, unless the search keeps the whole vocabulary
CANDIDATE/table/     the table made of it
CANDIDATE/model/     the same with its head
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.compression.distilling.distil_recipe import DistilRecipe
from bertsmith.compression.distilling.distil_session import DistilSession
from bertsmith.compression.distilling.student import linear_start
from bertsmith.compression.distilling.teacher import Teacher
from bertsmith.compression.static.distil_static import distil_static
from bertsmith.compression.vocabulary_pruning import prune_counted
from bertsmith.errors import InputError
from bertsmith.inference.frozen_baseline import encoder_before
from bertsmith.model.own_tokenizer import load_own_tokenizer, read_own_tokenizer
from bertsmith.model.static_table import load_static
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.task_checkpoint import on_table, save_task_model
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import outputs_of
from bertsmith.text.files.jsonl import write_jsonl
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer


def table_source(whole: Teacher) -> Path | None:
    """The encoder that a table can be made of; None for a task that isn't about classes of single texts, for
    a model of numbers, and where the encoder before the fine-tuning isn't known or isn't here.
    """
    if not whole.task.fits_static_table or isinstance(whole.tokenizer, ValueTokenizer):
        return None
    return encoder_before(whole.folder)


def teach_table(
    folder: Path,
    before: Path,
    session: DistilSession,
    recipe: DistilRecipe,
    progress: Progress,
    *,
    prune: bool,
) -> None:
    """Writes folder/model. With `prune` the table has the pieces that occur, and no others."""
    examples = session.train.examples
    task = session.teachers[0].task.as_student({"pooling": "mean"})
    encoder = _with_used_pieces(folder, before, task, examples) if prune else before
    texts = [text for example in examples for text in task.texts(example)]
    path = _learned(folder, encoder, texts, progress)
    table = load_static(path)
    tokenizer = load_own_tokenizer(path, table.config)
    train = encode_examples(task, examples, tokenizer)
    session = replace(session, task=task, tokenizer=tokenizer, train=train)
    model = on_table(table, task)
    taught, answered = session.taught(session.ask(examples).answers, recipe.soft_weight)
    if (start := linear_start(taught, model, answered)) is not None:
        start.apply(model)
    model.head.finish()
    dev = encode_examples(task, session.data.dev, tokenizer)
    task.calibrate(outputs_of(model.eval(), dev.encoded), dev.examples, dev.encoded)
    provenance = {"method": "static", "teachers": [each.sha256 for each in session.teachers]}
    save_task_model(folder / "model", model, task, tokenizer, provenance, overwrite=True)
    write_golden(folder / "model", type(task))


def _with_used_pieces(folder: Path, before: Path, task: Task[Any], examples: Sequence[Any]) -> Path:
    """The encoder with the pieces that occur: a tenth of them, each of which goes through it."""
    tokenizer = read_own_tokenizer(before)
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    for each in encode_examples(task, examples, tokenizer).encoded:
        for window in each.windows:
            counts += np.bincount(window.token_ids, minlength=len(counts))
    out = folder / "encoder"
    shutil.rmtree(out, ignore_errors=True)
    return prune_counted(before, counts, out, len(examples)).folder


def _learned(folder: Path, encoder: Path, texts: list[str], progress: Progress) -> Path:
    """The table's folder. Of few texts there is nothing to learn beside the vectors of single pieces."""
    source = folder / "texts.jsonl"
    write_jsonl(({"text": " ".join(text.split())} for text in texts), source)
    out = folder / "table"
    shutil.rmtree(out, ignore_errors=True)
    try:
        return distil_static(encoder, out, [str(source)], progress=progress).model
    except InputError:  # too few of the texts are sentences
        shutil.rmtree(out, ignore_errors=True)
        return distil_static(encoder, out, progress=progress).model

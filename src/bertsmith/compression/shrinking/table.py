"""The smallest candidate of a search: a static table under a linear head that learns the fine-tuned model's
answers.
"""

import shutil
from dataclasses import replace
from pathlib import Path

from bertsmith.compression.distil_static import distil_static
from bertsmith.compression.distilling.recipes import DistilRecipe
from bertsmith.compression.distilling.tasks.session import DistilSession
from bertsmith.compression.distilling.tasks.student import start_head
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher
from bertsmith.compression.vocabulary_pruning import prune_counted
from bertsmith.errors import InputError
from bertsmith.inference.provenance import encoder_before
from bertsmith.model.own_tokenizer import load_own_tokenizer, read_own_tokenizer
from bertsmith.model.static_table import load_static
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.task_checkpoint import on_table, save_task_model
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.task_model import outputs_of
from bertsmith.text.files.jsonl import write_jsonl
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer


def table_source(whole: TaskTeacher) -> Path | None:
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
    examples, encoder = session.train.examples, before
    task = session.teachers[0].task.as_student({"pooling": "mean"})
    if prune:  # a tenth of the pieces, each of which goes through the encoder
        whole, encoder = read_own_tokenizer(before), folder / "encoder"
        counts = encode_examples(task, examples, whole).piece_counts(whole.vocab_size)
        shutil.rmtree(encoder, ignore_errors=True)
        prune_counted(before, counts, encoder, len(examples))
    texts = [text for example in examples for text in task.texts(example)]
    path = _learned_table(folder, encoder, texts, progress)
    table = load_static(path)
    tokenizer = load_own_tokenizer(path, table.config)
    train = encode_examples(task, examples, tokenizer)
    session = replace(session, task=task, tokenizer=tokenizer, train=train)
    model = on_table(table, task)
    taught, answered = session.taught(session.ask(examples).answers, recipe.soft_weight)
    start_head(taught, model, answered)
    model.head.finish()
    dev = encode_examples(task, session.data.dev, tokenizer)
    task.calibrate(outputs_of(model.eval(), dev.encoded), dev.examples, dev.encoded)
    provenance = {"method": "static", "teachers": [each.sha256 for each in session.teachers]}
    save_task_model(folder / "model", model, task, tokenizer, provenance, overwrite=True)
    write_golden(folder / "model", type(task))


def _learned_table(folder: Path, encoder: Path, texts: list[str], progress: Progress) -> Path:
    """Its folder. Of few texts there is nothing to learn beside the vectors of single pieces."""
    source, out = folder / "texts.jsonl", folder / "table"
    write_jsonl(({"text": " ".join(text.split())} for text in texts), source)
    shutil.rmtree(out, ignore_errors=True)
    try:
        return distil_static(encoder, out, [str(source)], progress=progress).model
    except InputError:  # too few of the texts are sentences
        shutil.rmtree(out, ignore_errors=True)
        return distil_static(encoder, out, progress=progress).model

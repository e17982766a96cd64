"""The smallest candidate of a search: a static table and a linear head, trained on the fine-tuned model's
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
from bertsmith.compression.vocabulary_pruning import prune_by_counts
from bertsmith.errors import InputError
from bertsmith.files import write_jsonl
from bertsmith.inference.provenance import encoder_before
from bertsmith.model.own_tokenizer import load_own_tokenizer, read_own_tokenizer
from bertsmith.model.static_table import load_static
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.task_checkpoint import on_table, save_task_model
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.task_model import outputs_of
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer


def find_table_source(whole: TaskTeacher) -> Path | None:
    """The folder of the encoder that a table can be made of: the one before the fine-tuning. None where it
    isn't known or isn't here, for a task that a static table can't do, and for a model of numeric patches.
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
    """Makes a table of the encoder `before`, trains its head on the teacher's answers, and writes it to
    `folder`/model. With `prune` the table has only the tokens that occur in the training texts.
    """
    examples, encoder = session.train.examples, before
    task = session.teachers[0].task.as_student({"pooling": "mean"})
    if prune:  # first, since each token of the vocabulary goes through the encoder
        full_tokenizer, encoder = read_own_tokenizer(before), folder / "encoder"
        counts = encode_examples(task, examples, full_tokenizer).piece_counts(full_tokenizer.vocab_size)
        shutil.rmtree(encoder, ignore_errors=True)
        prune_by_counts(before, counts, encoder, len(examples))
    texts = [text for example in examples for text in task.texts(example)]
    path = _distil_table(folder, encoder, texts, progress)
    table = load_static(path)
    tokenizer = load_own_tokenizer(path, table.config)
    train = encode_examples(task, examples, tokenizer)
    session = replace(session, task=task, tokenizer=tokenizer, train=train)
    model = on_table(table, task)
    taught_task, taught_examples = session.taught(session.ask(examples).answers, recipe.soft_weight)
    start_head(taught_task, model, taught_examples)
    model.head.finish()
    dev = encode_examples(task, session.data.dev, tokenizer)
    task.calibrate(outputs_of(model.eval(), dev.encoded), dev.examples, dev.encoded)
    provenance = {"method": "static", "teachers": [teacher.sha256 for teacher in session.teachers]}
    save_task_model(folder / "model", model, task, tokenizer, provenance, overwrite=True)
    write_golden(folder / "model", type(task))


def _distil_table(folder: Path, encoder: Path, texts: list[str], progress: Progress) -> Path:
    """Distils the encoder into a table and returns its folder. With too few texts, from token
    vectors alone.
    """
    source, out = folder / "texts.jsonl", folder / "table"
    write_jsonl(({"text": " ".join(text.split())} for text in texts), source)
    shutil.rmtree(out, ignore_errors=True)
    try:
        return distil_static(encoder, out, [str(source)], progress=progress).model
    except InputError:  # too few of the texts are sentences
        shutil.rmtree(out, ignore_errors=True)
        return distil_static(encoder, out, progress=progress).model

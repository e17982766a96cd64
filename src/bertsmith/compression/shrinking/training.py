"""One candidate of a search made and judged: a pruned vocabulary, fewer layers, or a static table with a
linear head that learns the fine-tuned model's answers. How long it will take is told from some of its own
steps, so that what doesn't fit is never begun.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from bertsmith.compression.distil_static import distil_static
from bertsmith.compression.distilling.distil import distil_task
from bertsmith.compression.distilling.recipes import DistilRecipe, make_distil_recipe
from bertsmith.compression.distilling.tasks.data import DistilData
from bertsmith.compression.distilling.tasks.session import DistilSession
from bertsmith.compression.distilling.tasks.student import start_head
from bertsmith.compression.distilling.tasks.teacher import Teacher
from bertsmith.compression.shrinking.candidates import STATIC, Candidate, LeftOut, Tried
from bertsmith.compression.shrinking.judging import Judge
from bertsmith.compression.vocabulary_pruning import prune_counted
from bertsmith.data.batch import PackedBatch
from bertsmith.errors import InputError
from bertsmith.files import make_folder
from bertsmith.inference.provenance import encoder_before
from bertsmith.model.own_tokenizer import load_own_tokenizer, read_own_tokenizer
from bertsmith.model.static_table import load_static
from bertsmith.progress import Progress, Show
from bertsmith.reporting import formatting
from bertsmith.tasks.checkpoints.task_checkpoint import on_table, save_task_model
from bertsmith.tasks.examples.encoding import Encoded, Layout, pack_examples
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.files.jsonl import write_jsonl
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer
from bertsmith.training.machine import Machine

_TRIALS = 3  # steps, of which the first warms up
_BESIDE = 1.15  # the optimiser, the log and the checkpoints, beside forward and backward passes
PRUNED = "pruned"
_WORTH = 0.05  # of the parameters, that a pruned vocabulary must save to be pruned


def predicted_seconds(recipe: DistilRecipe, session: DistilSession) -> float:
    """Of a training by this recipe, measured on its first examples: forward and backward passes per token,
    times its tokens; and the evaluations on dev.
    """
    model = session.empty(recipe).to(session.machine.device).train()
    encoded = session.train.encoded
    some = encoded[: recipe.batch_size]
    seconds = min(_step(model, some, session) for _ in range(_TRIALS))
    tokens = sum(each.tokens for each in encoded)
    training = seconds / max(sum(each.tokens for each in some), 1) * tokens * recipe.epochs
    begun = time.perf_counter()
    outputs_of(model, some)
    a_text = (time.perf_counter() - begun) / max(len(some), 1)
    evaluations = recipe.evaluations * recipe.epochs + 3  # before the first step, and the last weights twice
    return _BESIDE * training + a_text * len(session.data.dev) * evaluations


def _step(model: TaskModel, some: Sequence[Encoded], session: DistilSession) -> float:
    begun = time.perf_counter()
    device = session.machine.device
    batch = PackedBatch.of(pack_examples(some, range(len(some))), device)
    model(batch, Layout(some, device)).float().square().sum().backward()
    model.zero_grad()
    return time.perf_counter() - begun


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
    start_head(taught, model, answered)
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


@dataclass(frozen=True)
class Work:
    """A search at work in the folder `out`."""

    out: Path
    recipe: DistilRecipe
    overrides: tuple[str, ...]
    values: Mapping[str, Any]
    machine: Machine
    judge: Judge
    console: Console | None
    show: Show

    def say(self, sentence: str) -> None:
        if self.console is not None:
            self.console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def folder(self, slug: str) -> Path:
        """Of one candidate."""
        return self.out / "candidates" / slug


def try_pruned(work: Work, data: DistilData) -> Tried | None:
    """The model with the pieces of what is learned from; None where that saves next to nothing, and for a
    model of numbers, whose vocabulary has the places of their vectors.
    """
    folder, whole = work.folder(PRUNED), work.judge.whole
    if isinstance(whole.tokenizer, ValueTokenizer):
        return None
    if (found := Tried.read(folder)) is not None:
        return found
    begun = time.monotonic()
    examples = [*data.labelled, *data.texts]
    counts = np.zeros(whole.tokenizer.vocab_size, np.int64)
    for each in encode_examples(whole.task, examples, whole.tokenizer).encoded:
        for window in each.windows:
            counts += np.bincount(window.token_ids, minlength=len(counts))
    make_folder(folder)
    shutil.rmtree(folder / "model", ignore_errors=True)
    task = None if work.recipe.task is None else find_task(work.recipe.task)
    pruned = prune_counted(whole.folder, counts, folder / "model", len(examples), task)
    saved = 1 - pruned.parameters / pruned.parameters_before
    work.say(
        f"Vocabulary: {pruned.pieces:,} of {pruned.pieces_before:,} pieces occur; {saved:.0%} of the "
        "parameters are those of others."
    )
    if saved < _WORTH:
        shutil.rmtree(folder)
        return None
    name = f"{pruned.pieces:,} pieces"
    tried = work.judge.judge(folder / "model", name, PRUNED, time.monotonic() - begun)
    tried.write(folder)
    return tried


def try_candidate(
    work: Work, candidate: Candidate, base: Path, seconds_left: float, beside: float
) -> "Tried | LeftOut":
    """`beside` are seconds that the earlier ones took beside their training."""
    folder = work.folder(candidate.slug)
    shape = {"layers": candidate.layers, "width": candidate.width, "feed_forward": candidate.feed_forward}
    given = _given(work, base, folder, **shape)
    recipe = make_distil_recipe(dict(given), list(work.overrides))
    begun = time.monotonic()
    session = _asked_all(work, recipe)
    asking = time.monotonic() - begun
    training = _predicted(session, recipe)
    predicted = beside + training
    if predicted > seconds_left - asking:
        return LeftOut(candidate.name, predicted, max(seconds_left - asking, 0.0))
    work.say(f"{candidate.name}: about {formatting.duration(predicted)}.")
    del session  # with its teacher: the distillation opens its own
    made = distil_task(
        given.pop("teacher"),
        *work.overrides,
        cache=str(work.out / "answers"),
        resume=True,
        console=work.console,
        show=work.show,
        **given,
    )
    trained = made.results.student.restarts[0].seconds  # by all parts of an interrupted run
    seconds = max(time.monotonic() - begun, asking + trained)
    tried = work.judge.judge(
        folder / "model", candidate.name, candidate.slug, seconds, asking + training, fitted=True
    )
    tried.write(folder)
    return tried


def try_table(work: Work, before: Path, base: Path) -> Tried:
    """It takes hardly more than asking the model, which all others need too, and is always tried. It
    has the pruned vocabulary where the others have it.
    """
    folder, begun = work.folder(STATIC), time.monotonic()
    make_folder(folder)
    given = _given(work, base, folder, layers=1)
    recipe = make_distil_recipe(given, list(work.overrides))
    session = DistilSession.open(recipe, work.machine, work.out / "answers")
    prune = base != work.judge.whole.folder
    with work.show("Static table") as progress:
        teach_table(folder, before, session, recipe, progress, prune=prune)
    seconds = time.monotonic() - begun
    tried = work.judge.judge(folder / "model", "static table", STATIC, seconds, fitted=True)
    tried.write(folder)
    return tried


def _given(work: Work, base: Path, folder: Path, **shape: int | None) -> dict[str, Any]:
    """What a candidate's recipe is made of."""
    files = {"texts", "train", "dev", "test", "task"}
    kept = work.recipe.model_dump(include=files, exclude_none=True, mode="json")
    more = {name: value for name, value in (*work.values.items(), *shape.items()) if value is not None}
    return kept | more | {"teacher": [str(base)], "out": str(folder), "compare": False}


def _asked_all(work: Work, recipe: DistilRecipe) -> DistilSession:
    """With the model's answers to all that is learned: asked once, the other candidates find them."""
    session = DistilSession.open(recipe, work.machine, work.out / "answers")
    with work.show("The model's answers") as progress:
        session.ask(session.train.examples, progress)
    return session


def _predicted(session: DistilSession, recipe: DistilRecipe) -> float:
    """Seconds of its training."""
    steps = session.steps_per_epoch(recipe)
    config = session.config
    return predicted_seconds(recipe.completed(config.hidden_size, config.num_hidden_layers, steps), session)


def seconds_beside(tried: Sequence[Tried]) -> float:
    """Seconds of a candidate beside asking and training: the head's first weights, saving, measuring."""
    beside = [each.seconds - each.predicted for each in tried if each.predicted is not None]
    return max(median(beside), 0.0) if beside else 0.0

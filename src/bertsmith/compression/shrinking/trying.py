"""Makes one candidate of a search, and judges it: a pruned vocabulary, fewer layers, a static table.

out/candidates/SLUG/        its distillation, model/ and tried.json
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from bertsmith.compression.distilling.distil_data import DistilData
from bertsmith.compression.distilling.distil_recipe import DistilRecipe, make_distil_recipe
from bertsmith.compression.distilling.distil_session import DistilSession, Show
from bertsmith.compression.distilling.distil_task import distil_task
from bertsmith.compression.shrinking.judging import Judge
from bertsmith.compression.shrinking.ladder import STATIC, Candidate
from bertsmith.compression.shrinking.predicted_time import predicted_seconds
from bertsmith.compression.shrinking.taught_table import teach_table
from bertsmith.compression.shrinking.tried import LeftOut, Tried
from bertsmith.compression.vocabulary_pruning import prune_counted
from bertsmith.files import make_folder
from bertsmith.reporting import formatting
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.registry import find_task
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer
from bertsmith.training.machine import Machine

PRUNED = "pruned"
_WORTH = 0.05  # of the parameters, that a pruned vocabulary must save to be pruned


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

"""One candidate of a search made and judged: a pruned vocabulary, fewer layers, or a static table. How long
it will take is told from some of its own steps, so that what doesn't fit is never begun.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bertsmith.compression.distilling.distil import distil_task
from bertsmith.compression.distilling.recipes import DistilRecipe, make_distil_recipe
from bertsmith.compression.distilling.tasks.data import DistilData
from bertsmith.compression.distilling.tasks.session import DistilSession
from bertsmith.compression.shrinking.candidates import (
    STATIC,
    CandidateResult,
    ShrinkCandidate,
    SkippedCandidate,
)
from bertsmith.compression.shrinking.judging import CandidateJudge
from bertsmith.compression.shrinking.table import teach_table
from bertsmith.compression.vocabulary_pruning import prune_counted
from bertsmith.data.batch import PackedBatch
from bertsmith.files import make_folder
from bertsmith.progress import Show
from bertsmith.reporting import formatting
from bertsmith.tasks.examples.encoding import Layout, pack_examples
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.task_model import outputs_of
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer
from bertsmith.training.run import Run

_TRIALS = 3  # steps, of which the first warms up
_BESIDE = 1.15  # the optimiser, the log and the checkpoints, beside forward and backward passes
PRUNED = "pruned"
_WORTH = 0.05  # of the parameters, that a pruned vocabulary must save to be pruned


@dataclass(frozen=True)
class ShrinkSearch:
    """A search at work: each candidate is made with the same `overrides` and `values`. `show` makes a
    progress bar of a title.
    """

    run: Run[DistilRecipe]
    judge: CandidateJudge
    overrides: tuple[str, ...]
    values: Mapping[str, Any]
    show: Show

    def say(self, sentence: str) -> None:
        """Where somebody watches."""
        if self.run.console is not None:
            self.run.console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def folder(self, slug: str) -> Path:
        """Of one candidate."""
        return self.run.out / "candidates" / slug

    @property
    def answers(self) -> Path:
        """Of what the model says, asked once for all candidates."""
        return self.run.out / "answers"


def try_pruned(search: ShrinkSearch, data: DistilData) -> CandidateResult | None:
    """The model with the pieces of what is learned from; None where that saves next to nothing, and for a
    model of numbers, whose vocabulary has the places of their vectors.
    """
    folder, whole = search.folder(PRUNED), search.judge.whole
    if isinstance(whole.tokenizer, ValueTokenizer):
        return None
    if (found := CandidateResult.read(folder)) is not None:
        return found
    begun = time.monotonic()
    examples = [*data.labelled, *data.texts]
    counts = encode_examples(whole.task, examples, whole.tokenizer).piece_counts(whole.tokenizer.vocab_size)
    make_folder(folder)
    shutil.rmtree(folder / "model", ignore_errors=True)
    pruned = prune_counted(whole.folder, counts, folder / "model", len(examples), search.run.recipe.own_task)
    saved = 1 - pruned.parameters / pruned.parameters_before
    search.say(
        f"Vocabulary: {pruned.pieces:,} of {pruned.pieces_before:,} pieces occur; {saved:.0%} of the "
        "parameters are those of others."
    )
    if saved < _WORTH:
        shutil.rmtree(folder)
        return None
    name = f"{pruned.pieces:,} pieces"
    tried = search.judge.judge(folder / "model", name, PRUNED, time.monotonic() - begun)
    tried.write(folder)
    return tried


def try_candidate(
    search: ShrinkSearch, candidate: ShrinkCandidate, base: Path, seconds_left: float, beside: float
) -> "CandidateResult | SkippedCandidate":
    """`beside` are seconds that the earlier ones took beside their training."""
    folder = search.folder(candidate.slug)
    shape = {"layers": candidate.layers, "width": candidate.width, "feed_forward": candidate.feed_forward}
    given = _given(search, base, folder, **shape)
    recipe = make_distil_recipe(dict(given), list(search.overrides))
    begun = time.monotonic()
    session = _asked_all(search, recipe)
    asking = time.monotonic() - begun
    training = predicted_seconds(session, recipe)
    predicted = beside + training
    if predicted > seconds_left - asking:
        return SkippedCandidate(candidate.name, predicted, max(seconds_left - asking, 0.0))
    search.say(f"{candidate.name}: about {formatting.duration(predicted)}.")
    del session  # with its teacher: the distillation opens its own
    made = distil_task(
        given.pop("teacher"),
        *search.overrides,
        cache=str(search.answers),
        resume=True,
        console=search.run.console,
        show=search.show,
        **given,
    )
    trained = made.results.student.restarts[0].seconds  # by all parts of an interrupted run
    seconds = max(time.monotonic() - begun, asking + trained)
    tried = search.judge.judge(
        folder / "model", candidate.name, candidate.slug, seconds, asking + training, fitted=True
    )
    tried.write(folder)
    return tried


def try_table(search: ShrinkSearch, before: Path, base: Path) -> CandidateResult:
    """It takes hardly more than asking the model, which all others need too, and is always tried. It
    has the pruned vocabulary where the others have it.
    """
    folder, begun = search.folder(STATIC), time.monotonic()
    make_folder(folder)
    given = _given(search, base, folder, layers=1)
    recipe = make_distil_recipe(given, list(search.overrides))
    session = DistilSession.open(recipe, search.run.machine, search.answers)
    prune = base != search.judge.whole.folder
    with search.show("Static table") as progress:
        teach_table(folder, before, session, recipe, progress, prune=prune)
    seconds = time.monotonic() - begun
    tried = search.judge.judge(folder / "model", "static table", STATIC, seconds, fitted=True)
    tried.write(folder)
    return tried


def _given(search: ShrinkSearch, base: Path, folder: Path, **shape: int | None) -> dict[str, Any]:
    """What a candidate's recipe is made of."""
    files = {"texts", "train", "dev", "test", "task"}
    kept = search.run.recipe.model_dump(include=files, exclude_none=True, mode="json")
    more = {name: value for name, value in (*search.values.items(), *shape.items()) if value is not None}
    return kept | more | {"teacher": [str(base)], "out": str(folder), "compare": False}


def _asked_all(search: ShrinkSearch, recipe: DistilRecipe) -> DistilSession:
    """With the model's answers to all that is learned: asked once, the other candidates find them."""
    session = DistilSession.open(recipe, search.run.machine, search.answers)
    with search.show("The model's answers") as progress:
        session.ask(session.train.examples, progress)
    return session


def predicted_seconds(session: DistilSession, recipe: DistilRecipe) -> float:
    """Of a training by this recipe, measured on its first examples: forward and backward passes per token,
    times its tokens; and the evaluations on dev.
    """
    shape, device = session.config, session.machine.device
    steps = session.steps_per_epoch(recipe)
    recipe = recipe.completed(shape.hidden_size, shape.num_hidden_layers, steps)
    model = session.empty(recipe).to(device).train()
    encoded = session.train.encoded
    some = encoded[: recipe.batch_size]
    trials = list[float]()
    for _ in range(_TRIALS):
        begun = time.perf_counter()
        batch = PackedBatch.of(pack_examples(some, range(len(some))), device)
        model(batch, Layout(some, device)).float().square().sum().backward()
        model.zero_grad()
        trials.append(time.perf_counter() - begun)
    tokens = sum(each.tokens for each in encoded)
    training = min(trials) / max(sum(each.tokens for each in some), 1) * tokens * recipe.epochs
    begun = time.perf_counter()
    outputs_of(model, some)
    a_text = (time.perf_counter() - begun) / max(len(some), 1)
    evaluations = recipe.evaluations * recipe.epochs + 3  # before the first step, and the last weights twice
    return _BESIDE * training + a_text * len(session.data.dev) * evaluations


def seconds_beside(tried: Sequence[CandidateResult]) -> float:
    """Seconds of a candidate beside asking and training: the head's first weights, saving, measuring."""
    beside = [each.seconds - each.predicted for each in tried if each.predicted is not None]
    return max(median(beside), 0.0) if beside else 0.0

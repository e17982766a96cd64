"""Makes and judges one candidate of a search: a pruned vocabulary, fewer layers, or a static table. A
training's duration is predicted from a few of its steps, so that one that doesn't fit into the time is never
begun.
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
from bertsmith.compression.vocabulary_pruning import prune_by_counts
from bertsmith.data.batch import PackedBatch
from bertsmith.files import make_folder
from bertsmith.progress import Show
from bertsmith.reporting import formatting
from bertsmith.tasks.examples.encoding import Layout, pack_examples
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.task_model import outputs_of
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer
from bertsmith.training.run import Run

_TIMED_STEPS = 3  # the first one warms up
_OVERHEAD = 1.15  # optimiser, log and checkpoints, as a factor of the time of forward and backward passes
PRUNED = "pruned"
_LEAST_SAVED = 0.05  # share of the parameters that pruning must save to be worth it


@dataclass(frozen=True)
class ShrinkSearch:
    """A running search. Each candidate is made with the same settings, `overrides` and `values`. `show` opens
    a progress bar with a title.
    """

    run: Run[DistilRecipe]
    judge: CandidateJudge
    overrides: tuple[str, ...]
    values: Mapping[str, Any]
    show: Show

    def say(self, sentence: str) -> None:
        """Prints a line to the console, if there is one."""
        if self.run.console is not None:
            self.run.console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def folder(self, slug: str) -> Path:
        """The folder of the candidate with this slug."""
        return self.run.out / "candidates" / slug

    @property
    def answers(self) -> Path:
        """The folder of the model's outputs, which all candidates share."""
        return self.run.out / "answers"


def try_pruned(search: ShrinkSearch, data: DistilData) -> CandidateResult | None:
    """Prunes the vocabulary to the tokens of the training texts, and judges the result. None where that saves
    next to nothing, and for a model of numeric patches, whose vocabulary isn't one of words.
    """
    folder, whole = search.folder(PRUNED), search.judge.whole
    if isinstance(whole.tokenizer, ValueTokenizer):
        return None
    if (finished := CandidateResult.read(folder)) is not None:
        return finished
    start = time.monotonic()
    examples = [*data.labelled, *data.texts]
    counts = encode_examples(whole.task, examples, whole.tokenizer).piece_counts(whole.tokenizer.vocab_size)
    make_folder(folder)
    shutil.rmtree(folder / "model", ignore_errors=True)
    pruned = prune_by_counts(
        whole.folder, counts, folder / "model", len(examples), search.run.recipe.task_class
    )
    saved = 1 - pruned.parameters / pruned.parameters_before
    search.say(
        f"Vocabulary: {pruned.pieces:,} of {pruned.pieces_before:,} pieces occur in the texts; the other "
        f"pieces hold {saved:.0%} of the parameters."
    )
    if saved < _LEAST_SAVED:
        shutil.rmtree(folder)
        return None
    name = f"{pruned.pieces:,} pieces"
    result = search.judge.judge(folder / "model", name, PRUNED, time.monotonic() - start)
    result.write(folder)
    return result


def try_candidate(
    search: ShrinkSearch, candidate: ShrinkCandidate, base: Path, seconds_left: float, overhead: float
) -> "CandidateResult | SkippedCandidate":
    """Distils the candidate from the model in `base` and judges it, unless it is predicted to take more than
    `seconds_left`. `overhead` are the seconds that earlier candidates took besides their training.
    """
    folder = search.folder(candidate.slug)
    shape = {"layers": candidate.layers, "width": candidate.width, "feed_forward": candidate.feed_forward}
    values = _recipe_values(search, base, folder, **shape)
    recipe = make_distil_recipe(dict(values), list(search.overrides))
    start = time.monotonic()
    session = DistilSession.open(recipe, search.run.machine, search.answers)
    with search.show("The model's answers") as progress:  # computed for the first candidate, then cached
        session.ask(session.train.examples, progress)
    asking = time.monotonic() - start
    training = predict_seconds(session, recipe)
    predicted = overhead + training
    if predicted > seconds_left - asking:
        return SkippedCandidate(candidate.name, predicted, max(seconds_left - asking, 0.0))
    search.say(f"{candidate.name}: about {formatting.duration(predicted)}.")
    del session  # frees its teacher: the distillation opens its own
    distillation = distil_task(
        values.pop("teacher"),
        *search.overrides,
        cache=str(search.answers),
        resume=True,
        console=search.run.console,
        show=search.show,
        **values,
    )
    trained = distillation.results.student.restarts[0].seconds  # over all parts of an interrupted run
    seconds = max(time.monotonic() - start, asking + trained)
    result = search.judge.judge(
        folder / "model", candidate.name, candidate.slug, seconds, asking + training, fitted=True
    )
    result.write(folder)
    return result


def try_table(search: ShrinkSearch, before: Path, base: Path) -> CandidateResult:
    """Makes and judges the static table of `before`, the encoder before the fine-tuning. It takes hardly
    longer than the model's answers, which all candidates need, so it is always tried. Its vocabulary is
    pruned where the others' is.
    """
    folder, start = search.folder(STATIC), time.monotonic()
    make_folder(folder)
    values = _recipe_values(search, base, folder, layers=1)
    recipe = make_distil_recipe(values, list(search.overrides))
    session = DistilSession.open(recipe, search.run.machine, search.answers)
    prune = base != search.judge.whole.folder
    with search.show("Static table") as progress:
        teach_table(folder, before, session, recipe, progress, prune=prune)
    seconds = time.monotonic() - start
    result = search.judge.judge(folder / "model", "static table", STATIC, seconds, fitted=True)
    result.write(folder)
    return result


def _recipe_values(search: ShrinkSearch, base: Path, folder: Path, **shape: int | None) -> dict[str, Any]:
    """The values of a candidate's recipe: the search's files and settings, and the candidate's shape."""
    files = {"texts", "train", "dev", "test", "task"}
    file_values = search.run.recipe.model_dump(include=files, exclude_none=True, mode="json")
    settings = {name: value for name, value in (*search.values.items(), *shape.items()) if value is not None}
    return file_values | settings | {"teacher": [str(base)], "out": str(folder), "compare": False}


def predict_seconds(session: DistilSession, recipe: DistilRecipe) -> float:
    """The expected duration of a training by this recipe, from timed steps on its first examples: seconds a
    token of forward and backward passes, times the training's tokens; and the evaluations on dev.
    """
    config, device = session.config, session.machine.device
    steps = session.steps_per_epoch(recipe)
    recipe = recipe.complete(config.hidden_size, config.num_hidden_layers, steps)
    model = session.empty(recipe).to(device).train()
    encoded = session.train.encoded
    first_batch = encoded[: recipe.batch_size]
    step_seconds = list[float]()
    for _ in range(_TIMED_STEPS):
        start = time.perf_counter()
        batch = PackedBatch.of(pack_examples(first_batch, range(len(first_batch))), device)
        model(batch, Layout(first_batch, device)).float().square().sum().backward()
        model.zero_grad()
        step_seconds.append(time.perf_counter() - start)
    tokens = sum(example.tokens for example in encoded)
    batch_tokens = sum(example.tokens for example in first_batch)
    training = min(step_seconds) / max(batch_tokens, 1) * tokens * recipe.epochs
    start = time.perf_counter()
    outputs_of(model, first_batch)
    seconds_a_text = (time.perf_counter() - start) / max(len(first_batch), 1)
    evaluations = recipe.evaluations * recipe.epochs + 3  # before the first step, and the last weights twice
    return _OVERHEAD * training + seconds_a_text * len(session.data.dev) * evaluations


def median_overhead(results: Sequence[CandidateResult]) -> float:
    """The median seconds of finished candidates besides asking and training: starting the head, saving,
    measuring. 0 where none is finished.
    """
    overheads = [result.seconds - result.predicted for result in results if result.predicted is not None]
    return max(median(overheads), 0.0) if overheads else 0.0

"""Gate: compares a graph with the packed model on the user's own file, in every arrangement of batches and at
many lengths, and holds it to limits.

A graph whose verdict has problems isn't written: the gate refuses rather than warns, and says how sure it is.

W sequences, E examples.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertsmith.errors import InputError
from bertsmith.inference.export.comparison import (
    GraphComparison,
    as_vectors,
    change_of,
    compare,
    fewest_examples,
    figures_on_labels,
    lower_bound,
    neighbour_count,
    neighbours_kept,
)
from bertsmith.inference.export.gate_file import GateFile, make_probes
from bertsmith.inference.export.graph import (
    Arrangement,
    Run,
    all_together,
    alone,
    arrangements,
    like_lengths,
    run_sequences,
)
from bertsmith.inference.export.source import Answer, ExportSource
from bertsmith.progress import Progress
from bertsmith.tasks.task import Task

ERROR = 0.05  # the probability of proving an agreement that isn't there, over all tries together
CALIBRATION = 0.02  # how much the graph's refitted calibration error may exceed the model's
_FOR_DAMAGE = 128  # sequences on which the damage of a quantised product is measured


@dataclass(frozen=True)
class ExportLimits:
    """Limits for an int8 graph; those for float32 are `EXACT`.

    agreement: the lowest share of answers equal to the model's, in every arrangement, that the file must
    prove. change: the largest change of any probability, or of a number in standard deviations of the file's
    numbers. cosine: the smallest cosine between a vector and the model's. neighbours: the smallest share of
    nearest neighbours (a tenth of the others, at most ten) that remain such.
    """

    agreement: float = 0.95
    change: float = 0.1
    cosine: float = 0.97
    neighbours: float = 0.9

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or not 0 < value <= 1:
                raise InputError(f"{name} must be a number above 0 and at most 1, found {value!r}.")
        if self.agreement == 1:
            raise InputError("agreement must be below 1: no finite file proves that no answer ever differs.")

    @property
    def of_a_cosine(self) -> float:
        """How much a cosine may be less than 1."""
        return 1 - self.cosine


@dataclass(frozen=True)
class ExactLimits:
    """Limits for a float32 graph: every answer equal, probabilities to 1e-4, cosines to 1e-5, all
    neighbours.
    """

    change: float = 1e-4
    of_a_cosine: float = 1e-5
    neighbours: float = 1.0


EXACT = ExactLimits()


@dataclass(frozen=True)
class GateVerdict:
    """The gate's figures as JSON, the problems that speak against the graph, and the task that decodes its
    answers, None for an encoder alone.
    """

    figures: dict[str, Any]
    problems: tuple[str, ...]
    task: Task[Any] | None


class Gate:
    """Compares graphs with the model on a file. The model's answers are computed once, when it is opened."""

    def __init__(self, source: ExportSource, file: GateFile, progress: Progress | None = None) -> None:
        self.source, self.file, self._progress = source, file, progress
        self._probes = make_probes(source, file)
        self._ours = source.answers(file.sequences)
        self._probe_answers = source.answers(self._probes)
        self._by_angle = source.by_angle
        self.graph_name = "the float32 graph"  # in the progress

    def damages(self, runs: Iterable[Run], count: int) -> list[float]:
        """The mean change of the first sequences by each of `count` runs: what quantising a part costs."""
        sample = self.file.sequences[:_FOR_DAMAGE]
        lengths = [len(window.token_ids) for window in sample]
        change = change_of(self.source, self.source.task, self._ours)
        self._begin(f"answers by {count} graphs with one product in int8", count * len(sample))
        damages = []
        for run in runs:
            theirs = run_sequences(run, self.source, sample, like_lengths(lengths))
            self._count(len(sample))
            damages.append(float(np.mean([change(*both) for both in zip(self._ours, theirs, strict=False)])))
        return damages

    def glance(self, run: Run, limits: ExportLimits, error: float) -> tuple[str, ...]:
        """The problems that one arrangement shows: a quick test before `judge`, which tries all of them."""
        self._begin(f"answers by {self.graph_name}", len(self.file.sequences))
        theirs = self._run(run, like_lengths(self.file.lengths))
        comparison = self._compare(self._task_for(limits, theirs), theirs)
        return (
            *_judge_answers(comparison, limits, error, self._by_angle)[1],
            *self._compare_neighbours(theirs, limits)[1],
        )

    def judge(self, run: Run, limits: ExportLimits | ExactLimits, error: float) -> GateVerdict:
        """Compares in all arrangements and at all lengths. `error` is the probability of proving an agreement
        that isn't there.
        """
        usual, *others = arrangements(self.file.lengths)
        ways = 1 + len(others)
        self._begin(
            f"answers by {self.graph_name}, each row in {ways} kinds of batch",
            ways * len(self.file.sequences),
        )
        theirs = self._run(run, usual)
        task = self._task_for(limits, theirs)
        comparisons = {usual.name: self._compare(task, theirs)}
        for arrangement in others:
            comparisons[arrangement.name] = self._compare(task, self._run(run, arrangement))
        figures, problems = _judge_answers(
            _worst_of(list(comparisons.values())), limits, error, self._by_angle
        )
        neighbour_figures, neighbour_problems = self._compare_neighbours(theirs, limits)
        length_figures, length_problems = self._compare_lengths(run, limits, task)
        by_arrangement = {
            name: _change_figures(comparison, self._by_angle) for name, comparison in comparisons.items()
        }
        on_labels = figures_on_labels(self.source, task, self.file, self._ours, theirs)
        figures |= neighbour_figures | {"arrangements": by_arrangement, "lengths": length_figures} | on_labels
        problems = (*problems, *neighbour_problems, *length_problems)
        errors = on_labels.get("calibration_error")
        if errors is not None and errors["graph"] > errors["model"] + CALIBRATION:
            before, after = errors["model"], errors["graph"]
            rise = f"rises from {before:.3f} to {after:.3f}, by more than {CALIBRATION}"
            problems = (*problems, f"the calibration error {rise}")
        examples = {"examples": len(self.file.encoded), "sequences": len(self.file.sequences)}
        return GateVerdict(examples | figures, problems, task)

    def _run(self, run: Run, arrangement: Arrangement) -> list[Answer]:
        theirs = run_sequences(run, self.source, self.file.sequences, arrangement)
        self._count(len(theirs))
        return theirs

    def _task_for(self, limits: ExportLimits | ExactLimits, theirs: Sequence[Answer]) -> Task[Any] | None:
        """The task that decodes the graph's answers; None for an encoder alone. For int8, whose logits differ
        a little from the model's, it has a temperature of its own.
        """
        task = self.source.task
        if task is None or isinstance(limits, ExactLimits):
            return task
        return task.recalibrated(
            *(self.file.outputs(answers, self.source) for answers in (self._ours, theirs))
        )

    def _compare(self, task: Task[Any] | None, theirs: Sequence[Answer]) -> GraphComparison:
        return compare(self.source, task, self.file, self._ours, theirs)

    def _compare_neighbours(
        self, theirs: Sequence[Answer], limits: ExportLimits | ExactLimits
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        if not self._by_angle:
            return {}, ()
        share_kept = neighbours_kept(as_vectors(self.source, self._ours), as_vectors(self.source, theirs))
        is_too_low = share_kept < limits.neighbours
        count = neighbour_count(len(theirs))
        nearest = "nearest" if count == 1 else f"{count} nearest"
        sentence = (
            f"{share_kept:.1%} of the {nearest} neighbours stay so; at least {limits.neighbours:.0%} must"
        )
        return {"neighbours_kept": share_kept}, (sentence,) if is_too_low else ()

    def _compare_lengths(
        self, run: Run, limits: ExportLimits | ExactLimits, task: Task[Any] | None
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Compares made-up sequences of many lengths. An int8 graph only has to give finite values for them,
        because nobody sends such texts.
        """
        lengths = [len(window.token_ids) for window in self._probes]
        change = change_of(self.source, task, self._ours)
        largest, problems = {}, list[str]()
        for arrangement in (alone(len(lengths)), all_together(lengths), all_together(lengths, left=True)):
            theirs = run_sequences(run, self.source, self._probes, arrangement)
            changes = [change(*both) for both in zip(self._probe_answers, theirs, strict=True)]
            largest[arrangement.name] = max(changes)
            limit = limits.of_a_cosine if self._by_angle else limits.change
            if isinstance(limits, ExactLimits) and max(changes) > limit:
                length = lengths[int(np.argmax(changes))]
                problems.append(
                    f"a sequence of {length} tokens ({arrangement.name}) changes by {max(changes):.2g}, more "
                    f"than {limit:g}"
                )
        return {"tried": lengths, "largest_change": largest}, tuple(problems)

    def _begin(self, unit: str, sequences: int) -> None:
        """Begins a bar of progress of its own."""
        self._unit, self._computed, self._total = unit, 0, sequences

    def _count(self, sequences: int) -> None:
        self._computed += sequences
        if self._progress is not None:
            self._progress(self._computed, self._total, self._unit)


def _worst_of(comparisons: Sequence[GraphComparison]) -> GraphComparison:
    """Merges comparisons: each sequence's largest change, and agreement only in every arrangement."""
    changes = np.max([comparison.changes for comparison in comparisons], axis=0)
    if comparisons[0].agrees is None:
        return GraphComparison(changes, None)
    agrees = [comparison.agrees for comparison in comparisons if comparison.agrees is not None]
    return GraphComparison(changes, np.all(agrees, axis=0))


def _judge_answers(
    comparison: GraphComparison, limits: ExportLimits | ExactLimits, error: float, by_angle: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The figures of a comparison, and the limits that it exceeds, as sentences."""
    figures, problems = _change_figures(comparison, by_angle), list[str]()
    largest = float(comparison.changes.max())
    if by_angle and largest > limits.of_a_cosine:
        problems.append(
            f"the smallest cosine to the model's vectors is {1 - largest:.5f}; at least "
            f"{1 - limits.of_a_cosine:g} is asked for"
        )
    if not by_angle and largest > limits.change:
        problems.append(
            f"the largest change of a probability or number is {largest:.2g}, more than {limits.change:g}"
        )
    if comparison.agrees is not None:
        agreeing, total = int(comparison.agrees.sum()), len(comparison.agrees)
        figures["agreeing"] = agreeing
        if isinstance(limits, ExactLimits):
            if agreeing < total:
                problems.append(f"{total - agreeing:,} of {total:,} answers are others")
        else:
            bound = lower_bound(agreeing, total, error)
            figures["agreement_at_least"] = {"share": bound, "confidence": 1 - error}
            if bound < limits.agreement:
                sentence = (
                    f"{agreeing:,} of {total:,} answers are the model's, which proves an agreement of "
                    f"{bound:.2%} (Clopper-Pearson, {1 - error:.2%} sure); {limits.agreement:.1%} is asked "
                    "for"
                )
                fewest_rows = fewest_examples(limits.agreement, error)
                problems.append(
                    f"{sentence}, which takes {fewest_rows:,} rows at least"
                    if total < fewest_rows
                    else sentence
                )
    return figures, tuple(problems)


def _change_figures(comparison: GraphComparison, by_angle: bool) -> dict[str, Any]:
    largest, mean = float(comparison.changes.max()), float(comparison.changes.mean())
    row: dict[str, Any] = (
        {"smallest_cosine": 1 - largest, "mean_cosine": 1 - mean}
        if by_angle
        else {"largest_change": largest, "mean_change": mean}
    )
    return row if comparison.agrees is None else {"agreement": float(comparison.agrees.mean()), **row}

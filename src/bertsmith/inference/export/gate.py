"""The gate: a graph against the packed model on the user's own file, in every arrangement and at many
lengths; and the limits that it must keep to, to be written at all.

It refuses rather than warns, and says how sure it is: a graph whose verdict has problems isn't written.

W sequences, E examples.
"""

import math
from collections.abc import Sequence
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

ERROR = 0.05  # the chance of calling an agreement proven that is not there, over all tries together
CALIBRATION = 0.02  # by which a refitted calibration error may exceed the model's
_FOR_DAMAGE = 128  # sequences


@dataclass(frozen=True)
class ExportLimits:
    """Of int8; float32's are `EXACT`.

    agreement: the lowest share of answers like the model's, in every arrangement, that the file must prove.
    change: the largest change of any probability, or of a number in deviations of the file's.
    cosine: the smallest between a vector and the model's.
    neighbours: the smallest share of the nearest, a tenth of the others but at most ten, that stay so.
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
        """By how much it may be less than 1."""
        return 1 - self.cosine


@dataclass(frozen=True)
class ExactLimits:
    """Of float32: every answer the same, probabilities to 1e-4, cosines to 1e-5, all neighbours."""

    change: float = 1e-4
    of_a_cosine: float = 1e-5
    neighbours: float = 1.0


EXACT = ExactLimits()


@dataclass(frozen=True)
class GateVerdict:
    """Every figure as JSON, what speaks against the graph, and the task that decodes it, None for an encoder
    alone.
    """

    figures: dict[str, Any]
    problems: tuple[str, ...]
    task: Task[Any] | None


class Gate:
    """What the model answers is computed once."""

    def __init__(self, source: ExportSource, file: GateFile, progress: Progress | None = None) -> None:
        self.source, self.file, self._progress = source, file, progress
        self._probes = make_probes(source, file)
        self._ours = source.answers(file.sequences)
        self._of_probes = source.answers(self._probes)
        self._by_angle = source.by_angle
        self._computed = 0

    def damage(self, run: Run) -> float:
        """The mean change of a few sequences: what quantising a part costs."""
        some = self.file.sequences[:_FOR_DAMAGE]
        lengths = [len(window.token_ids) for window in some]
        theirs = run_sequences(run, self.source, some, like_lengths(lengths))
        self._count(len(some))
        change = change_of(self.source, self.source.task, self._ours)
        return float(np.mean([change(*both) for both in zip(self._ours, theirs, strict=False)]))

    def glance(self, run: Run, limits: ExportLimits, error: float) -> tuple[str, ...]:
        """What a single arrangement already shows to be wrong: what passes may still fail the others."""
        theirs = self._run(run, like_lengths(self.file.lengths))
        comparison = self._compared(self._task_for(limits, theirs), theirs)
        return (
            *_judge_answers(comparison, limits, error, self._by_angle)[1],
            *self._neighbours(theirs, limits)[1],
        )

    def judge(self, run: Run, limits: ExportLimits | ExactLimits, error: float) -> GateVerdict:
        """All of it. `error` is the chance of proving an agreement that isn't there."""
        usual, *others = arrangements(self.file.lengths)
        theirs = self._run(run, usual)
        task = self._task_for(limits, theirs)
        found = {usual.name: self._compared(task, theirs)}
        for arrangement in others:
            found[arrangement.name] = self._compared(task, self._run(run, arrangement))
        figures, problems = _judge_answers(_worst_of(list(found.values())), limits, error, self._by_angle)
        kept, of_neighbours = self._neighbours(theirs, limits)
        of_probes, of_lengths = self._at_lengths(run, limits, task)
        by_arrangement = {name: _change_figures(each, self._by_angle) for name, each in found.items()}
        on_labels = figures_on_labels(self.source, task, self.file, self._ours, theirs)
        figures |= kept | {"arrangements": by_arrangement, "lengths": of_probes} | on_labels
        problems = (*problems, *of_neighbours, *of_lengths)
        errors = on_labels.get("calibration_error")
        if errors is not None and errors["graph"] > errors["model"] + CALIBRATION:
            rise = f"rises from {errors['model']:.3f} to {errors['graph']:.3f}, by more than {CALIBRATION}"
            problems = (*problems, f"the calibration error {rise}")
        examples = {"examples": len(self.file.encoded), "sequences": len(self.file.sequences)}
        return GateVerdict(examples | figures, problems, task)

    def _run(self, run: Run, arrangement: Arrangement) -> list[Answer]:
        theirs = run_sequences(run, self.source, self.file.sequences, arrangement)
        self._count(len(theirs))
        return theirs

    def _task_for(self, limits: ExportLimits | ExactLimits, theirs: Sequence[Answer]) -> Task[Any] | None:
        """What decodes the graph: of int8, whose logits are not quite the model's, with a temperature of its
        own. None for an encoder alone.
        """
        task = self.source.task
        if task is None or isinstance(limits, ExactLimits):
            return task
        return task.recalibrated(*(self.file.outputs(each, self.source) for each in (self._ours, theirs)))

    def _compared(self, task: Task[Any] | None, theirs: Sequence[Answer]) -> GraphComparison:
        return compare(self.source, task, self.file, self._ours, theirs)

    def _neighbours(
        self, theirs: Sequence[Answer], limits: ExportLimits | ExactLimits
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        if not self._by_angle:
            return {}, ()
        kept = neighbours_kept(as_vectors(self.source, self._ours), as_vectors(self.source, theirs))
        wrong = kept < limits.neighbours
        count = neighbour_count(len(theirs))
        of = "nearest" if count == 1 else f"{count} nearest"
        said = f"{kept:.1%} of the {of} neighbours stay so; at least {limits.neighbours:.0%} must"
        return {"neighbours_kept": kept}, (said,) if wrong else ()

    def _at_lengths(
        self, run: Run, limits: ExportLimits | ExactLimits, task: Task[Any] | None
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Made-up sequences of many lengths. Int8 is held to finite values there: nobody sends them."""
        lengths = [len(window.token_ids) for window in self._probes]
        change = change_of(self.source, task, self._ours)
        largest, problems = {}, list[str]()
        for way in (alone(len(lengths)), all_together(lengths), all_together(lengths, left=True)):
            theirs = run_sequences(run, self.source, self._probes, way)
            changes = [change(*both) for both in zip(self._of_probes, theirs, strict=True)]
            largest[way.name] = max(changes)
            limit = limits.of_a_cosine if self._by_angle else limits.change
            if isinstance(limits, ExactLimits) and max(changes) > limit:
                length = lengths[int(np.argmax(changes))]
                problems.append(
                    f"a sequence of {length} tokens ({way.name}) changes by {max(changes):.2g}, more than "
                    f"{limit:g}"
                )
        return {"tried": lengths, "largest_change": largest}, tuple(problems)

    def _count(self, sequences: int) -> None:
        self._computed += sequences
        if self._progress is not None:
            self._progress(self._computed, None, "sequences compared")


def _worst_of(comparisons: Sequence[GraphComparison]) -> GraphComparison:
    """Each sequence's largest change; an example agrees where it does in every arrangement."""
    changes = np.max([comparison.changes for comparison in comparisons], axis=0)
    if comparisons[0].agrees is None:
        return GraphComparison(changes, None)
    agrees = [comparison.agrees for comparison in comparisons if comparison.agrees is not None]
    return GraphComparison(changes, np.all(agrees, axis=0))


def _judge_answers(
    comparison: GraphComparison, limits: ExportLimits | ExactLimits, error: float, by_angle: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Figures of answers, and what is wrong with them."""
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
        agreeing, of = int(comparison.agrees.sum()), len(comparison.agrees)
        figures["agreeing"] = agreeing
        if isinstance(limits, ExactLimits):
            if agreeing < of:
                problems.append(f"{of - agreeing:,} of {of:,} answers are others")
        else:
            bound = lower_bound(agreeing, of, error)
            figures["agreement_at_least"] = {"share": bound, "confidence": 1 - error}
            if bound < limits.agreement:
                said = (
                    f"{agreeing:,} of {of:,} answers are the model's, which proves an agreement of "
                    f"{bound:.2%} (Clopper-Pearson, {1 - error:.2%} sure); {limits.agreement:.1%} is asked "
                    "for"
                )
                least = fewest_examples(limits.agreement, error)
                problems.append(f"{said}, which takes {least:,} rows at least" if of < least else said)
    return figures, tuple(problems)


def _change_figures(comparison: GraphComparison, by_angle: bool) -> dict[str, Any]:
    largest, mean = float(comparison.changes.max()), float(comparison.changes.mean())
    row: dict[str, Any] = (
        {"smallest_cosine": 1 - largest, "mean_cosine": 1 - mean}
        if by_angle
        else {"largest_change": largest, "mean_change": mean}
    )
    return row if comparison.agrees is None else {"agreement": float(comparison.agrees.mean()), **row}

"""What a comparison of ways to search comes to: figures, how sure they are, and what beats the baseline.

Q queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertsmith.errors import InputError
from bertsmith.inference.ranking.ranking import System
from bertsmith.metrics.ranking_scores import RankingScores, ranking_scores
from bertsmith.metrics.scores import Interval, intervals_of_means, p_value
from bertsmith.text.retrieval.retrieval_data import RetrievalData


@dataclass(frozen=True)
class Difference:
    """By how much a system's mean is above the baseline's, the 95 % interval of that, and its p-value."""

    mean: float
    interval: Interval
    p: float


@dataclass(frozen=True)
class Figures:
    """One system's scores of each query, the 95 % intervals of their means, and how it fares by the main
    metric beside the baseline, which has no difference to itself."""

    system: System
    scores: RankingScores
    intervals: dict[str, Interval]
    difference: Difference | None


@dataclass(frozen=True)
class Comparison:
    """Systems on one collection, the baseline first. metrics[0] is the main one. `facts` name what was
    compared: the model, the settings."""

    data: RetrievalData
    metrics: tuple[str, ...]
    figures: list[Figures]
    facts: dict[str, Any]

    @property
    def main(self) -> str:
        """The metric that differences are of."""
        return self.metrics[0]

    @property
    def queries(self) -> tuple[str, ...]:
        """(Q,) ids of those that were measured."""
        return self.figures[0].scores.queries

    def notes(self) -> list[str]:
        """Sentences on what was measured, and on what."""
        left_out = len(self.data.queries) - len(self.queries)
        if not left_out:
            return list(self.data.notes)
        return [*self.data.notes, f"{left_out:,} queries have no relevant document: they are left out."]

    def verdict(self) -> str:
        """Whether anything is better than the baseline, in words, as sure as its interval says."""
        baseline = self.figures[0]
        best = max(self.figures, key=lambda figures: figures.scores.means[self.main])
        name, own = baseline.system.name, f"{baseline.scores.means[self.main]:.3f}"
        if best.difference is None:
            return f"Nothing is better than {name} on these {len(self.queries):,} queries."
        gain, (low, high) = best.difference.mean, best.difference.interval
        means = f"{self.main} {best.scores.means[self.main]:.3f} beside {own}"
        beyond = f"the difference is {gain:+.3f}, between {low:+.3f} and {high:+.3f} with 95 % confidence"
        if low > 0:
            return f"{best.system.name} is better than {name}: {means}; {beyond}."
        return (
            f"{best.system.name} did best, but that may be chance: {means}; {beyond}. More queries than "
            f"{len(self.queries):,} would tell."
        )

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values, the main metric for every query too. A fact of the name of a count, as
        the option `queries` is, doesn't stand in its place.
        """
        systems = dict[str, dict[str, Any]]()
        for figures in self.figures:
            found: dict[str, Any] = {
                "scores": figures.scores.means,
                "intervals": {name: list(interval) for name, interval in figures.intervals.items()},
                "milliseconds": figures.system.milliseconds,
                "indexing_seconds": figures.system.seconds,
            }
            if (difference := figures.difference) is not None:
                interval = list(difference.interval)
                found["above_baseline"] = {"mean": difference.mean, "interval": interval, "p": difference.p}
            systems[figures.system.name] = found
        return {
            **self.facts,
            "data": self.data.name,
            "documents": len(self.data.documents),
            "queries": len(self.queries),
            "notes": self.notes(),
            "verdict": self.verdict(),
            "systems": systems,
            "main_metric": self.main,
            "per_query": {
                query: {
                    figure.system.name: float(figure.scores.values[self.main][place])
                    for figure in self.figures
                }
                for place, query in enumerate(self.queries)
            },
        }


def metrics_for(data: RetrievalData, k: int, depth: int) -> tuple[str, ...]:
    """The field's usual ones, the main one first: nDCG@k of a collection, MAP of candidates to re-rank.

    Raises InputError when k is less than 1.
    """
    if k < 1:
        raise InputError(f"k must be 1 or more, found {k}.")
    if data.candidates is not None:
        return ("map", "mrr", f"ndcg@{k}", "precision@1")
    recalls = tuple(f"recall@{each}" for each in sorted({k, depth}))
    return (f"ndcg@{k}", f"mrr@{k}", *recalls, f"map@{depth}")


def compare(
    systems: Sequence[System], data: RetrievalData, metrics: Sequence[str], facts: dict[str, Any]
) -> Comparison:
    """Figures of every system; all intervals come from the same resamples of the queries."""
    scored = [ranking_scores(system.rankings, data.judgements, metrics) for system in systems]
    main = np.stack([scores.values[metrics[0]] for scores in scored], axis=1)
    differences = main - main[:, :1]
    columns = [scores.values[name] for scores in scored for name in metrics]
    intervals = iter(intervals_of_means(np.stack([*columns, *differences.T], axis=1)))
    of_scores = [{name: next(intervals) for name in metrics} for _ in systems]
    figures = []
    for place, (system, scores) in enumerate(zip(systems, scored, strict=True)):
        beside, interval = differences[:, place], next(intervals)
        difference = Difference(float(beside.mean()), interval, p_value(beside)) if place else None
        figures.append(Figures(system, scores, of_scores[place], difference))
    return Comparison(data, tuple(metrics), figures, facts)

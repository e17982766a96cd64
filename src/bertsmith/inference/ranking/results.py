"""Scores ways to search and compares them with a baseline: figures, confidence intervals and p-values.

Q queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertsmith.errors import InputError
from bertsmith.inference.ranking.ranking import System, system_title
from bertsmith.metrics.ranking_scores import RankingScores, ranking_scores
from bertsmith.metrics.scores import Interval, intervals_of_means, p_value
from bertsmith.reporting.tables import metric_title
from bertsmith.text.retrieval.retrieval_data import RetrievalData

SIGNIFICANT = 0.05  # a p-value below says that a difference is more than chance


@dataclass(frozen=True)
class Difference:
    """How far a system's mean score is above the baseline's, with its 95 % interval and its p-value."""

    mean: float
    interval: Interval
    p: float


@dataclass(frozen=True)
class Figures:
    """One system's scores for each query, the 95 % intervals of their means, and its difference to the
    baseline by the main metric, None for the baseline itself.
    """

    system: System
    scores: RankingScores
    intervals: dict[str, Interval]
    difference: Difference | None


@dataclass(frozen=True)
class Comparison:
    """The figures of several systems on one collection, the baseline first. `metrics[0]` is the main metric.
    `facts` name what was compared: the model and the settings.
    """

    data: RetrievalData
    metrics: tuple[str, ...]
    figures: list[Figures]
    facts: dict[str, Any]

    @property
    def main(self) -> str:
        """The main metric, by which systems are compared."""
        return self.metrics[0]

    @property
    def queries(self) -> tuple[str, ...]:
        """The ids (Q,) of the queries that were evaluated."""
        return self.figures[0].scores.queries

    def notes(self) -> list[str]:
        """Sentences about the data, and about queries that were left out."""
        left_out = len(self.data.queries) - len(self.queries)
        if not left_out:
            return list(self.data.notes)
        return [*self.data.notes, f"{left_out:,} queries have no relevant document: they are left out."]

    def verdict(self) -> str:
        """A sentence on whether any system beats the baseline, as sure as interval and p-value allow. With
        few queries the bootstrap's interval is too narrow.
        """
        baseline = self.figures[0]
        best = max(self.figures, key=lambda figures: figures.scores.means[self.main])
        name, own = system_title(baseline.system.name), f"{baseline.scores.means[self.main]:.3f}"
        if best.difference is None:
            return f"Nothing is better than {name} on these {len(self.queries):,} queries."
        gain, p, (low, high) = best.difference.mean, best.difference.p, best.difference.interval
        means = f"{metric_title(self.main)} {best.scores.means[self.main]:.3f} beside {own}"
        beyond = f"the difference is {gain:+.3f}, between {low:+.3f} and {high:+.3f} with 95 % confidence"
        if low > 0 and p < SIGNIFICANT:
            return f"{system_title(best.system.name)} is better than {name}: {means}; {beyond}."
        return (
            f"{system_title(best.system.name)} did best, but that may be chance (p = {p:.2f}): "
            f"{means}. More queries than {len(self.queries):,} would tell."
        )

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON values, including the main metric of every query. Counts such as `queries`
        replace facts of the same name.
        """
        systems = dict[str, dict[str, Any]]()
        for figures in self.figures:
            values: dict[str, Any] = {
                "scores": figures.scores.means,
                "intervals": {name: list(interval) for name, interval in figures.intervals.items()},
                "milliseconds": figures.system.milliseconds,
                "indexing_seconds": figures.system.seconds,
            }
            if (difference := figures.difference) is not None:
                interval = list(difference.interval)
                values["above_baseline"] = {"mean": difference.mean, "interval": interval, "p": difference.p}
            systems[figures.system.name] = values
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
                    figure.system.name: float(figure.scores.values[self.main][position])
                    for figure in self.figures
                }
                for position, query in enumerate(self.queries)
            },
        }


def metrics_for(data: RetrievalData, k: int, depth: int) -> tuple[str, ...]:
    """The names of the field's usual metrics, the main one first: nDCG@k for a collection, MAP for candidates
    to re-rank.

    Raises InputError when k is less than 1.
    """
    if k < 1:
        raise InputError(f"k must be 1 or more, found {k}.")
    if data.candidates is not None:
        return ("map", "mrr", f"ndcg@{k}", "precision@1")
    recalls = tuple(f"recall@{cutoff}" for cutoff in sorted({k, depth}))
    return (f"ndcg@{k}", f"mrr@{k}", *recalls, f"map@{depth}")


def compare(
    systems: Sequence[System], data: RetrievalData, metrics: Sequence[str], facts: dict[str, Any]
) -> Comparison:
    """Scores every system. All intervals come from the same bootstrap resamples of the queries."""
    all_scores = [ranking_scores(system.rankings, data.judgements, metrics) for system in systems]
    main = np.stack([scores.values[metrics[0]] for scores in all_scores], axis=1)
    differences = main - main[:, :1]
    columns = [scores.values[name] for scores in all_scores for name in metrics]
    intervals = iter(intervals_of_means(np.stack([*columns, *differences.T], axis=1)))
    score_intervals = [{name: next(intervals) for name in metrics} for _ in systems]
    figures = []
    for position, (system, scores) in enumerate(zip(systems, all_scores, strict=True)):
        gains, interval = differences[:, position], next(intervals)
        difference = Difference(float(gains.mean()), interval, p_value(gains)) if position else None
        figures.append(Figures(system, scores, score_intervals[position], difference))
    return Comparison(data, tuple(metrics), figures, facts)

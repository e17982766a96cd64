"""Metrics in plain words: each kind is explained once, and what needs no word gets none."""

import pytest

from bertsmith.reporting.tables import explain_metrics, metric_title


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (
            ("ndcg@10", "mrr@10", "recall@10", "recall@100"),
            "nDCG@10: 1 where the best documents come first; MRR@10: 1 / rank of the first right one; "
            "recall@10: the share of the right documents that are found.",
        ),
        (
            ("accuracy", "macro_f1", "matthews"),
            "macro F1: the mean of the labels' F1 (1 where a label is given to all its rows and to no "
            "others); Matthews correlation: −1 to 1; 0 is chance.",
        ),
        (
            ("precision", "recall", "f1"),
            "F1: 1 where everything is found and nothing is wrongly found.",
        ),
        (("accuracy", "precision", "recall"), ""),
        (
            ("ece_before", "ece_after"),
            "calibration error: how far confidence is from how often it is right.",
        ),
    ],
)
def test_metrics_are_explained_once_each(names: tuple[str, ...], line: str) -> None:
    assert explain_metrics(names) == line


def test_ranking_metrics_are_spelled_as_in_papers() -> None:
    assert [metric_title(name) for name in ("ndcg@10", "map", "precision@1")] == [
        "nDCG@10",
        "MAP",
        "precision@1",
    ]

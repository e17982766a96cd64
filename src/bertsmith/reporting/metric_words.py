"""Metrics in plain words, for the line below a table of figures. Files keep the short names.

`explain_metrics` is the function to read first.
"""

from collections.abc import Iterable

_ABBREVIATIONS = {"ndcg": "nDCG", "mrr": "MRR", "map": "MAP"}
_MEANINGS = {
    "ndcg": "1 where the best documents come first",
    "mrr": "1 / rank of the first right one",
    "map": "1 where all right ones come before all others",
    "recall": "the share of the right documents that are found",
    "matthews": "−1 to 1; 0 is chance",
    "ece": "how far confidence is from how often it is right",
    "temperature": "divides the logits so that a confidence of 80 % is right 80 % of the time",
}
_TITLES = {"matthews": "Matthews correlation", "ece": "calibration error"}
_RANKING_ONLY = "recall"  # explained for rankings (recall@10); of classes it is the usual recall


def metric_title(name: str) -> str:
    """The name of a ranking metric as papers spell it: "ndcg@10" becomes "nDCG@10"."""
    metric, at, depth = name.partition("@")
    return _ABBREVIATIONS.get(metric, metric) + at + depth


def explain_metrics(names: Iterable[str]) -> str:
    """One line on those of the metrics that need a word, by their names in files ("ndcg@10", "matthews",
    "ece_after"); empty where none does. Metrics of the same kind are explained once.
    """
    explained = dict[str, str]()
    for name in names:
        metric, at, _ = name.partition("@")
        kind = metric.split("_")[0]
        if kind not in _MEANINGS or kind in explained or (kind == _RANKING_ONLY and not at):
            continue
        explained[kind] = f"{_TITLES.get(kind) or metric_title(name)}: {_MEANINGS[kind]}"
    return "; ".join(explained.values()) + ("." if explained else "")

"""What is left of a student's coverage when the LLM changes, by the calls that the new LLM has answered.
Last answer (2026-11-30, zen5): with 500 calls 79.1 of 80.7 % where intents are joined, 56.5 where split.

    python bench/mirror/mirror_change.py [--seeds 3]

The LLM's answers are banking77's labels, 2 in 100 replaced by another. After 5,000 calls the
labels change in a tenth of the calls: whole intents are joined with the nearest one (`joined`), half of an
intent's texts, those nearest to another, go there (`split`), or none (`the same`). The students are logistic
regression on MiniLM's vectors, as the mirror's dearer ones are, so that many can be compared:

    new calls      learned from those of the new LLM only
    all alike      from all calls as they are
    translated     from the new ones and the former ones as `bertsmith mirror train` translates them

Printed: the share of other calls that the student could answer where at most 5 % differ from the new LLM's;
beside it what the former student could answer of the former LLM's. And whether the change is found in the
calls alone (`find_change`), and the interval that is told.
"""

import argparse
import csv
import random
import sys
from pathlib import Path

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.mirror.fields import AnswerShape, Field
from bertsmith.mirror.learning.learned_calls import LearnedCall
from bertsmith.mirror.learning.teacher_change import find_change, translate_former
from harness import report
from labelled import MODEL, find

_FORMER, _NEW, _CHANGED, _NOISE, _EPSILON = 5000, (250, 500, 1000), 0.1, 0.02, 0.05
_PATH = "$.intent"


def main() -> None:
    """All changes, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    rows = []
    for name in ("banking77/train.csv", "banking77/test.csv"):
        with find(name).open(encoding="utf-8", newline="") as file:
            rows += [(row["text"], row["category"]) for row in csv.DictReader(file)]
    vectors = np.asarray(Embedder(MODEL).documents([text for text, _ in rows]), np.float32)
    table = []
    for change in ("joined", "split", "the same"):
        results = [compare(rows, vectors, change, seed) for seed in range(arguments.seeds)]
        for count in _NEW:
            told = [result[count] for result in results]
            table.append(
                {
                    "labels": change,
                    "calls of the new LLM": f"{count:,}",
                    "before": mean([result["before"] for result in told]),
                    **{
                        way: mean([result[way] for result in told])
                        for way in ("new calls", "all alike", "translated")
                    },
                    "found": f"{sum(result['found'] for result in told)} of {len(told)}",
                    "told change": told[0]["told"],
                }
            )
    report("mirror-change", "A student whose LLM has changed: the share of calls it could answer", table, [])


def mean(shares: list[float]) -> str:
    """With the range."""
    return f"{100 * np.mean(shares):.1f} ({100 * min(shares):.0f} to {100 * max(shares):.0f})"


def compare(rows: list[tuple[str, str]], vectors: np.ndarray, change: str, seed: int) -> dict:
    """By number of new calls, what each way could answer."""
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    x, draws = vectors[order], np.random.default_rng(seed)
    texts = [rows[number][0] for number in order]
    names, labels = np.unique([rows[number][1] for number in order], return_inverse=True)
    changed = labels if change == "the same" else change_labels(x, labels, change, draws)
    former, new = (add_noise(values, len(names), draws) for values in (labels, changed))
    by_text = dict(zip(texts, x, strict=True))
    shape = AnswerShape(
        fields=(Field(keys=("intent",), kind="enum", values=tuple(names.tolist())),), order=(("intent",),)
    )

    def as_calls(start: int, end: int, values: np.ndarray) -> list[LearnedCall]:
        return [
            LearnedCall(str(n), float(n), "relay", texts[n], {_PATH: names[values[n]].item()}, {})
            for n in range(start, end)
        ]

    def features(some: list[str]) -> np.ndarray:
        return np.stack([by_text[text] for text in some])

    targets = np.eye(len(names), dtype=np.float32)
    others = slice(_FORMER + max(_NEW), None)
    before = largest_coverage(fit(x[:_FORMER], targets[former[:_FORMER]])(x[others]), former[others])
    results = {}
    for count in _NEW:
        end = _FORMER + count
        own = targets[new[_FORMER:end]]
        calls = as_calls(0, _FORMER, former), as_calls(_FORMER, end, new)
        translated = translate_former(*calls, shape, seed, features)
        assert translated is not None
        shares = np.zeros((_FORMER, len(names)), np.float32)
        for row, call in zip(shares, translated.calls, strict=True):
            for value, share in call.probabilities[_PATH]:
                row[np.searchsorted(names, value)] = share
        ways = {
            "new calls": (x[_FORMER:end], own),
            "all alike": (x[:end], np.vstack([targets[former[:_FORMER]], own])),
            "translated": (x[:end], np.vstack([shares, own])),
        }
        low, high = (f"{100 * max(share, 0):.1f}" for share in translated.change)
        results[count] = {
            "before": before,
            "found": find_change([*calls[0], *calls[1]], shape, seed, features) is not None,
            "told": f"{low} to {high} %, truly {100 * (labels != changed).mean():.1f}",
        } | {way: largest_coverage(fit(*learned)(x[others]), new[others]) for way, learned in ways.items()}
    return results


def change_labels(x: np.ndarray, labels: np.ndarray, change: str, draws: np.random.Generator) -> np.ndarray:
    """Until a tenth of the labels differ."""
    changed, count = labels.copy(), labels.max() + 1
    centres = np.stack([x[labels == label].mean(axis=0) for label in range(count)])
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    for label in draws.permutation(count):
        if (changed != labels).mean() >= _CHANGED:
            break
        nearness = centres @ centres[label]
        nearness[label] = -1
        other, own = int(nearness.argmax()), np.flatnonzero(labels == label)
        if change == "split":
            towards = x[own] @ (centres[other] - centres[label])
            own = own[towards > np.median(towards)]
        changed[own] = other
    return changed


def add_noise(labels: np.ndarray, classes: int, draws: np.random.Generator) -> np.ndarray:
    """Some answers are another label."""
    wrong = draws.random(len(labels)) < _NOISE
    return np.where(wrong, (labels + draws.integers(1, classes, len(labels))) % classes, labels)


def fit(x: np.ndarray, targets: np.ndarray):
    """Logistic regression on soft targets: a function of vectors to shares."""
    import torch

    rows, wanted = torch.from_numpy(x * 8), torch.from_numpy(targets)
    weights = torch.zeros(x.shape[1], targets.shape[1], requires_grad=True)
    bias = torch.zeros(targets.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(rows @ weights + bias, wanted)
        value = value + 3e-5 * weights.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    with torch.no_grad():
        w, b = weights.numpy() * 8, bias.numpy()
    return lambda other: torch.softmax(torch.from_numpy(other @ w + b), dim=1).numpy()


def largest_coverage(shares: np.ndarray, labels: np.ndarray) -> float:
    """What a perfect proof would let a student answer."""
    order = np.argsort(-shares.max(axis=1), kind="stable")
    differs = (shares.argmax(axis=1) != labels)[order]
    rate = np.cumsum(differs) / np.arange(1, len(order) + 1)
    return float(max(np.flatnonzero(rate <= _EPSILON), default=-1) + 1) / len(order)


if __name__ == "__main__":
    main()

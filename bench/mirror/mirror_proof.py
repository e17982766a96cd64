"""How much of what a student could answer is proven, and how often nothing is: simulations on a real student.
Last answer (2026-11-30, zen5): 78.0 % of all calls where 85.6 % could be; with equal shares 70.4 %.

    python bench/mirror/mirror_proof.py [--runs 300] [--make]

The student is logistic regression on MiniLM's vectors; beside it one on words (TF-IDF). Both learned from
6,000 of banking77's rows, the LLM's answers, of which 2 in 100 were replaced by another intent. How sure both
are of the 7,083 other rows, and where they differ, is kept in students_banking77.npz; `--make` makes it again
from ../shared/data. Each run draws calls from these with replacement: 630 to plan by, and 1,800 to prove by,
as `bertsmith mirror train` keeps them of 6,000.

    equal shares   both students, each with the whole answer and two fields: certify_each over six groups
    graph          the same as `bertsmith mirror train` proves it: planned on the 630, certify_by_graph
    graph, alone   the encoder with the whole answer only
    growing        the encoder alone, by a proof that is looked at after each of 6,000 shadowed calls

The last rows are of an encoder that could answer 89 %: a tenth of the kept rows that differ is left out.
Each field errs in half of the calls where the whole answer does. Printed: the mean share of calls that the
student answers by its claim on the whole answer, how often nothing is proven of it, and how often a claim is
wrong by all kept rows.
"""

import argparse
import csv
import random
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from bertsmith.metrics.guarantees.growing_proof import GrowingProof
from bertsmith.metrics.guarantees.learn_then_test import CallGroup, certify_each, threshold_sequence
from bertsmith.metrics.guarantees.sample_size import forecast_starts
from bertsmith.mirror.learning.proving import prove
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.tiers import StudentCandidate, TeacherComparison
from harness import report
from labelled import MODEL, find

CURVES = Path(__file__).with_name("students_banking77.npz")
_TRAIN, _NOISE = 6000, 0.02
_DEV, _PROOF, _STREAM = 630, 1800, 6000
_LEFT_OUT = 0.1
_EPSILON = _DELTA = 0.05
_SETTINGS = LearnSettings(epsilon=_EPSILON, delta=_DELTA)


class Student(NamedTuple):
    """How sure it is of each kept row, and where its answer differs: (E,) both."""

    confidence: np.ndarray
    differs: np.ndarray


def main() -> None:
    """All ways, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--make", action="store_true")
    arguments = parser.parse_args()
    if arguments.make:
        make_curves()
    kept = np.load(CURVES)
    encoder, words = (
        Student(kept[f"{name}_confidence"].astype(np.float64), kept[f"{name}_differs"])
        for name in ("encoder", "words")
    )
    leave_out = encoder.differs & (np.random.default_rng(1).random(len(encoder.differs)) < _LEFT_OUT)
    better = [Student(*(values[~leave_out] for values in student)) for student in (encoder, words)]
    table = simulate("as kept", encoder, words, arguments.runs)
    table += simulate("fewer differ", *better, arguments.runs)
    report(
        "mirror-proof",
        f"What is proven of a student by {_PROOF:,} calls, {arguments.runs} simulations",
        table,
        [
            "could: with a perfect proof",
            "wrong: the claim on the whole answer, by the kept rows, of which calls are drawn",
        ],
    )


def simulate(rows_name: str, encoder: Student, words: Student, runs: int) -> list[dict[str, str]]:
    """A row of the table for each way."""
    ways = {
        "equal shares": ([words, encoder], 2, _PROOF, equal_shares),
        "graph": ([words, encoder], 2, _PROOF, by_graph),
        "graph, alone": ([encoder], 1, _PROOF, by_graph),
        "growing": ([encoder], 1, _STREAM, growing),
    }
    table = []
    for way, (students, fields, calls, prove_claims) in ways.items():
        draws = np.random.default_rng(0)
        coverages, wrong = [], 0
        for _ in range(runs):
            dev, proof = (draws.integers(0, len(words.differs), count) for count in (_DEV, calls))
            compared = [[compare(student, rows, fields) for student in students] for rows in (dev, proof)]
            number, threshold = prove_claims(*compared)
            answered = students[number].confidence >= threshold
            coverages.append(float(answered.mean()))
            wrong += bool(answered.any() and students[number].differs[answered].mean() > _EPSILON)
        table.append(
            {
                "rows": rows_name,
                "agrees": f"{1 - encoder.differs.mean():.1%}",
                "could": f"{largest_coverage(encoder):.1%}",
                "way": way,
                "answered": f"{np.mean(coverages):.1%}",
                "nothing proven": f"{np.mean(np.array(coverages) == 0):.1%}",
                "wrong": f"{wrong / runs:.1%}",
            }
        )
    return table


def largest_coverage(student: Student) -> float:
    """What a perfect proof would let it answer."""
    order = np.argsort(-student.confidence, kind="stable")
    rate = np.cumsum(student.differs[order]) / np.arange(1, len(order) + 1)
    return float(np.flatnonzero(rate <= _EPSILON).max() + 1) / len(order)


def compare(student: Student, rows: np.ndarray, fields: int) -> TeacherComparison:
    """On these rows, with so many fields, of which each errs in its part of what differs."""
    confidence, differs = student.confidence[rows], student.differs[rows]
    parts = {
        f"$.{number}": (confidence ** (1 / fields), differs & (rows % fields == number))
        for number in range(fields)
    }
    return TeacherComparison(confidence, differs, parts, [{} for _ in rows])


def equal_shares(devs: list[TeacherComparison], proofs: list[TeacherComparison]) -> tuple[int, float]:
    """The student that answers most, and its threshold: infinite where nothing is proven."""
    groups = {}
    for number, (dev, proof) in enumerate(zip(devs, proofs, strict=True)):
        own = {"": (dev.confidence, proof.confidence, proof.differs)}
        own |= {path: (dev.fields[path][0], *proof.fields[path]) for path in proof.fields}
        for name, (planned, confidence, differs) in own.items():
            groups[f"{number}{name}"] = CallGroup(confidence, differs, threshold_sequence(planned), _EPSILON)
    claims = certify_each(groups, _DELTA)
    whole = [claims[str(number)] for number in range(len(devs))]
    coverages = [0.0 if claim is None else claim.coverage for claim in whole]
    best = int(np.argmax(coverages))
    claim = whole[best]
    return best, np.inf if claim is None else claim.threshold


def by_graph(devs: list[TeacherComparison], proofs: list[TeacherComparison]) -> tuple[int, float]:
    """As a training proves it."""
    candidates = [
        StudentCandidate(tier, (), lambda texts: {}, lambda folder: None, {})
        for tier in ("tf-idf", "encoder")[-len(devs) :]
    ]
    proven = prove(candidates, devs, proofs, _SETTINGS)
    return proven.chosen, np.inf if proven.claims.whole is None else proven.claims.whole.threshold


def growing(devs: list[TeacherComparison], proofs: list[TeacherComparison]) -> tuple[int, float]:
    """As a mirror in shadow could: the threshold that is proven after the last call."""
    (dev,), (stream,) = devs, proofs
    thresholds = threshold_sequence(dev.confidence)
    group = CallGroup(dev.confidence, dev.differs, thresholds, _EPSILON)
    # Evidence that may be looked at at any time takes about ten times that of one look.
    starts = forecast_starts(group, len(stream.differs), _DELTA / 10).starts
    proof = GrowingProof(thresholds, starts, _EPSILON, _DELTA)
    for confidence, differs in zip(stream.confidence, stream.differs, strict=True):
        proof.record(confidence, differs)
    threshold = proof.threshold()
    return 0, np.inf if threshold is None else threshold


def make_curves() -> None:
    """Trains both students and keeps what they say of the other rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    from bertsmith.inference.embedding.embedder import Embedder

    rows = []
    for name in ("banking77/train.csv", "banking77/test.csv"):
        with find(name).open(encoding="utf-8", newline="") as file:
            rows += [(row["text"], row["category"]) for row in csv.DictReader(file)]
    random.Random(0).shuffle(rows)
    draws = np.random.default_rng(0)
    texts, labels = (
        [text for text, _ in rows],
        np.unique([label for _, label in rows], return_inverse=True)[1],
    )
    replaced = np.flatnonzero(draws.random(len(labels)) < _NOISE)
    classes = labels.max() + 1
    labels[replaced] = (labels[replaced] + draws.integers(1, classes, len(replaced))) % classes
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2).fit(texts[:_TRAIN])
    kept = {}
    for name, features in (("encoder", Embedder(MODEL).documents(texts)), ("words", words.transform(texts))):
        learner = LogisticRegression(C=10.0, max_iter=300).fit(features[:_TRAIN], labels[:_TRAIN])
        shares = learner.predict_proba(features[_TRAIN:])
        kept[f"{name}_confidence"] = shares.max(axis=1).astype(np.float32)
        kept[f"{name}_differs"] = learner.classes_[shares.argmax(axis=1)] != labels[_TRAIN:]
    np.savez_compressed(CURVES, **kept)


if __name__ == "__main__":
    main()

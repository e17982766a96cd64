"""How much of an LLM's traffic a student answers after some thousand calls, at 95 % agreement.
Last answer (2026-11-26, Xeon): 88.0 % at 96.2 % agreement; tracer 83.5 at 96.6.

    python bench/mirror/mirror_learning.py [--calls 5000] [--sides words encoder frozen tracer stuntd]
                                            [--seed 0] [--noise 0.02] [--clinc data_full.json]

The calls are banking77's training rows, drawn by the seed: a text, and its intent as the LLM's answer. What
a side learns from and proves by is among them. The traffic afterwards is banking77's test. With --clinc they
are the first rows of CLINC's oos-eval, of 150 intents and texts out of scope, and as many rows that follow
are the traffic: the second half of a stream. Of a share --noise the LLM's answer is drawn from all intents.

    words      bertsmith mirror train --tiers tf-idf
    encoder    bertsmith mirror train: MiniLM fine-tuned
    frozen     logistic regression (C = 10) on MiniLM's vectors, divided and proven as ours
    tracer     tracer-llm on the same vectors (`make peers`)
    stuntd     stuntd with a head on frozen MiniLM (`make peers`). Its own encoder is Laya, 421 million
               weights from a hub, which this doesn't reach

Both peers are asked for 95 % agreement, and by bench/mirror/mirror_peers.py.

Printed of each: the share of test that it answers by its own threshold, how much of that agrees with the
LLM, and how much is wrong by the data set; and the largest share that could be answered with 95 % agreement,
by a threshold chosen on test itself. The first is what one gets, the last what the model is worth.
"""

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.metrics.guarantees.learn_then_test import certify, threshold_sequence
from bertsmith.mirror.call import Call, ChatMessage, Completion, CompletionRequest
from bertsmith.mirror.exchange import make_call
from bertsmith.mirror.identity import hash_fraction
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.train import train_student
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.store import Store
from bertsmith.mirror.student import MirrorStudent
from bertsmith.model.locate import locate_model
from harness import report
from labelled import MODEL, find
from peers import PLACE, interpreter

SIDES = ("words", "encoder", "frozen", "tracer", "stuntd")
_AGREEMENT, _DELTA = 0.95, 0.05
Rows = Sequence[tuple[str, str]]


class Answers(NamedTuple):
    """Of test: labels, which of them are answered, and how sure each is; None where the side doesn't say."""

    labels: list[str]
    answered: np.ndarray
    confidence: np.ndarray | None


def main() -> None:
    """Side by side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--clinc", type=Path, help="CLINC's data_full.json, in place of banking77")
    parser.add_argument("--peers", type=Path, default=PLACE)
    asked = parser.parse_args()
    if asked.clinc is None:
        train, truth = rows_of("banking77/train.csv"), rows_of("banking77/test.csv")
        random.Random(asked.seed).shuffle(train)
    else:
        parts = json.loads(asked.clinc.read_text(encoding="utf-8"))
        train = [(text, label) for part in parts.values() for text, label in part]
        random.Random(asked.seed).shuffle(train)
        truth = train[asked.calls : 2 * asked.calls]
    intents = sorted({label for _, label in train})
    calls = answered_by_llm(train[: asked.calls], intents, asked.noise, asked.seed)
    test = answered_by_llm(truth, intents, asked.noise, asked.seed)
    sides = {"words": words, "encoder": encoder, "frozen": frozen}
    texts = [text for text, _ in test]
    table = []
    for name in asked.sides:
        python = None if name in sides else interpreter(name, asked.peers)
        if name not in sides and python is None:
            print(f"{name} is left out: `make peers` makes its environment")
            continue
        began = time.perf_counter()
        answers = (
            sides[name](calls, texts, asked.seed)
            if python is None
            else peer(name, python, calls, texts, asked.seed)
        )
        table.append(
            {"side": name, **figures(answers, test, truth), "seconds": round(time.perf_counter() - began)}
        )
    report(
        "mirror-learning",
        f"What a student answers after {len(calls):,} calls of "
        f"{'banking77' if asked.clinc is None else 'CLINC'}, {asked.noise:.0%} noise",
        table,
        [
            f"answered, agrees, wrong: by the side's own threshold, on {len(test):,} rows",
            "at 95 %: the largest share that could be answered with 95 % agreement, chosen on test itself",
        ],
    )


def rows_of(name: str) -> list[tuple[str, str]]:
    """Text and intent."""
    with find(name).open(encoding="utf-8", newline="") as file:
        return [(row["text"], row["category"]) for row in csv.DictReader(file)]


def answered_by_llm(rows: Rows, intents: list[str], noise: float, seed: int) -> list[tuple[str, str]]:
    """Of a share `noise` of the texts the intent is drawn, always the same of the same text."""
    answered = []
    for text, label in rows:
        draw = random.Random(f"{seed} {text}")
        answered.append((text, draw.choice(intents) if draw.random() < noise else label))
    return answered


def figures(answers: Answers, test: Rows, truth: Rows) -> dict[str, str]:
    """As the table has them."""
    wrong = np.array([said != label for said, (_, label) in zip(answers.labels, truth, strict=True)])
    right = np.array([said == label for said, (_, label) in zip(answers.labels, test, strict=True)])
    answered = answers.answered
    found = {
        "answered": f"{answered.mean():.1%}",
        "agrees": f"{right[answered].mean():.1%}" if answered.any() else "",
        "wrong": f"{wrong[answered].mean():.1%}" if answered.any() else "",
        "all agree": "",
        "at 95 %": "",
    }
    if answers.confidence is not None:
        found["all agree"] = f"{right.mean():.1%}"
        order = np.argsort(-answers.confidence, kind="stable")
        share = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
        fine = np.flatnonzero(share >= _AGREEMENT)
        found["at 95 %"] = f"{(fine.max() + 1) / len(order) if len(fine) else 0:.1%}"
    return found


def words(calls: Rows, texts: list[str], seed: int) -> Answers:
    """The first tier."""
    return ours(calls, texts, LearnSettings(tiers=("tf-idf",), seed=seed))


def encoder(calls: Rows, texts: list[str], seed: int) -> Answers:
    """The second."""
    return ours(calls, texts, LearnSettings(tiers=("encoder",), model=MODEL, seed=seed))


def ours(calls: Rows, texts: list[str], settings: LearnSettings) -> Answers:
    """From a store to a student."""
    labels = sorted({label for _, label in calls})
    with tempfile.TemporaryDirectory() as folder:
        store = Store(str(Path(folder) / "calls.sqlite"))
        store.add([as_call(row, number, labels) for number, row in enumerate(calls)])
        try:
            train_student(store, Path(folder) / "student", settings=settings, say=print)
        finally:
            store.close()
        found = MirrorStudent.open(Path(folder) / "student").answer(texts)
    return Answers(
        [str(each.values["$.intent"]) for each in found],
        np.array([each.is_sure for each in found]),
        np.array([each.confidence for each in found]),
    )


def as_call(row: tuple[str, str], number: int, labels: list[str]) -> Call:
    """One a minute."""
    schema = {"type": "object", "properties": {"intent": {"enum": labels}}, "required": ["intent"]}
    messages = (ChatMessage("system", ("Which intent has the message?",)), ChatMessage("user", (row[0],)))
    asked = CompletionRequest("openai-chat", "llm", messages, "intent", schema, "json-schema")
    answered = Completion({"intent": row[1]}, response_id=f"{number}")
    return make_call(asked, answered, Redactor((), {}), source="relay", began=60.0 * number)


def vectors(texts: Sequence[str]) -> np.ndarray:
    """MiniLM's, of length 1."""
    return Embedder(MODEL).documents(list(texts))


def frozen(calls: Rows, texts: list[str], seed: int) -> Answers:
    """Divided as ours: the latest three in ten prove, of the others' texts a part gives the thresholds."""
    from sklearn.linear_model import LogisticRegression

    settings = LearnSettings()
    count = round(settings.calibration_share * len(calls))
    features, labels = vectors([text for text, _ in calls]), np.array([label for _, label in calls])
    is_dev = np.array([hash_fraction(text, seed) < settings.dev_share for text, _ in calls])
    is_dev[-count:] = False
    is_train = ~is_dev
    is_train[-count:] = False
    learner = LogisticRegression(C=10.0, max_iter=1000).fit(features[is_train], labels[is_train])
    shares = learner.predict_proba(features)
    sure, said = shares.max(axis=1), learner.classes_[shares.argmax(axis=1)]
    claim = certify(
        sure[-count:],
        said[-count:] != labels[-count:],
        threshold_sequence(sure[is_dev]),
        1 - _AGREEMENT,
        _DELTA,
    )
    of_test = learner.predict_proba(vectors(texts))
    confidence = of_test.max(axis=1)
    threshold = np.inf if claim is None else claim.threshold
    return Answers(learner.classes_[of_test.argmax(axis=1)].tolist(), confidence >= threshold, confidence)


def peer(name: str, python: str, calls: Rows, texts: list[str], seed: int) -> Answers:
    """By its own interpreter; it divides the calls itself."""
    asked = {
        "calls": calls,
        "texts": texts,
        "labels": sorted({label for _, label in calls}),
        "agreement": _AGREEMENT,
        "seed": seed,
        "encoder": str(locate_model(MODEL).folder),
    }
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "asked.json").write_text(json.dumps(asked))
        np.save(place / "calls.npy", vectors([text for text, _ in calls]))
        np.save(place / "texts.npy", vectors(texts))
        script = Path(__file__).with_name("mirror_peers.py")
        subprocess.run([python, str(script), name, folder], check=True, stdout=sys.stderr)
        found = json.loads((place / "answers.json").read_text())
    confidence = None if found["confidence"] is None else np.array(found["confidence"])
    return Answers(found["labels"], np.array(found["answered"], bool), confidence)


if __name__ == "__main__":
    main()

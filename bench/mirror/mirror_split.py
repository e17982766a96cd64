"""What so many recorded calls can prove, by how they are divided between learning and the proof.
Last answer (2026-11-30, Zen 5, CLINC, 2 % noise): 2,400 calls 58 %, 3,000 calls 75 %, 4,000 calls 82 %.

    python bench/mirror/mirror_split.py [--clinc data_full.json] [--model minilm] [--draws 24] [--seeds 2]
                                       [--ask]

banking77's rows, or CLINC's 150 intents and texts out of scope, are the calls; an LLM's answers are their
labels, 2 in 100 of them replaced. Of N recorded calls a part is kept for the proof; of the others 15 in 100
choose and plan, and the rest is learned from: regression on the model's vectors, weighed beside the ten
nearest texts, with the vectors of 1.4 times as many rows, so that it orders its answers as well as the
mirror's own students do (those of a life on CLINC: at 70 % of the calls 3.6 % differ after 1,184 rows, here
3.7 % after 1,250). Each draw takes other calls to choose and to prove by, and the claim is proven as
`bertsmith mirror train` does it, at a risk of 5 %. Printed: the mean share of the other calls that the
student may answer, in brackets in how many draws anything is proven, and the share that a perfect proof
would allow.

With --ask: which 300 of 4,000 inputs to ask the LLM about next, beside 300 or 1,000 answers: any, those that
a student of these answers is least sure of, or those that tell it most (`bertsmith mirror label --student`).
Printed is what a student of all answers could answer of 2,500 other calls at 5 %, and how often it agrees.

Every call counts here, as if the LLM answered all of them: beside a student that answers, fewer do.
"""

import argparse
import random
import sys
from pathlib import Path

import numpy as np
from scipy.special import softmax

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.metrics.calibration import fit_temperature
from bertsmith.mirror.learning.proving import estimate_coverage, prove
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.tiers import StudentCandidate, TeacherComparison, fit_classes
from bertsmith.mirror.neighbours import NeighbourMemory, order_by_gain
from harness import end_without, report
from labelled import MODEL
from mirror_life import banking77, clinc

RECORDED = (1200, 1800, 2400, 3000, 4000, 5000)
KEPT = (0.3, 0.4, 0.5)  # for the proof
STREAM, DEV = 6000, 900  # rows to draw calls from that nothing is learned from
ASKED, POOL, TEST = 300, 4000, 2500  # inputs to ask about next, of so many, and calls to judge by
NOISE, EPSILON, DEV_SHARE, MORE = 0.02, 0.05, 0.15, 1.4


def main() -> None:
    """A row for each number of recorded calls."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clinc", type=Path, help="CLINC's data_full.json, in place of banking77")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--draws", type=int, default=24, help="of calls to choose and to prove by")
    parser.add_argument("--seeds", type=int, default=2, help="orders of the rows")
    parser.add_argument("--ask", action="store_true", help="which inputs to ask about next")
    arguments = parser.parse_args()
    try:
        rows = (banking77() if arguments.clinc is None else clinc(arguments.clinc)).rows
    except FileNotFoundError as error:
        end_without(str(error.filename))
    name = "banking77" if arguments.clinc is None else "clinc"
    vectors = Embedder(arguments.model).documents([text for text, _ in rows])
    names, labels = np.unique([answer["intent"] for _, answer in rows], return_inverse=True)
    variant = name if arguments.model == MODEL else f"{name}-{Path(arguments.model).name}"
    if arguments.ask:
        ask_next(vectors, labels, name, variant, arguments.seeds)
        return
    table = []
    for recorded in RECORDED:
        cells: dict[str, object] = {"recorded calls": f"{recorded:,}"}
        for share in KEPT:
            learned = recorded - round(share * recorded)
            coverages, could = list[float](), list[float]()
            for seed in range(arguments.seeds):
                order = list(range(len(labels)))
                random.Random(seed).shuffle(order)
                draws = np.random.default_rng(seed)
                answers = np.where(
                    draws.random(len(labels)) < NOISE, draws.integers(0, len(names), len(labels)), labels
                )[order]
                confidence, differs = train(vectors[order], answers, round((1 - DEV_SHARE) * learned))
                could.append(estimate_coverage(confidence[:STREAM], differs[:STREAM], EPSILON))
                for _ in range(arguments.draws):
                    coverages.append(
                        prove_once(confidence, differs, round(DEV_SHARE * learned), recorded - learned, draws)
                    )
            proven = np.mean(np.array(coverages) > 0)
            cells[f"{share:.0%} kept"] = (
                f"{np.mean(coverages):.0%} ({proven:.0%}), could {np.mean(could):.0%}"
            )
        table.append(cells)
        print(cells, flush=True)
    report(
        "mirror-split",
        f"{name}: what a student may answer at 5 %, by recorded calls and the share kept for the proof",
        table,
        ["in brackets: draws in which anything is proven", "could: with a perfect proof"],
        variant=variant,
    )


def ask_next(vectors: np.ndarray, labels: np.ndarray, name: str, variant: str, seeds: int) -> None:
    """A row for each number of answers and each way to choose more, the mean over the seeds."""
    ways = ("none", "any", "least sure of", "most telling")
    table = []
    for known in (300, 1000):
        shares = np.zeros((len(ways), seeds, 2))
        for seed in range(seeds):
            draws = np.random.default_rng(seed)
            order = draws.permutation(len(labels))[: known + POOL + TEST]
            own = vectors[order] / np.linalg.norm(vectors[order], axis=1, keepdims=True)
            noisy = draws.random(len(order)) < NOISE
            answers = np.where(noisy, draws.integers(0, labels.max() + 1, len(order)), labels[order])
            pool, test = np.arange(known, known + POOL), np.arange(known + POOL, len(order))
            confidence, _ = answer(own, answers, np.arange(known), pool)
            chosen = (
                np.arange(0),
                np.arange(ASKED),
                np.argsort(confidence)[:ASKED],
                order_by_gain(own[pool], 1 - confidence)[:ASKED],
            )
            for way, more in enumerate(chosen):
                sure, differs = answer(own, answers, np.append(np.arange(known), pool[more]), test)
                shares[way, seed] = estimate_coverage(sure, differs, EPSILON), 1 - differs.mean()
        for way, own_shares in zip(ways, shares, strict=True):
            (could, agrees), spread = own_shares.mean(axis=0), own_shares[:, 0].std(ddof=1)
            table.append(
                {
                    "answers": f"{known:,}",
                    "asked next": way,
                    "could answer": f"{could:.1%} ± {spread:.1%}",
                    "agrees": f"{agrees:.1%}",
                }
            )
            print(table[-1], flush=True)
    title = f"{name}: what a student could answer at 5 % with {ASKED} more answers, by which they are"
    report("mirror-ask", title, table, ["±: standard deviation over the seeds"], variant=variant)


def answer(
    vectors: np.ndarray, answers: np.ndarray, learned: np.ndarray, asked: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How sure a student of some rows is of others, and whether it differs there."""
    weights = fit_classes(vectors[learned], np.eye(answers.max() + 1)[answers[learned]])
    shares = softmax(vectors[asked].astype(np.float64) @ weights[:-1] + weights[-1], axis=1)
    return shares.max(axis=1), shares.argmax(axis=1) != answers[asked]


def train(vectors: np.ndarray, answers: np.ndarray, learned: int) -> tuple[np.ndarray, np.ndarray]:
    """A student of so many rows: how sure it is of those that nothing is learned from, and whether it differs
    there; (STREAM + DEV,) both.
    """
    kept = STREAM + DEV
    rows = slice(kept, kept + round(MORE * learned))
    weights = fit_classes(vectors[rows], np.eye(answers.max() + 1)[answers[rows]])
    logits = vectors[:kept].astype(np.float64) @ weights[:-1] + weights[-1]
    dev = slice(STREAM, kept)
    memory = NeighbourMemory(
        vectors[rows], {"": answers[rows]}, {"": fit_temperature(logits[dev], answers[dev])}
    )
    logits = memory.weigh(vectors[:kept], {"": logits})[""]
    shares = softmax(logits / fit_temperature(logits[dev], answers[dev]), axis=1)
    return shares.max(axis=1), shares.argmax(axis=1) != answers[:kept]


def prove_once(
    confidence: np.ndarray, differs: np.ndarray, chosen_by: int, kept: int, draws: np.random.Generator
) -> float:
    """The share of the other calls that is answered by what is proven, 0 where nothing is."""
    dev = STREAM + draws.permutation(DEV)[:chosen_by]
    proof, others = np.split(draws.permutation(STREAM), [kept])
    compared = [
        TeacherComparison(
            confidence[part], differs[part], {"$.intent": (confidence[part], differs[part])}, []
        )
        for part in (dev, proof)
    ]
    candidate = StudentCandidate("encoder", (), lambda texts: {}, lambda folder: None, {})
    claim = prove([candidate], compared[:1], compared[1:], LearnSettings(epsilon=EPSILON)).claims.whole
    return 0.0 if claim is None else float(np.mean(confidence[others] >= claim.threshold))


if __name__ == "__main__":
    main()

"""Pre-training on sequences that are no text, then fine-tuning on a tenth of the labels, beside from scratch.
Last answer (2026-11-27, Zen 4): digits 88.3 from 75.1, a language 99.9 from 85.1, optdigits 86.7 from 77.2.

    python bench/pretraining/sequences.py [--data digits ...] [--steps 400] [--seeds 5] [--decoder 0]

    digits      scikit-learn's digits, 8 x 8 pixels, as patches of 2 x 2: which digit?
    table       scikit-learn's breast-cancer table, 30 numbers in bins: malignant or benign?
    numbers     the same table, its numbers as they are
    optical     UCI's optdigits, the digits as a table of 64 columns in bins: which digit?
    language    symbols of a synthetic language: which of four grammars made the sentence?
    series      a synthetic series in windows of 8 steps: how fast does its hidden phase turn?

Both sides have the same encoder of 2 layers and 128 values and the same labelled rows. Pre-training reads the
training rows without their labels; "scratch" begins with random weights. Each is fine-tuned as `bertsmith
finetune` comes, which chooses how by the labelled rows, and scratch also by all of its weights with the best
of three learning rates, judged on test, which favours it. Beside them stands the best baseline that the runs
report: those of texts read symbols and numbers as words. A data set takes five minutes or so on one core;
runs are kept under runs/bench/sequences/.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from bertsmith.data.sequences.building import SequenceSettings, build_sequences
from bertsmith.data.sequences.encoding import encode_sequences
from bertsmith.tasks.heads.linear_start import FROZEN
from bertsmith.training.finetuning.finetune import finetune
from bertsmith.training.pretrain import pretrain
from harness import report
from labelled import mean_and_error

RUNS = Path("runs/bench/sequences")
RATES = (3e-4, 1e-3, 3e-3)
AS_IT_COMES: tuple[str, ...] = ()
ALL_WEIGHTS = tuple(("method=full", "epochs=20", f"optimizer.learning_rate={rate}") for rate in RATES)
NOTE = "Test, the mean over draws of labelled rows and its standard error."
Rows = list[dict[str, Any]]


class Data(NamedTuple):
    """Rows to pre-train on, a tenth of them with labels, and test rows; how they are read, and the task."""

    rows: Rows
    test: Rows
    settings: SequenceSettings
    task: str
    metric: str
    length: int  # of a sequence, with special tokens

    @property
    def family(self) -> list[str]:
        """Where each place means one thing, positions are learned."""
        return ["model.model_type=bert"] if self.settings.kind in ("table", "images") else []


def digits() -> Data:
    from sklearn.datasets import load_digits

    found = load_digits()
    rows = [
        {"image": image.tolist(), "label": int(label)}
        for image, label in zip(found.images, found.target, strict=True)
    ]
    settings = SequenceSettings(kind="images", patch=2)
    return _split(rows, 360, settings, "classification", "accuracy", 18)


def table() -> Data:
    return _breast_cancer(SequenceSettings(kind="table", leave_out=("label",), bins=8, heldout=0.1))


def numbers() -> Data:
    settings = {"kind": "table", "leave_out": ("label",), "numbers": "continuous", "heldout": 0.1}
    return _breast_cancer(SequenceSettings.model_validate(settings))


def _breast_cancer(settings: SequenceSettings) -> Data:
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "label"})
    return _split(found.to_dict("records"), 169, settings, "classification", "accuracy", 32)


def optical() -> Data:
    from sklearn.datasets import load_digits

    found = load_digits(as_frame=True).frame.rename(columns={"target": "label"})
    found["label"] = found["label"].map(lambda digit: f"digit {digit}")
    settings = SequenceSettings(kind="table", leave_out=("label",), bins=8, heldout=0.1)
    return _split(found.to_dict("records"), 360, settings, "classification", "accuracy", 66)


def language() -> Data:
    """Grammars of the same words equally often, told apart by which follows which at two places' distance."""
    random = np.random.default_rng(0)
    steps = [random.permutation(40) for _ in range(4)]
    rows = []
    for _ in range(3400):
        grammar = int(random.integers(4))
        words = random.integers(40, size=2).tolist()
        while len(words) < 24:
            follows = int(steps[grammar][words[-2]])
            words.append(follows if random.random() < 0.8 else int(random.integers(40)))
        rows.append({"events": words, "label": f"grammar {grammar}"})
    return _split(rows, 400, SequenceSettings(), "classification", "accuracy", 26)


def series() -> Data:
    """A noisy wave with a trend and a phase of its own; its frequency is to be told."""
    random = np.random.default_rng(0)
    rows, time = [], np.arange(128)
    for _ in range(2400):
        turns = random.uniform(0.02, 0.12)
        wave: npt.NDArray[np.float64] = np.sin(2 * np.pi * (turns * time + random.random()))
        signal = random.uniform(0.5, 2) * wave + random.normal() * time / 128 + random.normal(size=128) * 0.7
        rows.append({"series": signal.round(4).tolist(), "label": round(100 * turns, 4)})
    settings = SequenceSettings(kind="series", patch=8)
    return _split(rows, 400, settings, "regression", "pearson", 18)


DATA: dict[str, Callable[[], Data]] = {
    "digits": digits,
    "table": table,
    "numbers": numbers,
    "optical": optical,
    "language": language,
    "series": series,
}


def _split(rows: Rows, test: int, settings: SequenceSettings, task: str, metric: str, length: int) -> Data:
    order = np.random.default_rng(0).permutation(len(rows))
    shuffled = [rows[number] for number in order]
    return Data(shuffled[test:], shuffled[:test], settings, task, metric, length)


def _write(path: Path, rows: Rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def compare(name: str, steps: int, seeds: int, decoder: int) -> dict[str, str]:
    """A row of the table."""
    data, folder = DATA[name](), RUNS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    build_sequences([_write(folder / "rows.jsonl", data.rows)], folder / "store", data.settings)
    models = {
        "pre-trained": _pretrained(folder, data, steps, decoder),
        "scratch": _pretrained(folder, data, 1),
    }
    test = _encoded(folder, "test", data.test)
    scores: dict[str, list[float]] = {}
    for seed in range(seeds):
        few = np.random.default_rng(seed).permutation(len(data.rows))
        files = {"test": test}
        labelled = [data.rows[number] for number in few[: len(few) // 10]]
        files["train"] = _encoded(folder, f"train-{seed}", labelled)
        for side, model in models.items():
            score, baseline = _finetuned(folder / f"{side}-{seed}", data, model, files, AS_IT_COMES, seed)
            scores.setdefault(side, []).append(score)
        # a dev, so that no folds are trained; of one evaluation, so that it chooses nothing
        files["dev"] = _encoded(folder, f"dev-{seed}", [data.rows[number] for number in few[-40:]])
        found = [
            _finetuned(folder / f"all-{seed}-{number}", data, models["scratch"], files, settings, seed)[0]
            for number, settings in enumerate(ALL_WEIGHTS)
        ]
        scores.setdefault("scratch, best rate on test", []).append(max(found))
        scores.setdefault("best baseline", []).append(baseline)
    gains = np.subtract(scores["pre-trained"], scores["scratch"])
    return {
        "data": name,
        "labelled rows": f"{len(data.rows) // 10}",
        "metric": data.metric,
        **{side: mean_and_error(found) for side, found in scores.items()},
        "pre-training adds": mean_and_error(gains.tolist()),
    }


def _pretrained(folder: Path, data: Data, steps: int, decoder: int = 0) -> str:
    """With one step at next to no rate the weights are random."""
    out = folder / f"pretraining-{steps}"
    rate = [] if steps > 1 else ["optimizer.learning_rate=1e-12", "optimizer.warmup=0"]
    result = pretrain(
        "quickstart",
        f"corpus={folder / 'store'}",
        f"out={out}",
        f"steps={steps}",
        f"data.sequence_lengths=[{data.length}]",
        "loss.sampled_pieces=0",
        "evaluation.every=0.5",
        "log_every=20",
        *data.family,
        *([f"loss.decoder_layers={decoder}", "masking.mask_rate=0.75"] if decoder else []),
        *rate,
    )
    if steps > 1:
        print(
            f"{folder.name:9} pre-training:", {k: round(v, 3) for k, v in result.metrics.items()}, flush=True
        )
    return str(result.model)


def _encoded(folder: Path, name: str, rows: Rows) -> str:
    raw, out = _write(folder / f"{name}.raw.jsonl", rows), folder / f"{name}.jsonl"
    encode_sequences(raw, folder / "store", out)
    return str(out)


def _finetuned(
    out: Path, data: Data, model: str, files: dict[str, str], settings: tuple[str, ...], seed: int
) -> tuple[float, float]:
    """The score on test, and that of the best baseline."""
    given = *settings, f"seed={seed}", f"max_length={data.length}"
    result = finetune(data.task, *given, model=model, out=str(out), **files)
    found = result.results.evaluations["test"]
    plain = {name: scores for name, scores in found.baselines.items() if name != FROZEN}
    return found.model[data.metric], max(scores.get(data.metric, 0.0) for scores in plain.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--decoder", type=int, default=0, help="layers of a masked autoencoder's decoder")
    options = parser.parse_args()
    rows = []
    for name in options.data:
        rows.append(compare(name, options.steps, options.seeds, options.decoder))
        report("sequences", "Sequences that are no text", rows, [NOTE])


if __name__ == "__main__":
    main()

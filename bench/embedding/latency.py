"""One short text at a time: milliseconds from the text to its vector or its class, p50 and p95.
Last answer (2026-11-23, Zen 4): a vector 3.65 ms, ONNX Runtime 6.11; a class 5.13 ms, the pipeline 15.4.

    python bench/embedding/latency.py [--texts 200] [--rounds 5] [--file TEXTS]

The texts are sentences of SST-2's dev.tsv drawn with seed 0, or the lines of --file. Each side is a process
of its own with so many threads, is asked in turn, and reads the texts one after the other; a round that isn't
counted comes first. The target: our p50 not above that of ONNX Runtime in float32.

A vector is MiniLM's (mean pooling, length 1, 256 tokens at most): by `Embedder`, with products in int16 as
usual and in float32, by sentence-transformers on torch and on ONNX Runtime, and by ONNX Runtime itself on the
same exported graph with nothing around it but the tokenizers library and a mean. The cosine is that of the
first text's vector with ours. The two on ONNX need an environment of their own (`make peers`); without it
their rows say so. A class is by `Predictor`, and by transformers' pipeline on the same folder:
MiniLM with a new head of two classes.
"""

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import Worker, interleave, ratio, report, serve, spread
from labelled import MODEL, find, quiet
from peers import FLOAT, PLACE, export, interpreter, session_settings

Answer = Callable[[str], Any]
_NAMES = {
    "embedder": "Bertsmith, Embedder",
    "embedder_float32": "Bertsmith, Embedder, products in float32",
    "onnxruntime": "ONNX Runtime",
    "sentence_onnx": "sentence-transformers, ONNX",
    "sentence_torch": "sentence-transformers, torch",
    "predictor": "Bertsmith, Predictor",
    "pipeline": "transformers, pipeline",
}
_WORK = {
    "a vector": ("embedder", "embedder_float32", "onnxruntime", "sentence_onnx", "sentence_torch"),
    "a class": ("predictor", "pipeline"),
}
_EXACT = "embedder_float32"
_ON_ONNX = ("onnxruntime", "sentence_onnx")


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--sides", nargs="+", choices=tuple(_NAMES), default=list(_NAMES))
    parser.add_argument("--peers", type=Path, default=PLACE, help="the folder of their environments")
    parser.add_argument("--file", type=Path, help="texts, one a line")
    parser.add_argument("--quick", action="store_true", help="five texts, one round; nothing is written")
    parser.add_argument("--model", help="the worker's model")
    parser.add_argument("--worker", choices=tuple(_NAMES))
    options = parser.parse_args()
    if options.worker:
        with contextlib.redirect_stdout(sys.stderr):
            reader = _Reader(_OPEN[options.worker](options.model, options.threads))
        serve(quiet(reader))
        return
    if options.quick:
        options.texts, options.rounds = 5, 1
    texts = short_texts(options.texts, options.file)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for work in _WORK for row in _rows(work, texts, Path(folder), options)]
    notes = [" ".join(part.split()) for part in (__doc__ or "").split("\n\n")[2:]]
    report("latency", "One short text at a time", rows, notes, write=not options.quick)


def _rows(work: str, texts: list[str], folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One for each side; the first is ours."""
    wanted = [side for side in _WORK[work] if side in options.sides]
    python = interpreter("onnx", options.peers) if {*wanted} & {*_ON_ONNX} else None
    missing = [side for side in wanted if side in _ON_ONNX and not python]
    names = [side for side in wanted if side not in missing]
    models = dict.fromkeys(names, _classifier(folder) if "predictor" in names else _minilm())
    pythons = dict.fromkeys(names, sys.executable)
    if python:
        on_onnx = [side for side in names if side in _ON_ONNX]
        models |= dict.fromkeys(on_onnx, export(python, "onnx", _minilm(), folder))
        pythons |= dict.fromkeys(on_onnx, python)
    sides = {side: _start(side, models[side], pythons[side], options) for side in names}
    answers = interleave(sides, options.rounds, texts=texts) if sides else {}
    for worker in sides.values():
        worker.close()
    return [_row(work, side, answers) for side in names] + [_missing_row(work, side) for side in missing]


def _row(work: str, side: str, answers: dict[str, Any]) -> dict[str, Any]:
    ours = next(iter(answers))
    every = np.concatenate([answer["milliseconds"] for answer in answers[side]])
    middle = {
        name: [statistics.median(answer["milliseconds"]) for answer in given]
        for name, given in answers.items()
    }
    vectors = [answers[name][0]["first"] for name in (ours, side)]
    exact = spread(ratio(middle[_EXACT], middle[side])) if _EXACT in middle else ""
    return {
        "wanted": work,
        "side": _NAMES[side],
        "p50, ms": f"{np.percentile(every, 50):.2f}",
        "p95, ms": f"{np.percentile(every, 95):.2f}",
        "ours / this, p50": spread(ratio(middle[ours], middle[side])),
        "in float32 / this": exact,
        "cosine with ours": f"{np.dot(*vectors):.6f}" if all(vectors) else "",
    }


def _missing_row(work: str, side: str) -> dict[str, Any]:
    blank = dict.fromkeys(("p95, ms", "ours / this, p50", "in float32 / this", "cosine with ours"), "")
    return {"wanted": work, "side": _NAMES[side], "p50, ms": "not installed", **blank}


def short_texts(count: int, file: Path | None) -> list[str]:
    """`count` texts. Ends with a sentence where SST-2 is needed and missing."""
    if file:
        return file.read_text(encoding="utf-8").splitlines()[:count]
    lines = find("sst2/dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return random.Random(0).sample([line.split("\t")[0] for line in lines], count)


def _start(side: str, model: str, python: str, options: argparse.Namespace) -> Worker:
    return Worker(__file__, side, "--model", model, "--threads", str(options.threads), python=python)


def _minilm() -> str:
    from bertsmith.model.locate import locate_model

    return str(locate_model(MODEL).folder)


def _classifier(folder: Path) -> str:
    """MiniLM with a new head, as `bertsmith finetune classification` would save it."""
    import torch

    from bertsmith.tasks.checkpoints.task_checkpoint import begin_task_model, save_task_model
    from bertsmith.tasks.classification import Classification
    from bertsmith.text.tokens.tokenizer import Tokenizer

    torch.manual_seed(0)
    made, task = folder / "classifier", Classification(Classification.Settings(max_length=64), ("no", "yes"))
    model = begin_task_model(_minilm(), task).model
    save_task_model(made, model, task, Tokenizer.load(_minilm()), {"made for": "bench/embedding/latency.py"})
    return str(made)


class _Reader:
    """Times each text of a request by itself."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        first = self.answer(request["texts"][0])
        vector = [float(each) for each in first] if isinstance(first, np.ndarray) else []
        return {"milliseconds": [self._time(text) for text in request["texts"]], "first": vector}

    def _time(self, text: str) -> float:
        started = time.perf_counter()
        self.answer(text)
        return 1000 * (time.perf_counter() - started)


def _embedder(folder: str, threads: int, precision: str | None = None) -> Answer:
    import torch

    from bertsmith import Embedder

    torch.set_num_threads(threads)
    embedder = Embedder(folder, compute_dtype=getattr(torch, precision) if precision else None)
    return lambda text: embedder.queries([text])[0]


def _sentence_torch(folder: str, threads: int) -> Answer:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(folder, device="cpu")
    return lambda text: model.encode(text, show_progress_bar=False)


def _sentence_onnx(folder: str, threads: int) -> Answer:
    from sentence_transformers import SentenceTransformer

    settings = session_settings(threads) | {"file_name": FLOAT}
    model = SentenceTransformer(folder, backend="onnx", model_kwargs=settings)
    return lambda text: model.encode(text, show_progress_bar=False)


def _onnxruntime(folder: str, threads: int) -> Answer:
    """The graph that sentence-transformers exports, and as little around it as there can be."""
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer

    options = session_settings(threads)["session_options"]
    session = InferenceSession(f"{folder}/{FLOAT}", options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    inputs = [each.name for each in session.get_inputs()]

    def embed(text: str) -> Any:
        found = tokenizer.encode(text)
        fed = {
            "input_ids": found.ids,
            "attention_mask": found.attention_mask,
            "token_type_ids": found.type_ids,
        }
        states = session.run(None, {name: np.array([fed[name]], np.int64) for name in inputs})[0]
        pooled = states[0].mean(axis=0)
        return pooled / np.linalg.norm(pooled)

    return embed


def _predictor(folder: str, threads: int) -> Answer:
    import torch

    from bertsmith import Predictor

    torch.set_num_threads(threads)
    predictor = Predictor.load(folder)
    return lambda text: predictor.predict([text])


def _pipeline(folder: str, threads: int) -> Answer:
    import torch
    from transformers import pipeline

    torch.set_num_threads(threads)
    classify = pipeline("text-classification", model=folder, device="cpu")
    return lambda text: classify(text)


_OPEN: dict[str, Callable[[str, int], Answer]] = {
    "embedder": _embedder,
    _EXACT: partial(_embedder, precision="float32"),
    "onnxruntime": _onnxruntime,
    "sentence_onnx": _sentence_onnx,
    "sentence_torch": _sentence_torch,
    "predictor": _predictor,
    "pipeline": _pipeline,
}


if __name__ == "__main__":
    main()

"""Vectors by products in int8 beside the other precisions, OpenVINO's int8 and ONNX Runtime's.
Last answer (2026-11-30, Zen 5): 677 texts a second; int16 takes 1.54 times as long, OpenVINO's int8 1.38.

    python bench/embedding/int8.py [--texts 1500] [--rounds 5] [--threads 2]

The texts are those of embedding.py, of mixed length, and MiniLM makes their vectors (mean pooling, 256 tokens
at most). Each side is a process of its own on as many threads, asked in turn. Ours is `Embedder` in int8, in
int16, its default, in bfloat16 and in float32. OpenVINO's graph is quantised by NNCF for transformers on 300
other texts of the same kinds, and is asked asynchronously with its throughput hint; ONNX Runtime's by its
dynamic quantisation. Both get the tokenizers library's ids in batches of 32 texts, the longest first. Seconds
are those of the clock, and those that the processor spent on the side, which other programs change less. A
speed is a median, a ratio the median of the rounds'. The environment needs openvino, nncf and onnxruntime.
"""

import argparse
import contextlib
import os
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

from embedding import real_texts
from harness import Worker, interleave, ratio, report, serve, spread
from labelled import MODEL, quiet

NAMES = {
    "int8": "Bertsmith, int8",
    "int16": "Bertsmith, int16",
    "bfloat16": "Bertsmith, bfloat16",
    "float32": "Bertsmith, float32",
    "openvino": "OpenVINO, int8 by NNCF",
    "onnx": "ONNX Runtime, dynamic int8",
}
INPUTS = "input_ids", "attention_mask", "token_type_ids"
LAST_GRAPH = "int8.onnx"
BATCH, LONGEST, CALIBRATION = 32, 256, 300
Embed = Callable[[list[str]], Any]


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--graphs", type=Path, help="a folder for the graphs, which another run may read")
    parser.add_argument("--worker", choices=list(NAMES))
    options = parser.parse_args()
    if options.worker:
        with contextlib.redirect_stdout(sys.stderr):
            embed = _OPEN[options.worker](options.graphs, options.threads)
        serve(quiet(_Side(options.worker, embed, real_texts(options.texts))))
        return
    with tempfile.TemporaryDirectory() as folder:
        graphs, measured = options.graphs or Path(folder), {*real_texts(options.texts)}
        if not (graphs / LAST_GRAPH).exists():
            others = [text for text in real_texts(options.texts + 10 * CALIBRATION) if text not in measured]
            with contextlib.redirect_stdout(sys.stderr):
                _make_graphs(graphs, others[:CALIBRATION])
        passed = ("--texts", str(options.texts), "--threads", str(options.threads), "--graphs", str(graphs))
        sides = {side: Worker(__file__, side, *passed) for side in NAMES}
        answers = interleave(sides, options.rounds, folder=folder)
        vectors = {side: np.load(Path(folder) / f"{side}.npy") for side in sides}
        for worker in sides.values():
            worker.close()
    rows = []
    for side, name in NAMES.items():
        seconds, spent = ([a[key] for a in answers[side]] for key in ("seconds", "spent"))
        cosines = np.einsum("ed,ed->e", vectors["float32"], vectors[side])
        rows.append(
            {
                "side": name,
                "texts/s": f"{options.texts / statistics.median(seconds):,.0f}",
                "int8 of ours is faster by": spread(ratio(seconds, [a["seconds"] for a in answers["int8"]])),
                "seconds of a core": f"{statistics.median(spent):.2f}",
                "by these": spread(ratio(spent, [a["spent"] for a in answers["int8"]])),
                "cosine with float32, lowest": f"{cosines.min():.4f}",
                "mean": f"{cosines.mean():.5f}",
                "in int16": answers[side][0]["kept"],
            }
        )
    load = f"The machine's load at the end was {os.getloadavg()[0]:.1f} processes."
    report(
        "int8", "int8", rows, [*(" ".join(part.split()) for part in (__doc__ or "").split("\n\n")[2:]), load]
    )


class _Side:
    """Embeds all texts when asked, and leaves the vectors in the folder given."""

    def __init__(self, name: str, embed: Embed, texts: list[str]) -> None:
        self.name, self.embed, self.texts = name, embed, texts

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        started, spent = time.perf_counter(), time.process_time()
        vectors = self.embed(self.texts)
        seconds, spent = time.perf_counter() - started, time.process_time() - spent
        np.save(Path(request["folder"]) / f"{self.name}.npy", vectors)
        return {"seconds": seconds, "spent": spent, "kept": getattr(self.embed, "kept", "")}


def _make_graphs(folder: Path, texts: list[str]) -> None:
    import nncf
    import openvino
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from transformers import AutoModel

    model = AutoModel.from_pretrained(_model(), attn_implementation="eager")
    encode = _encoder()
    example = dict(zip(INPUTS, map(torch.from_numpy, encode(["one text", "and a longer one"])), strict=True))
    shapes = [(name, [-1, -1], np.int64) for name in INPUTS]
    graph = openvino.convert_model(_pooled(model).eval(), example_input=example, input=shapes)
    data = nncf.Dataset(texts, lambda text: dict(zip(INPUTS, encode([text]), strict=True)))
    rounded = nncf.quantize(graph, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(texts))
    openvino.save_model(rounded, folder / "openvino.xml")
    axes = {name: {0: "texts", 1: "tokens"} for name in INPUTS}
    place = str(folder / "float32.onnx")
    torch.onnx.export(
        _pooled(model).eval(),
        tuple(example.values()),
        place,
        input_names=[*INPUTS],
        output_names=["vectors"],
        dynamic_axes=axes,
        dynamo=False,
        opset_version=17,
    )
    quantize_dynamic(place, str(folder / LAST_GRAPH), weight_type=QuantType.QInt8)


def _pooled(model: Any) -> Any:
    import torch

    class Pooled(torch.nn.Module):
        """The mean of the hidden states of a text's tokens, of length 1."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            given = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
            states = self.model(input_ids=input_ids, **given).last_hidden_state
            weights = attention_mask.unsqueeze(-1).float()
            return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=1)

    return Pooled()


def _encoder() -> Callable[[list[str]], tuple[Any, Any, Any]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{_model()}/tokenizer.json")
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding()

    def encode(texts: list[str]) -> tuple[Any, Any, Any]:
        encodings = tokenizer.encode_batch(texts)
        ids = np.array([encoding.ids for encoding in encodings], np.int64)
        return (
            ids,
            np.array([encoding.attention_mask for encoding in encodings], np.int64),
            np.zeros_like(ids),
        )

    return encode


def _batches(texts: list[str]) -> list[list[int]]:
    longest_first = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
    return [longest_first[start : start + BATCH] for start in range(0, len(texts), BATCH)]


def _ours(_: Path, threads: int, precision: str) -> Embed:
    import torch

    from bertsmith import Embedder

    torch.set_num_threads(threads)
    embedder = Embedder(MODEL, compute_dtype=getattr(torch, precision))

    def embed(texts: list[str]) -> Any:
        return embedder.documents(texts)

    choice = embedder.int8_choice
    embed.kept = "" if choice is None else f"{len(choice.in_int16)} of {choice.products}"  # type: ignore[attr-defined]
    return embed


def _openvino(graphs: Path, threads: int) -> Embed:
    import openvino

    settings = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": threads}
    model = openvino.Core().compile_model(graphs / "openvino.xml", "CPU", settings)
    encode = _encoder()

    def embed(texts: list[str]) -> Any:
        vectors: dict[int, Any] = {}
        queue = openvino.AsyncInferQueue(model)
        queue.set_callback(
            lambda request, numbers: vectors.update(
                zip(numbers, request.get_output_tensor(0).data.copy(), strict=True)
            )
        )
        for numbers in _batches(texts):
            ids = encode([texts[number] for number in numbers])
            queue.start_async(dict(zip(INPUTS, ids, strict=True)), numbers)
        queue.wait_all()
        return np.stack([vectors[number] for number in range(len(texts))])

    return embed


def _onnx(graphs: Path, threads: int) -> Embed:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(graphs / LAST_GRAPH), options, ["CPUExecutionProvider"])
    encode = _encoder()

    def embed(texts: list[str]) -> Any:
        vectors: dict[int, Any] = {}
        for numbers in _batches(texts):
            ids = encode([texts[number] for number in numbers])
            (computed,) = session.run(None, dict(zip(INPUTS, ids, strict=True)))
            vectors.update(zip(numbers, computed, strict=True))
        return np.stack([vectors[number] for number in range(len(texts))])

    return embed


def _model() -> str:
    from bertsmith.model.locate import locate_model

    return str(locate_model(MODEL).folder)


_OPEN: dict[str, Callable[[Path, int], Embed]] = {
    **{
        precision: partial(_ours, precision=precision)
        for precision in ("int8", "int16", "bfloat16", "float32")
    },
    "openvino": _openvino,
    "onnx": _onnx,
}


if __name__ == "__main__":
    main()

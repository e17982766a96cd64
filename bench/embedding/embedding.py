"""Embedding: texts and tokens per second beside sentence-transformers and infinity, with the same vectors.
Last answer (2026-11-23, Zen 4): 179 texts/s, 3.5 times torch and ONNX, 1.5 times int8, 44 % of the memory.

    python bench/embedding/embedding.py [--texts 2000] [--rounds 5] [--sides ours torch onnx]
    python bench/embedding/embedding.py --shape ettin-32m [--longest 512]
    python bench/embedding/embedding.py --shape xsmall --family deberta-v2

The texts are real and of mixed length: paragraphs of SQuAD's dev-v1.1, sentences of SST-2's dev.tsv and of
ReQA-SQuAD's test, a third each, drawn and shuffled with seed 0. All sides use MiniLM (mean pooling, vectors
of length 1, 256 tokens at most) on two threads, each in a process of its own, asked in turn. Ours is
`Embedder` with its defaults, which are products in int16 by the compiled kernels, then in float32, and in
bfloat16 where the processor has it. sentence-transformers has its defaults too (batches of 32, sorted by
length): on torch; on ONNX Runtime; on ONNX Runtime with its int8 model for this processor (AVX2 or
AVX512-VNNI); on OpenVINO in float32, and as OpenVINO itself decides, which is bfloat16 where the processor
has it. infinity is its engine on torch, all texts given at once. ONNX, OpenVINO and infinity have
environments of their own (`make peers`), without which their rows say so. Tokens are real ones, padding is
not counted. The share of the matrix product is that of the operations which no implementation can avoid, over
the speed of a float32 product of this machine on as many threads. Peak memory is that of the process,
libraries and model among it; graphs were exported by another.

With --shape the model is a ModernBERT, or another --family, of that published size with random weights, and
of the others only sentence-transformers on torch takes part.
"""

import argparse
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import Worker, interleave, precisions, ratio, report, resident, serve, spread
from labelled import MODEL, find, quiet
from peers import FLOAT, INT8, PLACE, export, interpreter, session_settings

SEED = 0
NAMES = {
    "ours": "Bertsmith",
    "ours-float32": "Bertsmith, products in float32",
    "ours-bfloat16": "Bertsmith, products in bfloat16",
    "torch": "sentence-transformers, torch",
    "onnx": "sentence-transformers, ONNX",
    "onnx-int8": "sentence-transformers, ONNX int8",
    "openvino": "sentence-transformers, OpenVINO",
    "openvino-default": "sentence-transformers, OpenVINO's own precision",
    "infinity": "infinity, torch",
}
SIDES = tuple(NAMES)
OWN = ("onnx", "openvino", "infinity")  # have an interpreter of their own
Embed = Callable[[Sequence[str]], Any]


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--peers", type=Path, default=PLACE, help="the folder of their environments")
    parser.add_argument("--shape", help="a published size of a family, instead of MiniLM")
    parser.add_argument("--family", default="modernbert", help="of which --shape is a size")
    parser.add_argument("--longest", type=int, default=256, help="tokens of a text at most, with --shape")
    parser.add_argument("--model", help="the model's folder, for environments without Bertsmith")
    parser.add_argument("--worker", choices=SIDES)
    options = parser.parse_args()
    if options.worker:
        with contextlib.redirect_stdout(sys.stderr):
            embed = _OPEN[options.worker](options.model, options.threads)
        serve(quiet(_Side(options.worker, embed, real_texts(options.texts))))
        return
    if options.shape:
        options.sides = [side for side in options.sides if _peer(side) in ("ours", "torch")]
    chosen = [side for side in SIDES if side == "ours" or side in options.sides]
    if "bfloat16" not in precisions() and "ours-bfloat16" in chosen:
        chosen.remove("ours-bfloat16")
    pythons = {peer: interpreter(peer, options.peers) for peer in {*map(_peer, chosen)} & {*OWN}}
    missing = [side for side in chosen if _peer(side) in OWN and not pythons[_peer(side)]]
    there = {side: pythons.get(_peer(side)) or sys.executable for side in chosen if side not in missing}
    with tempfile.TemporaryDirectory() as folder:
        model = str(_random_model(options, Path(folder) / "model")) if options.shape else _folder()
        models = _models(there, model, Path(folder))
        sides = {side: _start(side, models[side], python, options) for side, python in there.items()}
        answers = interleave(sides, options.rounds, folder=folder)
        vectors = {side: np.load(Path(folder) / f"{side}.npy") for side in sides}
        for worker in sides.values():
            worker.close()
        longest = options.longest if options.shape else 256
        lengths = _lengths(model, real_texts(options.texts), longest)
        least = _least_seconds(model, lengths, options.threads)
    rows = [_row(side, answers, vectors, int(lengths.sum())) for side in sides]
    for side, row in zip(sides, rows, strict=True):
        if _peer(side) == "ours":
            seconds = statistics.median(answer["seconds"] for answer in answers[side])
            row["share of the matrix product"] = f"{least / seconds:.0%}"
    rows += [
        {**dict.fromkeys(rows[0], ""), "side": NAMES[side], "texts/s": "not installed"} for side in missing
    ]
    shape = options.shape if options.family == "modernbert" else f"{options.family}-{options.shape}"
    name = f"embedding-{shape}" if options.shape else "embedding"
    paragraphs = [" ".join(each.split()) for each in (__doc__ or "").split("\n\n")]
    report(name, "Embedding", rows, paragraphs[2 : 4 if options.shape else 3])


def _row(side: str, answers: Mapping[str, Any], vectors: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    given = answers[side]
    speed = {name: [each["texts"] / each["seconds"] for each in found] for name, found in answers.items()}
    peaks = {name: max(each["peak"] for each in found) for name, found in answers.items()}
    cosines = np.einsum("ed,ed->e", vectors["ours"], vectors[side])
    return {
        "side": NAMES[side],
        "texts/s": f"{statistics.median(speed[side]):,.1f}",
        "tokens/s": f"{statistics.median(tokens / each['seconds'] for each in given):,.0f}",
        "ours is faster by": spread(ratio(speed["ours"], speed[side])),
        "share of the matrix product": "",
        "cosine with ours, mean": f"{cosines.mean():.6f}",
        "lowest": f"{cosines.min():.6f}",
        "peak memory, MB": f"{peaks[side] / 1e6:,.0f}",
        "of sentence-transformers' memory": f"{peaks[side] / peaks['torch']:.0%}" if "torch" in peaks else "",
    }


def real_texts(count: int) -> list[str]:
    """`count` texts of mixed length. Ends with a sentence when the data isn't there."""
    squad = json.loads(find("squad/dev-v1.1.json").read_text(encoding="utf-8"))
    paragraphs = [each["context"] for article in squad["data"] for each in article["paragraphs"]]
    lines = find("sst2/dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    kinds = [paragraphs, [line.split("\t")[0] for line in lines], _reqa_sentences()]
    drawn = random.Random(SEED)
    texts = [drawn.choice(kinds[number % 3]) for number in range(count)]
    drawn.shuffle(texts)
    return texts


def _peer(side: str) -> str:
    return side.split("-")[0]


def _models(pythons: Mapping[str, str], model: str, folder: Path) -> dict[str, str]:
    """The folder that each side opens."""
    exported = {
        _peer(side): python for side, python in pythons.items() if _peer(side) in ("onnx", "openvino")
    }
    folders = {peer: export(python, peer, model, folder) for peer, python in exported.items()}
    return {side: folders.get(_peer(side), model) for side in pythons}


def _start(side: str, model: str, python: str, options: argparse.Namespace) -> Worker:
    passed = ("--texts", str(options.texts), "--threads", str(options.threads), "--model", model)
    return Worker(__file__, side, *passed, python=python)


class _Side:
    """Embeds all texts when asked, says how long that took, and leaves the vectors in the folder given."""

    def __init__(self, name: str, embed: Embed, texts: list[str]) -> None:
        self.name, self.embed, self.texts = name, embed, texts

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        started = time.perf_counter()
        vectors = self.embed(self.texts)
        seconds = time.perf_counter() - started
        np.save(Path(request["folder"]) / f"{self.name}.npy", vectors)
        return {"seconds": seconds, "texts": len(self.texts), "peak": resident("VmHWM")}


def _ours(folder: str, threads: int, precision: str | None = None) -> Embed:
    import torch

    from bertsmith import Embedder

    torch.set_num_threads(threads)
    return Embedder(folder, compute_dtype=getattr(torch, precision) if precision else None).documents


def _theirs(folder: str, threads: int) -> Embed:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    return _encode(SentenceTransformer(folder, device="cpu"))


def _onnx(folder: str, threads: int, graph: str = FLOAT) -> Embed:
    from sentence_transformers import SentenceTransformer

    settings = session_settings(threads) | {"file_name": graph}
    return _encode(SentenceTransformer(folder, backend="onnx", model_kwargs=settings))


def _openvino(folder: str, threads: int, precision: str | None = "f32") -> Embed:
    from sentence_transformers import SentenceTransformer

    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
    if precision:
        settings["INFERENCE_PRECISION_HINT"] = precision
    model = SentenceTransformer(folder, backend="openvino", model_kwargs={"ov_config": settings})
    return _encode(model)


def _infinity(folder: str, threads: int) -> Embed:
    import asyncio

    import torch
    from infinity_emb import AsyncEmbeddingEngine, EngineArgs

    torch.set_num_threads(threads)
    settings = EngineArgs(
        model_name_or_path=folder, engine="torch", device="cpu", dtype="float32", bettertransformer=False
    )
    engine = AsyncEmbeddingEngine.from_args(settings)

    async def embed(texts: Sequence[str]) -> Any:
        async with engine:
            vectors, _ = await engine.embed(sentences=list(texts))
        return np.array(vectors)

    return lambda texts: asyncio.run(embed(texts))


def _encode(model: Any) -> Embed:
    return lambda texts: model.encode(list(texts), show_progress_bar=False)


def _folder() -> str:
    from bertsmith.model.locate import locate_model

    return str(locate_model(MODEL).folder)


_OPEN: dict[str, Callable[[str, int], Embed]] = {
    "ours": _ours,
    "ours-float32": partial(_ours, precision="float32"),
    "ours-bfloat16": partial(_ours, precision="bfloat16"),
    "torch": _theirs,
    "onnx": _onnx,
    "onnx-int8": partial(_onnx, graph=INT8),
    "openvino": _openvino,
    "openvino-default": partial(_openvino, precision=None),
    "infinity": _infinity,
}


def _random_model(options: argparse.Namespace, folder: Path) -> Path:
    """A model of the published size with random weights, MiniLM's tokenizer, and mean pooling."""
    import torch

    from bertsmith import Tokenizer
    from bertsmith.model.bert import Bert
    from bertsmith.model.checkpoint import save_checkpoint
    from bertsmith.model.config import preset
    from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder

    torch.manual_seed(SEED)
    config = preset(options.shape, model_type=options.family, pad_token_id=0)
    tensors = {f"encoder.{name}": tensor for name, tensor in Bert(config).state_dict().items()}
    save_checkpoint(
        folder,
        tensors,
        config,
        f"{config.family.class_prefix}Model",
        task="encoder",
        tokenizer=Tokenizer.load(_folder()),
        write_extra_files=lambda partial: write_sentence_folder(
            partial, config, "mean", options.longest, normalise=True
        ),
    )
    return folder


def _lengths(folder: str, texts: Sequence[str], longest: int) -> Any:
    """(E,): each text's tokens."""
    from bertsmith import Tokenizer

    tokenizer = Tokenizer.load(folder)
    return np.array([min(len(ids) + 2, longest) for ids in tokenizer.encode_batch(texts)])


def _least_seconds(folder: str, lengths: Any, threads: int) -> float:
    """What the operations of these lengths take at the speed of a matrix product."""
    import torch

    from bertsmith.machine import matmul_flops
    from bertsmith.model.checkpoint import read_checkpoint
    from bertsmith.model.flops import encoder_flops

    torch.set_num_threads(threads)
    flops = encoder_flops(read_checkpoint(folder).config, lengths, float(lengths.sum()))
    return flops / matmul_flops(torch.float32, device=torch.device("cpu"))


def _reqa_sentences() -> list[str]:
    found = json.loads(find("reqa_squad/squad_test.json").read_text(encoding="utf-8"))
    return list(found["candidates"])


if __name__ == "__main__":
    main()

"""A static table beside its teacher and beside the tools whose format it has: sentences a second, and STS-B.
Last answer (2026-11-26, Xeon): 134,338 a second, model2vec 33,190; 89.8 % of MiniLM's STS-B.

    python bench/smaller/static.py [--sentences 100000] [--dimensions 256] [--rounds 5] [--count 200000]

The table is learned from Wikipedia by `bertsmith distil minilm --static`, once: it is kept under
runs/bench/static/, where an interrupted run goes on. Choices are made on dev; test is only reported. Speed is
that of `--count` sentences of the same Wikipedia, as lists of texts in memory, all sides in turn.
"""

import argparse
import json
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import Worker, end_without, interleave, ratio, report, serve, spread
from labelled import find, quiet

KEPT = Path("runs/bench/static")
SOURCES = "wikipedia_2014"
SIDES = ("bertsmith", "model2vec", "sentence-transformers")


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sentences", type=int, default=100_000, help="learned from")
    parser.add_argument("--dimensions", type=int, default=256)
    parser.add_argument("--count", type=int, default=200_000, help="sentences embedded a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", choices=SIDES)
    parser.add_argument("folder", nargs="?")
    options = parser.parse_args()
    if options.worker:
        serve(quiet(_answers(options.worker, Path(options.folder))))
        return
    folder = _table(options.sentences, options.dimensions)
    sides = {side: Worker(__file__, side, str(folder / "model")) for side in SIDES}
    try:
        found = interleave(sides, options.rounds, count=options.count)
    finally:
        for worker in sides.values():
            worker.close()
    rates = {side: [answer["rate"] for answer in answers] for side, answers in found.items()}
    rows = [
        {
            "side": side,
            "sentences/s": f"{sorted(rates[side])[len(rates[side]) // 2]:,.0f}",
            "ours to theirs": spread(ratio(rates["bertsmith"], rates[side])),
        }
        for side in SIDES
    ]
    report("static-speed", "A static table: speed", rows)
    report("static-quality", "A static table: STS-B, Spearman", _quality(folder))


def _table(sentences: int, dimensions: int) -> Path:
    from bertsmith.compression.distil_static import distil_static

    folder = KEPT / f"{sentences}-{dimensions}"
    distil_static(
        "minilm", folder, [str(_wikipedia())], dimensions=dimensions, sentences=sentences, resume=True
    )
    return folder


def _wikipedia() -> Path:
    folder = find(f"{SOURCES}/PROVENANCE.txt").parent
    if not (folder / "AA").is_dir():
        end_without(SOURCES)
    return folder / "AA"


def _quality(folder: Path) -> list[dict[str, str]]:
    """Spearman on dev and test, of the teacher, of the table, and of the share between them."""
    from scipy.stats import spearmanr

    from bertsmith.inference.embedding.embedder import Embedder

    scores: dict[str, dict[str, float]] = {}
    for name, embedder in (("MiniLM", Embedder("minilm")), ("static", Embedder(folder / "model"))):
        for split in ("dev", "test"):
            lines = find(f"stsb/sts-{split}.csv").read_text(encoding="utf-8").splitlines()
            rows = [line.split("\t") for line in lines]
            first, second = (embedder.documents([row[place] for row in rows]) for place in (5, 6))
            cosines = (first * second).sum(1)
            wanted = [float(row[4]) for row in rows]
            scores.setdefault(split, {})[name] = float(spearmanr(cosines, wanted).statistic)
    return [
        {
            "split": split,
            **{name: f"{score:.4f}" for name, score in found.items()},
            "share": f"{found['static'] / found['MiniLM']:.1%}",
        }
        for split, found in scores.items()
    ]


def _answers(side: str, model: Path) -> Any:
    texts = [json.loads(line)["text"] for line in (model.parent / "texts.jsonl").read_text().splitlines()]
    embed = _LOADERS[side](model)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        some = list(islice(cycle(texts), request["count"]))
        begun = time.perf_counter()
        vectors = embed(some)
        seconds = time.perf_counter() - begun
        assert len(vectors) == len(some)
        return {"rate": len(some) / seconds}

    return answer


def _ours(model: Path) -> Any:
    from bertsmith.inference.embedding.embedder import Embedder

    return Embedder(model).documents


def _model2vec(model: Path) -> Any:
    from model2vec import StaticModel

    return StaticModel.from_pretrained(model).encode


def _sentence_transformers(model: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    opened = SentenceTransformer(str(model), device="cpu")
    return lambda texts: opened.encode(texts, batch_size=1024)


_LOADERS = {"bertsmith": _ours, "model2vec": _model2vec, "sentence-transformers": _sentence_transformers}


if __name__ == "__main__":
    main()

"""An index of a million vectors: time and memory to build it, and how well and how fast it answers.
Last answer (2026-11-23, Zen 4): 290 s, 1,619 MB, recall@10 0.992, 35.8 ms a query.

    python bench/search/index.py [--rows 1000000] [--queries 200]

Vectors are random but clustered, as those of texts are: 384 numbers about one of a thousand centres, spread
most along 32 directions that all share. They go through the table, the commits and the approximate index that
`bertsmith index build` uses; what is left out is the embedding. recall@10 is against exact search, over
queries that are drawn like the rows and are not among them. Memory is the largest resident set of the process
that builds, and of the one that searches.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from bertsmith.inference.index.manifest import IndexModel, read_index_manifest
from bertsmith.inference.index.passage_table import PassageTable, with_settings
from bertsmith.inference.index.writer import create_index, writing
from bertsmith.text.retrieval.documents import SearchDocument
from bertsmith.text.retrieval.passages import PassageSettings
from harness import report

Vectors = npt.NDArray[np.float32]
_DIMENSION, _CENTRES, _AT_A_TIME = 384, 1000, 10_000
_WORDS = ("law", "court", "motion", "tenant", "lease", "judge", "appeal", "order", "claim", "party", "notice")


def main() -> None:
    """Builds in one process, searches in another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--part", choices=["build", "search"])
    parser.add_argument("--index", type=Path)
    options = parser.parse_args()
    if options.part:
        print(_PARTS[options.part](options))
        return
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        facts = _ask("build", index, options) | _ask("search", index, options)
    rows = [{"measured": name, "value": value} for name, value in facts.items()]
    title = f"An index of {options.rows:,} vectors of {_DIMENSION}"
    report("index", title, rows, ["clustered random vectors; embedding not included"])


def _ask(part: str, index: Path, options: argparse.Namespace) -> dict[str, str]:
    command = [sys.executable, __file__, "--part", part, "--index", str(index)]
    command += ["--rows", str(options.rows), "--queries", str(options.queries)]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return dict(line.split("\t", 1) for line in lines)


# -- the two parts -------------------------------------------------------------------------------------------


def _build(options: argparse.Namespace) -> str:
    model = IndexModel(name="random", sha256="", dimension=_DIMENSION)
    create_index(options.index, model, PassageSettings())
    started = time.monotonic()
    with writing(options.index) as writer:
        for begin, vectors in _batches(options.rows):
            documents = [
                SearchDocument(f"d{begin + n}", "", "", "random", "random") for n in range(len(vectors))
            ]
            rows = [_row(document, number) for number, document in enumerate(documents, begin)]
            writer.replace(documents, rows, vectors)
            writer.commit()
        written = time.monotonic()
        writer.finish(approximate_from=min(options.rows, 100_000))
    ended = time.monotonic()
    noted = read_index_manifest(options.index).approximate
    size = sum(path.stat().st_size for path in options.index.rglob("*") if path.is_file())
    facts = {
        "writing, s": f"{written - started:.1f}",
        "indexing words and vectors, and measuring, s": f"{ended - written:.1f}",
        "peak memory of building, MB": f"{_peak():.0f}",
        "on disk, MB": f"{size / 1e6:.0f}",
        "groups looked at": str(noted.probes if noted else "all: exact"),
        "recall@10 as the build measured it": f"{noted.recall:.3f}" if noted else "1 (exact)",
    }
    return _lines(facts)


def _search(options: argparse.Namespace) -> str:
    manifest = read_index_manifest(options.index)
    table = PassageTable.open(options.index, manifest.version).table
    queries = _like_rows(options.queries, seed=10**6)
    times, answers = [], []
    for query in (queries[0], *queries):  # the first opens files, and doesn't count
        began = time.perf_counter()
        search = table.search(query, vector_column_name="vector").distance_type("cosine")
        found = with_settings(search, manifest.approximate).limit(10).select(["id", "_distance"]).to_arrow()
        times.append(1000 * (time.perf_counter() - began))
        answers.append(set(found.column("id").to_pylist()))
    peak, times = _peak(), sorted(times[1:])  # before the exact search, which takes memory of its own
    exact = _exact(queries, options.rows)
    shares = [len(right & ids) / 10 for right, ids in zip(exact, answers[1:], strict=True)]
    facts = {
        "recall@10 of new queries": f"{statistics.mean(shares):.3f}",
        "p50 of a query, ms": f"{times[len(times) // 2]:.1f}",
        "p95 of a query, ms": f"{times[int(len(times) * 0.95)]:.1f}",
        "peak memory of searching, MB": f"{peak:.0f}",
    }
    return _lines(facts)


_PARTS = {"build": _build, "search": _search}

# -- material ------------------------------------------------------------------------------------------------


def _batches(rows: int) -> Iterator[tuple[int, Vectors]]:
    for begin in range(0, rows, _AT_A_TIME):
        yield begin, _like_rows(min(_AT_A_TIME, rows - begin), seed=begin)


def _like_rows(count: int, seed: int) -> Vectors:
    """(count, D): a centre, a shared subspace of 32 directions about it, and a little of everything."""
    fixed = np.random.default_rng(12345)
    centres = fixed.normal(size=(_CENTRES, _DIMENSION))
    directions = fixed.normal(size=(32, _DIMENSION))
    draw = np.random.default_rng([1, seed])
    vectors = centres[draw.integers(0, _CENTRES, count)]
    vectors = vectors + 0.2 * draw.normal(size=(count, 32)) @ directions
    vectors = vectors + 0.3 * draw.normal(size=(count, _DIMENSION))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def _row(document: SearchDocument, number: int) -> dict[str, Any]:
    text = " ".join(_WORDS[(number * step) % len(_WORDS)] for step in (1, 3, 7, 11, 13))
    place = {"document_id": document.id, "source": "random", "start": 0, "end": len(text), "line": None}
    kept = {"title": "", "text": text, "sha256": document.sha256, "added": False}
    return {"id": document.id} | place | kept


def _exact(queries: Vectors, rows: int) -> list[set[str]]:
    """Ids of the ten nearest of all rows, which are made again a batch at a time."""
    best = np.full((len(queries), 10), -2.0, np.float32)
    ids = np.zeros((len(queries), 10), np.int64)
    for begin, vectors in _batches(rows):
        scores = np.concatenate([best, queries @ vectors.T], axis=1)
        numbers = np.concatenate(
            [ids, np.tile(np.arange(begin, begin + len(vectors)), (len(queries), 1))], axis=1
        )
        top = np.argpartition(-scores, 9, axis=1)[:, :10]
        best, ids = np.take_along_axis(scores, top, axis=1), np.take_along_axis(numbers, top, axis=1)
    return [{f"d{number}" for number in row} for row in ids]


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def _lines(facts: dict[str, str]) -> str:
    return "\n".join(f"{name}\t{value}" for name, value in facts.items())


if __name__ == "__main__":
    main()

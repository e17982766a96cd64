"""Search by MiniLM as it comes, beside BM25, both fused, re-ranked, and the vectors of sentence-transformers.
Last answer (2026-11-23, Zen 4): SQuAD's nDCG@10 fused 77.7, re-ranked 81.0, BM25 75.4.

    python bench/search/retrieval.py [--reranker runs/wikiqa/model] [--collections ir_cranfield]

Each collection becomes one table, which is written as soon as it is measured. The last row holds the same
exact search over the vectors that sentence-transformers computes with its defaults: the script fails when one
of our metrics of the dense row is more than 0.001 from it. --reranker takes a cross-encoder (`bertsmith
finetune reranking`), by default that of SQuAD's mined sentences which retrieval_training.py leaves behind;
without one that row is left out. --queries and --documents cut the collections down for a quick look;
relevant documents stay.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from harness import end_without, report
from labelled import DATA, MODEL
from retrieval_training import RERANKER

TOLERANCE = 1e-3
COLLECTIONS = ("reqa_squad/squad_test.json", "ir_cranfield")
THEIRS = "sentence-transformers"


def main() -> None:
    """Parses, measures each collection, and compares both sides."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--collections", nargs="+", default=COLLECTIONS, help="below ../shared/data")
    parser.add_argument("--reranker", default=str(RERANKER) if RERANKER.exists() else None)
    parser.add_argument("--reranked", type=int, default=20)
    parser.add_argument("--queries", type=int)
    parser.add_argument("--documents", type=int)
    options = parser.parse_args()
    rows, notes = [], []
    for name in options.collections:
        found = _measured(DATA / name, options)
        rows += found[0]
        notes += found[1]
        report("retrieval", "Search by MiniLM", rows, notes)


def _measured(path: Path, options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of one collection, and what is to be said of them."""
    from bertsmith.inference.embedding.embedder import Embedder
    from bertsmith.inference.ranking.ranking import DENSE, RankingSettings, rank_by_all
    from bertsmith.inference.ranking.report import figure_table
    from bertsmith.inference.ranking.reranker import open_reranker
    from bertsmith.inference.ranking.results import compare, metrics_for
    from bertsmith.text.retrieval.layouts import read_retrieval_data

    if not path.exists():
        end_without(str(path.relative_to(DATA)))
    data = _part(read_retrieval_data(path), options.queries, options.documents)
    settings = RankingSettings(reranked=options.reranked)
    reranker = open_reranker(options.reranker) if options.reranker else None
    systems = rank_by_all(data, Embedder(MODEL), reranker, settings)
    theirs = next(each for each in rank_by_all(data, TheirVectors(), None, settings) if each.name == DENSE)
    systems.append(theirs._replace(name=f"dense, {THEIRS}"))
    found = compare(systems, data, metrics_for(data, 10, settings.depth), {})
    columns, table = figure_table(found)
    rows = [
        {"collection": data.name} | dict(zip(["system", *columns[1:]], row, strict=True)) for row in table
    ]
    means = {each.system.name: each.scores.means for each in found.figures}
    apart = max(abs(means[DENSE][name] - means[f"dense, {THEIRS}"][name]) for name in found.metrics)
    size = f"{len(data.documents):,} documents, {len(found.queries):,} queries"
    note = f"{data.name}: {size}. Dense metrics are within {apart:.5f} of those of {THEIRS}' vectors."
    if apart > TOLERANCE:
        raise SystemExit(f"{note} Expected {TOLERANCE} at most.")
    seconds = ", ".join(f"{each.name} {each.seconds:.0f} s" for each in systems if each.seconds)
    return rows, [note, f"{data.name}, indexing: {seconds}."]


def _part(data: Any, queries: int | None, documents: int | None) -> Any:
    """The collection with fewer queries, and with fewer documents besides the relevant ones."""
    data = data.with_fewer_queries(queries) if queries else data
    if not documents:
        return data
    kept = {document for grades in data.judgements.values() for document in grades}
    others = sorted(data.documents.keys() - kept)
    kept |= set(Random(0).sample(others, max(0, min(documents - len(kept), len(others)))))
    return replace(data, documents={id: text for id, text in data.documents.items() if id in kept})


class TheirVectors:
    """sentence-transformers with its defaults, in the place of our Embedder."""

    def __init__(self) -> None:
        from sentence_transformers import SentenceTransformer

        from bertsmith.model.locate import locate_model

        self._model = SentenceTransformer(str(locate_model(MODEL).folder), device="cpu")

    def queries(self, texts: Sequence[str], progress: Any = None) -> Any:
        """(E, D)."""
        return np.asarray(self._model.encode_query(list(texts), show_progress_bar=False))

    def documents(self, texts: Sequence[str], progress: Any = None) -> Any:
        """(E, D)."""
        return np.asarray(self._model.encode_document(list(texts), show_progress_bar=False))


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"{time.perf_counter() - started:.0f} s in all")

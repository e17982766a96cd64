"""`bertsmith rank`."""

import inspect
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.cli.options import Flag, Out
from bertsmith.files import require_free

if TYPE_CHECKING:
    from bertsmith.inference.ranking.results import Comparison


def rank(
    model: str,
    data: Path,
    *,
    reranker: str | None = None,
    format: str | None = None,
    split: str = "test",
    encoding: str = "utf-8",
    k: int = 10,
    depth: int = 100,
    reranked: int = 50,
    queries: int | None = None,
    english: bool = True,
    out: Out | None = None,
    json: Flag = False,
) -> None:
    """Evaluate search on judged queries: BM25, a model's vectors, both fused, and a re-ranker.

    One table shows each system's figures with intervals, its gain over BM25, and whether the gain is more
    than chance. With a model, search is exact: every query against every document. With an index, it is what
    a search of the index finds. Needs the extra `retrieval`: pip install 'bertsmith[retrieval]'.

    Parameters
    ----------
    model
        A folder such as runs/NAME/model, minilm, or a model's name on the hub. Or the folder of an index.
    data
        A folder in the layout of BEIR or TREC, or a file of ReQA (.json) or WikiQA (.tsv). For an index, a
        table of questions (column question) with the id of the right document (column document).
    reranker
        A model fine-tuned on pairs. It reads each query's first documents and reorders them.
    format
        beir, nanobeir, trec, reqa or wikiqa. By default the files decide.
    split
        Which judgements to use, if the folder has several.
    encoding
        The files' encoding.
    k
        Documents that count for nDCG, MRR and recall.
    depth
        Documents that each system keeps per query.
    reranked
        Documents per query that the re-ranker reads.
    queries
        Use only so many queries. They are drawn at random, but always the same.
    english
        Whether BM25 drops English stop words and endings.
    out
        The folder for results.json, report.html and TREC run files.
    json
        Print JSON instead of a table.

    Examples
    --------
    bertsmith rank minilm beir/scifact --out runs/scifact

    bertsmith rank indexes/handbook questions.csv

    bertsmith rank runs/questions/model cranfield/ --reranker runs/reranker/model --queries 500
    """
    from bertsmith.cli.screen import print_json, print_paths, progress_bar
    from bertsmith.inference.embedding.embedder import Embedder
    from bertsmith.inference.index.index import Index
    from bertsmith.inference.index.manifest import MANIFEST
    from bertsmith.inference.index.ranking import rank_by_index
    from bertsmith.inference.ranking.folder import write_comparison
    from bertsmith.inference.ranking.lexical_search import Bm25Settings
    from bertsmith.inference.ranking.ranking import RankingSettings, rank_by_all
    from bertsmith.inference.ranking.reranker import open_reranker
    from bertsmith.inference.ranking.results import compare, metrics_for
    from bertsmith.text.retrieval.judged_questions import TABLES, read_judged_questions
    from bertsmith.text.retrieval.layouts import read_retrieval_data

    kept = max(depth, k)  # documents a query, of each system
    options = {"reranker": reranker, "format": format, "split": split, "encoding": encoding, "k": k}
    options |= {"depth": kept, "reranked": reranked, "queries": queries, "english": english}
    if out is not None:
        require_free(out)
    settings = RankingSettings(kept, reranked, bm25=Bm25Settings(english=english))
    index = Index.open(model) if (Path(model) / MANIFEST).is_file() else None
    if index is not None and format is None and data.suffix in TABLES:
        collection = read_judged_questions(data, index.texts(), encoding)
    else:
        collection = read_retrieval_data(data, format, split, encoding)
    if queries is not None:
        collection = collection.with_fewer_queries(queries)
    metrics = metrics_for(collection, k, settings.depth)
    with progress_bar("Ranking") as progress:
        reader = open_reranker(reranker) if reranker else None
        if index is not None:
            systems = rank_by_index(index, collection, kept, reader, progress)
        else:
            embedder = Embedder(model)
            collection = collection.noting(embedder.caveat)
            systems = rank_by_all(collection, embedder, reader, settings, progress)
    noted = {"most_queries" if name == "queries" else name: value for name, value in options.items()}
    found = compare(systems, collection, metrics, {"model": model, **noted})
    try:
        if out is not None:
            write_comparison(out, found, _command(model, data, options))
    finally:  # what took hours is shown where the disk is full, too
        if json:
            print_json(found.to_json())
        else:
            _show(found)
    if out is not None and not json:
        print_paths(report=out / "report.html", runs=out / "runs")


def _show(found: "Comparison") -> None:
    from bertsmith.cli.screen import console, print_table
    from bertsmith.inference.ranking.report import figure_table

    columns, rows = figure_table(found)
    size = f"{len(found.data.documents):,} documents, {len(found.queries):,} queries"
    print_table(columns, rows, title=f"{found.data.name}: {size}")
    for note in (found.verdict(), *found.notes()):
        console.print(note, markup=False)


def _command(model: str, data: Path, options: dict[str, Any]) -> str:
    """What to type to get the same again, with the options that differ from their defaults."""
    words = ["bertsmith", "rank", model, str(data)]
    usual = inspect.signature(rank).parameters
    for name, value in options.items():
        if value != usual[name].default:
            words += [f"--no-{name}"] if value is False else [f"--{name}", str(value)]
    return shlex.join(words)

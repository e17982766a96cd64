"""Runs BEIR and NanoBEIR: searches every data set of a folder by BM25, by a model, and by both, and re-ranks.

OUT/benchmark.json  the settings         OUT/DATASET/    results, report and run files of one data set
OUT/results.json    every figure         OUT/files.json  the sizes of each data set's files
OUT/report.html     the results as a page: every data set by every system, the means, and published BM25

As in BEIR's own evaluation, a document with the query's id is skipped, since ArguAna's queries are documents;
in NanoBEIR it counts, as in sentence-transformers' evaluator. MS MARCO is judged by its split dev, and
CQADupStack's forums count as one data set, by their mean.
"""

import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.benchmarks.benchmark import begin_benchmark, hash_model
from bertsmith.benchmarks.published import BM25, BM25_SOURCE
from bertsmith.benchmarks.results import points
from bertsmith.errors import BertsmithError, InputError, RecipeError, did_you_mean
from bertsmith.files import atomic_write, read_json, write_json
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.ranking.ranking import RankingSettings, System, rank_by_all, system_title
from bertsmith.inference.ranking.report import write_comparison
from bertsmith.inference.ranking.reranker import Reranker, open_reranker
from bertsmith.inference.ranking.results import compare, metrics_for
from bertsmith.progress import Progress
from bertsmith.reporting import formatting
from bertsmith.reporting.charts import FIRST, MUTED, picture
from bertsmith.reporting.page import REPORT_FILE, as_markup, render_page
from bertsmith.reporting.tables import Table, raw_facts
from bertsmith.text.retrieval.beir import find_judgements, is_beir, is_nanobeir
from bertsmith.text.retrieval.layouts import read_retrieval_data

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHERE = "https://github.com/beir-cellar/beir lists them; NanoBEIR's are zeta-alpha-ai's on the hub"
COUNTED = 10  # the documents of a ranking that nDCG@10 counts
_DEPTH = 100
BEIR, NANOBEIR = "BEIR", "NanoBEIR"
_SPLITS = {"msmarco": "dev"}
FORUMS = "cqadupstack"
_RESULTS, _FILES = "results.json", "files.json"


@dataclass(frozen=True)
class DatasetResult:
    """The result of one data set: nDCG@10 of each system by name with its 95 % interval, BM25 first."""

    name: str
    documents: int
    queries: int
    scores: dict[str, float]
    intervals: dict[str, list[float]]

    @property
    def published(self) -> float | None:
        """BM25's published score on the data set, in points of 100; None where there is none."""
        return BM25.get(self.name.lower())


@dataclass(frozen=True)
class RetrievalResult:
    """The results of a benchmark's finished data sets, in the order of their names."""

    name: str
    model: str
    datasets: tuple[DatasetResult, ...]
    notes: tuple[str, ...]

    @property
    def systems(self) -> list[str]:
        return list(self.datasets[0].scores)

    @property
    def forums(self) -> list[DatasetResult]:
        """The results of CQADupStack's forums, which count as one data set."""
        return [dataset for dataset in self.datasets if _is_part_of(dataset.name, FORUMS)]

    def means(self) -> dict[str, float]:
        """The mean score of each system over the data sets, with CQADupStack's forums as one data set."""
        means = {}
        for system in self.systems:
            scores = [
                dataset.scores[system] for dataset in self.datasets if not _is_part_of(dataset.name, FORUMS)
            ]
            if self.forums:
                scores.append(statistics.mean(forum.scores[system] for forum in self.forums))
            means[system] = statistics.mean(scores)
        return means

    def to_json(self) -> dict[str, Any]:
        """The result as plain values for JSON: scores as shares of 1, published ones in points."""
        return {
            "benchmark": self.name,
            "model": self.model,
            "metric": f"nDCG@{COUNTED}",
            "datasets": {
                dataset.name: vars(dataset) | {"published_bm25": dataset.published}
                for dataset in self.datasets
            },
            "means": self.means(),
            "notes": list(self.notes),
        }


def run_retrieval(
    name: str,
    folder: Path,
    model: str,
    out: Path,
    *,
    reranker: str | None = None,
    datasets: Sequence[str] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    on_dataset: Callable[[DatasetResult], None] | None = None,
) -> RetrievalResult:
    """Runs all data sets under `folder` in BEIR's or NanoBEIR's layout, or those named by `datasets`, and
    calls `on_dataset` with each result. With `resume` finished ones aren't run again; the result has those of
    earlier calls too.

    Raises InputError for a folder without data sets, for unknown `datasets` and, before anything is searched,
    for a data set without judgements; RecipeError as `begin_benchmark` does, and where the files of a
    finished data set have changed; MissingExtra without the extra `retrieval`.
    """
    chosen = choose_datasets(folder, datasets)
    _require_judgements(folder, chosen)
    hashes = [hash_model(name_or_path) for name_or_path in (model, reranker) if name_or_path is not None]
    begin_benchmark(
        out, {"benchmark": name, "model": model, "reranker": reranker, "model_files": hashes}, resume
    )
    opened: tuple[Embedder, Reranker | None] | None = None
    try:
        for dataset, path in chosen.items():
            target = out / dataset
            _record_file_sizes(out, dataset, path, has_ended=_has_ended(target))
            if not _has_ended(target):
                opened = opened or (Embedder(model), open_reranker(reranker) if reranker else None)
                data = read_retrieval_data(path, split=_split_of(path)).noting(opened[0].caveat)
                systems = rank_by_all(data, *opened, RankingSettings(_DEPTH + 1), progress)
                cut = [_cut_rankings(system, _DEPTH, own_counts=name != BEIR) for system in systems]
                facts = {"model": model, "reranker": reranker}
                comparison = compare(cut, data, metrics_for(data, COUNTED, _DEPTH), facts)
                write_comparison(target, comparison, f"bertsmith rank {model} {path.name}")
            _gather(out, name, model)
            if on_dataset is not None:
                on_dataset(_read_result(dataset, target))
    except BertsmithError:
        if not resume and not any(_has_ended(out / dataset) for dataset in chosen):
            shutil.rmtree(out)  # otherwise the corrected command would find other settings there
        raise
    return _gather(out, name, model)


def choose_datasets(folder: Path, names: Sequence[str] | None) -> dict[str, Path]:
    """The data sets of these names, or all, in alphabetical order: subfolders, and those of CQADupStack's
    folder. A name may be that of all forums. Raises InputError for a folder without data sets and for unknown
    names.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder. Expected one folder a data set in it. {WHERE}.")
    paths = {
        str(path.relative_to(folder)): path
        for depth in ("*", "*/*")
        for path in sorted(folder.glob(depth))
        if path.is_dir() and (is_beir(path) or is_nanobeir(path))
    }
    if not paths:
        raise InputError(
            f"{folder}: expected folders with corpus.jsonl, queries.jsonl and qrels/ (BEIR), or with Parquet "
            f"files in corpus/, queries/ and qrels/ (NanoBEIR), found none. {WHERE}."
        )
    if names is None:
        return dict(sorted(paths.items()))
    for name in names:
        if not any(_is_part_of(key, name) for key in paths):
            known = ", ".join(paths)
            raise InputError(
                f"{folder} has no data set {name!r}.{did_you_mean(name, paths)} There are: {known}."
            )
    return {key: paths[key] for key in sorted(paths) if any(_is_part_of(key, name) for name in names)}


def _require_judgements(folder: Path, chosen: dict[str, Path]) -> None:
    """Raises InputError for the first data set in BEIR's layout without judgements of its split."""
    splits = {name: find_judgements(path) for name, path in chosen.items() if is_beir(path)}
    lacking = [name for name in splits if _split_of(chosen[name]) not in splits[name]]
    if lacking:
        name, others = lacking[0], ",".join(name for name in chosen if name not in lacking)
        raise InputError(
            f"{folder / name}: expected judgements in qrels/{_split_of(chosen[name])}.tsv, found "
            f"{', '.join(splits[name]) or 'none'}. Complete the data set"
            + (f", or run the others by --datasets {others}." if others else ".")
        )


def _record_file_sizes(out: Path, dataset: str, path: Path, *, has_ended: bool) -> None:
    """Records the sizes of a data set's files. Raises RecipeError where they changed since a data set that
    `has_ended` was measured.
    """
    names = ("corpus*", "queries*", "qrels/*", "corpus/*", "queries/*")
    paths = sorted({file for name in names for file in path.glob(name) if file.is_file()})
    files = {file.relative_to(path).as_posix(): file.stat().st_size for file in paths}
    recorded = read_json(out / _FILES) if (out / _FILES).exists() else {}
    before = recorded.get(dataset, files)
    differing = sorted(name for name in before.keys() | files.keys() if before.get(name) != files.get(name))
    if has_ended and differing:
        raise RecipeError(
            f"{out / dataset} was measured on other files of {dataset}: {', '.join(differing[:5])} changed "
            "since. Put the old ones back, remove that folder to measure anew, or choose another --out."
        )
    write_json(out / _FILES, recorded | {dataset: files})


def _split_of(path: Path) -> str:
    """The split whose judgements a data set is judged by."""
    return _SPLITS.get(path.name.lower(), "test")


def _cut_rankings(system: System, depth: int, own_counts: bool) -> System:
    """The system with rankings of at most `depth` documents, without the one with the query's id unless
    `own_counts`.
    """
    rankings = {
        query: [(document, score) for document, score in ranking if own_counts or document != query][:depth]
        for query, ranking in system.rankings.items()
    }
    return system._replace(rankings=rankings)


def _gather(out: Path, name: str, model: str) -> RetrievalResult:
    """Collects the results of all finished data sets, those of earlier calls too, and writes results.json."""
    names = sorted(read_json(out / _FILES))
    finished = tuple(_read_result(dataset, out / dataset) for dataset in names if _has_ended(out / dataset))
    unknown = [
        dataset.name
        for dataset in finished
        if dataset.published is None and not _is_part_of(dataset.name, FORUMS)
    ]
    note = f"no published BM25 for {', '.join(unknown)}: compare with the BM25 that was measured here"
    result = RetrievalResult(name, model, finished, (note,) if unknown else ())
    write_json(out / _RESULTS, result.to_json())
    return result


def _has_ended(target: Path) -> bool:
    return (target / _RESULTS).exists()


def _read_result(dataset: str, target: Path) -> DatasetResult:
    record = read_json(target / _RESULTS)
    metric = f"ndcg@{COUNTED}"
    return DatasetResult(
        dataset,
        record["documents"],
        record["queries"],
        {name: system["scores"][metric] for name, system in record["systems"].items()},
        {name: system["intervals"][metric] for name, system in record["systems"].items()},
    )


def _is_part_of(dataset: str, name: str) -> bool:
    """Whether a data set has this name, or is a part of the one with this name."""
    return dataset.lower() == name.lower() or dataset.lower().startswith(f"{name.lower()}/")


def dataset_table(result: RetrievalResult) -> tuple[list[str], list[list[str]]]:
    """The columns and rows of the table: nDCG@10 in points with intervals for each data set, then the
    means.
    """
    columns = ["data set", "documents", "queries", *map(system_title, result.systems), "BM25, published"]
    rows = []
    for dataset in result.datasets:
        cells = []
        for name, score in dataset.scores.items():
            low, high = dataset.intervals[name]
            cells.append(f"{points(score)} ({points(low)} to {points(high)})")
        published = formatting.UNKNOWN if dataset.published is None else f"{dataset.published:.1f}"
        counts = formatting.count(dataset.documents), formatting.count(dataset.queries)
        rows.append([dataset.name, *counts, *cells, published])
    if forums := result.forums:  # CQADupStack as it is published: the mean of its forums
        documents, queries = sum(forum.documents for forum in forums), sum(forum.queries for forum in forums)
        scores = [points(statistics.mean(forum.scores[name] for forum in forums)) for name in result.systems]
        counts = formatting.count(documents), formatting.count(queries)
        rows.append([f"{FORUMS}, mean of {len(forums)} forums", *counts, *scores, f"{BM25[FORUMS]:.1f}"])
    means = ["mean", "", "", *(points(value) for value in result.means().values()), ""]
    return columns, [*rows, means]


def write_retrieval_report(out: Path, result: RetrievalResult, command: str) -> Path:
    """Writes report.html and returns its path. The same result gives the same bytes."""
    page = render_page(
        "retrieval_benchmark.html.jinja",
        title=f"{result.name} · {result.model}",
        status=f"nDCG@{COUNTED} over {formatting.counted(len(result.datasets), 'data set')}",
        headline=[(f"mean, {system_title(name)}", points(value)) for name, value in result.means().items()],
        warnings=list(result.notes),
        figures=Table("", *dataset_table(result)),
        pictures=[("The model beside BM25", as_markup(_draw_beside_bm25(result)))],
        source=BM25_SOURCE,
        command=command,
        facts=raw_facts({"model": result.model}),
    )
    path = out / REPORT_FILE
    atomic_write(path, page)
    return path


def _draw_beside_bm25(result: RetrievalResult) -> str:
    """A picture with a dot for each data set: above the line, the model's vectors rank better than BM25."""

    def paint(axes: "Axes") -> None:
        lexical, dense = result.systems[:2]
        axes.plot([0, 100], [0, 100], color=MUTED, linewidth=0.8)
        for dataset in result.datasets:
            point = 100 * dataset.scores[lexical], 100 * dataset.scores[dense]
            axes.scatter(*point, color=FIRST, s=34)
            axes.annotate(dataset.name, point, fontsize=7, xytext=(4, 3), textcoords="offset points")
        axes.set_xlabel(f"nDCG@{COUNTED} of {system_title(lexical)}")
        axes.set_ylabel(f"of {system_title(dense)}")

    return picture("The model beside BM25", paint)

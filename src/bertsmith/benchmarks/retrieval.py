"""BEIR and NanoBEIR run whole: every data set of a folder, searched by BM25, by a model, by both, re-ranked.

OUT/benchmark.json  what was begun       OUT/DATASET/   results, report and run files of one data set
OUT/results.json    every figure         OUT/files.json  how large each data set's files were
OUT/report.html     the same to look at: every data set by every system, the means, BM25 as published

As in BEIR's own evaluation, a document whose id is the query's is passed over, for ArguAna's queries are
documents; in NanoBEIR it counts, as in sentence-transformers' evaluator. MS MARCO is judged by its split dev,
and CQADupStack's forums count as one data set, by their mean.
"""

import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.benchmarks.benchmark import begin, model_hash
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
COUNTED = 10  # documents that count: nDCG@10
_DEPTH = 100
BEIR, NANOBEIR = "BEIR", "NanoBEIR"
_SPLITS = {"msmarco": "dev"}
FORUMS = "cqadupstack"
_RESULTS, _FILES = "results.json", "files.json"


@dataclass(frozen=True)
class DatasetResult:
    """One data set: nDCG@10 of each system by name with its 95 % interval, BM25 the first."""

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
    """Data sets that have ended, by name."""

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
        return [dataset for dataset in self.datasets if _is_of(dataset.name, FORUMS)]

    def means(self) -> dict[str, float]:
        """The mean score of each system over the data sets, with CQADupStack's forums as one data set."""
        means = {}
        for system in self.systems:
            scores = [dataset.scores[system] for dataset in self.datasets if not _is_of(dataset.name, FORUMS)]
            if self.forums:
                scores.append(statistics.mean(forum.scores[system] for forum in self.forums))
            means[system] = statistics.mean(scores)
        return means

    def to_json(self) -> dict[str, Any]:
        """Plain values: shares of one, published ones in points."""
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
    """Each data set under `folder` that has BEIR's or NanoBEIR's layout. `on_dataset` hears of each that has
    ended; with `resume` those are not done again, and the result has those of earlier calls too. Raises
    InputError for a folder without any, for unknown `datasets`, and before anything is searched for one
    without judgements; RecipeError as `begin`, and where one that has ended has other files now; MissingExtra
    without the extra `retrieval`.
    """
    chosen = choose(folder, datasets)
    _require_judgements(folder, chosen)
    hashes = [model_hash(each) for each in (model, reranker) if each is not None]
    begin(out, {"benchmark": name, "model": model, "reranker": reranker, "model_files": hashes}, resume)
    opened: tuple[Embedder, Reranker | None] | None = None
    try:
        for dataset, path in chosen.items():
            target = out / dataset
            _note_files(out, dataset, path, has_ended=_has_ended(target))
            if not _has_ended(target):
                opened = opened or (Embedder(model), open_reranker(reranker) if reranker else None)
                data = read_retrieval_data(path, split=_split_of(path)).noting(opened[0].caveat)
                systems = rank_by_all(data, *opened, RankingSettings(_DEPTH + 1), progress)
                kept = [_cut(system, _DEPTH, own_counts=name != BEIR) for system in systems]
                facts = {"model": model, "reranker": reranker}
                found = compare(kept, data, metrics_for(data, COUNTED, _DEPTH), facts)
                write_comparison(target, found, f"bertsmith rank {model} {path.name}")
            _gather(out, name, model)
            if on_dataset is not None:
                on_dataset(_read(dataset, target))
    except BertsmithError:
        if not resume and not any(_has_ended(out / dataset) for dataset in chosen):
            shutil.rmtree(out)  # or the command, corrected, would find other settings there
        raise
    return _gather(out, name, model)


def choose(folder: Path, names: Sequence[str] | None) -> dict[str, Path]:
    """Data sets by name, in alphabetical order: folders of the folder, or those below CQADupStack's."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder. Expected one folder a data set in it. {WHERE}.")
    found = {
        str(path.relative_to(folder)): path
        for depth in ("*", "*/*")
        for path in sorted(folder.glob(depth))
        if path.is_dir() and (is_beir(path) or is_nanobeir(path))
    }
    if not found:
        raise InputError(
            f"{folder}: expected folders with corpus.jsonl, queries.jsonl and qrels/ (BEIR), or with Parquet "
            f"files in corpus/, queries/ and qrels/ (NanoBEIR), found none. {WHERE}."
        )
    if names is None:
        return dict(sorted(found.items()))
    for name in names:
        if not any(_is_of(key, name) for key in found):
            there = ", ".join(found)
            raise InputError(
                f"{folder} has no data set {name!r}.{did_you_mean(name, found)} There are: {there}."
            )
    return {key: found[key] for key in sorted(found) if any(_is_of(key, name) for name in names)}


def _require_judgements(folder: Path, chosen: dict[str, Path]) -> None:
    """Raises InputError for the first data set in BEIR's layout that lacks its split."""
    found = {name: find_judgements(path) for name, path in chosen.items() if is_beir(path)}
    lacking = [name for name in found if _split_of(chosen[name]) not in found[name]]
    if lacking:
        name, others = lacking[0], ",".join(name for name in chosen if name not in lacking)
        raise InputError(
            f"{folder / name}: expected judgements in qrels/{_split_of(chosen[name])}.tsv, found "
            f"{', '.join(found[name]) or 'none'}. Complete the data set"
            + (f", or run the others by --datasets {others}." if others else ".")
        )


def _note_files(out: Path, dataset: str, path: Path, *, has_ended: bool) -> None:
    """Keeps how many bytes each file of a data set has. Raises RecipeError where one that `has_ended` was
    measured on others.
    """
    names = ("corpus*", "queries*", "qrels/*", "corpus/*", "queries/*")
    found = sorted({each for name in names for each in path.glob(name) if each.is_file()})
    files = {each.relative_to(path).as_posix(): each.stat().st_size for each in found}
    noted = read_json(out / _FILES) if (out / _FILES).exists() else {}
    before = noted.get(dataset, files)
    differing = sorted(name for name in before.keys() | files.keys() if before.get(name) != files.get(name))
    if has_ended and differing:
        raise RecipeError(
            f"{out / dataset} was measured on other files of {dataset}: {', '.join(differing[:5])} changed "
            "since. Put the old ones back, remove that folder to measure anew, or choose another --out."
        )
    write_json(out / _FILES, noted | {dataset: files})


def _split_of(path: Path) -> str:
    """By which a data set is judged."""
    return _SPLITS.get(path.name.lower(), "test")


def _cut(system: System, depth: int, own_counts: bool) -> System:
    """Rankings of so many documents, without the one that has the query's own id unless that counts."""
    rankings = {
        query: [(document, score) for document, score in ranking if own_counts or document != query][:depth]
        for query, ranking in system.rankings.items()
    }
    return system._replace(rankings=rankings)


def _gather(out: Path, name: str, model: str) -> RetrievalResult:
    """All that has ended, in earlier calls too, written anew."""
    there = sorted(read_json(out / _FILES))
    finished = tuple(_read(dataset, out / dataset) for dataset in there if _has_ended(out / dataset))
    unknown = [each.name for each in finished if each.published is None and not _is_of(each.name, FORUMS)]
    compared = f"no published BM25 for {', '.join(unknown)}: compare with the BM25 that was measured here"
    result = RetrievalResult(name, model, finished, (compared,) if unknown else ())
    write_json(out / _RESULTS, result.to_json())
    return result


def _has_ended(target: Path) -> bool:
    return (target / _RESULTS).exists()


def _read(dataset: str, target: Path) -> DatasetResult:
    record = read_json(target / _RESULTS)
    metric = f"ndcg@{COUNTED}"
    return DatasetResult(
        dataset,
        record["documents"],
        record["queries"],
        {name: system["scores"][metric] for name, system in record["systems"].items()},
        {name: system["intervals"][metric] for name, system in record["systems"].items()},
    )


def _is_of(dataset: str, name: str) -> bool:
    """Whether a data set is the one of that name, or a part of it."""
    return dataset.lower() == name.lower() or dataset.lower().startswith(f"{name.lower()}/")


def dataset_table(result: RetrievalResult) -> tuple[list[str], list[list[str]]]:
    """A row a data set, nDCG@10 in points with intervals, then their means."""
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
    """The same result gives the same bytes."""
    page = render_page(
        "retrieval_benchmark.html.jinja",
        title=f"{result.name} · {result.model}",
        status=f"nDCG@{COUNTED} over {formatting.counted(len(result.datasets), 'data set')}",
        headline=[(f"mean, {system_title(name)}", points(value)) for name, value in result.means().items()],
        warnings=list(result.notes),
        figures=Table("", *dataset_table(result)),
        pictures=[("The model beside BM25", as_markup(_beside_bm25(result)))],
        source=BM25_SOURCE,
        command=command,
        facts=raw_facts({"model": result.model}),
    )
    path = out / REPORT_FILE
    atomic_write(path, page)
    return path


def _beside_bm25(result: RetrievalResult) -> str:
    """A dot a data set: above the line the model's vectors find more than words do."""

    def paint(axes: "Axes") -> None:
        lexical, dense = result.systems[:2]
        axes.plot([0, 100], [0, 100], color=MUTED, linewidth=0.8)
        for dataset in result.datasets:
            place = 100 * dataset.scores[lexical], 100 * dataset.scores[dense]
            axes.scatter(*place, color=FIRST, s=34)
            axes.annotate(dataset.name, place, fontsize=7, xytext=(4, 3), textcoords="offset points")
        axes.set_xlabel(f"nDCG@{COUNTED} of {system_title(lexical)}")
        axes.set_ylabel(f"of {system_title(dense)}")

    return picture("The model beside BM25", paint)

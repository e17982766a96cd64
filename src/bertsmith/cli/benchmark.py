"""`bertsmith benchmark` runs GLUE, SuperGLUE, SQuAD, BEIR or NanoBEIR; `bertsmith rank` evaluates search on
queries of your own.
"""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from bertsmith.cli.options import Flag, Out, as_typed, finetune_setting_names, takes_settings
from bertsmith.cli.screen import (
    console,
    print_json,
    print_note,
    print_paths,
    print_table,
    print_warning,
    progress_bar,
)
from bertsmith.errors import InputError
from bertsmith.files import require_new_folder

if TYPE_CHECKING:
    from bertsmith.benchmarks.benchmark import Suite


_DEPTH, _RERANKED = 100, 50  # documents that a system keeps per query, and that the re-ranker reads

app = App(name="benchmark", help="Run a whole benchmark, with its official files, metrics and submissions.")


@Parameter(name="*")
@dataclass(frozen=True)
class TrainingOptions:
    """The options of a benchmark that fine-tunes tasks.

    Parameters
    ----------
    model
        The encoder to start from: a folder such as runs/NAME/model, minilm, or a model's name on the hub.
    out
        The folder to write: all figures, the report, the submission.
    seeds
        How many times each task is trained, each time with another seed.
    hours
        Hours to search for settings, on dev alone, divided evenly among the tasks. A task that is added later
        gets as much time as each of the first ones. With 0, the defaults are used.
    rows
        Use only so many rows of each part, drawn at random, to try the whole path.
    """

    model: str
    out: Out
    seeds: int = 3
    hours: float = 0.0
    rows: int | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class SearchOptions:
    """The options of a benchmark of search.

    Parameters
    ----------
    model
        A folder such as runs/NAME/model, minilm, or a model's name on the hub.
    out
        The folder to write: all figures and the report.
    reranker
        A model fine-tuned on pairs. It reads each query's first documents and reorders them.
    datasets
        Names of some data sets, separated by commas. By default all that are there.
    resume
        Resume an interrupted benchmark, or add data sets.
    """

    model: str
    out: Out
    reranker: str | None = None
    datasets: str | None = None
    resume: Flag = False


@app.command
@takes_settings(finetune_setting_names)
def glue(
    folder: Path,
    *overrides: str,
    run: Annotated[TrainingOptions, Parameter(name="*")],
    tasks: str | None = None,
    resume: Flag = False,
) -> None:
    """Fine-tune and evaluate every task of GLUE, beside the published tables.

    FOLDER is glue_data/ as GLUE's download scripts make it, with a folder per task. OUT/report.html has every
    figure with its interval, OUT/submission the files for GLUE's server. Under torchrun, each process takes
    tasks of its own, on a GPU of its own.

    Parameters
    ----------
    folder
        The folder with CoLA/, SST-2/, MRPC/, STS-B/, QQP/, MNLI/, QNLI/, RTE/, WNLI/, or some of them.
    overrides
        Settings of finetune for all tasks, as key=value, for instance epochs=3 max_length=128.
    tasks
        Names of some tasks, separated by commas. By default all that are there.
    resume
        Resume an interrupted benchmark, or add tasks or seeds.

    Examples
    --------
    bertsmith benchmark glue glue_data/ --model minilm --out runs/glue

    bertsmith benchmark glue glue_data/ --model runs/law/model --tasks SST-2,RTE --seeds 5 --hours 2 \
              --out runs/glue

    bertsmith benchmark glue glue_data/ --model minilm --rows 200 --seeds 1 --out runs/trial
    """
    from bertsmith.benchmarks.glue import glue_suite

    _run(glue_suite(), folder, run, overrides, _names(tasks, "--tasks"), resume)


@app.command
@takes_settings(finetune_setting_names)
def superglue(
    folder: Path,
    *overrides: str,
    run: Annotated[TrainingOptions, Parameter(name="*")],
    tasks: str | None = None,
    resume: Flag = False,
) -> None:
    """Fine-tune and evaluate the tasks of SuperGLUE except ReCoRD, beside the published table.

    Every task is read as pairs of texts. OUT/submission has the files for SuperGLUE's server; those of the
    diagnostics AX-b and AX-g come from RTE's model. Under torchrun, each process takes tasks of its own, on a
    GPU of its own.

    Parameters
    ----------
    folder
        The folder with BoolQ/, CB/, COPA/, MultiRC/, RTE/, WiC/, WSC/, or some of them, as SuperGLUE's
        archives unpack.
    overrides
        Settings of finetune for all tasks, as key=value, for instance epochs=10 max_length=256.
    tasks
        Names of some tasks, separated by commas. By default all that are there.
    resume
        Resume an interrupted benchmark, or add tasks or seeds.

    Examples
    --------
    bertsmith benchmark superglue superglue/ --model minilm --out runs/superglue

    bertsmith benchmark superglue superglue/ --model minilm --tasks BoolQ,RTE --seeds 5 --out runs/two
    """
    from bertsmith.benchmarks.superglue import superglue_suite

    _run(superglue_suite(), folder, run, overrides, _names(tasks, "--tasks"), resume)


@app.command
@takes_settings(finetune_setting_names)
def squad(
    folder: Path,
    *overrides: str,
    run: Annotated[TrainingOptions, Parameter(name="*")],
    version: str | None = None,
    resume: Flag = False,
) -> None:
    """Fine-tune and evaluate on SQuAD v1.1 or v2.0, by the rules of the official scripts.

    OUT/submission/predictions.json is what the official scripts take.

    Parameters
    ----------
    folder
        The folder with train-v1.1.json and dev-v1.1.json, or those of v2.0.
    overrides
        Settings of finetune as key=value, for instance epochs=2 max_length=384.
    version
        1.1 or 2.0, if the folder has both.
    resume
        Resume an interrupted benchmark, or add seeds.

    Examples
    --------
    bertsmith benchmark squad squad/ --model minilm --out runs/squad

    bertsmith benchmark squad squad/ --model bert-base/ --version 2.0 --seeds 1 --out runs/squad2 epochs=2
    """
    from bertsmith.benchmarks.squad import squad_suite

    _run(squad_suite(folder, version), folder, run, overrides, None, resume)


@app.command
def beir(folder: Path, *, search: Annotated[SearchOptions, Parameter(name="*")]) -> None:
    """Evaluate search on every data set of BEIR, beside BM25 as measured here and as published.

    Each folder in FOLDER that has corpus.jsonl, queries.jsonl and qrels/ is searched with BM25, with the
    model's vectors and with both fused, and re-ranked if you give a re-ranker. Needs the extra `retrieval`:
    pip install 'bertsmith[retrieval]'.

    Parameters
    ----------
    folder
        The folder with a folder per data set, as BEIR's archives unpack.

    Examples
    --------
    bertsmith benchmark beir beir/ --model minilm --out runs/beir

    bertsmith benchmark beir beir/ --model runs/search/model --datasets scifact,nfcorpus --out runs/two
    """
    from bertsmith.benchmarks.retrieval import BEIR

    _search(BEIR, folder, search)


@app.command
def nanobeir(folder: Path, *, search: Annotated[SearchOptions, Parameter(name="*")]) -> None:
    """Evaluate search on NanoBEIR's small data sets, beside BM25.

    Each folder in FOLDER has Parquet files in corpus/, queries/ and qrels/, as on the hub, or is in BEIR's
    own layout. Needs the extra `retrieval`: pip install 'bertsmith[retrieval]'.

    Parameters
    ----------
    folder
        The folder with a folder per data set, such as NanoSciFact.

    Examples
    --------
    bertsmith benchmark nanobeir nanobeir/ --model minilm --out runs/nano
    """
    from bertsmith.benchmarks.retrieval import NANOBEIR

    _search(NANOBEIR, folder, search)


def _search(name: str, folder: Path, search: SearchOptions) -> None:
    from bertsmith.benchmarks.retrieval import dataset_table, run_retrieval, write_retrieval_report
    from bertsmith.reporting.tables import explain_metrics

    with progress_bar("Ranking") as progress:
        result = run_retrieval(
            name,
            folder,
            search.model,
            search.out,
            reranker=search.reranker,
            datasets=_names(search.datasets, "--datasets"),
            resume=search.resume,
            progress=progress,
        )
    report = write_retrieval_report(search.out, result, _typed())
    print_table(*dataset_table(result), title=f"{name}, {search.model}: nDCG@10 in points")
    console.print(explain_metrics(["ndcg@10"]), markup=False)
    for note in result.notes:
        print_note(note)
    print_paths(report=report, results=search.out / "results.json")


def _names(listed: str | None, option: str) -> tuple[str, ...] | None:
    """Splits the comma-separated names of an option; None if the option wasn't given.

    Raises InputError if it has no name in it.
    """
    if listed is None:
        return None
    names = tuple(name.strip() for name in listed.split(",") if name.strip())
    if not names:
        raise InputError(f"{option} names nothing: expected names with commas between, or leave it out.")
    return names


def _typed() -> str:
    """The command line of this process, quoted for a shell."""
    return shlex.join(["bertsmith", *sys.argv[1:]])


def _run(
    suite: "Suite",
    folder: Path,
    run: TrainingOptions,
    overrides: tuple[str, ...],
    tasks: tuple[str, ...] | None,
    resume: bool,
) -> None:
    from bertsmith.benchmarks.results import published_table, task_table
    from bertsmith.benchmarks.suite import SuiteSettings, find_own_share, run_suite

    share = find_own_share()
    settings = SuiteSettings(tasks, run.seeds, run.hours, run.rows, overrides)
    with progress_bar("Predicting") as progress:
        result = run_suite(
            suite,
            folder,
            run.model,
            run.out,
            settings,
            resume=resume,
            share=share,
            command=_typed(),
            console=console if share.rank == 0 else None,
            progress=progress,
            on_seed=lambda name, seed: console.print(
                f"{name}, seed {seed.seed}: {100 * seed.score:.1f}", markup=False, soft_wrap=True
            ),
        )
    if share.rank > 0:
        return
    print_table(*task_table(result), title=f"{result.name}, {result.model}: task by task, in points")
    print_table(*published_table(result), title="Beside the published")
    for note in result.notes:
        print_note(note)
    for warning in result.warnings():
        print_warning(warning)
    print_paths(
        report=run.out / "report.html", results=run.out / "results.json", handin=run.out / "submission"
    )


def rank(
    model: str,
    data: Path,
    *,
    reranker: str | None = None,
    format: str | None = None,
    split: str = "test",
    encoding: str = "utf-8",
    k: int = 10,
    depth: int = _DEPTH,
    reranked: int = _RERANKED,
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
    from bertsmith.inference.index.ranking import rank_model_or_index
    from bertsmith.inference.ranking.report import figure_table, write_comparison
    from bertsmith.reporting.tables import explain_metrics

    options: dict[str, Any] = {"reranker": reranker, "format": format, "split": split, "encoding": encoding}
    needed = {"k": k} if reranked == _RERANKED else {"k": k, "reranked": reranked}
    option = max(needed, key=lambda name: needed[name])
    if 0 < depth < needed[option] and depth != _DEPTH:
        raise InputError(
            f"--depth {depth} keeps fewer documents than --{option} {needed[option]} asks for. Give a larger "
            f"--depth, or a smaller --{option}."
        )
    depth = max(depth, needed[option]) if depth > 0 else depth  # below 1 it is refused
    options |= {"k": k, "depth": depth, "reranked": reranked, "queries": queries, "english": english}
    if out is not None:
        require_new_folder(out)
    with progress_bar("Ranking") as progress:
        comparison = rank_model_or_index(model, data, progress, **options)
    try:
        if out is not None:
            write_comparison(out, comparison, as_typed(rank, "rank", model, data, **options))
    finally:  # figures that took hours are shown even if the disk is full
        if json:
            print_json(comparison.to_json())
        else:
            size = f"{len(comparison.data.documents):,} documents, {len(comparison.queries):,} queries"
            print_table(*figure_table(comparison), title=f"{comparison.data.name}: {size}")
            meanings = explain_metrics(comparison.metrics)
            if len(comparison.figures) > 1:
                meanings += "\np: the probability of such a difference by chance alone."
            for note in (comparison.verdict(), meanings, *comparison.notes()):
                console.print(note, markup=False)
    if out is not None and not json:
        print_paths(report=out / "report.html", runs=out / "runs")

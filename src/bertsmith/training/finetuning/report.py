"""`report.html` of a fine-tuning run: how good the model is, beside what, where it errs, how sure it is."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.files import atomic_write
from bertsmith.machine import Hardware
from bertsmith.reporting import tables
from bertsmith.reporting.charts import Curve, Point, smooth
from bertsmith.reporting.page import REPORT_FILE, as_markup, render_page
from bertsmith.tasks.evaluating.error_analysis import ErrorAnalysis
from bertsmith.training.finetune_recipe import MADE_FROM_EPOCHS, FinetuneRecipe
from bertsmith.training.finetuning import charts, figures
from bertsmith.training.finetuning.methods import UNTRAINED
from bertsmith.training.finetuning.results import Results, data_hashes
from bertsmith.training.log import LOG_FILE, RunLog
from bertsmith.training.run_report import environment
from bertsmith.training.settings import override

Record = dict[str, Any]
Pictures = list[tuple[str, Any]]

TEMPLATE = "finetune.html.jinja"
# Settings that a method which trains no encoder doesn't read.
_OF_TRAINING = (
    *("epochs", "batch_size", "micro_batch_tokens", "evaluations", "patience", "restarts", "dropout"),
    *("freeze_embeddings", "freeze_layers", "lora", "optimizer", "guard", "log_every"),
)


def write_finetune_report(
    out: Path, recipe: FinetuneRecipe, results: Results, typed: FinetuneRecipe | None = None
) -> Path:
    """Writes the page into the run's folder and returns its path; the same results give the same bytes.
    `recipe` is what was trained by; `typed` is what brings the run about again, where that is another.

    Curves come from out/restarts/N/log.jsonl. Raises ResourceError when the disk is full or the folder can't
    be written.
    """
    path = Path(out) / REPORT_FILE
    atomic_write(path, render_finetune(out, recipe, results, typed))
    return path


def render_finetune(
    out: Path, recipe: FinetuneRecipe, results: Results, typed: FinetuneRecipe | None = None
) -> str:
    """The page as text. What comes from data, such as texts and labels, is escaped."""
    logs = [read_log(out / "restarts" / str(number + 1)) for number in range(len(results.restarts))]
    return render_page(
        TEMPLATE,
        title=f"Fine-tuning · {out.resolve().name}",
        status=_status(recipe, results),
        headline=figures.headline(results),
        warnings=[*results.warnings, *_log_warnings(logs)],
        settings=_settings(recipe, results),
        command=command(typed or recipe),
        environment=run_environment(recipe.seed, logs, data_hashes(recipe)),
        **shown_results(results, logs),
    )


def shown_results(results: Results, logs: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """What the page shows of them: tables, pictures, errors. `logs` are those of the restarts, the curves of
    which are drawn.
    """
    task, dev = results.task, results.evaluations[results.judge]
    details, errors = results.error_analysis[results.judge], results.standard_errors
    return {
        "evaluations": [
            figures.evaluation_table(name, evaluation, task.main_metric, errors[name])
            for name, evaluation in results.evaluations.items()
        ],
        "judge": results.judge,
        "tried": figures.tried_table(results) if results.tried else None,
        "more_rows": _more_rows(results),
        "more_rows_in_words": " ".join(
            each.as_sentence(task.main_metric) for each in (results.expected, results.learning_curve) if each
        )
        if results.learning_curve
        else "",
        "columns": figures.column_tables(results.columns, task.main_metric) if results.columns else None,
        "columns_in_words": results.columns.as_sentence(task.main_metric) if results.columns else "",
        "columns_model": results.columns.model if results.columns else "",
        "column_pictures": _column_pictures(results),
        "strip": _strip(results),
        "restarts": figures.restart_table(results) if len(results.restarts) > 1 else None,
        "curves": _curves(logs, results),
        "details": details,
        "figures": figures,
        "where": _where_pictures(results, details),
        "sure": _sure_pictures(results, details),
        "calibration": [(figures.metric_name(n), f"{v:.4f}") for n, v in results.figures.items()],
        "coverage": _coverage(details),
        "worst": figures.worst_errors(task, dev, details),
    }


def command(recipe: FinetuneRecipe) -> str:
    """What to type to get this run again: the settings that differ from their defaults, and of those that
    mean something else where nobody gives them, those that were given or chosen.
    """
    files = {"train": recipe.train, "dev": (recipe.dev,), "test": (recipe.test,)}
    words = ["bertsmith", "finetune", recipe.task, "--model", recipe.model]
    for name, paths in files.items():
        for path in filter(None, paths):
            words += [f"--{name}", path]
    words += ["--out", "runs/again"]
    usual, given = dict(tables.flatten(_plain_recipe(_usual(recipe)))), recipe.given
    for name, value in (*tables.flatten(_plain_recipe(recipe)), *recipe.settings.items()):
        if value is None or name in (*files, "task", "model", "out"):
            continue
        if usual.get(name) != value or name in given:
            words.append(f"{name}={as_override(value)}")
    return shlex.join(words)


def _more_rows(results: Results) -> Pictures:
    curve, metric = results.learning_curve, results.task.main_metric
    if curve is None:
        return []
    title = f"{metric} by rows learned from"
    return [(title, as_markup(charts.learning_curve(title, curve)))]


def _column_pictures(results: Results) -> Pictures:
    if results.columns is None:
        return []
    metric = figures.metric_name(results.task.main_metric)
    return [("What text and columns are worth", as_markup(charts.column_worths(results.columns, metric)))]


def as_override(value: Any) -> str:
    """As TOML has it, which for lists, numbers and truth values is how JSON has it; of text the plain one, if
    it comes back as the same text.
    """
    if isinstance(value, str):
        read: dict[str, Any] = {}
        override(read, f"value={value}")
        if read["value"] == value:
            return value
    return _as_toml(value)


def _as_toml(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{json.dumps(name, ensure_ascii=False)}={_as_toml(of)}" for name, of in value.items())
        return f"{{{', '.join(pairs)}}}"
    return json.dumps(value, ensure_ascii=False)


def _usual(recipe: FinetuneRecipe) -> FinetuneRecipe:
    return FinetuneRecipe(task=recipe.task, model=recipe.model, train=recipe.train, out=recipe.out)


def _plain_recipe(recipe: FinetuneRecipe) -> dict[str, Any]:
    return recipe.model_dump(mode="json", exclude={*MADE_FROM_EPOCHS, "settings"})


def _settings(recipe: FinetuneRecipe, results: Results) -> list[tables.Setting]:
    """The run's settings and the task's; columns are shown as they were found. Where nothing was trained,
    what training alone reads is left out.
    """
    task = results.task
    here = _plain_recipe(recipe) | task.settings.model_dump(mode="json")
    usual = _plain_recipe(_usual(recipe)) | type(task).Settings().model_dump(mode="json")
    unused = _OF_TRAINING if results.method in UNTRAINED else ()
    used = tables.settings({name: value for name, value in here.items() if name not in unused}, usual)
    return [*used, *(tables.Setting(name, remark, None) for name, remark in task.remarks().items())]


def _status(recipe: FinetuneRecipe, results: Results) -> str:
    rows = [f"{name} {evaluation.rows:,}" for name, evaluation in results.evaluations.items()]
    return " · ".join(
        [
            results.task.name,
            f"{recipe.model} on {Path(recipe.train_name).name}",
            f"train {results.train_rows:,}",
            *rows,
        ]
    )


def read_log(folder: Path) -> list[Record]:
    """A restart's log; the page does without one that was cleared away."""
    return RunLog.read(folder) if (folder / LOG_FILE).exists() else []


def _log_warnings(logs: Sequence[Sequence[Record]]) -> list[str]:
    return [
        f"restart {number}, step {record['step']:,}: {record['message']}"
        for number, log in enumerate(logs, start=1)
        for record in log
        if record["kind"] == "warning"
    ]


def run_environment(
    seed: int, logs: Sequence[Sequence[Record]], hashes: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Versions, machine and model of the run, and the hash of each file it was made from."""
    starts = [record for log in logs for record in log if record["kind"] == "start"]
    machine = starts[-1].get("machine") if starts else None
    facts = {name: value for name, value in (machine or {}).items() if name not in ("data", "peak")}
    named = {f"SHA-256 of {name}": value for name, value in hashes.items()}
    return tables.raw_facts(environment(seed, Hardware.detect()) | facts | named)


def _strip(results: Results) -> Any:
    scores = results.scores
    if len(scores) < 2:
        return None
    best = scores.index(max(scores))  # of equals the first, as it was kept
    metric = figures.metric_name(results.task.main_metric)
    baselines = figures.baselines_to_beat(results)
    return as_markup(charts.restart_strip(scores, best, baselines, metric))


def _curves(logs: Sequence[Sequence[Record]], results: Results) -> Pictures:
    """Training loss and the main metric on dev, a line for each restart."""
    metric = results.task.main_metric
    losses = [_smoothed(_points(log, "step", "loss")) for log in logs]
    scores = [_points(log, "evaluation", metric) for log in logs]
    best = results.best
    pictures: Pictures = []
    if any(losses):
        pictures.append(("Training loss, smoothed", charts.restart_curves("loss", "step", losses, best)))
    if any(scores):
        title = f"{figures.metric_name(metric)} on dev"
        pictures.append((title, charts.restart_curves(title, "step", scores, best, markers=True)))
    return [(title, as_markup(picture)) for title, picture in pictures]


def _points(log: Sequence[Record], kind: str, name: str) -> list[Point]:
    curve = Curve()
    for record in log:
        if record["kind"] == kind:
            curve.add(record["step"], record.get(name))
    return curve.points()


def _smoothed(points: list[Point]) -> list[Point]:
    return smooth(points, min(0.85, 1 - 20 / len(points))) if len(points) > 20 else points


def _where_pictures(results: Results, details: ErrorAnalysis) -> Pictures:
    """Where the model errs: by length, and by the right score."""
    task, dev = results.task, results.evaluations[results.judge]
    metric = figures.metric_name(task.main_metric)
    lengths = figures.score_by_length(task, dev)
    pictures = []
    if len(lengths) > 1:
        pictures.append((f"{metric} by length", as_markup(charts.length_bars(lengths, metric))))
    if details.numbers is not None:
        pictures.append(("Right and predicted scores", as_markup(charts.scatter(*details.numbers))))
    return pictures


def _sure_pictures(results: Results, details: ErrorAnalysis) -> Pictures:
    """Whether confidence is deserved, and what answering only sure texts gains."""
    pictures = []
    if details.calibration is not None:
        diagram = as_markup(charts.reliability_diagram(details.calibration))
        pictures.append((f"Confidence and truth of {details.calibration.unit}", diagram))
    answered = _answered(details)
    if answered is not None:
        found = results.figures
        chosen = (found["coverage"], found["risk"]) if "coverage" in found else None
        pictures.append(("Error by share answered", as_markup(charts.risk_curve(*answered, chosen))))
    return pictures


def _coverage(details: ErrorAnalysis) -> tables.Table | None:
    answered = _answered(details)
    return None if answered is None else figures.coverage_table(*answered)


def _answered(details: ErrorAnalysis) -> tuple[Any, Any] | None:
    """(A,) confidences and errors of the answers whose confidence is known."""
    known = [(each.confidence, 1 - each.score) for each in details.answers if each.confidence is not None]
    if not known:
        return None
    confidence, error = np.array(known, np.float64).T
    return confidence, error

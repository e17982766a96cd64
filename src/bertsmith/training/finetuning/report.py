"""`report.html` of a fine-tuning run: how good the model is, beside what, where it errs, how sure it is.

Its tables are made by `figures`, its pictures below, in the look of `reporting/charts.py`.

E examples, A answers of which a confidence is known.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertsmith.arrays import Floats
from bertsmith.files import atomic_write
from bertsmith.machine import Hardware
from bertsmith.metrics.baselines import baseline_title
from bertsmith.metrics.calibration import ReliabilityBin, reliability
from bertsmith.metrics.scores import LengthScore
from bertsmith.reporting import tables
from bertsmith.reporting.charts import FIRST, MOST_POINTS, MUTED, SECOND, Curve, Point, picture, smooth
from bertsmith.reporting.metric_words import explain_metrics
from bertsmith.reporting.page import REPORT_FILE, as_markup, render_page
from bertsmith.tasks.evaluating.error_analysis import Calibration, ErrorAnalysis
from bertsmith.training.finetune_recipe import MADE_FROM_EPOCHS, FinetuneRecipe
from bertsmith.training.finetuning import figures
from bertsmith.training.finetuning.column_study import THE_TEXT, ColumnStudy
from bertsmith.training.finetuning.methods import UNTRAINED, describe_methods
from bertsmith.training.finetuning.results import LearningCurve, Results, hash_data
from bertsmith.training.log import LOG_FILE, Record, RunLog
from bertsmith.training.run_report import environment
from bertsmith.training.settings import override

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Pictures = list[tuple[str, Any]]
TEMPLATE = "finetune.html.jinja"
# Settings that a method which trains no encoder doesn't read.
_OF_TRAINING = (
    *("epochs", "batch_size", "micro_batch_tokens", "evaluations", "patience", "restarts", "dropout"),
    *("freeze_embeddings", "freeze_layers", "lora", "optimizer", "guard", "log_every"),
)
MOST_DOTS = 2000
_GOLDEN = 0.6180339887  # its multiples spread dots evenly, without chance
_DASHES = (0, (2, 3))
_MOST_BARS, _LONGEST_NAME = 15, 24


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
    logged = [
        f"restart {number}, step {record['step']:,}: {record['message']}"
        for number, log in enumerate(logs, start=1)
        for record in log
        if record["kind"] == "warning"
    ]
    return render_page(
        TEMPLATE,
        title=f"Fine-tuning · {out.resolve().name}",
        status=_status(recipe, results),
        headline=figures.headline(results),
        warnings=[*results.warnings, *logged],
        settings=_settings(recipe, results),
        command=format_command(typed or recipe),
        environment=describe_environment(recipe.seed, logs, hash_data(recipe)),
        **results_context(results, logs),
    )


def results_context(results: Results, logs: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """What the page shows of them: tables, pictures, errors. `logs` are those of the restarts, the curves of
    which are drawn.
    """
    task, dev = results.task, results.evaluations[results.judge]
    details, errors = results.error_analysis[results.judge], results.standard_errors
    curve, study = results.learning_curve, results.columns
    answered: tuple[Any, Any] | None = None
    known = [(each.confidence, 1 - each.score) for each in details.answers if each.confidence is not None]
    if known:
        confidence, error = np.array(known, np.float64).T  # (A,) each
        answered = confidence, error
    more_rows: Pictures = []
    if curve is not None:
        title = f"{task.main_metric} by rows learned from"
        more_rows = [(title, as_markup(draw_learning_curve(title, curve)))]
    column_pictures: Pictures = []
    if study is not None:
        worths = draw_column_worths(study, figures.metric_name(task.main_metric))
        column_pictures = [("What text and columns are worth", as_markup(worths))]
    return {
        "evaluations": [
            figures.evaluation_table(name, evaluation, task.main_metric, errors[name])
            for name, evaluation in results.evaluations.items()
        ],
        "metrics_in_words": explain_metrics(dev.model),
        "judge": results.judge,
        "tried": figures.method_table(results) if results.tried else None,
        "methods_in_words": describe_methods([tried.method for tried in results.tried], task),
        "more_rows": more_rows,
        "more_rows_in_words": " ".join(
            each.as_sentence(task.main_metric) for each in (results.expected, curve) if each
        )
        if curve
        else "",
        "columns": figures.column_tables(study, task.main_metric) if study else None,
        "columns_in_words": study.as_sentence(task.main_metric) if study else "",
        "columns_model": study.model if study else "",
        "column_pictures": column_pictures,
        "strip": _restart_picture(results),
        "restarts": figures.restart_table(results) if len(results.restarts) > 1 else None,
        "curves": _curve_pictures(logs, results),
        "details": details,
        "figures": figures,
        "where": _error_pictures(results, details),
        "sure": _confidence_pictures(results, details, answered),
        "calibration": [(figures.metric_name(n), f"{v:.4f}") for n, v in results.figures.items()],
        "calibration_in_words": explain_metrics(results.figures),
        "coverage": None if answered is None else figures.coverage_table(*answered),
        "worst": figures.worst_errors(task, dev, details),
    }


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


def _usual(recipe: FinetuneRecipe) -> FinetuneRecipe:
    return FinetuneRecipe(task=recipe.task, model=recipe.model, train=recipe.train, out=recipe.out)


def _plain_recipe(recipe: FinetuneRecipe) -> dict[str, Any]:
    return recipe.model_dump(mode="json", exclude={*MADE_FROM_EPOCHS, "settings"})


def format_command(recipe: FinetuneRecipe) -> str:
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
            words.append(f"{name}={format_override(value)}")
    return shlex.join(words)


def format_override(value: Any) -> str:
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


def read_log(folder: Path) -> list[Record]:
    """A restart's log; the page does without one that was cleared away."""
    return RunLog.read(folder) if (folder / LOG_FILE).exists() else []


def describe_environment(
    seed: int, logs: Sequence[Sequence[Record]], hashes: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Versions, machine and model of the run, and the hash of each file it was made from."""
    starts = [record for log in logs for record in log if record["kind"] == "start"]
    machine = starts[-1].get("machine") if starts else None
    facts = {name: value for name, value in (machine or {}).items() if name not in ("data", "peak")}
    named = {f"SHA-256 of {name}": value for name, value in hashes.items()}
    return tables.raw_facts(environment(seed, Hardware.detect()) | facts | named)


# -- which pictures ------------------------------------------------------------------------------------


def _restart_picture(results: Results) -> Any:
    scores = results.scores
    if len(scores) < 2:
        return None
    best = scores.index(max(scores))  # of equals the first, as it was kept
    metric = figures.metric_name(results.task.main_metric)
    scores_to_beat = figures.baselines_to_beat(results).items()
    baselines = {baseline_title(name): score for name, score in scores_to_beat}
    return as_markup(draw_restart_strip(scores, best, baselines, metric))


def _curve_pictures(logs: Sequence[Sequence[Record]], results: Results) -> Pictures:
    """Training loss and the main metric on dev, a line for each restart."""
    metric = results.task.main_metric
    losses = [_points(log, "step", "loss") for log in logs]
    losses = [smooth(each, min(0.85, 1 - 20 / len(each))) if len(each) > 20 else each for each in losses]
    scores = [_points(log, "evaluation", metric) for log in logs]
    best = results.best
    pictures: Pictures = []
    if any(losses):
        pictures.append(("Training loss, smoothed", draw_restart_curves("loss", "step", losses, best)))
    if any(scores):
        title = f"{figures.metric_name(metric)} on dev"
        pictures.append((title, draw_restart_curves(title, "step", scores, best, markers=True)))
    return [(title, as_markup(picture)) for title, picture in pictures]


def _points(log: Sequence[Record], kind: str, name: str) -> list[Point]:
    curve = Curve()
    for record in log:
        if record["kind"] == kind:
            curve.add(record["step"], record.get(name))
    return curve.points()


def _error_pictures(results: Results, details: ErrorAnalysis) -> Pictures:
    """Where the model errs: by length, and by the right score."""
    task, dev = results.task, results.evaluations[results.judge]
    metric = figures.metric_name(task.main_metric)
    lengths = figures.score_by_length(task, dev)
    pictures = []
    if len(lengths) > 1:
        pictures.append((f"{metric} by length", as_markup(draw_length_bars(lengths, metric))))
    if details.numbers is not None:
        pictures.append(("Right and predicted scores", as_markup(draw_scatter(*details.numbers))))
    return pictures


def _confidence_pictures(
    results: Results, details: ErrorAnalysis, answered: tuple[Any, Any] | None
) -> Pictures:
    """Whether confidence is deserved, and what answering only sure texts gains."""
    pictures = []
    if details.calibration is not None:
        diagram = as_markup(draw_reliability_diagram(details.calibration))
        pictures.append((f"Confidence and truth of {details.calibration.unit}", diagram))
    if answered is not None:
        found = results.figures
        chosen = (found["coverage"], found["risk"]) if "coverage" in found else None
        pictures.append(("Error by share answered", as_markup(draw_risk_curve(*answered, chosen))))
    return pictures


# -- the pictures --------------------------------------------------------------------------------------


def draw_restart_strip(
    scores: Sequence[float], best: int, baselines: Mapping[str, float], metric: str
) -> str:
    """One dot a restart, in another colour for the one kept; the mean and baselines as vertical lines."""

    def paint(axes: "Axes") -> None:
        heights = [(number * _GOLDEN) % 1 for number in range(1, len(scores) + 1)]
        axes.scatter(scores, heights, color=FIRST, s=34, alpha=0.7, label="a restart")
        axes.scatter([scores[best]], [heights[best]], color=SECOND, s=44, label="kept")
        axes.axvline(float(np.mean(scores)), color=FIRST, linewidth=1, label="mean")
        for style, (name, score) in zip(("dotted", "dashed"), baselines.items(), strict=False):
            axes.axvline(score, color=MUTED, linewidth=1, linestyle=style, label=name)
        axes.set_ylim(-0.15, 1.15)
        axes.set_yticks([])
        axes.set_xlabel(f"{metric} on dev")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))

    return picture("restarts", paint, height=1.9)


def draw_restart_curves(
    title: str, x_label: str, curves: Sequence[Sequence[Point]], best: int, markers: bool = False
) -> str:
    """One line a restart, the one that was kept over the others."""

    def paint(axes: "Axes") -> None:
        for number in sorted(range(len(curves)), key=lambda number: number == best):
            points = curves[number]
            if not points:
                continue
            x, y = zip(*points, strict=True)
            kept = number == best
            marker = "o" if markers or len(points) == 1 else None
            axes.plot(
                x,
                y,
                color=SECOND if kept else FIRST,
                alpha=1.0 if kept else 0.45,
                marker=marker,
                markersize=3.5,
            )
        axes.set_xlabel(x_label)

    return picture(title, paint)


def draw_learning_curve(title: str, curve: LearningCurve) -> str:
    """The score by rows, and where twice as many would lead, with a standard error to either side."""

    def paint(axes: "Axes") -> None:
        axes.plot(curve.rows, curve.scores, color=FIRST, marker="o", markersize=4, label="measured")
        ends = [curve.rows[-1], 2 * curve.rows[-1]]
        expected = curve.scores[-1] + curve.gain
        axes.plot(ends, [curve.scores[-1], expected], color=SECOND, linestyle=_DASHES, label="expected")
        axes.errorbar(ends[1], expected, yerr=curve.error, color=SECOND, marker="o", markersize=4, capsize=3)
        axes.set_xscale("log", base=2)
        places = [*curve.rows, ends[1]]
        axes.set_xticks(places, [f"{place:,}" for place in places])
        axes.minorticks_off()
        axes.set_xlabel("rows")
        axes.legend(loc="lower right")

    return picture(title, paint)


def draw_column_worths(study: ColumnStudy, metric: str) -> str:
    """What the score loses without each column, the dearest on top, with a 95 % interval to either side."""
    shown = study.worths[:_MOST_BARS][::-1]

    def paint(axes: "Axes") -> None:
        places, losses = range(len(shown)), [each.loss for each in shown]
        colours = [SECOND if each.name == THE_TEXT else FIRST for each in shown]
        axes.barh(places, losses, xerr=[1.96 * each.error for each in shown], color=colours, height=0.6)
        axes.set_yticks(places, [shorten_name(each.name) for each in shown])
        axes.axvline(0, color=MUTED, linewidth=1)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"{metric} lost when shuffled")

    return picture("what columns are worth", paint, height=1.2 + 0.3 * len(shown))


def shorten_name(name: str) -> str:
    """A column's name as an axis has room for it; mathematics in it stays text."""
    short = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
    return short.replace("$", r"\$")


def draw_length_bars(found: Sequence[LengthScore], metric: str) -> str:
    """The score of short and of long texts."""

    def paint(axes: "Axes") -> None:
        places = range(len(found))
        axes.bar(places, [each.score for each in found], color=FIRST, width=0.6)
        for place, each in zip(places, found, strict=True):
            axes.annotate(
                f"{each.score:.3f}", (place, each.score), (0, 3), textcoords="offset points", ha="center"
            )
        axes.set_xticks(places, [f"{each.shortest}–{each.longest}\n{each.count:,} texts" for each in found])
        axes.grid(visible=False, axis="x")
        axes.margins(y=0.15)
        axes.set_xlabel("words")
        axes.set_ylabel(metric)

    return picture("score by length", paint)


def draw_scatter(gold: Floats, given: Floats) -> str:
    """(E,) right and predicted scores; of very many examples, some at equal distances."""
    step = -(-len(gold) // MOST_DOTS)

    def paint(axes: "Axes") -> None:
        ends = [float(gold.min()), float(gold.max())]
        axes.plot(ends, ends, color=MUTED, linewidth=1, linestyle=_DASHES)
        axes.scatter(gold[::step], given[::step], color=FIRST, s=12, alpha=0.4, linewidths=0)
        axes.set_xlabel("right score")
        axes.set_ylabel("predicted score")

    return picture("right and predicted scores", paint)


def draw_reliability_diagram(found: Calibration) -> str:
    """How often answers of some confidence are right; a dot is the larger, the more answers it stands for."""

    def paint(axes: "Axes") -> None:
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=_DASHES)
        if found.before is not None:
            _draw_bins(axes, reliability(found.before, found.correct), FIRST, "before temperature scaling")
        label = "as the model says" if found.before is None else "after"
        _draw_bins(axes, reliability(found.confidence, found.correct), SECOND, label)
        axes.set_xlabel("confidence")
        axes.set_ylabel("share right")
        axes.legend(loc="upper left")

    return picture("reliability", paint)


def _draw_bins(axes: "Axes", bins: Sequence[ReliabilityBin], colour: str, label: str) -> None:
    total = sum(each.count for each in bins)
    x, y = [each.confidence for each in bins], [each.accuracy for each in bins]
    axes.plot(x, y, color=colour, linewidth=1.2, label=label)
    axes.scatter(
        x, y, s=[12 + 140 * each.count / total for each in bins], color=colour, alpha=0.8, linewidths=0
    )


def draw_risk_curve(confidence: Floats, error: Floats, chosen: Point | None = None) -> str:
    """The mean error (A,) of the surest answers, by the share of texts that they are.

    `chosen` is the coverage and risk of the threshold in use.
    """
    points = risk_points(confidence, error)

    def paint(axes: "Axes") -> None:
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=SECOND, marker="o" if len(points) == 1 else None)
        if chosen is not None:
            axes.scatter([chosen[0]], [chosen[1]], color=FIRST, s=44, zorder=3, label="threshold in use")
            axes.legend(loc="upper left")
        axes.set_xlim(0, 1.02)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("share of texts answered, the surest first")
        axes.set_ylabel("error among them")

    return picture("risk and coverage", paint)


def risk_points(confidence: Floats, error: Floats) -> list[Point]:
    """(coverage, mean error) for each threshold there is; equal confidences are answered together."""
    order = np.argsort(-confidence, kind="stable")
    ranked, errors = confidence[order], np.cumsum(error[order])
    ends = np.flatnonzero(np.append(ranked[1:] < ranked[:-1], True))
    curve = Curve(MOST_POINTS)
    for end in ends.tolist():
        curve.add((end + 1) / len(ranked), float(errors[end]) / (end + 1))
    return curve.points()

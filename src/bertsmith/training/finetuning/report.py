"""Writes report.html of a fine-tuning run: how good the model is beside its baselines, where it errs, and
whether its confidence can be trusted.

figures.py makes the tables, the functions below draw the pictures, in the style of reporting/charts.py.

E examples, A answers with a confidence.
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
from bertsmith.reporting import formatting, tables
from bertsmith.reporting.charts import FIRST, MOST_POINTS, MUTED, SECOND, Curve, Point, picture, smooth
from bertsmith.reporting.page import REPORT_FILE, as_markup, render_page
from bertsmith.tasks.evaluating.error_analysis import Calibration, ErrorAnalysis
from bertsmith.training.finetune_recipe import MADE_FROM_EPOCHS, FinetuneRecipe
from bertsmith.training.finetuning import figures
from bertsmith.training.finetuning.column_study import ColumnStudy
from bertsmith.training.finetuning.methods import UNTRAINED, describe_methods
from bertsmith.training.finetuning.results import LearningCurve, Results, hash_data
from bertsmith.training.log import LOG_FILE, Record, RunLog
from bertsmith.training.run_report import environment
from bertsmith.training.settings import override

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Pictures = list[tuple[str, Any]]
TEMPLATE = "finetune.html.jinja"
# Settings that have no effect for a method that doesn't train the encoder.
_TRAINING_SETTINGS = (
    *("epochs", "batch_size", "micro_batch_tokens", "evaluations", "patience", "restarts", "dropout"),
    *("freeze_embeddings", "freeze_layers", "lora", "optimizer", "guard", "log_every", "trackers"),
)
MOST_DOTS = 2000
_GOLDEN = 0.6180339887  # the fractional parts of its multiples spread dots evenly
_DASHES = (0, (2, 3))
_MOST_BARS, _LONGEST_NAME = 15, 24


def write_finetune_report(
    out: Path, recipe: FinetuneRecipe, results: Results, typed: FinetuneRecipe | None = None
) -> Path:
    """Writes report.html to the run folder and returns its path. The same results give the same bytes.

    `recipe` is the one that was trained by. `typed` is the one whose command repeats the run, by default the
    same. Curves come from out/restarts/N/log.jsonl. Raises ResourceError if the disk is full or the folder
    can't be written.
    """
    path = Path(out) / REPORT_FILE
    atomic_write(path, render_finetune(out, recipe, results, typed))
    return path


def render_finetune(
    out: Path, recipe: FinetuneRecipe, results: Results, typed: FinetuneRecipe | None = None
) -> str:
    """Renders the page as HTML. Strings from data, such as texts and labels, are escaped."""
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
    """The template's variables that come from the results: tables, pictures and errors. `logs` are those of
    the restarts, from which the curves are drawn.
    """
    task, dev = results.task, results.evaluations.get(results.judge)
    details = results.error_analysis.get(results.judge, ErrorAnalysis())
    errors, names = results.standard_errors, results.names
    curve, study = results.learning_curve, results.columns
    answered: tuple[Any, Any] | None = None
    pairs = [
        (answer.confidence, 1 - answer.score) for answer in details.answers if answer.confidence is not None
    ]
    if pairs:
        confidence, error = np.array(pairs, np.float64).T  # (A,) each
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
        "names": None if names is None else figures.names_table(names),
        "names_in_words": ""
        if names is None
        else " ".join(names.sentences(estimate=not results.evaluations)),
        "unsure": None if names is None else figures.unsure_table(names),
        "metrics_in_words": tables.explain_metrics(dev.model) if dev else "",
        "class_figures_in_words": tables.CLASS_FIGURES,
        "judge": results.judge,
        "tried": figures.method_table(results) if results.tried else None,
        "methods_in_words": describe_methods([tried.method for tried in results.tried], task),
        "more_rows": more_rows,
        "more_rows_in_words": " ".join(
            part.as_sentence(task.main_metric) for part in (results.expected, curve) if part
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
        "where": _error_pictures(results, details) if dev else [],
        "sure": _confidence_pictures(results, details, answered),
        "calibration": [(figures.metric_name(n), f"{v:.4f}") for n, v in results.figures.items()],
        "calibration_in_words": tables.explain_metrics(results.figures),
        "coverage": None if answered is None else figures.coverage_table(*answered),
        "worst": figures.worst_errors(task, dev, details) if dev else [],
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
    """The settings of the run and of the task beside their defaults, and the task's remarks on the data. If
    the encoder wasn't trained, settings that only its training reads are left out.
    """
    task = results.task
    values = _recipe_values(recipe) | task.settings.model_dump(mode="json")
    defaults = _recipe_values(_default_recipe(recipe)) | type(task).Settings().model_dump(mode="json")
    unused = _TRAINING_SETTINGS if results.method in UNTRAINED else ()
    used = tables.settings({name: value for name, value in values.items() if name not in unused}, defaults)
    return [*used, *(tables.Setting(name, remark, None) for name, remark in task.remarks().items())]


def _default_recipe(recipe: FinetuneRecipe) -> FinetuneRecipe:
    return FinetuneRecipe(
        task=recipe.task, model=recipe.model, train=recipe.train or ("rows",), out=recipe.out
    )


def _recipe_values(recipe: FinetuneRecipe) -> dict[str, Any]:
    """The recipe's values for JSON, without those made from epochs, and without the task's settings."""
    return recipe.model_dump(mode="json", exclude={*MADE_FROM_EPOCHS, "settings"})


def format_command(recipe: FinetuneRecipe) -> str:
    """The command that repeats this run. It gives the settings that differ from their defaults. It also gives
    those that were given or chosen and whose default isn't what leaving them out means (`recipe.given`).
    """
    files = {"train": recipe.train, "dev": (recipe.dev,), "test": (recipe.test,)}
    words = ["bertsmith", "finetune", recipe.task, "--model", recipe.model]
    for name, paths in files.items():
        for path in filter(None, paths):
            words += [f"--{name}", path]
    words += ["--out", "runs/again"]
    if isinstance(recipe.names, str):
        words += ["--labels", recipe.names]
    elif recipe.names is not None:  # with commas in them, perhaps, or with descriptions
        words.append(f"names={format_override(recipe.names)}")
    if recipe.hint is not None:
        words += ["--hint", recipe.hint]
    defaults = dict(tables.flatten(_recipe_values(_default_recipe(recipe))))
    for name, value in (*tables.flatten(_recipe_values(recipe)), *recipe.settings.items()):
        if value is None or name.partition(".")[0] in (*files, "task", "model", "out", "names", "hint"):
            continue
        if defaults.get(name) != value or name in recipe.given:
            words.append(f"{name}={format_override(value)}")
    return shlex.join(words)


def format_override(value: Any) -> str:
    """Formats a setting's value as `override` reads it: text as it is, if it is read as the same text, and
    everything else as TOML, which is the same as JSON for lists, numbers, booleans and strings.
    """
    if isinstance(value, str):
        parsed: dict[str, Any] = {}
        override(parsed, f"value={value}")
        if parsed["value"] == value:
            return value
    return _as_toml(value)


def _as_toml(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{json.dumps(name, ensure_ascii=False)}={_as_toml(item)}" for name, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    return json.dumps(value, ensure_ascii=False)


def read_log(folder: Path) -> list[Record]:
    """Reads a restart's log; empty if the file was removed."""
    return RunLog.read(folder) if (folder / LOG_FILE).exists() else []


def describe_environment(
    seed: int, logs: Sequence[Sequence[Record]], hashes: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Versions, the machine, the model and the seed of the run, and the hashes of its files, as (name,
    value).
    """
    starts = [record for log in logs for record in log if record["kind"] == "start"]
    machine = starts[-1].get("machine") if starts else None
    facts = {name: value for name, value in (machine or {}).items() if name not in ("data", "peak")}
    file_hashes = {f"SHA-256 of {name}": value for name, value in hashes.items()}
    return tables.raw_facts(environment(seed, Hardware.detect()) | facts | file_hashes)


# -- which pictures ------------------------------------------------------------------------------------


def _restart_picture(results: Results) -> Any:
    scores = results.scores
    if len(scores) < 2:
        return None
    best = scores.index(max(scores))  # the first of equal ones, as best_restart_index chooses
    metric = figures.metric_name(results.task.main_metric)
    scores_to_beat = figures.baselines_to_beat(results).items()
    baselines = {baseline_title(name): score for name, score in scores_to_beat}
    return as_markup(draw_restart_strip(scores, best, baselines, metric))


def _curve_pictures(logs: Sequence[Sequence[Record]], results: Results) -> Pictures:
    """Pictures of the training loss and of the main metric on dev, with a line for each restart."""
    metric = results.task.main_metric
    losses = [_points(log, "step", "loss") for log in logs]
    losses = [smooth(line, min(0.85, 1 - 20 / len(line))) if len(line) > 20 else line for line in losses]
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
    """Pictures of where the model errs: its score by the length of texts, and predicted by right numbers."""
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
    """Pictures of how often answers of some confidence are right, and of the error if only the surest texts
    are answered. `answered` has the confidence and error (A,) of the answers.
    """
    pictures = []
    if details.calibration is not None:
        diagram = as_markup(draw_reliability_diagram(details.calibration))
        pictures.append((f"Confidence and truth of {details.calibration.unit}", diagram))
    if answered is not None:
        measured = results.figures
        chosen = (measured["coverage"], measured["risk"]) if "coverage" in measured else None
        pictures.append(("Error by share answered", as_markup(draw_risk_curve(*answered, chosen))))
    return pictures


# -- the pictures --------------------------------------------------------------------------------------


def draw_restart_strip(
    scores: Sequence[float], best: int, baselines: Mapping[str, float], metric: str
) -> str:
    """Draws a dot for each restart, the best one in another colour, and the mean and baselines as lines."""

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
    """Draws a line for each restart, that of the best one on top in another colour."""

    def paint(axes: "Axes") -> None:
        for index in sorted(range(len(curves)), key=lambda index: index == best):
            points = curves[index]
            if not points:
                continue
            x, y = zip(*points, strict=True)
            is_best = index == best
            marker = "o" if markers or len(points) == 1 else None
            axes.plot(
                x,
                y,
                color=SECOND if is_best else FIRST,
                alpha=1.0 if is_best else 0.45,
                marker=marker,
                markersize=3.5,
            )
        axes.set_xlabel(x_label)

    return picture(title, paint)


def draw_learning_curve(title: str, curve: LearningCurve) -> str:
    """Draws the score by training rows, and the score expected of twice as many, ± its standard error."""

    def paint(axes: "Axes") -> None:
        axes.plot(curve.rows, curve.scores, color=FIRST, marker="o", markersize=4, label="measured")
        ends = [curve.rows[-1], 2 * curve.rows[-1]]
        expected = curve.scores[-1] + curve.gain
        axes.plot(ends, [curve.scores[-1], expected], color=SECOND, linestyle=_DASHES, label="expected")
        axes.errorbar(ends[1], expected, yerr=curve.error, color=SECOND, marker="o", markersize=4, capsize=3)
        axes.set_xscale("log", base=2)
        ticks = [*curve.rows, ends[1]]
        axes.set_xticks(ticks, [f"{rows:,}" for rows in ticks])
        axes.minorticks_off()
        axes.set_xlabel("rows")
        axes.legend(loc="lower right")

    return picture(title, paint)


def draw_column_worths(study: ColumnStudy, metric: str) -> str:
    """Draws what the score loses if each column is shuffled, the largest loss on top, with 95 % intervals."""
    shown = study.worths[:_MOST_BARS][::-1]

    def paint(axes: "Axes") -> None:
        positions, losses = range(len(shown)), [worth.loss for worth in shown]
        colours = [SECOND if worth is study.worths[0] else FIRST for worth in shown]  # the text's
        axes.barh(positions, losses, xerr=[1.96 * worth.error for worth in shown], color=colours, height=0.6)
        axes.set_yticks(positions, [shorten_name(worth.name) for worth in shown])
        axes.axvline(0, color=MUTED, linewidth=1)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"{metric} lost when shuffled")

    return picture("what columns are worth", paint, height=1.2 + 0.3 * len(shown))


def shorten_name(name: str) -> str:
    """Shortens a column's name for an axis, and escapes dollar signs, which would begin a formula."""
    short = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
    return short.replace("$", r"\$")


def draw_length_bars(scores: Sequence[LengthScore], metric: str) -> str:
    """Draws a bar with the score of each range of lengths."""

    def paint(axes: "Axes") -> None:
        positions = range(len(scores))
        axes.bar(positions, [length.score for length in scores], color=FIRST, width=0.6)
        for position, length in zip(positions, scores, strict=True):
            axes.annotate(
                f"{length.score:.3f}",
                (position, length.score),
                (0, 3),
                textcoords="offset points",
                ha="center",
            )
        counts = [formatting.counted(length.count, "text") for length in scores]
        labels = [
            f"{length.shortest}–{length.longest}\n{count}"
            for length, count in zip(scores, counts, strict=True)
        ]
        axes.set_xticks(positions, labels)
        axes.grid(visible=False, axis="x")
        axes.margins(y=0.15)
        axes.set_xlabel("words")
        axes.set_ylabel(metric)

    return picture("score by length", paint)


def draw_scatter(gold: Floats, predicted: Floats) -> str:
    """Draws predicted by right numbers (E,); of very many examples only every n-th."""
    step = -(-len(gold) // MOST_DOTS)

    def paint(axes: "Axes") -> None:
        ends = [float(gold.min()), float(gold.max())]
        axes.plot(ends, ends, color=MUTED, linewidth=1, linestyle=_DASHES)
        axes.scatter(gold[::step], predicted[::step], color=FIRST, s=12, alpha=0.4, linewidths=0)
        axes.set_xlabel("right score")
        axes.set_ylabel("predicted score")

    return picture("right and predicted scores", paint)


def draw_reliability_diagram(calibration: Calibration) -> str:
    """Draws the share of right answers by confidence, with larger dots for more answers; also as it was
    before temperature scaling, if there was any.
    """
    before, confidence, correct = calibration.before, calibration.confidence, calibration.correct

    def paint(axes: "Axes") -> None:
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=_DASHES)
        if before is not None:
            _draw_bins(axes, reliability(before, correct), FIRST, "before temperature scaling")
        label = "as the model says" if before is None else "after"
        _draw_bins(axes, reliability(confidence, correct), SECOND, label)
        axes.set_xlabel("confidence")
        axes.set_ylabel("share right")
        axes.legend(loc="upper left")

    return picture("reliability", paint)


def _draw_bins(axes: "Axes", bins: Sequence[ReliabilityBin], colour: str, label: str) -> None:
    total = sum(bin_.count for bin_ in bins)
    x, y = [bin_.confidence for bin_ in bins], [bin_.accuracy for bin_ in bins]
    sizes = [12 + 140 * bin_.count / total for bin_ in bins]
    axes.plot(x, y, color=colour, linewidth=1.2, label=label)
    axes.scatter(x, y, s=sizes, color=colour, alpha=0.8, linewidths=0)


def draw_risk_curve(confidence: Floats, error: Floats, chosen: Point | None = None) -> str:
    """Draws the mean error of the answers with the highest confidence, by their share of all answers (A,).
    `chosen` is the coverage and risk of the threshold in use, drawn as a dot.
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
    """The points (coverage, mean error) of each threshold of confidence. Answers with equal confidence are in
    or out together; neighbouring points are averaged down to `MOST_POINTS`.
    """
    order = np.argsort(-confidence, kind="stable")
    ranked, errors = confidence[order], np.cumsum(error[order])
    ends = np.flatnonzero(np.append(ranked[1:] < ranked[:-1], True))
    curve = Curve(MOST_POINTS)
    for end in ends.tolist():
        curve.add((end + 1) / len(ranked), float(errors[end]) / (end + 1))
    return curve.points()

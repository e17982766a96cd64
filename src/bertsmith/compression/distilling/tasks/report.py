"""`report.html` of a distillation: the student's scores and costs beside its teacher's, and its errors."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bertsmith.compression.distilling.recipes import COLUMNS, DistilRecipe
from bertsmith.compression.distilling.tasks.results import ALONE, STUDENT, Cost, DistilResults
from bertsmith.files import atomic_write
from bertsmith.metrics.baselines import baseline_title
from bertsmith.reporting import formatting, tables
from bertsmith.reporting.page import REPORT_FILE, render_page
from bertsmith.training.finetune_recipe import CHOSEN, MADE_FROM_EPOCHS
from bertsmith.training.finetuning import figures
from bertsmith.training.finetuning.report import (
    describe_environment,
    format_override,
    read_log,
    results_context,
)

_FILES = ("teacher", "texts", "train", "dev", "test", "out", "student", "layers", "task")


def write_distil_report(
    out: Path, recipe: DistilRecipe, results: DistilResults, hashes: Mapping[str, str]
) -> Path:
    """Writes the page into the run's folder and returns its path; the same results give the same bytes.

    Curves come from the logs of out/student and out/alone. Raises ResourceError when the disk is full or the
    folder can't be written.
    """
    path = Path(out) / REPORT_FILE
    atomic_write(path, render_distil(out, recipe, results, hashes))
    return path


def render_distil(out: Path, recipe: DistilRecipe, results: DistilResults, hashes: Mapping[str, str]) -> str:
    """The page as HTML, with texts, labels and all other data escaped."""
    student, task = results.student, results.student.task
    logs = [read_log(out / name) for name in (STUDENT, ALONE)[: 2 if results.alone else 1]]
    teachers = " and ".join(name.removesuffix("/model") for name in recipe.teacher)
    agreement = ", ".join(f"{value:.4f} on {name}" for name, value in results.agreement.items())
    if agreement:
        metric = figures.metric_name(results.metric)
        agreement = (
            f"Agreement, which is the student's {metric} with the teacher's answers for labels: {agreement}."
        )
    return render_page(
        "distil.html.jinja",
        title=f"Distillation · {out.resolve().name}",
        status=f"{task.name} · taught by {teachers} · {student.train_rows:,} labelled rows, "
        f"{results.texts:,} texts",
        headline=_headline(results),
        warnings=results.warnings,
        compared=[_compare_scores(results, name) for name in student.evaluations],
        agreement=agreement,
        labels_of_teacher=results.labels_of_teacher,
        saving=_compare_costs(results),
        alone=bool(results.alone),
        settings=tables.settings(_as_values(recipe), _as_values(_default_recipe(recipe))),
        command=format_command(recipe),
        environment=describe_environment(recipe.seed, logs, hashes),
        **results_context(student, logs),
    )


def format_command(recipe: DistilRecipe) -> str:
    """The shell command that repeats this run."""
    words = ["bertsmith", "distil", *recipe.teacher]
    for name, paths in (("texts", recipe.texts), ("train", recipe.train)):
        for path in paths:
            words += [f"--{name}", path]
    for name in ("dev", "test", "student", "task"):
        if (value := getattr(recipe, name)) is not None:
            words += [f"--{name}", value]
    if recipe.layers is not None:
        layers = (recipe.layers,) if isinstance(recipe.layers, int) else recipe.layers
        words += ["--layers", ",".join(map(str, layers))]
    words += ["--out", "runs/again"]
    defaults = dict(tables.flatten(_as_values(_default_recipe(recipe))))
    settings = [
        (name if name in COLUMNS else f"settings.{name}", value) for name, value in recipe.settings.items()
    ]
    for name, value in (*tables.flatten(_as_values(recipe)), *settings):
        if value is None or name in _FILES:
            continue
        if defaults.get(name) != value or name in CHOSEN:
            words.append(f"{name}={format_override(value)}")
    return shlex.join(words)


def _default_recipe(recipe: DistilRecipe) -> DistilRecipe:
    return DistilRecipe(teacher=recipe.teacher, texts=recipe.texts, train=recipe.train, out=recipe.out)


def _as_values(recipe: DistilRecipe) -> dict[str, Any]:
    return recipe.model_dump(mode="json", exclude={*MADE_FROM_EPOCHS, "settings"})


def _headline(results: DistilResults) -> list[tuple[str, str]]:
    """The tiles at the top of the page, (what it is, figure), the most important first."""
    metric, student, saving = results.metric, results.student, results.saving
    tiles = []
    for name, evaluation in student.evaluations.items():
        title = f"{figures.metric_name(metric)} on {name}, ± standard error"
        tiles.append(
            (title, figures.format_figure(metric, evaluation.model[metric], student.standard_errors[name]))
        )
        if (share := results.share_kept(name)) is not None:
            tiles.append((f"of the teacher's on {name}", formatting.percent(share)))
    if results.alone:
        alone = results.alone[student.judge][metric]
        tiles.append((f"without the teacher, on {student.judge}", figures.format_figure(metric, alone)))
    if saving.teacher is not None:
        share = saving.student.parameters / saving.teacher.parameters
        tiles.append(("of the teacher's time", formatting.percent(saving.share)))
        tiles.append(("of its parameters", formatting.percent(share)))
    return [*tiles, ("of training", formatting.duration(student.restarts[0].seconds))]


def _compare_scores(results: DistilResults, name: str) -> tables.Table:
    """The table of an evaluation's metrics: the student, its teacher, the student alone, and the
    baselines.
    """
    evaluation, error = results.student.evaluations[name], results.student.standard_errors[name]
    names = list(evaluation.model)
    rows = []
    for system, metrics in results.beside(name).items():
        cells = [formatting.score(metrics.get(metric)) for metric in names]
        if system == "the student" and error is not None:
            cells[names.index(results.metric)] += f" ± {error:.4f}"
        rows.append([baseline_title(system), *cells])
    return tables.Table(f"{name}: {evaluation.rows:,} rows", ["", *map(figures.metric_name, names)], rows)


def _compare_costs(results: DistilResults) -> tables.Table:
    saving = results.saving
    student, teacher = saving.student, saving.teacher
    shown: dict[str, Callable[[Cost], str]] = {
        "parameters": lambda cost: f"{cost.parameters:,}",
        "weights on disk": lambda cost: formatting.bytes(cost.bytes),
        "time for a text, in batches": lambda cost: f"{1e3 * cost.seconds:.2f} ms",
        "time for a text, one at a time": lambda cost: f"{1e3 * cost.alone:.2f} ms",
    }
    if teacher is None:
        return tables.Table("", ["", "Student"], [[name, show(student)] for name, show in shown.items()])
    shares = (
        student.parameters / teacher.parameters,
        student.bytes / teacher.bytes,
        saving.share,
        saving.share_alone,
    )
    rows = [
        [name, show(teacher), show(student), formatting.percent(share)]
        for (name, show), share in zip(shown.items(), shares, strict=True)
    ]
    return tables.Table("", ["", "Teacher", "Student", "Share"], rows)

"""`report.html` of a search: the trials, what each setting did to the score, the best one's command."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.files import atomic_write
from bertsmith.reporting import formatting
from bertsmith.reporting.charts import FIRST, MUTED, SECOND, picture
from bertsmith.reporting.page import REPORT_FILE, as_markup, render_page
from bertsmith.reporting.tables import Table
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.finetuning.report import command
from bertsmith.training.finetuning.results import Results
from bertsmith.training.tuning.trials import COMPLETE, Trial, leading_trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOGARITHMIC = {"optimizer.learning_rate"}


def write_tune_report(
    out: Path, trials: Sequence[Trial], importance: dict[str, float], recipe: FinetuneRecipe, results: Results
) -> Path:
    """Writes the page into the search's folder; the same trials give the same bytes."""
    best = leading_trial(trials)
    assert best is not None
    metric = results.task.main_metric
    by = "on dev" if results.judge == "dev" else f"by {results.judge}"
    columns, rows = trial_rows(trials)
    page = render_page(
        "tune.html.jinja",
        title=f"Search · {out.resolve().name}",
        status=f"{recipe.task} · {len(trials)} trials on {results.train_rows:,} rows",
        headline=[
            (f"{metric} {by}, trial {best.number}", formatting.score(best.score)),
            ("the baseline, trial 0", formatting.score(trials[0].score)),
            ("trials given up early", str(sum(trial.state != COMPLETE for trial in trials))),
        ],
        warnings=results.warnings,
        pictures=_pictures(trials, best, f"{metric} {by}"),
        importance=Table("", ["Setting", "Share"], [[name, f"{s:.0%}"] for name, s in importance.items()]),
        trials=Table("", columns, rows),
        command=command(recipe),
    )
    path = out / REPORT_FILE
    atomic_write(path, page)
    return path


def trial_rows(trials: Sequence[Trial]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a table of trials, the best first."""
    names = list(trials[0].choice)
    ended = sorted(trials, key=lambda trial: (trial.state != COMPLETE, -(trial.score or 0.0), trial.number))
    rows = [
        [
            f"{trial.number} (baseline)" if trial.number == 0 else str(trial.number),
            formatting.score(trial.score),
            *(f"{trial.choice[name]:.4g}" for name in names),
            f"{trial.seconds:.0f}",
            trial.state,
        ]
        for trial in ended
    ]
    return ["Trial", "Score", *(name.removeprefix("optimizer.") for name in names), "Seconds", "Ended"], rows


def _pictures(trials: Sequence[Trial], best: Trial, metric: str) -> list[tuple[str, Any]]:
    scored = [trial for trial in trials if trial.score is not None]
    numbers = [(float(trial.number), trial) for trial in scored]
    found = [("Score by trial", as_markup(_dots("Score by trial", "trial", numbers, best, metric)))]
    for name in best.choice:
        places = [(float(trial.choice[name]), trial) for trial in scored]
        found.append((f"Score by {name}", as_markup(_dots(f"Score by {name}", name, places, best, metric))))
    return found


def _dots(title: str, x_label: str, places: Sequence[tuple[float, Trial]], best: Trial, metric: str) -> str:
    """One dot a trial: the best in another colour, those given up in grey."""

    def paint(axes: "Axes") -> None:
        for x, trial in places:
            colour = SECOND if trial == best else FIRST if trial.state == COMPLETE else MUTED
            axes.scatter([x], [trial.score or 0.0], color=colour, s=34)
        if x_label in _LOGARITHMIC:
            axes.set_xscale("log")
        axes.set_xlabel(x_label)
        axes.set_ylabel(metric)

    return picture(title, paint)

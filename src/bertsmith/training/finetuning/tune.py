"""Searches for the settings that suit a task, by trials of fine-tuning, and keeps the best trial's model.

out/search.json      what is searched          out/trials/N/       logs, and the best trial's weights
out/trials.json      every finished trial      out/best.toml       the best trial's recipe
out/report.html      the trials as a page      out/model/          its model, for transformers too

Optuna proposes the settings. The trials are stored here, because optuna's own storage needs a lock that stays
behind when a process is killed. Each proposal is a function of the seed and the trials before it: a trial
that was killed is repeated with the same settings, and the search goes on as if nothing had happened.
"""

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertsmith.argument_checks import (
    any_of,
    check_arguments,
    check_flag,
    check_function,
    check_path,
    check_text,
    list_of,
    optional,
)
from bertsmith.errors import NotFinite, RecipeError, TrainingStopped, require
from bertsmith.reporting.charts import FIRST, MUTED, SECOND, picture
from bertsmith.reporting.page import as_markup, write_page
from bertsmith.reporting.tables import Table
from bertsmith.training.finetune_recipe import FLOP_A_MINUTE, FinetuneRecipe
from bertsmith.training.finetuning.choosing import choose_method, read_choice, write_choice
from bertsmith.training.finetuning.effort import complete_recipe, plan_comparison
from bertsmith.training.finetuning.finetune_session import FinetuneSession
from bertsmith.training.finetuning.measuring import measure, save_model
from bertsmith.training.finetuning.methods import FULL, LINEAR, require_trained
from bertsmith.training.finetuning.report import format_command
from bertsmith.training.finetuning.restarts import Restart, score_on_dev
from bertsmith.training.finetuning.results import Results, hash_data, write_results
from bertsmith.training.finetuning.search import (
    COMPLETE,
    DIVERGED,
    PRUNED,
    Choice,
    SettingSearch,
    Trial,
    begin_search,
    best_trial,
    build_study,
    keep_trials,
    make_search,
    measure_importance,
    open_search,
    trial_folder,
    trial_rows,
)
from bertsmith.training.finetuning.task_run import BestWeights, TaskRun
from bertsmith.training.run import Run
from bertsmith.training.run_folder import write_recipe

OnTrial = Callable[[Trial], None]
BEST_FILE = "best.toml"
_LOGARITHMIC = {"optimizer.learning_rate"}


@dataclass(frozen=True)
class TuneResult:
    """The search's folder, its trials (trial 0 is the baseline), the share of the scores' variance that each
    setting explains, the results of the best trial's model, and its recipe.
    """

    out: Path
    trials: list[Trial]
    importance: dict[str, float]
    results: Results
    recipe: FinetuneRecipe

    @property
    def best(self) -> Trial:
        """The trial whose model was kept."""
        best = best_trial(self.trials)
        assert best is not None
        return best


@check_arguments(
    task=check_text,
    overrides=list_of(check_text),
    model=check_path,
    train=any_of(check_path, list_of(check_path)),
    out=check_path,
    dev=optional(check_path),
    test=optional(check_path),
    resume=check_flag,
    on_trial=optional(check_function),
)
def tune(
    task: str,
    *overrides: str,
    model: str,
    train: str | Sequence[str],
    out: str,
    dev: str | None = None,
    test: str | None = None,
    resume: bool = False,
    on_trial: OnTrial | None = None,
    **values: Any,
) -> TuneResult:
    """Searches learning rate, layer decay, epochs, batch size and frozen layers by the score on dev, or, for
    few rows without one, by cross-validation.

    Arguments are those of `finetune`, with `trials`, `prune` and bounds such as `search.learning_rate=[1e-5,
    1e-3]` among the settings; what is given is not searched. `on_trial` hears of each trial that is over.
    With `resume`, goes on where a search was interrupted, or to more `trials`. One process only. Raises
    MissingExtra without optuna, and what `finetune` raises, before anything is trained.
    """
    require("optuna", "tune", "bertsmith tune")
    files = {"task": task, "model": model, "train": train, "out": out, "dev": dev, "test": test}
    search = make_search({k: v for k, v in (files | values).items() if v is not None}, list(overrides))

    def check_folder() -> FinetuneRecipe:
        open_search(search, Path(out), resume)
        return search.recipe

    with Run.open(check_folder, resume) as run:
        return _run(run, search, on_trial)


def _run(run: Run[FinetuneRecipe], search: SettingSearch, on_trial: OnTrial | None) -> TuneResult:
    if run.machine.ranks.count > 1:
        raise RecipeError("tune runs in one process. Start it without torchrun.")
    out, trials = run.out, open_search(search, run.out, run.resume)
    session = FinetuneSession.open(search.recipe, run.machine, folds=True)
    recipe = complete_recipe(session, FULL, search.recipe)
    if session.folds is not None:  # `finetune` would choose a method
        recipe = recipe.model_copy(update={"method": FULL})
    completed = replace(search, recipe=recipe)
    space = completed.distributions(session.searched_layers)
    if not space:
        raise RecipeError(
            "tune: every setting is given, so nothing is left to search. Leave one of them out."
        )
    shortest = completed.shortest_recipe(space)
    shortest.resolve(session.steps_per_epoch(shortest), shortest.seed)  # refuses, before anything is written
    least = completed.smallest_trained_recipe(space)
    require_trained(least, session.task, session.start(least, least.seed))
    session.data.require_negatives(least)
    begin_search(search, out, hash_data(search.recipe))
    search = completed
    while len(trials) < search.settings.trials:
        trial = _run_next_trial(run, search, space, session, trials)
        trials.append(trial)
        keep_trials(out, trials)
        if on_trial is not None:
            on_trial(trial)
    best = best_trial(trials)
    if best is None:
        raise TrainingStopped("Every trial diverged. Search lower rates: search.learning_rate=[1e-6,1e-5].")
    recipe = search.recipe_of(best.choice)
    folder = trial_folder(out, best.number)
    choice = read_choice(folder) if session.folds is not None else None
    if choice is not None:
        recipe = recipe.model_copy(
            update={"minutes": math.ceil(plan_comparison(session, recipe).total() / FLOP_A_MINUTE)}
        )
        model = session.learn(FULL, recipe, session.train)
        restart = Restart(recipe.seed, best.score or 0.0, best.steps, best.steps, best.seconds)
    else:
        model = session.finish(recipe, folder)
        weights = BestWeights(folder / "best", session.task.main_metric)
        weights.resume(best.steps)
        score = score_on_dev(run, session, weights, lambda: model)
        restart = Restart(recipe.seed, score, weights.step, best.steps, best.seconds)
    results = measure(session, recipe, model, [restart], choice)
    write_best_recipe(out, recipe, best, results.judge)
    save_model(session, out / "model", model, recipe, results, trials=len(trials), judged_by=results.judge)
    write_results(out, results)
    importance = measure_importance(trials, space, recipe.seed)
    write_tune_report(out, trials, importance, recipe, results)
    return TuneResult(out, trials, importance, results, recipe)


def _run_next_trial(
    run: Run[FinetuneRecipe],
    search: SettingSearch,
    space: dict[str, Any],
    session: FinetuneSession,
    trials: list[Trial],
) -> Trial:
    """Asks optuna for the next settings and trains with them, by the same steps as `finetune` would. Returns
    the finished trial.
    """
    study = build_study(trials, space, search.recipe.seed)
    if not trials:
        study.enqueue_trial(search.baseline(session.searched_layers))
    proposal = study.ask(fixed_distributions=space)
    number, choice = len(trials), dict(proposal.params)
    recipe, folder = search.recipe_of(choice), trial_folder(run.out, number)
    shutil.rmtree(folder, ignore_errors=True)  # a trial that was killed is repeated from the start
    if session.folds is not None:
        return _cross_validate(number, choice, recipe, session, folder)
    model = session.start(recipe, recipe.seed)
    settings = recipe.resolve(session.steps_per_epoch(recipe), recipe.seed)
    pruned = False

    def should_stop(best: BestWeights) -> bool:
        nonlocal pruned
        step, score = best.history[-1]
        proposal.report(score, len(best.history))
        may_prune = search.settings.prune and number > 0 and step < (settings.steps or 0)
        pruned = may_prune and proposal.should_prune()
        return pruned

    observer = run.observer("", {}, settings, folder)
    training = TaskRun(
        *(session.task, model, session.train, session.dev, settings, run.machine, folder, observer),
        should_stop=should_stop,
        measure_first=LINEAR in session.methods,
    )
    start = time.monotonic()
    try:
        with observer.open(0):
            training.run()
    except (TrainingStopped, NotFinite):
        return Trial(number, choice, DIVERGED, None, time.monotonic() - start, 0)
    scores = [score for _, score in training.best.history]
    finite = [score for score in scores if math.isfinite(score)]  # constant predictions have no correlation
    state = DIVERGED if not finite else PRUNED if pruned else COMPLETE
    seconds = time.monotonic() - start
    return Trial(number, choice, state, max(finite, default=None), seconds, training.step, scores)


def _cross_validate(
    number: int, choice: Choice, recipe: FinetuneRecipe, session: FinetuneSession, folder: Path
) -> Trial:
    """Runs a trial on few rows: its score is that of cross-validation, by as much work as that takes."""
    start = time.monotonic()
    try:
        unlimited = recipe.model_copy(update={"minutes": math.inf})
        measured = choose_method(session, unlimited, plan_comparison(session, unlimited))
    except (TrainingStopped, NotFinite):
        return Trial(number, choice, DIVERGED, None, time.monotonic() - start, 0)
    write_choice(folder, measured)
    score, seconds = measured.tried[0].score, time.monotonic() - start
    assert score is not None
    steps = recipe.resolve(session.steps_per_epoch(recipe), recipe.seed).steps or 0
    return Trial(number, choice, COMPLETE, score, seconds, steps, [score])


def write_best_recipe(out: Path, recipe: FinetuneRecipe, best: Trial, judge: str) -> None:
    """Writes best.toml. Its header has the best trial's score, and the command that trains its recipe again.
    `judge` is dev or cross-validation.
    """
    score = f"{best.score:.4f} {'on' if judge == 'dev' else 'by'} {judge}"
    header = f"# Trial {best.number}, {score}. To train it again:\n# {format_command(recipe)}\n"
    write_recipe(recipe, out, BEST_FILE, header)


# -- the page ------------------------------------------------------------------------------------------


def write_tune_report(
    out: Path, trials: Sequence[Trial], importance: dict[str, float], recipe: FinetuneRecipe, results: Results
) -> Path:
    """Writes report.html to the search's folder and returns its path. The same trials give the same bytes."""
    best = best_trial(trials)
    assert best is not None
    metric = results.task.main_metric
    by = "on dev" if results.judge == "dev" else f"by {results.judge}"
    columns, rows = trial_rows(trials)
    return write_page(
        out,
        "tune.html.jinja",
        title=f"Search · {out.resolve().name}",
        status=f"{recipe.task} · {len(trials)} trials on {results.train_rows:,} rows",
        headline=[
            (f"{metric} {by}, trial {best.number}", best.shown_score),
            ("the baseline, trial 0", trials[0].shown_score),
            ("trials given up early", str(sum(trial.state != COMPLETE for trial in trials))),
        ],
        warnings=results.warnings,
        pictures=_draw_pictures(trials, best, f"{metric} {by}"),
        importance=Table("", ["Setting", "Share"], [[name, f"{s:.0%}"] for name, s in importance.items()]),
        trials=Table("", columns, rows),
        command=format_command(recipe),
    )


def _draw_pictures(trials: Sequence[Trial], best: Trial, metric: str) -> list[tuple[str, Any]]:
    """Pictures of the score by the trial's number and by each setting, as (title, SVG)."""
    scored = [trial for trial in trials if trial.score is not None]
    numbers = [(float(trial.number), trial) for trial in scored]
    pictures = [("Score by trial", as_markup(_draw_dots("Score by trial", "trial", numbers, best, metric)))]
    for name in best.choice:
        values, title = [(float(trial.choice[name]), trial) for trial in scored], f"Score by {name}"
        pictures.append((title, as_markup(_draw_dots(title, name, values, best, metric))))
    return pictures


def _draw_dots(
    title: str, x_label: str, points: Sequence[tuple[float, Trial]], best: Trial, metric: str
) -> str:
    """Draws a dot for each trial at its x: the best in another colour, those given up in grey."""

    def paint(axes: Any) -> None:
        for x, trial in points:
            colour = SECOND if trial == best else FIRST if trial.state == COMPLETE else MUTED
            axes.scatter([x], [trial.score or 0.0], color=colour, s=34)
        if x_label in _LOGARITHMIC:
            axes.set_xscale("log")
        axes.set_xlabel(x_label)
        axes.set_ylabel(metric)

    return picture(title, paint)

"""Settings of a task searched within a budget of hours, on dev alone.

OUT/TASK/search is the folder of `bertsmith tune`; OUT/TASK/search/chosen.json what came of it.
"""

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.files import read_json, write_json
from bertsmith.training.finetuning.search import Choice, Trial
from bertsmith.training.finetuning.tune import tune

CHOSEN = "chosen.json"
_MANY = 100_000  # trials: the hours end the search, not their number


class Searched(NamedTuple):
    """The settings that did best on dev, after how many trials that took so many seconds together."""

    choice: Choice
    trials: int
    seconds: float

    def overrides(self) -> list[str]:
        """As `finetune` is told them."""
        return [f"{name}={value!r}" for name, value in self.choice.items()]


class _BudgetSpent(Exception):
    """Ends a search between two trials."""


def search_settings(
    task: str,
    overrides: Sequence[str],
    values: dict[str, Any],
    out: Path,
    hours: float,
    on_trial: Callable[[Trial], None],
) -> Searched:
    """Trials until their seconds exceed `hours`, the last one finished; what was given is not searched.

    A search that was killed goes on, and one that ended is read. `values` are the files and the model, as
    `tune` is told them. Raises what `tune` does.
    """
    stored = out / CHOSEN
    if not stored.exists():
        trials = _trials_until(task, overrides, values, out, hours, on_trial)
        result = tune(task, *overrides, **values, out=str(out), trials=trials, resume=True)
        seconds = sum(trial.seconds for trial in result.trials)
        write_json(stored, Searched(result.best.choice, len(result.trials), seconds)._asdict())
    for folder in ("trials", "model"):  # the seeds train it again, and `tune` can't go on without them
        shutil.rmtree(out / folder, ignore_errors=True)
    return Searched(**read_json(stored))


def _trials_until(
    task: str,
    overrides: Sequence[str],
    values: dict[str, Any],
    out: Path,
    hours: float,
    on_trial: Callable[[Trial], None],
) -> int:
    """Trains trial after trial; how many there are when the budget is spent."""
    before = _trials_of(out)
    spent = sum(seconds for seconds in before)
    done = len(before)
    if done and spent >= hours * 3600:
        return done

    def count(trial: Trial) -> None:
        nonlocal spent, done
        spent, done = spent + trial.seconds, done + 1
        on_trial(trial)
        if spent >= hours * 3600:
            raise _BudgetSpent

    with suppress(_BudgetSpent):
        tune(task, *overrides, **values, out=str(out), trials=_MANY, resume=True, on_trial=count)
    return done


def _trials_of(out: Path) -> list[float]:
    """The seconds of those that ended before."""
    path = out / "trials.json"
    return [record["seconds"] for record in read_json(path)] if path.exists() else []

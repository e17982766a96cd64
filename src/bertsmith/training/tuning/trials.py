"""The trials of a search, and what optuna makes of them: the next proposal, and which settings mattered."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bertsmith.training.tuning.space import Choice

COMPLETE, PRUNED, DIVERGED = "complete", "pruned", "diverged"
_ENOUGH_TO_WEIGH = 4  # trials, below which importance would be chance
_SEEDS = 2**32  # that NumPy's older generator, which optuna draws from, has


@dataclass(frozen=True)
class Trial:
    """One training: its settings, how it ended, its best score on dev, and the score of each evaluation."""

    number: int
    choice: Choice
    state: str
    score: float | None
    seconds: float
    steps: int
    scores: list[float] = field(default_factory=list)


def leading_trial(trials: Sequence[Trial]) -> Trial | None:
    """The best of the trials that were trained to their end; of equals the first."""
    ended = [trial for trial in trials if trial.state == COMPLETE]
    return max(ended, key=lambda trial: (trial.score, -trial.number), default=None)


def study_of(trials: Sequence[Trial], space: dict[str, Any], seed: int) -> Any:
    """An optuna study in memory that knows these trials.

    Its sampler is seeded by how many there are, so that what it proposes next is a function of the seed and
    the trials. A trial is not given up before its second evaluation, nor before four have ended.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=(seed + len(trials)) % _SEEDS),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=2),
    )
    states = optuna.trial.TrialState
    for trial in trials:
        known = optuna.trial.create_trial(
            state=states.COMPLETE if trial.state == COMPLETE else states.PRUNED,
            value=trial.score,
            params=trial.choice,
            distributions=space,
            intermediate_values=dict(enumerate(trial.scores, start=1)),
        )
        study.add_trial(known)
    return study


def importance_of(trials: Sequence[Trial], space: dict[str, Any], seed: int) -> dict[str, float]:
    """How much of the scores' spread each setting explains, by fANOVA (Hutter et al. 2014); they add to 1.

    Empty for too few trials, or when all scored the same.
    """
    import optuna

    scores = {trial.score for trial in trials if trial.state == COMPLETE}
    if len(scores) < 2 or sum(trial.state == COMPLETE for trial in trials) < _ENOUGH_TO_WEIGH:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=seed % _SEEDS)
    study = study_of(trials, space, seed)
    return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))

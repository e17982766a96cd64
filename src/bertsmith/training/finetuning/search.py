"""The space of a search for settings, its trials, what optuna makes of them (the next proposal, and which
settings mattered), and the files of both. tune.py runs the search.

out/search.json    what is searched      out/trials.json    every finished trial

A setting that the user gives is fixed and not searched. The baseline, trial 0, is a point of the space:
default ranges are widened to contain its value, and in given ranges it takes the nearest value.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from bertsmith.errors import RecipeError
from bertsmith.files import make_folder, read_json, write_json
from bertsmith.reporting import formatting
from bertsmith.tasks.registry import find_task
from bertsmith.training.finetune_recipe import (
    FinetuneOptimizer,
    FinetuneRecipe,
    list_finetune_settings,
    make_finetune_recipe,
)
from bertsmith.training.finetuning.task_run import WORST
from bertsmith.training.log import as_json_value
from bertsmith.training.run_folder import MAY_CHANGE, find_differing_names, require_unchanged, require_unused
from bertsmith.training.settings import override
from bertsmith.validation import (
    BY_COMMAS,
    Listed,
    UserSettings,
    check,
    did_you_mean_setting,
    setting_names,
)

Choice = dict[str, float | int]  # dotted name of a setting → its value
_SEVERAL = 2  # layers that a model is taken to have before it is opened
COMPLETE, PRUNED, DIVERGED = "complete", "pruned", "diverged"
_ENOUGH_TO_WEIGH = 4  # complete trials, below which importance would be chance
SEARCH_FILE, TRIALS_FILE = "search.json", "trials.json"
_HASHES = "sha256"  # key in search.json of the labelled files' hashes
_GIVEN = "given"  # key in search.json of the names of settings that the user gave
_SEEDS = 2**32  # seeds of NumPy's legacy generator, which optuna uses


class SearchSettings(UserSettings):
    """Bounds of what is searched, both included. Those left out are widened to the baseline's value."""

    learning_rate: Annotated[tuple[float, float], BY_COMMAS] = (1e-5, 3e-4)
    """Lowest and highest learning rate, drawn on a log scale."""
    layer_decay: Annotated[tuple[float, float], BY_COMMAS] = (0.7, 1.0)
    """Lowest and highest `optimizer.layer_decay`."""
    epochs: Annotated[tuple[int, int], BY_COMMAS] = (2, 6)
    """Fewest and most epochs."""
    batch_size: Listed[int] = Field((16, 32, 64), min_length=1)
    """The batch sizes to try."""
    freeze_layers: Annotated[tuple[int, int], BY_COMMAS] | None = None
    """Fewest and most frozen layers; by default from none to half of the model's."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        for name in ("learning_rate", "layer_decay", "epochs", "freeze_layers"):
            bounds = getattr(self, name)
            lowest = 0 if name == "freeze_layers" else 1 if name == "epochs" else 1e-12
            if bounds is not None and not lowest <= bounds[0] <= bounds[1]:
                raise ValueError(f"search.{name} needs two bounds from {lowest} up, the lower one first")
        for name in ("learning_rate", "layer_decay"):
            limits = FinetuneOptimizer.model_fields[name].metadata
            most = next(limit.le for limit in limits if hasattr(limit, "le"))
            if getattr(self, name)[1] > most:
                raise ValueError(f"search.{name} is at most {most}, as optimizer.{name} is")
        if min(self.batch_size) < 1:
            raise ValueError("search.batch_size needs whole numbers from 1 up")
        return self


class TuneSettings(UserSettings):
    """How many settings a search tries, and between which bounds."""

    trials: int = Field(20, ge=1)
    """How many settings are tried, the baseline included."""
    prune: bool = True
    """Whether a trial ends that is below the median at some evaluation."""
    search: SearchSettings = SearchSettings()


@dataclass(frozen=True)
class SettingSearch:
    """A checked search: the baseline's recipe, the settings of the search, and the dotted names of the
    recipe's settings that the user fixed.
    """

    recipe: FinetuneRecipe
    settings: TuneSettings
    fixed: frozenset[str]

    def baseline(self, layers: int) -> Choice:
        """The recipe's own values of the searched settings, or the nearest within given bounds, for a model
        of so many layers.
        """
        values: Choice = {
            "optimizer.learning_rate": self.recipe.optimizer.learning_rate,
            "optimizer.layer_decay": self.recipe.optimizer.layer_decay,
            "epochs": max(round(self.recipe.epochs), 1),  # the limit of work may be part of an epoch
            "batch_size": self.recipe.batch_size,
            "freeze_layers": self.recipe.freeze_layers,
        }
        if self.recipe.lora.rank or layers < 2:  # LoRA freezes what it is not added to
            del values["freeze_layers"]
        return {name: self._nearest(name, value) for name, value in values.items() if name not in self.fixed}

    @property
    def decided_by_presence(self) -> set[str]:
        """Names of the settings that make another search if the user gives them, whatever the value: given,
        they aren't searched, or (`dev_share`) there is no cross-validation, or bounds aren't widened.
        """
        bounds = (f"search.{name}" for name in SearchSettings.model_fields)
        return {*replace(self, fixed=frozenset()).baseline(_SEVERAL), "dev_share", *bounds}

    def _nearest(self, name: str, value: float) -> float:
        """The value within the given bounds of a setting that is nearest to `value`."""
        bounds = self.given_bounds.get(name.rpartition(".")[2])
        if bounds is None:
            return value
        if name == "batch_size":
            return min(sorted(bounds), key=lambda size: abs(size - value))
        return min(max(value, bounds[0]), bounds[1])

    @property
    def given_bounds(self) -> dict[str, tuple[float, ...]]:
        """The bounds that the user gave, by their names in `SearchSettings`."""
        search = self.settings.search
        bounds = {name: getattr(search, name) for name in sorted(search.model_fields_set)}
        return {name: value for name, value in bounds.items() if value is not None}

    def require_searched(self, layers: int) -> None:
        """Raises RecipeError for bounds of a setting that isn't searched in a model of so many layers."""
        searched = {name.rpartition(".")[2] for name in self.baseline(layers)}
        fixed = {name.rpartition(".")[2]: name for name in self.fixed}
        for name in self.given_bounds:
            if name in searched:
                continue
            if name in fixed:
                raise RecipeError(
                    f"search.{name} has no effect, since {fixed[name]} is given. Leave one of them out."
                )
            raise RecipeError(
                f"search.{name} has no effect: {name} isn't searched with LoRA, nor in a model of one layer "
                "or of layers with the same weights. Leave it out."
            )

    def distributions(self, layers: int) -> dict[str, Any]:
        """Optuna's distributions by dotted name, for a model of so many layers. Raises RecipeError for bounds
        of more frozen layers than there are, and for given bounds of a setting that isn't searched.
        """
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        self.require_searched(layers)
        bounds, baseline = self.settings.search, self.baseline(layers)
        if bounds.freeze_layers is not None and bounds.freeze_layers[1] > layers:
            lowest, most = bounds.freeze_layers
            raise RecipeError(
                f"search.freeze_layers = [{lowest},{most}], but the model has {layers} layers. Give bounds "
                f"up to {layers}."
            )
        space: dict[str, Any] = {}
        for name, value in baseline.items():
            setting_bounds = getattr(bounds, name.rpartition(".")[2])
            if name == "batch_size":
                space[name] = CategoricalDistribution(sorted({*setting_bounds, int(value)}))
                continue
            low, high = setting_bounds or (0, layers // 2)
            low, high = min(low, value), max(high, value)
            if name in ("epochs", "freeze_layers"):
                space[name] = IntDistribution(int(low), int(high))
            else:
                space[name] = FloatDistribution(low, high, log=True)
        return space

    def shortest_recipe(self, space: dict[str, Any]) -> FinetuneRecipe:
        """The recipe of a trial in `space` with the fewest steps."""
        choice: Choice = {}
        if "epochs" in space:
            choice["epochs"] = space["epochs"].low
        if "batch_size" in space:
            choice["batch_size"] = max(space["batch_size"].choices)
        return self.recipe_of(choice)

    def smallest_trained_recipe(self, space: dict[str, Any]) -> FinetuneRecipe:
        """The recipe of a trial in `space` that trains the fewest layers, with the smallest batches."""
        choice: Choice = {}
        if "freeze_layers" in space:
            choice["freeze_layers"] = space["freeze_layers"].high
        if "batch_size" in space:
            choice["batch_size"] = min(space["batch_size"].choices)
        return self.recipe_of(choice)

    def recipe_of(self, choice: Choice) -> FinetuneRecipe:
        """The baseline's recipe with the values of this choice."""
        plain = {name: value for name, value in choice.items() if "." not in name}
        optimizer = {name.removeprefix("optimizer."): value for name, value in choice.items() if "." in name}
        changed = self.recipe.optimizer.model_copy(update=optimizer)
        return self.recipe.model_copy(update=plain | {"optimizer": changed})


def make_search(values: dict[str, Any], overrides: list[str]) -> SettingSearch:
    """Makes a checked search from values and `dotted.key=value` overrides, those of `finetune` among them.

    Raises InputError for an unknown task, RecipeError naming the key that is wrong.
    """
    tune_values: dict[str, Any] = {}
    recipe_overrides: list[str] = []
    for change in overrides:
        if change.partition("=")[0].split(".")[0] in TuneSettings.model_fields:
            override(tune_values, change, TuneSettings)
        else:
            recipe_overrides.append(change)
    tune_values |= {name: value for name, value in values.items() if name in TuneSettings.model_fields}
    values = {name: value for name, value in values.items() if name not in TuneSettings.model_fields}
    task_fields = find_task(str(values.get("task", ""))).Settings.model_fields
    known = [*TuneSettings.model_fields, *FinetuneRecipe.model_fields, *task_fields]
    for key in [*values, *(change.partition("=")[0] for change in recipe_overrides)]:
        if key.split(".")[0] not in known:
            names = list_finetune_settings(FinetuneRecipe, *task_fields, *setting_names(TuneSettings))
            raise RecipeError(f"tune: unknown key {key!r}.{did_you_mean_setting(key, names)}")
    settings = check(TuneSettings, tune_values, "tune")
    recipe = make_finetune_recipe(values, recipe_overrides)
    if recipe.restarts > 1:
        raise RecipeError(
            "tune: restarts are not searched: each trial trains once. Give restarts to finetune, together "
            "with the settings that the search found."
        )
    if recipe.method not in ("auto", "full"):
        raise RecipeError(
            f"tune: method = {recipe.method} has none of the settings that are searched. Leave it out."
        )
    if recipe.unlabelled is not None:
        raise RecipeError(
            "tune: trials don't learn from unlabelled texts. Give them to finetune, together with the "
            "settings that the search found."
        )
    fixed = frozenset(change.partition("=")[0] for change in recipe_overrides) | frozenset(values)
    # also those that were given as a whole section
    fixed |= {f"optimizer.{name}" for name in recipe.optimizer.model_fields_set}
    if recipe.epochs != round(recipe.epochs):  # only a user gives a fraction, and what is given is fixed
        fixed |= {"epochs"}
    search = SettingSearch(recipe, settings, fixed)
    search.require_searched(_SEVERAL)
    return search


# -- trials --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """One training: its settings, how it ended (`state`), its best score on dev or by cross-validation, and
    the score of each evaluation. `score` is None if it diverged.
    """

    number: int
    choice: Choice
    state: str
    score: float | None
    seconds: float
    steps: int
    scores: list[float] = field(default_factory=list)

    @property
    def shown_score(self) -> str:
        """The score as tables show it."""
        return formatting.score(self.score)


def trial_rows(trials: Sequence[Trial]) -> tuple[list[str], list[list[str]]]:
    """The columns and rows of a table of trials: complete ones by falling score, then the others."""
    names = list(trials[0].choice)
    ordered = sorted(trials, key=lambda trial: (trial.state != COMPLETE, -(trial.score or 0.0), trial.number))
    rows = [
        [
            f"{trial.number} (baseline)" if trial.number == 0 else str(trial.number),
            trial.shown_score,
            *(f"{trial.choice[name]:.4g}" for name in names),
            f"{trial.seconds:.0f}",
            trial.state,
        ]
        for trial in ordered
    ]
    return ["Trial", "Score", *(name.removeprefix("optimizer.") for name in names), "Seconds", "Ended"], rows


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """The complete trial with the best score, the first of equal ones; None if there is none."""
    complete = [trial for trial in trials if trial.state == COMPLETE]
    return max(complete, key=lambda trial: (trial.score, -trial.number), default=None)


def build_study(trials: Sequence[Trial], space: dict[str, Any], seed: int) -> Any:
    """Builds an optuna study in memory with these trials in `space`.

    Its sampler is seeded by `seed` and the number of trials, so that its next proposal is a function of the
    seed and the trials. It prunes no trial before its second evaluation, nor before four are complete.
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
        frozen_trial = optuna.trial.create_trial(
            state=states.COMPLETE if trial.state == COMPLETE else states.PRUNED,
            value=trial.score,
            params=trial.choice,
            distributions=space,
            intermediate_values=dict(enumerate(trial.scores, start=1)),
        )
        study.add_trial(frozen_trial)
    return study


def measure_importance(trials: Sequence[Trial], space: dict[str, Any], seed: int) -> dict[str, float]:
    """The share of the scores' variance that each setting explains, by fANOVA (Hutter et al. 2014). The
    shares add up to 1. Empty for too few trials, or if all have the same score.
    """
    import optuna

    scores = {trial.score for trial in trials if trial.state == COMPLETE}
    if len(scores) < 2 or sum(trial.state == COMPLETE for trial in trials) < _ENOUGH_TO_WEIGH:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=seed % _SEEDS)
    study = build_study(trials, space, seed)
    return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


# -- the folder ----------------------------------------------------------------------------------------


def open_search(search: SettingSearch, out: Path, resume: bool) -> list[Trial]:
    """Reads the finished trials of the search in the folder; none if it is new.

    Raises RecipeError if the folder has a search and `resume` is not set, if that search has other settings,
    or if the folder holds something else.
    """
    if out.is_file():
        raise RecipeError(f"{out} is a file. Choose a folder for the search.")
    stored = out / SEARCH_FILE
    if not stored.exists():
        require_unused(out)
        return []
    if not resume:
        raise RecipeError(f"{out} already holds a search. Go on with it by --resume, or take another folder.")
    new = _describe_search(search)
    old = {name: value for name, value in read_json(stored).items() if name in new}
    given_once = (set(old.pop(_GIVEN, ())) ^ set(new.pop(_GIVEN))) & search.decided_by_presence
    differing = dict.fromkeys([*find_differing_names(old, new), *sorted(given_once)])
    if differing:
        raise RecipeError(
            f"{out} was begun with other settings: {', '.join(differing)}. Resume with the same ones, or "
            "choose another folder."
        )
    path, trials = out / TRIALS_FILE, []
    for record in read_json(path) if path.exists() else ():
        scores = [WORST if score is None else score for score in record["scores"]]  # null if not finite
        trials.append(Trial(**record | {"scores": scores}))
    return trials


def _describe_search(search: SettingSearch) -> dict[str, Any]:
    """The settings that must be the same when a search is resumed: all but the number of trials and what any
    run may change.
    """
    recipe = json.loads(search.recipe.model_dump_json(exclude=MAY_CHANGE))
    settings = json.loads(search.settings.model_dump_json(exclude={"trials"}))
    given = search.fixed | {f"search.{name}" for name in search.given_bounds}
    return {**recipe, **settings, _GIVEN: sorted(given)}


def begin_search(search: SettingSearch, out: Path, hashes: dict[str, str]) -> None:
    """Makes the folder and writes search.json, with the hashes of the labelled files.

    Raises RecipeError if the search is resumed with a file that has changed, since trials on different rows
    can't be compared.
    """
    stored = out / SEARCH_FILE
    if stored.exists():
        require_unchanged(read_json(stored).get(_HASHES, hashes), hashes, f"the search in {out}")
    make_folder(out)
    write_json(stored, _describe_search(search) | {_HASHES: hashes})


def keep_trials(out: Path, trials: Sequence[Trial]) -> None:
    """Writes all trials, and removes the weights of all but the best one. Logs stay."""
    write_json(out / TRIALS_FILE, as_json_value([asdict(trial) for trial in trials]))
    best = best_trial(trials)
    for trial in trials:
        if trial != best:
            for name in ("best/weights.safetensors", "choice.safetensors"):
                (trial_folder(out, trial.number) / name).unlink(missing_ok=True)


def trial_folder(out: Path, number: int) -> Path:
    """The folder of a trial's log and weights, by its number from 0."""
    return out / "trials" / str(number)

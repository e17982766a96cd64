"""The settings of a fine-tuning run: defaults that work for most (Devlin et al. 2019, appendix A.3).

Keys of the task itself (max_length, stride, class_weights, …) stand beside the run's own on the command line
and under [settings] in the recipe.
"""

from collections.abc import Collection, Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from bertsmith.errors import RecipeError
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Task
from bertsmith.text.labelled.labelled_files import describe_files, list_labelled_files
from bertsmith.training.settings import (
    CheckpointSettings,
    EvaluationSettings,
    GuardSettings,
    OptimizerSettings,
    PathText,
    RunSettings,
    override,
)
from bertsmith.validation import Listed, UserSettings, check, did_you_mean_setting, setting_names

_BASE_WIDTH = 768  # of BERT-base, which the rates of the papers are for
_SHALLOW = 6  # layers, below which the rate grows
_FEW_STEPS, _MOST_EPOCHS, _MANY_EPOCHS = 600, 10, 3
_FOLDS, _FEW_ROWS = 5, 2000  # cross-validated, where there is no dev
# To choose a method in, and to train by it. Work is counted, not timed, so that the same rows, seed and
# settings choose the same on any machine: a minute is about what one core of a server does of MiniLM.
FLOP_A_MINUTE = 4.2e12
_MINUTES, _MINUTES_A_ROW = 1 / 6, 1 / 600
_MINUTES_A_SENTENCE = 1 / 60  # for a first look at each method of tagging
_RATE, _LAYER_DECAY = 1e-4, 0.75  # of the head, and of each layer in that of the one above
_RATE_OF_ALL, _LORA_FACTOR = 5e-5, 10  # where all layers have the same
# By `completed`, where they aren't given.
CHOSEN = ("epochs", "optimizer.learning_rate", "optimizer.layer_decay")
MADE_FROM_EPOCHS = ("steps", "hours", "evaluation", "checkpoint")  # and from `evaluations`, by `resolved`


def _as_tuple(given: object) -> object:
    return tuple(given) if isinstance(given, list | tuple) else (given,)


TrainingFiles = Annotated[tuple[PathText, ...], BeforeValidator(_as_tuple)]  # one, or several, or folders


class FinetuneOptimizer(OptimizerSettings):
    """AdamW with the rates of fine-tuning. Where no rate is given, the model's width decides."""

    learning_rate: float = Field(5e-5, gt=0, le=1)
    warmup: float = Field(0.1, ge=0)
    epsilon: float = Field(1e-8, gt=0)


class LoraRecipe(UserSettings):
    """Hu et al. 2021; `rank` 0 trains all weights instead. No `targets` are the family's usual ones."""

    rank: int = Field(0, ge=0)
    alpha: float = Field(16, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: Listed[str] | None = None


class FinetuneRecipe(RunSettings):
    """One fine-tuning run. Its length is `epochs` passes over the training examples, more on few of them.
    `train` is one file or several, or folders of them.
    """

    task: str
    model: PathText
    train: TrainingFiles = Field(min_length=1)
    dev: PathText | None = None
    test: PathText | None = None
    out: PathText
    epochs: float = Field(_MANY_EPOCHS, gt=0)
    batch_size: int = Field(32, ge=1)
    micro_batch_tokens: int | None = Field(None, ge=8)
    dev_share: float = Field(0.1, gt=0, lt=1)
    unlabelled: PathText | None = None
    method: Literal["auto", "linear", "self-training", "contrastive", "cloze", "full", "upper", "lora"] = (
        "auto"
    )
    folds: int | None = Field(None, ge=2)
    minutes: float | None = Field(None, ge=0)
    evaluations: int = Field(1, ge=1)
    patience: int | None = Field(None, ge=1)
    restarts: int = Field(1, ge=1)
    dropout: float | None = Field(None, ge=0, lt=1)
    freeze_embeddings: bool = False
    freeze_layers: int = Field(0, ge=0)
    reinit_layers: int = Field(0, ge=0)
    lora: LoraRecipe = LoraRecipe()
    optimizer: FinetuneOptimizer = FinetuneOptimizer()
    # a batch of a few examples that the model gets wrong is no spike
    guard: GuardSettings = GuardSettings(spike_factor=1e6)
    settings: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _length_by_epochs(self) -> Self:
        if self.steps is not None or self.hours is not None:
            raise ValueError("the length of a fine-tuning run is given by epochs, not by steps or hours")
        return self

    @model_validator(mode="after")
    def _one_judge(self) -> Self:
        if self.folds is not None:
            held_out = {"dev": self.dev is not None, "restarts": self.restarts > 1}
            for name, given in (held_out | {"patience": self.patience is not None}).items():
                if given:
                    raise ValueError(f"with folds, each row trains and judges in turn: leave out {name}")
        return self

    @model_validator(mode="after")
    def _one_adaptation(self) -> Self:
        if self.lora.rank and (self.freeze_embeddings or self.freeze_layers or self.reinit_layers):
            raise ValueError(
                "lora.rank freezes the whole encoder and adds to it: leave out freeze_embeddings, "
                "freeze_layers and reinit_layers, or set lora.rank=0"
            )
        return self

    @property
    def train_files(self) -> list[str]:
        """Folders by the files in them. Raises InputError for one that can't be learned from."""
        besides = (self.dev, self.test, self.unlabelled)
        return list_labelled_files(self.train, besides=besides, format=self.settings.get("format"))

    @property
    def train_name(self) -> str:
        """What messages call the training rows by."""
        return describe_files(self.train)

    @property
    def given(self) -> set[str]:
        """Dotted names of the settings that were given, of those whose default value isn't what comes of
        leaving them out: a length and rates are chosen then, and few rows judge in turn.
        """
        found = self.model_fields_set | {f"optimizer.{name}" for name in self.optimizer.model_fields_set}
        return found & {*CHOSEN, "dev_share"}

    def given_as(self, other: "FinetuneRecipe", names: Collection[str]) -> "FinetuneRecipe":
        """With these settings of another recipe given too, where they aren't given here."""
        new = set(names) - self.given
        rates = {name.partition(".")[2] for name in new if name.startswith("optimizer.")}
        changes = {name: getattr(other, name) for name in new if "." not in name}
        if rates:
            update = {name: getattr(other.optimizer, name) for name in rates}
            changes["optimizer"] = self.optimizer.model_copy(update=update)
        return self.model_copy(update=changes)

    def folds_of(self, rows: int) -> int:
        """Into how many folds so many labelled rows are divided; 0 where a dev judges instead: one that is
        given, or a share of rows that are many or that several restarts compare themselves by.
        """
        if self.folds is not None:
            return min(self.folds, rows)
        return 0 if self._asks_for_dev or rows > _FEW_ROWS else min(_FOLDS, rows)

    def is_held_out_unasked(self, rows: int) -> bool:
        """Whether a dev judges for no other reason than that rows are more than judge in turn."""
        return rows > _FEW_ROWS and self.folds is None and not self._asks_for_dev

    @property
    def _asks_for_dev(self) -> bool:
        given = self.dev is not None or self.restarts > 1 or self.patience is not None
        return given or "dev_share" in self.model_fields_set

    def minutes_to_choose(self, rows: int) -> float:
        """Work for comparing methods, the final training included, in minutes of `FLOP_A_MINUTE`."""
        return _MINUTES + _MINUTES_A_ROW * rows if self.minutes is None else self.minutes

    def minutes_to_look(self, rows: int) -> float:
        """The same, if nothing is known of a method yet: tags gain some twenty points where all weights are
        trained, which is worth more work than another fold.
        """
        usual = self.minutes_to_choose(rows)
        if self.minutes is None and find_task(self.task).needs_training:
            return max(usual, _MINUTES + _MINUTES_A_SENTENCE * rows)
        return usual

    def epochs_on_many(self, usual: float, rows: int, epoch_work: float) -> float:
        """So many of the `usual` epochs of this work each as the rows get where they are no more than are
        compared by folds, for one row more must not take ten times as long. Then more with each row: from
        twice as many rows on, at least the three epochs that are usual for many.
        """
        within = self.minutes_to_look(rows) * FLOP_A_MINUTE / epoch_work
        if self.minutes is None:
            within = max(within, _MANY_EPOCHS * (rows / _FEW_ROWS - 1))
        return min(usual, max(round(within, 2), 0.01))

    def completed(self, width: int, layers: int, steps_per_epoch: int) -> "FinetuneRecipe":
        """What nobody gave is chosen for a model of this hidden size and so many layers, and for epochs of so
        many steps.

        The head's rate is 1e-4 at 768 and as much more as the model is narrower (2e-4 at 384), and as its
        layers are fewer than six: what a small model knows is soon relearned. Each layer learns at 0.75 of
        the rate of the one above, much as Clark et al. 2020 trained ELECTRA (table 7): a rate that the head
        needs would spoil the lowest layers. With LoRA, or where a decay of 1 is given, all have one rate,
        5e-5 at 768; LoRA ten times that (Hu et al. 2021, appendix D). A rate that is given is that of all
        layers unless a decay is given too.
        Few steps get more than three epochs, so that there are some 600 steps, but no more than ten (Mosbach
        et al. 2021: small data need more steps than three epochs).
        """
        chosen: dict[str, Any] = {}
        if "learning_rate" not in self.optimizer.model_fields_set:
            decay = self.optimizer.layer_decay
            if not self.lora.rank and "layer_decay" not in self.optimizer.model_fields_set:
                decay = _LAYER_DECAY
            rate = _RATE if decay < 1 else _RATE_OF_ALL * (_LORA_FACTOR if self.lora.rank else 1)
            rate *= _BASE_WIDTH / width * max(_SHALLOW / layers, 1)
            rates = {"learning_rate": float(f"{rate:.2g}"), "layer_decay": decay}
            chosen["optimizer"] = self.optimizer.model_copy(update=rates)
        if "epochs" not in self.model_fields_set:
            chosen["epochs"] = max(self.epochs, min(-(-_FEW_STEPS // steps_per_epoch), _MOST_EPOCHS))
        return self.model_copy(update=chosen)

    def chosen_as(self, other: "FinetuneRecipe") -> "FinetuneRecipe":
        """What a run chooses is as in the other recipe: the method, and what nobody gave of its settings."""
        method = other.method if self.method == "auto" else self.method
        chosen: dict[str, Any] = {"method": method}
        if method == "upper":
            chosen |= {name: getattr(other, name) for name in ("freeze_embeddings", "freeze_layers")}
        if method == "lora" and not self.lora.rank:
            chosen["lora"] = self.lora.model_copy(update={"rank": other.lora.rank})
        if "learning_rate" not in self.optimizer.model_fields_set:
            rates = {name: getattr(other.optimizer, name) for name in ("learning_rate", "layer_decay")}
            given = {name: rates[name] for name in rates if name not in self.optimizer.model_fields_set}
            chosen["optimizer"] = self.optimizer.model_copy(update=given)
        if "epochs" not in self.model_fields_set:
            chosen["epochs"] = other.epochs
        return self.model_copy(update=chosen)

    def resolved(self, steps_per_epoch: int, seed: int) -> "FinetuneRun":
        """The run of one seed as the loop takes it: in steps, with a checkpoint at each evaluation, and where
        one takes long to come, every ten minutes.

        Raises RecipeError when warm-up and decay have no room in it.
        """
        every = max(steps_per_epoch // self.evaluations, 1)
        run = FinetuneRun(
            steps=max(round(self.epochs * steps_per_epoch), 1),
            seed=seed,
            log_every=self.log_every,
            batch_size=self.batch_size,
            patience=self.patience,
            optimizer=self.optimizer,
            evaluation=EvaluationSettings(every=every),
            checkpoint=CheckpointSettings(every=every, minutes=10, keep=1),
            guard=self.guard,
            hardware=self.hardware,
        )
        if run.schedule_problem:
            raise RecipeError(
                f"{run.schedule_problem} ({run.steps:,} steps: epochs={self.epochs:g} "
                f"batch_size={self.batch_size}). Give fewer steps, or a share of the run: below 1, as 0.1 is "
                "a tenth."
            )
        return run


class FinetuneRun(RunSettings):
    """A fine-tuning run of one seed."""

    batch_size: int = 32
    patience: int | None = None
    optimizer: FinetuneOptimizer = FinetuneOptimizer()


def make_finetune_recipe(values: dict[str, Any], overrides: list[str]) -> FinetuneRecipe:
    """A checked recipe from values and `dotted.key=value` changes.

    Raises InputError for an unknown task, RecipeError naming the key that is wrong.
    """
    values = dict(values)
    for change in overrides:
        if change.startswith("task="):
            override(values, change, FinetuneRecipe)
    task = find_task(str(values.get("task", "")))
    for change in overrides:
        override(values, change, FinetuneRecipe, task.Settings)
    options = pop_settings(values, task.Settings.model_fields, "finetune")
    for key in [key for key in values if key in task.Settings.model_fields]:
        options[key] = values.pop(key)
    _refuse_unknown(values, task)
    recipe = check(FinetuneRecipe, values | {"settings": options}, "finetune")
    check_task_settings(recipe, task)
    return recipe


def pop_settings(values: dict[str, Any], names: Iterable[str], where: str) -> dict[str, Any]:
    """The section of this name, taken out of `values`. Raises RecipeError where it is none."""
    settings = values.pop("settings", {})
    if not isinstance(settings, dict):
        known = ", ".join(f"settings.{name}" for name in names)
        raise RecipeError(f"{where}: settings is a section: name what is meant in it ({known}).")
    return dict(settings)


def check_task_settings(recipe: FinetuneRecipe, task: type[Task[Any]]) -> Any:
    """The task's own settings, checked. Raises RecipeError."""
    settings = check(task.Settings, recipe.settings, task.name)
    if "stride" in recipe.settings and settings.stride_problem is not None:
        raise RecipeError(f"{task.name}: {settings.stride_problem}")
    return settings


def make_task(recipe: FinetuneRecipe) -> Task[Any]:
    """The recipe's task with its own settings. Raises RecipeError for one that it doesn't have."""
    kind = find_task(recipe.task)
    return kind(check_task_settings(recipe, kind))


def list_finetune_settings(recipe: type[RunSettings], *names: str) -> list[str]:
    """The dotted names that a user may give: those of a recipe whose length is in epochs, and `names`."""
    known = [*setting_names(recipe), *names]
    return [name for name in known if name.partition(".")[0] not in MADE_FROM_EPOCHS]


def _refuse_unknown(values: dict[str, Any], task: type[Task[Any]]) -> None:
    known = [*FinetuneRecipe.model_fields, *task.Settings.model_fields]
    for key in values:
        if key in ("evaluation", "checkpoint"):
            raise RecipeError(
                f"finetune: {key}.* is for pre-training. Here evaluations=N says how often in an epoch the "
                "model is measured and saved."
            )
        if key == "features" and key not in known:
            raise RecipeError(
                f"features: {task.name} reads no columns beside the text. classification, multi-label and "
                "regression do."
            )
        if key not in known:
            meant = did_you_mean_setting(
                key, list_finetune_settings(FinetuneRecipe, *task.Settings.model_fields)
            )
            raise RecipeError(f"finetune: unknown key {key!r}.{meant}")

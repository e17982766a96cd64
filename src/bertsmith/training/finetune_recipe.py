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
_SHALLOW = 6  # layers: the rate grows for fewer
_FEW_STEPS, _MOST_EPOCHS, _MANY_EPOCHS = 600, 10, 3
_FOLDS, _FEW_ROWS = 5, 2000  # the usual folds, and the rows up to which there are any without a dev
# The work of a minute, for comparing methods and for training. Work is counted, not timed, so that the same
# rows, seed and settings choose the same on any machine. One core of a server does about so much of MiniLM
# in a minute.
FLOP_A_MINUTE = 4.2e12
_MINUTES, _MINUTES_A_ROW = 1 / 6, 1 / 600
_MINUTES_A_SENTENCE = 1 / 60  # for the first fold of each method in tagging
_RATE, _LAYER_DECAY = 1e-4, 0.75  # of the head; of each layer as a multiple of the one above
_RATE_OF_ALL, _LORA_FACTOR = 5e-5, 10  # if all layers have the same rate
# `complete` chooses these if they aren't given.
CHOSEN = ("epochs", "optimizer.learning_rate", "optimizer.layer_decay")
MADE_FROM_EPOCHS = ("steps", "hours", "evaluation", "checkpoint")  # `resolve` makes these


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


TrainingFiles = Annotated[tuple[PathText, ...], BeforeValidator(_as_tuple)]  # files or folders


class FinetuneOptimizer(OptimizerSettings):
    """The optimizer with the defaults of fine-tuning. If no rate is given, `FinetuneRecipe.complete` chooses
    one by the model's size.
    """

    learning_rate: float = Field(5e-5, gt=0, le=1)
    """The head's learning rate at its peak; by default the model's width decides."""
    warmup: float = Field(0.1, ge=0)
    """Share of the run until the peak; from 1 on, steps."""
    epsilon: float = Field(1e-8, gt=0)
    """What AdamW adds to the root of the squared gradient."""


class LoraRecipe(UserSettings):
    """Settings of LoRA (Hu et al. 2021). With `rank` 0 all weights are trained instead. `targets` are names
    of linear layers, by default the usual ones of the model's family.
    """

    rank: int = Field(0, ge=0)
    """LoRA: width of the added products; 0 trains all weights instead."""
    alpha: float = Field(16, gt=0)
    """The products are multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout on the products' input."""
    targets: Listed[str] | None = None
    """Weights that get a product, such as query,key,value; by default `query` and `value`, in ModernBERT
    `qkv`."""


class FinetuneRecipe(RunSettings):
    """The recipe of a fine-tuning run. Its length is given by `epochs`, passes over the training examples; if
    they aren't given, few examples get more. `train` is one file or several, or folders of them. `settings`
    are those of the task.
    """

    task: str
    """A name from the table of tasks, or `module:Class`."""
    model: PathText
    """The model to begin with."""
    train: TrainingFiles = ()
    """Labelled rows."""
    dev: PathText | None = None
    """Rows to choose by; without it, cross-validation of up to 2,000 rows, else a share of train."""
    test: PathText | None = None
    """Rows to report on."""
    out: PathText
    """The run's folder."""
    epochs: float = Field(_MANY_EPOCHS, gt=0)
    """Passes over train; 0.5 is half of one. If you give none, few rows get up to 10, so that the run has
    about 600 steps; above 2,000 rows as many as the work allows."""
    batch_size: int = Field(32, ge=1)
    """Rows per step."""
    micro_batch_tokens: int | None = Field(None, ge=8)
    """Tokens computed at a time; decided by the hardware. It changes speed and memory, not the loss."""
    dev_share: float = Field(0.1, gt=0, lt=1)
    """Share of train that is held out if there is neither dev nor cross-validation. If you give it, rows are
    held out instead of cross-validated."""
    unlabelled: PathText | None = None
    """More texts of the same kind, without labels, to learn from too."""
    names: str | tuple[str, ...] | dict[str, str] | None = None
    """Names of the labels, for a classification: "a, b, c", or a table with the columns label and
    description. With texts in `unlabelled` they are enough, without any labelled row."""
    hint: str | None = None
    """What a name stands for in a sentence: "the customer asks about {}"."""
    method: Literal[
        "auto",
        "linear",
        "names",
        "self-training",
        "names-texts",
        "contrastive",
        "cloze",
        "full",
        "upper",
        "lora",
    ] = "auto"
    """How the model learns. `auto` compares methods by cross-validation on few rows, and takes `full` on
    many."""
    folds: int | None = Field(None, ge=2)
    """Folds for cross-validation of few rows; 5 if there is no dev and at most 2,000 rows."""
    minutes: float | None = Field(None, ge=0)
    """Work for comparing methods, or for training on more than 2,000 rows, in minutes of 4.2 TFLOP; by
    default 10 seconds and 0.1 per row. In tagging, the first fold of each method may take 10 seconds and 1
    per sentence."""
    evaluations: int = Field(1, ge=1)
    """How many evaluations on dev each epoch has."""
    patience: int | None = Field(None, ge=1)
    """How many evaluations without a better one end the run; by default none do."""
    restarts: int = Field(1, ge=1)
    """Seeds to train; the best on dev is kept."""
    dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout everywhere; by default the model's own."""
    freeze_embeddings: bool = False
    """The embeddings stay as they are."""
    freeze_layers: int = Field(0, ge=0)
    """The embeddings and the lowest n layers stay as they are."""
    reinit_layers: int = Field(0, ge=0)
    """The top n layers and the pooler begin anew."""
    lora: LoraRecipe = LoraRecipe()
    optimizer: FinetuneOptimizer = FinetuneOptimizer()
    # the loss of a batch with a few wrong examples isn't a spike
    guard: GuardSettings = GuardSettings(spike_factor=1e6)
    settings: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _length_by_epochs(self) -> Self:
        if self.steps is not None or self.hours is not None:
            raise ValueError("the length of a fine-tuning run is given by epochs, not by steps or hours")
        return self

    @model_validator(mode="after")
    def _something_to_learn_from(self) -> Self:
        if not self.train and (self.names is None or self.unlabelled is None):
            raise ValueError(
                "expected labelled rows, with --train; or the names of the labels and texts without "
                "labels, with --labels and --texts"
            )
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
        """The training files, with folders replaced by the labelled files in them. Raises InputError for a
        folder without any, for one whose file is meant for dev or test by its name, and for a file that is
        named twice.
        """
        other_files = (self.dev, self.test, self.unlabelled)
        return list_labelled_files(self.train, besides=other_files, format=self.settings.get("format"))

    @property
    def train_name(self) -> str:
        """The name of the training files in messages."""
        return describe_files(self.train or [self.unlabelled or ""])

    @property
    def given(self) -> set[str]:
        """Dotted names of given settings whose default value isn't what leaving them out means: without them,
        epochs and rates are chosen, and (`dev_share`) few rows are cross-validated.
        """
        names = self.model_fields_set | {f"optimizer.{name}" for name in self.optimizer.model_fields_set}
        return names & {*CHOSEN, "dev_share"}

    def with_given(self, other: "FinetuneRecipe", names: Collection[str]) -> "FinetuneRecipe":
        """This recipe with the settings `names` of another recipe given too, unless they are given here."""
        missing = set(names) - self.given
        rates = {name.partition(".")[2] for name in missing if name.startswith("optimizer.")}
        changes = {name: getattr(other, name) for name in missing if "." not in name}
        if rates:
            update = {name: getattr(other.optimizer, name) for name in rates}
            changes["optimizer"] = self.optimizer.model_copy(update=update)
        return self.model_copy(update=changes)

    def fold_count(self, rows: int) -> int:
        """The number of folds for so many labelled rows. 0 if a dev set chooses the model instead: one that
        is given, or a share that is held out, of many rows or for several restarts or patience.
        """
        if self.folds is not None:
            return min(self.folds, rows)
        return 0 if self._asks_for_dev or rows > _FEW_ROWS else min(_FOLDS, rows)

    def is_held_out_unasked(self, rows: int) -> bool:
        """Whether a dev set is held out only because there are too many rows for cross-validation."""
        return rows > _FEW_ROWS and self.folds is None and not self._asks_for_dev

    @property
    def _asks_for_dev(self) -> bool:
        needs_dev = self.restarts > 1 or self.patience is not None
        return self.dev is not None or needs_dev or "dev_share" in self.model_fields_set

    def minutes_to_choose(self, rows: int) -> float:
        """The work allowed for comparing methods, the final training included, in minutes."""
        return _MINUTES + _MINUTES_A_ROW * rows if self.minutes is None else self.minutes

    def minutes_to_look(self, rows: int) -> float:
        """The work allowed before a method's first fold, in the same units. It is more for tagging, which
        gains some twenty points if all weights are trained; that is worth more work than another fold.
        """
        minutes = self.minutes_to_choose(rows)
        if self.minutes is None and find_task(self.task).needs_training:
            return max(minutes, _MINUTES + _MINUTES_A_SENTENCE * rows)
        return minutes

    def epochs_on_many(self, usual: float, rows: int, epoch_work: float) -> float:
        """The epochs for rows that are too many for folds: at most `usual`, with `epoch_work` FLOP each.

        They are limited to the work that slightly fewer rows would get for comparing methods, since one row
        more shouldn't make a run ten times as long. The limit then rises with the rows: with twice as many or
        more it is at least the three epochs that are usual for many rows.
        """
        limit = self.minutes_to_look(rows) * FLOP_A_MINUTE / epoch_work
        if self.minutes is None:
            limit = max(limit, _MANY_EPOCHS * (rows / _FEW_ROWS - 1))
        return min(usual, max(round(limit, 2), 0.01))

    def complete(self, width: int, layers: int, steps_per_epoch: int) -> "FinetuneRecipe":
        """The recipe with the rates and epochs that the user didn't give, chosen for a model of hidden size
        `width` with so many layers, and for `steps_per_epoch`.

        The head's rate is 1e-4 at hidden size 768. It grows in proportion as the model is narrower (2e-4 at
        384) or has fewer than six layers: a small model soon relearns what it knew. Each layer's rate is 0.75
        of that of the layer above, much as Clark et al. 2020 trained ELECTRA (table 7), since the rate that
        the head needs would spoil the lowest layers. With LoRA, or if a decay of 1 is given, all layers have
        one rate, 5e-5 at 768; LoRA has ten times that (Hu et al. 2021, appendix D). A given rate is that of
        all layers, unless a decay is given too.

        If three epochs are fewer than 600 steps, there are more epochs, up to ten: small data need more steps
        than three epochs have (Mosbach et al. 2021).
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

    def with_choices_of(self, other: "FinetuneRecipe") -> "FinetuneRecipe":
        """This recipe with what a run chose as `other` has it: the method, and its settings that aren't given
        here.
        """
        method = other.method if self.method == "auto" else self.method
        chosen: dict[str, Any] = {"method": method}
        if method == "upper" and not (self.freeze_embeddings or self.freeze_layers):
            chosen |= {name: getattr(other, name) for name in ("freeze_embeddings", "freeze_layers")}
        if method == "lora" and not self.lora.rank:
            chosen["lora"] = self.lora.model_copy(update={"rank": other.lora.rank})
        if "learning_rate" not in self.optimizer.model_fields_set:
            rates = {name: getattr(other.optimizer, name) for name in ("learning_rate", "layer_decay")}
            missing = {name: rates[name] for name in rates if name not in self.optimizer.model_fields_set}
            chosen["optimizer"] = self.optimizer.model_copy(update=missing)
        if "epochs" not in self.model_fields_set:
            chosen["epochs"] = other.epochs
        return self.model_copy(update=chosen)

    def resolve(self, steps_per_epoch: int, seed: int) -> "FinetuneRun":
        """The settings of one seed's run for the loop: its length in steps, and checkpoints at each
        evaluation and at least every ten minutes.

        Raises RecipeError if warm-up and decay don't fit into the run.
        """
        every = max(steps_per_epoch // self.evaluations, 1)
        run = FinetuneRun(
            steps=max(round(self.epochs * steps_per_epoch), 1),
            seed=seed,
            log_every=self.log_every,
            trackers=self.trackers,
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
    """The settings of a fine-tuning run of one seed, in steps. See `FinetuneRecipe.resolve`."""

    batch_size: int = 32
    patience: int | None = None
    optimizer: FinetuneOptimizer = FinetuneOptimizer()


def make_finetune_recipe(values: dict[str, Any], overrides: list[str]) -> FinetuneRecipe:
    """Makes a checked recipe from values and `dotted.key=value` overrides.

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
    """Removes the section `settings` from `values` and returns it; empty if there is none.

    Raises RecipeError, with the known `names` of settings, if it is no section. `where` is the command.
    """
    settings = values.pop("settings", {})
    if not isinstance(settings, dict):
        known = ", ".join(f"settings.{name}" for name in names)
        raise RecipeError(f"{where}: settings is a section: name what is meant in it ({known}).")
    return dict(settings)


def check_task_settings(recipe: FinetuneRecipe, task: type[Task[Any]]) -> Any:
    """Checks the recipe's settings of the task, and returns them as an instance of `task.Settings`. Raises
    RecipeError for a setting that is unknown or wrong.
    """
    settings = check(task.Settings, recipe.settings, task.name)
    if "stride" in recipe.settings and settings.stride_problem is not None:
        raise RecipeError(f"{task.name}: {settings.stride_problem}")
    return settings


def make_task(recipe: FinetuneRecipe) -> Task[Any]:
    """Makes the recipe's task with its settings. Raises RecipeError for an unknown or wrong setting."""
    task_class = find_task(recipe.task)
    return task_class(check_task_settings(recipe, task_class))


def list_finetune_settings(recipe: type[RunSettings], *names: str) -> list[str]:
    """The dotted names of the settings that a user may give: those of the recipe, whose length is in epochs,
    and `names`.
    """
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

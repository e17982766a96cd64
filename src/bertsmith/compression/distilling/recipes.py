"""The recipes of distillation: `DistilRecipe` for a fine-tuned task, whose length is given in epochs, and
`EncoderDistilRecipe` for an encoder on raw text, whose length is given in steps or hours.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from bertsmith.errors import RecipeError
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.task import Task
from bertsmith.text.labelled.labelled_files import list_labelled_files
from bertsmith.training.finetune_recipe import (
    FinetuneOptimizer,
    FinetuneRecipe,
    TrainingFiles,
    list_finetune_settings,
    pop_settings,
)
from bertsmith.training.recipe import MaskingSettings
from bertsmith.training.settings import (
    EvaluationSettings,
    GuardSettings,
    OptimizerSettings,
    PathText,
    RunSettings,
    override,
    require_one_length,
)
from bertsmith.validation import Listed, UserSettings, check, did_you_mean_setting, setting_names

# The settings that a distillation of a task hands on to the fine-tuning loop.
_FINETUNE_SETTINGS = (
    "dev",
    "test",
    "out",
    "seed",
    "log_every",
    "trackers",
    "epochs",
    "batch_size",
    "micro_batch_tokens",
    "dev_share",
    "evaluations",
    "patience",
    "dropout",
    "optimizer",
    "guard",
    "hardware",
)
_MOST_EPOCHS_ALONE = 10
# A student with some of a model's layers needs many steps, and soft targets are hardly overfitted: one of
# MiniLM's layers on 600 rows of 20 intents had 92.8 % after 190 steps, and 94.8 % after 570.
_LEAST_STEPS, _MOST_EPOCHS = 2000, 30
COLUMNS = ("text", "text_pair", "label", "missing", "header", "format", "encoding", "max_length")


class DistilRecipe(RunSettings):
    """A distillation of a task: a student learns the answers of fine-tuned models, or of a file."""

    teacher: tuple[PathText, ...] = Field(min_length=1)
    """Folders of fine-tuned models, whose outputs are averaged, or one file of answers."""
    texts: tuple[PathText, ...] = ()
    """Texts without labels, which the teacher answers."""
    train: TrainingFiles = ()
    """Labelled rows, whose labels are learned beside the teacher's answers."""
    dev: PathText | None = None
    """Labelled rows to choose the weights by; without them a tenth of `train` or of the texts is held out."""
    test: PathText | None = None
    """Labelled rows to report on, once."""
    out: PathText
    """The run's folder."""
    task: str | None = None
    """The task's name or `module:Class`, where the teacher is a file of answers."""
    student: PathText | None = None
    """The model whose layers the student starts from; by default the first teacher."""
    layers: int | Listed[int] | None = None
    """Number of the student's layers, or the list of the layers to take, counted from 1; by default half of a
    teacher's, and all of a `student`'s."""
    width: int | None = Field(None, ge=1)
    """The student's hidden size, a multiple of the size of a head."""
    feed_forward: int | None = Field(None, ge=1)
    """Neurons of each feed-forward part of the student."""
    temperature: float = Field(2.0, gt=0)
    """Softens the teacher's outputs for classes, labels, tags and spans (Hinton et al. 2015, section 2)."""
    soft_weight: float = Field(0.7, ge=0, le=1)
    """The teacher's share in the loss of labelled rows; 1 ignores the labels."""
    compare: bool = True
    """Whether the same student is also trained on the labels alone, to show what the teacher adds."""
    dev_share: float = Field(0.1, gt=0, lt=1)
    """Share of the labelled rows that is held out where there is no dev."""
    epochs: float = Field(3, gt=0)
    """Passes over labelled rows and texts; by default 3 to 30, for about 2,000 steps."""
    batch_size: int = Field(32, ge=1)
    """Rows per step."""
    micro_batch_tokens: int | None = Field(None, ge=8)
    """Tokens computed at a time; decided by the hardware."""
    evaluations: int = Field(1, ge=1)
    """How many evaluations on dev each epoch has."""
    patience: int | None = Field(None, ge=1)
    """How many evaluations without a better one end the run; by default none do."""
    dropout: float | None = Field(None, ge=0, lt=1)
    """The student's dropout in training."""
    optimizer: FinetuneOptimizer = FinetuneOptimizer()
    guard: GuardSettings = GuardSettings(spike_factor=1e6)
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the task, as in fine-tuning."""

    @model_validator(mode="after")
    def _length_by_epochs(self) -> Self:
        if self.steps is not None or self.hours is not None:
            raise ValueError("the length of a distillation is given by epochs, not by steps or hours")
        return self

    @property
    def train_files(self) -> list[str]:
        """The training files, with the files of folders. Raises InputError for a folder without any."""
        besides = (self.dev, self.test, *self.texts)
        return list_labelled_files(self.train, besides=besides, format=self.settings.get("format"))

    @property
    def task_class(self) -> type[Task[Any]] | None:
        """The class of the task of this name; None without a name, since our models name their task."""
        return None if self.task is None else find_task(self.task)

    def as_finetuning(self) -> FinetuneRecipe:
        """The fine-tuning recipe for the training loop, with only those settings that were given."""
        given = self.model_fields_set | {"guard"}
        shared = {name: getattr(self, name) for name in _FINETUNE_SETTINGS if name in given}
        known = {name: value for name, value in shared.items() if value is not None}
        return FinetuneRecipe(task="", model="", train=("",), **known)

    def complete(self, width: int, layers: int, steps_per_epoch: int) -> "DistilRecipe":
        """The recipe with a value for each setting that wasn't given, chosen as for a fine-tuning of the
        student; but a short training gets more epochs, enough for some 2,000 steps, at most 30.
        """
        finetuning = self.as_finetuning().complete(width, layers, steps_per_epoch)
        epochs = self.epochs
        if "epochs" not in self.model_fields_set:
            epochs = max(epochs, min(-(-_LEAST_STEPS // steps_per_epoch), _MOST_EPOCHS))
        return self.model_copy(update={"epochs": epochs, "optimizer": finetuning.optimizer})

    def alone(self, steps: float, steps_per_epoch: int) -> "DistilRecipe":
        """The recipe for the same student on the labelled rows alone: as many steps as with the teacher, but
        at most ten epochs of these rows, or the epochs of this recipe where it has more.
        """
        most = max(self.epochs, _MOST_EPOCHS_ALONE)
        return self.model_copy(update={"epochs": min(max(steps / steps_per_epoch, self.epochs), most)})

    def with_choices_of(self, other: "DistilRecipe") -> "DistilRecipe":
        """The recipe with the other recipe's values for those settings that `complete` would choose."""
        finetuning = self.as_finetuning().with_choices_of(other.as_finetuning())
        return self.model_copy(update={"epochs": finetuning.epochs, "optimizer": finetuning.optimizer})


def distil_values(
    teacher: Sequence[str | Path],
    texts: Sequence[str | Path],
    train: str | Path | Sequence[str | Path] | None,
    values: Mapping[str, Any],
    **files: str | Path | None,
) -> dict[str, Any]:
    """The arguments of a call as values of a recipe: paths become strings, None is left out."""
    train_files = [str(train)] if isinstance(train, str | Path) else list(map(str, train or ()))
    recipe_values: dict[str, Any] = {"teacher": list(map(str, teacher)), "texts": list(map(str, texts))}
    recipe_values["train"] = train_files
    for name, value in (*files.items(), *values.items()):
        if value is not None:
            recipe_values[name] = str(value) if isinstance(value, Path) else value
    return recipe_values


def make_distil_recipe(values: dict[str, Any], overrides: list[str]) -> DistilRecipe:
    """A checked recipe from values and `dotted.key=value` overrides. The names of columns go into its
    `settings`, which the student's task is made with.

    Raises RecipeError that names the wrong key.
    """
    values = dict(values)
    for change in overrides:
        override(values, change, DistilRecipe)
    settings = pop_settings(values, COLUMNS, "distil")
    settings |= {name: values.pop(name) for name in COLUMNS if name in values}
    known = [*DistilRecipe.model_fields, *COLUMNS]
    for key in values:
        if key in ("evaluation", "checkpoint"):
            raise RecipeError(f"distil: {key}.* is for pre-training. Here evaluations=N is meant.")
        if key not in known:
            meant = did_you_mean_setting(key, list_finetune_settings(DistilRecipe, *COLUMNS))
            raise RecipeError(f"distil: unknown key {key!r}.{meant}")
    recipe = check(DistilRecipe, values | {"settings": settings}, "distil")
    if "-" in (*recipe.texts, *recipe.train, recipe.dev, recipe.test):
        raise RecipeError(
            "distil: standard input can be read only once, and a distillation that goes on reads its files "
            "again: give the name of a file in place of -."
        )
    return recipe


class DataSettings(UserSettings):
    """How the corpus is cut into batches."""

    sequence_length: int = Field(128, ge=8)
    """Tokens that a text is cut to."""
    batch_size: int = Field(64, ge=1)
    """Times the sequence length: the tokens of a batch."""


class DistilLossSettings(UserSettings):
    """The weight of each loss; 0 leaves it out, None takes the default for the teacher."""

    soft: float | None = Field(None, ge=0)
    """Weight of the teacher's probabilities of masked words, at `temperature`."""
    mlm: float | None = Field(None, ge=0)
    """Weight of the masked words themselves."""
    states: float | None = Field(None, ge=0)
    """Weight of the cosines of the last hidden states."""
    relations: float | None = Field(None, ge=0)
    """Weight of the self-attention relations (MiniLMv2, Wang et al. 2021)."""
    vectors: float | None = Field(None, ge=0)
    """Weight of the cosines of the vectors of texts."""
    temperature: float = Field(2.0, gt=0)
    """Softens the probabilities of masked words."""
    teacher_layer: int | None = Field(None, ge=1)
    """The teacher's layer whose relations are learned, counted from 1; by default the last."""
    relation_heads: int = Field(12, ge=1)
    """The most heads that relations are divided into."""


class StudentOptimizer(OptimizerSettings):
    """The optimizer's settings, with defaults for a run of minutes that starts from trained layers."""

    learning_rate: float = Field(5e-4, gt=0, le=1)
    warmup: float = Field(0.05, ge=0)


class EncoderDistilRecipe(RunSettings):
    """A distillation of an encoder or an embedding model. Exactly one of `steps` and `hours` is given."""

    teacher: PathText
    """The encoder or embedding model to imitate."""
    corpus: PathText
    """A corpus or a token store."""
    out: PathText
    """The run's folder."""
    layers: int | Listed[int] | None = None
    """Number of the student's layers, taken evenly from the teacher's, or their list, counted from 1; by
    default every second one."""
    width: int | None = Field(None, ge=1)
    """The student's hidden size."""
    feed_forward: int | None = Field(None, ge=1)
    """Neurons of each feed-forward part."""
    family: str | None = None
    """The student's `model_type`, where it isn't the teacher's."""
    dimensions: int | None = Field(None, ge=1)
    """Length of an embedding model's vectors."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """The student's dropout in training."""
    micro_batch_tokens: int | None = Field(None, ge=8)
    """Tokens computed at a time; decided by the hardware."""
    data: DataSettings = DataSettings()
    masking: MaskingSettings = MaskingSettings()
    loss: DistilLossSettings = DistilLossSettings()
    optimizer: StudentOptimizer = StudentOptimizer()
    evaluation: EvaluationSettings = EvaluationSettings(every=0.1, tokens=50_000)

    @model_validator(mode="after")
    def _one_length_of_run(self) -> Self:
        if (self.steps is None) == (self.hours is None):
            raise ValueError("give the run's length by exactly one of steps and hours")
        if self.schedule_problem:
            raise ValueError(self.schedule_problem)
        return self

    @model_validator(mode="after")
    def _layers_from_1(self) -> Self:
        numbers = (
            self.layers if isinstance(self.layers, tuple) else (1 if self.layers is None else self.layers,)
        )
        if not numbers or min(numbers) < 1:
            raise ValueError("layers are a number from 1 on, or those of the teacher's, counted from 1")
        return self

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """The indices of the listed layers, from 0; None where `layers` is a number or isn't given."""
        return tuple(layer - 1 for layer in self.layers) if isinstance(self.layers, tuple) else None


def make_encoder_recipe(values: dict[str, Any], overrides: list[str]) -> EncoderDistilRecipe:
    """A checked recipe from values and `dotted.key=value` overrides. Raises RecipeError."""
    require_one_length(overrides)
    values = dict(values)
    for change in overrides:
        override(values, change, EncoderDistilRecipe)
    for key in values:
        if key not in EncoderDistilRecipe.model_fields:
            meant = did_you_mean_setting(key, setting_names(EncoderDistilRecipe))
            raise RecipeError(f"distil: unknown key {key!r}.{meant}")
    return check(EncoderDistilRecipe, values, "distil")

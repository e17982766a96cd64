"""The settings of a distillation on raw text."""

from typing import Any, Self

from pydantic import Field, model_validator

from bertsmith.errors import RecipeError
from bertsmith.training.recipe import MaskingSettings
from bertsmith.training.settings import (
    EvaluationSettings,
    OptimizerSettings,
    PathText,
    RunSettings,
    override,
)
from bertsmith.validation import Listed, UserSettings, check, did_you_mean_setting, setting_names


class DataSettings(UserSettings):
    """Texts of at most `sequence_length` tokens; a step has `batch_size` times as many tokens together."""

    sequence_length: int = Field(128, ge=8)
    batch_size: int = Field(64, ge=1)


class DistilLossSettings(UserSettings):
    """How much each loss counts; 0 leaves it out, None takes what suits the teacher.

    `soft`: the teacher's probabilities of masked words, at a `temperature`; `mlm`: the words themselves;
    `states`: cosines of the last hidden states; `relations`: those of self-attention, of `teacher_layer`
    (counted from 1, the last by default) to the student's last layer, divided into at most `relation_heads`;
    `vectors`: cosines of the vectors of texts.
    """

    soft: float | None = Field(None, ge=0)
    mlm: float | None = Field(None, ge=0)
    states: float | None = Field(None, ge=0)
    relations: float | None = Field(None, ge=0)
    vectors: float | None = Field(None, ge=0)
    temperature: float = Field(2.0, gt=0)
    teacher_layer: int | None = Field(None, ge=1)
    relation_heads: int = Field(12, ge=1)


class StudentOptimizer(OptimizerSettings):
    """As everywhere, but for a run of minutes that begins with trained layers."""

    learning_rate: float = Field(5e-4, gt=0, le=1)
    warmup: float = Field(0.05, ge=0)


class EncoderDistilRecipe(RunSettings):
    """One distillation of an encoder, or of an embedding model. Exactly one of `steps` and `hours` is given.

    `layers` of the student are so many, evenly spread over the teacher's, or those named, counted from 1; by
    default every second. `width` is its hidden size, `feed_forward` the neurons of each feed-forward part,
    `family` its model_type where it is another than the teacher's, `dropout` its dropout while it learns.
    `dimensions` are those of an embedding model's vectors.
    """

    teacher: PathText
    corpus: PathText
    out: PathText
    layers: int | Listed[int] | None = None
    width: int | None = Field(None, ge=1)
    feed_forward: int | None = Field(None, ge=1)
    family: str | None = None
    dimensions: int | None = Field(None, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)
    micro_batch_tokens: int | None = Field(None, ge=8)
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
        named = (
            self.layers if isinstance(self.layers, tuple) else (1 if self.layers is None else self.layers,)
        )
        if not named or min(named) < 1:
            raise ValueError("layers are a number from 1 on, or those of the teacher's, counted from 1")
        return self

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """Of the named layers, counted from 0."""
        return tuple(each - 1 for each in self.layers) if isinstance(self.layers, tuple) else None


def make_encoder_recipe(values: dict[str, Any], overrides: list[str]) -> EncoderDistilRecipe:
    """A checked recipe from values and `dotted.key=value` changes. Raises RecipeError."""
    values = dict(values)
    for change in overrides:
        override(values, change, EncoderDistilRecipe)
    for key in values:
        if key not in EncoderDistilRecipe.model_fields:
            meant = did_you_mean_setting(key, setting_names(EncoderDistilRecipe))
            raise RecipeError(f"distil: unknown key {key!r}.{meant}")
    return check(EncoderDistilRecipe, values, "distil")

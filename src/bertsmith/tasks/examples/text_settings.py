"""Settings of tasks that give one answer for a text: how its hidden states become a vector, and which columns
of the table are read beside it.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from bertsmith.tasks.checkpoints.sentence_folder import read_pooling
from bertsmith.tasks.examples.columns import ColumnChoice
from bertsmith.tasks.heads.pooling import Pooling
from bertsmith.tasks.task import Task, TaskSettings
from bertsmith.validation import Listed


class RowSettings(TaskSettings):
    """Settings of tasks that read a table's rows. `missing`: rows without a text or a label are refused, left
    out (drop), or learned from with the blank text as it is (keep). In prediction a blank text gets no
    answer, unless blank texts were kept in training. `group` is a column: rows that share its value are never
    divided between train and dev.
    """

    missing: Literal["refuse", "drop", "keep"] = "refuse"
    """Rows without a text or a label: refused, or `drop`, or `keep` (blank texts as they are); `--missing`
    (more)."""
    group: str | int | None = None
    """Column of what rows of one source have in common: they are never divided between train and dev."""


class PooledSettings(RowSettings):
    """`pooling` turns a text's hidden states into one vector, which a linear layer reads: mean, cls or max.
    "published" is the head of the family's class in transformers. With None, training chooses what suits the
    encoder.
    """

    of_model: ClassVar[frozenset[str]] = RowSettings.of_model | {"pooling"}
    pooling: Literal["mean", "cls", "max", "published"] | None = None
    """`mean`, `cls` or `max` of the hidden states, or the `published` head; by default as the model's folder
    says, else the mean."""

    @property
    def linear_pooling(self) -> Pooling | None:
        """None for the published head, which is also that of a model without this setting."""
        return None if self.pooling == "published" else self.pooling


class MixedSettings(PooledSettings):
    """`features` are columns that are read beside the text, such as age,plan: numbers and categories. The
    kind of a column follows from its values, unless given as age:number or plan:category.
    """

    of_model: ClassVar[frozenset[str]] = PooledSettings.of_model | {"features"}
    features: Listed[str] = ()
    """Columns beside the text, such as age,plan."""

    @field_validator("features")
    @classmethod
    def _require_distinct_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = [ColumnChoice.of(spelling).name for spelling in value]
        if not all(names):
            raise ValueError(f"expected names of columns such as age,plan, found an empty one in {value}")
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"the column {twice[0]!r} is named twice")
        return value


def choose_pooling(task: Task[Any], source: Path) -> None:
    """Sets how the task pools a text, if the user didn't: the pooling named in the encoder's folder,
    otherwise mean.
    """
    usual = getattr(task.settings, "pooling", "")
    if usual is None or (usual == "mean" and "pooling" not in task.settings.model_fields_set):
        task.settings = task.settings.model_copy(update={"pooling": read_pooling(source) or "mean"})

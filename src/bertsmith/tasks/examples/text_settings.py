"""Settings of tasks on a text that give one answer for it: how its states become a vector, and which columns
of the table stand beside it.
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
    """Of tasks that read a table's rows. `missing`: rows without a text or a label are refused, left out
    (drop), or learned from with a blank text as it is (keep); in prediction a blank text has no answer,
    unless it was kept in training. `group` is a column: rows that have it in common are never divided
    between train and dev.
    """

    missing: Literal["refuse", "drop", "keep"] = "refuse"
    group: str | int | None = None


class PooledSettings(RowSettings):
    """`pooling` makes a text's hidden states one vector, which a linear layer reads: mean, cls or max.
    published: the head of the family's class in transformers. None: training chooses, as the encoder suits.
    """

    of_model: ClassVar[frozenset[str]] = RowSettings.of_model | {"pooling"}
    pooling: Literal["mean", "cls", "max", "published"] | None = None

    @property
    def linear_pooling(self) -> Pooling | None:
        """None for the published head, which is that of a model that says nothing."""
        return None if self.pooling == "published" else self.pooling


class MixedSettings(PooledSettings):
    """`features` are columns that are read beside the text, such as age,plan: numbers and categories. What a
    column is its values say, unless age:number or plan:category tells.
    """

    features: Listed[str] = ()

    @field_validator("features")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = [ColumnChoice.of(each).name for each in value]
        if not all(names):
            raise ValueError(f"expected names of columns such as age,plan, found an empty one in {value}")
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"the column {twice[0]!r} is named twice")
        return value


def choose_pooling(task: Task[Any], source: Path) -> None:
    """Settles, where the user didn't, how the task makes a vector of a text: by the pooling that the
    encoder's folder names, else the mean.
    """
    usual = getattr(task.settings, "pooling", "")
    if usual is None or (usual == "mean" and "pooling" not in task.settings.model_fields_set):
        task.settings = task.settings.model_copy(update={"pooling": read_pooling(source) or "mean"})

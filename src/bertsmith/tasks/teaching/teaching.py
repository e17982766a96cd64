"""An encoder taught before it has its head: by a loss of another kind on the same labelled examples."""

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

from bertsmith.tasks.examples.encoding import Encoded
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.task import Metrics, Outputs, Prediction, Task
from bertsmith.text.tokens.long_texts import Pieces
from bertsmith.text.tokens.tokenizer import Tokenizer


class Teaching(Task[Any]):
    """A subclass has a head and a loss of its own; all else is the task's."""

    main_metric = "accuracy"

    def __init__(self, task: Task[Any]) -> None:
        super().__init__(task.settings, task.labels)
        self._task, self.name = task, task.name  # type: ignore[misc]

    def examples(self, train: EncodedExamples) -> EncodedExamples:
        """The task's examples as they are taught by."""
        return train

    def example(self, text: Any, where: str = "the input") -> Any:
        return self._task.example(text, where)

    def read(self, path: Path | str, *, labelled: bool = True) -> list[Any]:
        return self._task.read(path, labelled=labelled)

    def texts(self, example: Any) -> Sequence[str]:
        return self._task.texts(example)

    def encode(self, example: Any, pieces: Sequence[Pieces], tokenizer: Tokenizer) -> Encoded:
        return self._task.encode(example, pieces, tokenizer)

    def calibrate(
        self, outputs: Sequence[Outputs], examples: Sequence[Any], encoded: Sequence[Encoded]
    ) -> Metrics:
        """As the task does, in a copy: the task itself may be held elsewhere, and stays as it is."""
        self._task = copy(self._task)
        return self._task.calibrate(outputs, examples, encoded)

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[Any], encoded: Sequence[Encoded]
    ) -> list[Prediction]:
        return self._task.decode(outputs, examples, encoded)

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[Any]) -> Metrics:
        return self._task.metrics(predictions, examples)

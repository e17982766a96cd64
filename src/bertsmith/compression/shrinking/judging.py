"""A finished candidate measured: its score on dev, its size, its work, and its time in turn with the whole
model's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertsmith.compression.distilling.tasks.results import measure_saving
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher
from bertsmith.compression.shrinking.candidates import CandidateResult
from bertsmith.model.static_table import is_static
from bertsmith.tasks.evaluating.evaluation import Evaluation, standard_error
from bertsmith.tasks.examples.held_out import folds_of
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples
from bertsmith.tasks.task_model import outputs_of
from bertsmith.training.finetuning.effort import pass_work

_FOLDS = 5


@dataclass(frozen=True)
class CandidateJudge:
    """`whole` is the model that is to be shrunk; `dev` are labelled examples."""

    whole: TaskTeacher
    dev: Sequence[Any]
    device: torch.device

    @property
    def metric(self) -> str:
        return self.whole.task.main_metric

    def judge(
        self,
        folder: Path,
        name: str,
        slug: str,
        seconds: float = 0.0,
        predicted: float | None = None,
        *,
        fitted: bool = False,
    ) -> CandidateResult:
        """`fitted`: its thresholds were chosen on dev. Those of each row are then chosen on other rows of it,
        or it would be better than the whole model, whose thresholds have never seen them.

        Raises ModelError where the folder is no model of this task.
        """
        found = self._opened(folder)
        split = _encoded(found, self.dev)
        score, error = _score(found, split, fitted=fitted)
        asked = _encoded(self.whole, self.dev).encoded
        saving = measure_saving([self.whole], found, [asked], split.encoded)
        cost = saving.student
        return CandidateResult(
            name=name,
            slug=slug,
            score=score,
            error=error,
            parameters=cost.parameters,
            bytes=cost.bytes,
            work=0.0 if is_static(folder) else pass_work(found.model.config, split.encoded),
            milliseconds=1e3 * cost.seconds,
            milliseconds_alone=1e3 * cost.alone,
            share=saving.share,
            share_alone=saving.share_alone,
            seconds=seconds,
            predicted=predicted,
        )

    def score(self, folder: Path, examples: Sequence[Any]) -> tuple[float, float | None]:
        """The main metric of a folder's model on other labelled examples, and its standard error."""
        found = self._opened(folder)
        return _score(found, _encoded(found, examples))

    def _opened(self, folder: Path) -> TaskTeacher:
        return TaskTeacher.open(str(folder), type(self.whole.task), self.device)


def _encoded(model: TaskTeacher, examples: Sequence[Any]) -> EncodedExamples:
    return encode_examples(model.task, examples, model.tokenizer)


def _score(model: TaskTeacher, split: EncodedExamples, *, fitted: bool = False) -> tuple[float, float | None]:
    """The main metric, and its standard error."""
    task, outputs = model.task, outputs_of(model.model, split.encoded)
    if fitted:
        folds = folds_of(task, split.examples, _FOLDS)
        predictions = task.decode_by_folds(outputs, split.examples, split.encoded, folds)
    else:
        predictions = task.decode(outputs, split.examples, split.encoded)
    evaluation = Evaluation(task.metrics(predictions, split.examples), {}, predictions, split)
    answers = task.error_analysis(predictions, split.examples).answers
    return evaluation.model[task.main_metric], standard_error(task, evaluation, answers)

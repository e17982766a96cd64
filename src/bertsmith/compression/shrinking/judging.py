"""Measures a finished candidate: its score on dev, its size, its work, and its time beside the
whole model's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertsmith.compression.distilling.tasks.results import compare_costs
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher
from bertsmith.compression.shrinking.candidates import CandidateResult
from bertsmith.model.static_table import is_static
from bertsmith.tasks.evaluating.evaluation import Evaluation, standard_error
from bertsmith.tasks.examples.held_out import folds_of
from bertsmith.tasks.finetuning import EncodedExamples, encode_examples
from bertsmith.tasks.task_model import outputs_of
from bertsmith.training.finetuning.effort import count_pass_work

_FOLDS = 5


@dataclass(frozen=True)
class CandidateJudge:
    """Measures candidates of the task of `whole`, the model to be shrunk, on the labelled examples `dev`."""

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
        """The result of the candidate in `folder`; `seconds` and `predicted` are only passed on.

        `fitted`: the candidate's thresholds were chosen on dev. They are then chosen anew by
        cross-validation, each row's on the other folds; otherwise the candidate would have an advantage over
        the whole model, whose thresholds have never seen dev. Raises ModelError where the folder holds no
        model of this task.
        """
        candidate = self._open_model(folder)
        split = _encode(candidate, self.dev)
        score, error = _measure_score(candidate, split, fitted=fitted)
        whole_split = _encode(self.whole, self.dev)
        costs = compare_costs([self.whole], candidate, [whole_split.encoded], split.encoded)
        cost = costs.student
        return CandidateResult(
            name=name,
            slug=slug,
            score=score,
            error=error,
            parameters=cost.parameters,
            bytes=cost.bytes,
            work=0.0 if is_static(folder) else count_pass_work(candidate.model.config, split.encoded),
            milliseconds=1e3 * cost.seconds,
            milliseconds_alone=1e3 * cost.alone,
            share=costs.share,
            share_alone=costs.share_alone,
            seconds=seconds,
            predicted=predicted,
        )

    def score(self, folder: Path, examples: Sequence[Any]) -> tuple[float, float | None]:
        """The main metric and its standard error of the model in `folder` on labelled examples."""
        model = self._open_model(folder)
        return _measure_score(model, _encode(model, examples))

    def _open_model(self, folder: Path) -> TaskTeacher:
        return TaskTeacher.open(str(folder), type(self.whole.task), self.device)


def _encode(model: TaskTeacher, examples: Sequence[Any]) -> EncodedExamples:
    return encode_examples(model.task, examples, model.tokenizer)


def _measure_score(
    model: TaskTeacher, split: EncodedExamples, *, fitted: bool = False
) -> tuple[float, float | None]:
    """The main metric and its standard error; with `fitted`, thresholds are chosen by cross-validation."""
    task, outputs = model.task, outputs_of(model.model, split.encoded)
    if fitted:
        folds = folds_of(task, split.examples, _FOLDS)
        predictions = task.decode_by_folds(outputs, split.examples, split.encoded, folds)
    else:
        predictions = task.decode(outputs, split.examples, split.encoded)
    evaluation = Evaluation(task.metrics(predictions, split.examples), {}, predictions, split)
    answers = task.error_analysis(predictions, split.examples).answers
    return evaluation.model[task.main_metric], standard_error(task, evaluation, answers)

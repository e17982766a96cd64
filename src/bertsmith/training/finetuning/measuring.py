"""The model of a fine-tuning run measured beside its baselines, on dev, on test, or by cross-validation; and
saved with where it comes from, into out/model/.
"""

import json
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any, cast

from bertsmith.arrays import Ints
from bertsmith.model.card import (
    checked_against,
    contamination_provenance,
    learned_row_length,
    rows_provenance,
)
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.task_checkpoint import save_task_model
from bertsmith.tasks.evaluating.evaluation import Evaluation, evaluate
from bertsmith.tasks.examples.held_out import CROSS_VALIDATION
from bertsmith.tasks.examples.text_task import TextTask
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.heads.linear_start import FROZEN, FROZEN_ALONE, LinearProbe
from bertsmith.tasks.task import Metrics, Outputs, Prediction, Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.finetuning.choosing import MethodChoice, evaluate_choice, main_score, measure_gain
from bertsmith.training.finetuning.column_study import ColumnStudy, study_by_folds, study_on_dev
from bertsmith.training.finetuning.finetune_session import FinetuneSession
from bertsmith.training.finetuning.methods import FULL, LINEAR
from bertsmith.training.finetuning.restarts import Restart, best_restart_index
from bertsmith.training.finetuning.results import LearningCurve, Results, hash_data
from bertsmith.training.log import as_json_value

# Of the learning curve: the parts of the rows, and of how many a quarter teaches nothing.
_SHARES, _FEWEST = (0.25, 0.5), 20


def measure(
    session: FinetuneSession,
    recipe: FinetuneRecipe,
    model: TaskModel,
    restarts: list[Restart],
    choice: MethodChoice | None = None,
    method: str = FULL,
    progress: Progress | None = None,
) -> Results:
    """Calibrates on dev, and measures the model and its baselines there and, once, on test. With a
    `choice`, what cross-validation said of the rows stands in dev's place. `progress` is of one split.
    """
    task, splits, curve, folds = session.task, {} if choice else {"dev": session.dev}, None, session.folds
    if session.test is not None:
        splits["test"] = session.test
    if choice is not None:
        evaluations, figures = _measure_choice(session, recipe, model, choice, splits, progress)
        probe, linear = session.probe, session.linear
        if (
            folds is not None
            and probe is not None
            and linear is not None
            and len(probe) == len(session.train)
        ):
            curve = measure_learning_curve(task, probe, linear.strength, session.train, folds)
    else:
        frozen = _predict_frozen(session, recipe, splits, progress) if method != LINEAR else {}
        outputs = {
            name: outputs_of(model, split.encoded, progress=progress) for name, split in splits.items()
        }
        figures = task.calibrate(outputs["dev"], session.dev.examples, session.dev.encoded)
        evaluations = {
            name: evaluate(task, outputs[name], session.data.train, split, frozen.get(name))
            for name, split in splits.items()
        }
    return Results(
        task=task,
        restarts=tuple(restarts),
        best=best_restart_index(restarts),
        evaluations=evaluations,
        figures=figures,
        data_warnings=session.data.warnings,
        train_rows=len(session.data.train),
        tried=() if choice is None else choice.tried,
        method=method if choice is None else choice.method,
        learning_curve=curve,
        folds=0 if choice is None or folds is None else len(set(folds.tolist())),
        columns=_study_columns(session, recipe, model),
    )


def _measure_choice(
    session: FinetuneSession,
    recipe: FinetuneRecipe,
    model: TaskModel,
    choice: MethodChoice,
    splits: Mapping[str, EncodedExamples],
    progress: Progress | None,
) -> tuple[dict[str, Evaluation], Metrics]:
    task = session.task
    assert session.folds is not None
    judged = session.train.some(choice.rows)
    figures = task.calibrate(choice.outputs, judged.examples, judged.encoded)
    evaluations = {CROSS_VALIDATION: evaluate_choice(task, choice, session.train, session.folds)}
    frozen = _predict_frozen(session, recipe, splits, progress) if choice.method != LINEAR else {}
    if choice.method != LINEAR and (reached := _measure_frozen_by_folds(session, choice)) is not None:
        evaluations[CROSS_VALIDATION].baselines[_frozen_name(session)] = reached
    for name, split in splits.items():
        outputs = outputs_of(model, split.encoded, progress=progress)
        evaluations[name] = evaluate(task, outputs, session.data.train, split, frozen.get(name))
    return evaluations, figures


def _measure_frozen_by_folds(session: FinetuneSession, choice: MethodChoice) -> Metrics | None:
    """Of the rows that the chosen method was judged by, whether or not a linear model was a candidate."""
    task, probe = session.task, session.probe
    if LINEAR not in session.methods or session.folds is None:
        return None
    if probe is None or session.linear is None or len(probe) < len(session.train):
        reached = choice.simplest()
        return None if reached is None else {task.main_metric: reached}
    outputs = probe.judge(session.folds, session.linear.strength)
    judged, some = session.train.some(choice.rows), [outputs[row] for row in choice.rows.tolist()]
    folds = session.folds[choice.rows]
    return task.metrics(task.decode_by_folds(some, judged.examples, judged.encoded, folds), judged.examples)


def _predict_frozen(
    session: FinetuneSession,
    recipe: FinetuneRecipe,
    splits: Mapping[str, EncodedExamples],
    progress: Progress | None,
) -> dict[str, dict[str, list[Prediction]]]:
    """Of each split what the start says before any training: a linear model of the features, or their
    cosine.
    """
    if LINEAR not in session.methods:
        return {}
    task, model = copy(session.task), session.start(recipe, recipe.seed)
    model.head.finish()
    task.bind(model.head)
    outputs = {name: outputs_of(model, split.encoded, progress=progress) for name, split in splits.items()}
    if "dev" in outputs:
        task.calibrate(outputs["dev"], session.dev.examples, session.dev.encoded)
    elif session.probe is not None and session.linear is not None:
        rows, said = session.probe.judge_some(session.linear.strength)
        assert session.probe.examples is not None
        judged = session.probe.examples.some(rows)
        task.calibrate(said, judged.examples, judged.encoded)
    return {
        name: {_frozen_name(session): task.decode(outputs[name], split.examples, split.encoded)}
        for name, split in splits.items()
    }


def _frozen_name(session: FinetuneSession) -> str:
    return FROZEN_ALONE if session.linear is None else FROZEN


def _study_columns(session: FinetuneSession, recipe: FinetuneRecipe, model: TaskModel) -> ColumnStudy | None:
    """What columns beside the text add; None where there are none, or the head isn't linear in features."""
    task, probe = session.task, session.probe
    if probe is None or session.linear is None or task.columns is None:
        return None
    strength = session.linear.strength
    if session.folds is not None:
        if len(probe) < len(session.train):
            return None
        return study_by_folds(
            cast(TextTask, task), probe, strength, session.train, session.folds, CROSS_VALIDATION
        )
    start = session.start(recipe, recipe.seed)
    return study_on_dev(
        cast(TextTask, task), probe, strength, start, model, session.train, session.dev, "dev"
    )


def save_model(
    session: FinetuneSession,
    folder: Path,
    model: TaskModel,
    recipe: FinetuneRecipe,
    results: Results,
    **facts: Any,
) -> None:
    """The model with where it comes from: recipe, metrics, the hashes of the data and of the encoder, and
    `facts`.
    """
    provenance = {
        "recipe": json.loads(recipe.model_dump_json()),
        "metrics": as_json_value({name: each.model for name, each in results.evaluations.items()}),
        "rows": results.train_rows,
        "sha256": hash_data(recipe),
        "encoder_sha256": session.encoder_sha256,
        **contamination_provenance(checked_against(session.source)),
        **rows_provenance(learned_row_length(session.source)),
        **facts,
    }
    save_task_model(folder, model, session.task, session.tokenizer, provenance, overwrite=True)
    write_golden(folder, type(session.task))


def measure_learning_curve(
    task: Task[Any], probe: LinearProbe, strength: float, train: EncodedExamples, folds: Ints
) -> LearningCurve | None:
    """By a linear model of frozen features, which costs no pass over the texts; how its errors fall tells how
    those of other methods do. None for too few rows.

    Doubling the rows once more is taken to divide what is missing to 1 by as much as the last doubling did:
    errors fall as a power of the rows. Where more of them were missing after it than before, which is chance,
    it is taken to change as much as the last one.
    """
    if len(train) < _FEWEST:
        return None

    def predictions(outputs: list[Outputs]) -> list[Prediction]:
        return task.decode_by_folds(outputs, train.examples, train.encoded, folds)

    parts = [predictions(probe.judge(folds, strength, share)) for share in _SHARES]
    whole = predictions(probe.judge(folds, strength))
    reached, last, error = measure_gain(task, whole, parts[-1], train.examples)
    missing = max(1 - reached, 0.0)
    before = missing + last
    left = min(missing / before, 1.0) if before > 0 else 1.0
    learned = len(train) * (1 - 1 / len(set(folds.tolist())))
    return LearningCurve(
        tuple(round(share * learned) for share in (*_SHARES, 1.0)),
        (*(main_score(task, part, train.examples) for part in parts), reached),
        last * left,
        error * left,
    )

"""Measures the model of a fine-tuning run beside its baselines, on dev and test or by cross-validation, and
saves it with its provenance to out/model/.
"""

import json
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
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
from bertsmith.tasks.examples.held_out import CROSS_VALIDATION, folds_of, seem_drawn_at_random
from bertsmith.tasks.examples.text_task import TextTask
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.heads.linear_start import FROZEN, FROZEN_ALONE
from bertsmith.tasks.task import Metrics, Outputs, Prediction, Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.finetuning.choosing import MethodChoice, evaluate_choice, main_score, measure_gain
from bertsmith.training.finetuning.column_study import ColumnStudy, study_by_folds, study_on_dev
from bertsmith.training.finetuning.finetune_session import FinetuneSession
from bertsmith.training.finetuning.methods import FULL, LINEAR, NAMES, NAMES_TEXTS
from bertsmith.training.finetuning.restarts import Restart, best_restart_index
from bertsmith.training.finetuning.results import LearningCurve, Results, hash_data
from bertsmith.training.log import as_json_value

_SHARES = (0.25, 0.5)  # of the rows, for the learning curve
_FEWEST = 20  # rows that a learning curve needs: a quarter of fewer teaches nothing


def measure(
    session: FinetuneSession,
    recipe: FinetuneRecipe,
    model: TaskModel,
    restarts: list[Restart],
    choice: MethodChoice | None = None,
    method: str = FULL,
    progress: Progress | None = None,
) -> Results:
    """Calibrates the task on dev, and measures the model and its baselines there and on test. With a
    `choice`, its cross-validated outputs take dev's place.

    `restarts` are the runs, of which `model` has the best weights; `method` is the one it was trained by if
    there is no choice. `progress` is called during the pass over each split.
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
            learn, names = partial(probe.predict_held_out, strength=linear.strength), 0.0
            learn_drawn = None
            if choice.method in (NAMES, NAMES_TEXTS) and session.names is not None:
                judge, names = session.names.judge, session.names.rows_of_names
                learn = partial(judge, texts=False)
                learn_drawn = None if recipe.names else partial(judge, texts=False, unseen=False)
            curve = measure_learning_curve(task, learn, session.train, folds, names, learn_drawn)
    elif not session.data.is_judged:
        evaluations, figures = _measure_unjudged(session, model, progress)
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
        best=best_restart_index(restarts) if restarts else 0,
        evaluations=evaluations,
        figures=figures,
        data_warnings=session.data.warnings,
        train_rows=len(session.data.train),
        tried=() if choice is None else choice.tried,
        method=method if choice is None else choice.method,
        learning_curve=curve,
        folds=0 if choice is None or folds is None else len(set(folds.tolist())),
        columns=_study_columns(session, recipe, model),
        names=session.study_names(method if choice is None else choice.method),
    )


def _measure_unjudged(
    session: FinetuneSession, model: TaskModel, progress: Progress | None
) -> tuple[dict[str, Evaluation], Metrics]:
    """Evaluations on dev and test, if they are given, of a model that was learned from names; and the figures
    of its calibration on dev.
    """
    splits = {"dev": session.dev} if len(session.dev) else {}
    if session.test is not None:
        splits["test"] = session.test
    outputs = {name: outputs_of(model, split.encoded, progress=progress) for name, split in splits.items()}
    figures: Metrics = {}
    if "dev" in outputs:
        figures = session.task.calibrate(outputs["dev"], session.dev.examples, session.dev.encoded)
    evaluations = {name: evaluate(session.task, outputs[name], None, split) for name, split in splits.items()}
    return evaluations, figures


def _measure_choice(
    session: FinetuneSession,
    recipe: FinetuneRecipe,
    model: TaskModel,
    choice: MethodChoice,
    splits: Mapping[str, EncodedExamples],
    progress: Progress | None,
) -> tuple[dict[str, Evaluation], Metrics]:
    """Returns the evaluations by cross-validation and on `splits`, and the figures of calibration."""
    task = session.task
    assert session.folds is not None
    cross_validated = session.train.some(choice.rows)
    figures = task.calibrate(choice.outputs, cross_validated.examples, cross_validated.encoded)
    evaluations = {CROSS_VALIDATION: evaluate_choice(task, choice, session.train, session.folds)}
    frozen = _predict_frozen(session, recipe, splits, progress) if choice.method != LINEAR else {}
    if choice.method != LINEAR and (metrics := _measure_frozen_by_folds(session, choice)) is not None:
        evaluations[CROSS_VALIDATION].baselines[_frozen_name(session)] = metrics
    for name, split in splits.items():
        outputs = outputs_of(model, split.encoded, progress=progress)
        evaluations[name] = evaluate(task, outputs, session.data.train, split, frozen.get(name))
    return evaluations, figures


def _measure_frozen_by_folds(session: FinetuneSession, choice: MethodChoice) -> Metrics | None:
    """The metrics of the frozen encoder's linear model on the rows that the chosen method was evaluated on,
    whether or not it was a candidate; only the main metric if not all features are known, else None.
    """
    task, probe = session.task, session.probe
    if LINEAR not in session.methods or session.folds is None:
        return None
    if probe is None or session.linear is None or len(probe) < len(session.train):
        score = choice.simplest_score()
        return None if score is None else {task.main_metric: score}
    outputs = probe.predict_held_out(session.folds, session.linear.strength)
    split, split_outputs = session.train.some(choice.rows), [outputs[row] for row in choice.rows.tolist()]
    folds = session.folds[choice.rows]
    predictions = task.decode_by_folds(split_outputs, split.examples, split.encoded, folds)
    return task.metrics(predictions, split.examples)


def _predict_frozen(
    session: FinetuneSession,
    recipe: FinetuneRecipe,
    splits: Mapping[str, EncodedExamples],
    progress: Progress | None,
) -> dict[str, dict[str, list[Prediction]]]:
    """The predictions for each split of the model that training begins with: a linear model of the frozen
    encoder's features, or their cosine. By split and by the baseline's name; empty if there is no such model.
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
        rows, held_out_outputs = session.probe.predict_some_held_out(session.linear.strength)
        assert session.probe.examples is not None
        calibration = session.probe.examples.some(rows)
        task.calibrate(held_out_outputs, calibration.examples, calibration.encoded)
    return {
        name: {_frozen_name(session): task.decode(outputs[name], split.examples, split.encoded)}
        for name, split in splits.items()
    }


def _frozen_name(session: FinetuneSession) -> str:
    return FROZEN_ALONE if session.linear is None else FROZEN


def _study_columns(session: FinetuneSession, recipe: FinetuneRecipe, model: TaskModel) -> ColumnStudy | None:
    """Studies what columns beside the text add; None without columns, or if the head isn't linear in them."""
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
    """Writes the model to `folder` with its provenance: the recipe, metrics, hashes of the data and of the
    encoder, and `facts`.
    """
    provenance = {
        "recipe": json.loads(recipe.model_dump_json()),
        "metrics": as_json_value({name: split.model for name, split in results.evaluations.items()}),
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
    task: Task[Any],
    learn: Callable[..., list[Outputs]],
    train: EncodedExamples,
    folds: Ints,
    names: float = 0.0,
    learn_drawn: Callable[..., list[Outputs]] | None = None,
) -> LearningCurve | None:
    """Measures how a linear model of frozen features improves with rows, which costs no pass over the texts.
    Other methods' errors fall about as its errors do. None for too few rows. `folds` (E,) are those of
    `train`. `learn` returns outputs for each of them, as LinearProbe.predict_held_out does for folds and the
    `share` of the others that is learned from; beside `names`, which count for so many rows.

    Errors fall as a power of the rows: the gain of doubling the rows is extrapolated by taking the error (1 -
    score) to fall by the same factor as in the last doubling. If the error rose there, which is chance, the
    next doubling is taken to change the score by as much again.

    Stratified folds flatter rows that were drawn at random: a class with many rows by chance judges often and
    is known well. Of 300 rows with 77 classes that is six points. So folds are drawn at random if the rows
    of a classification seem to be. Where the names of classes are known by the rows alone, `learn_drawn`
    knows none of a class without a row, and the names count for no rows: among many classes, other texts
    have some that no row has.
    """
    if len(train) < _FEWEST:
        return None

    def predictions(share: float, parts: Ints) -> list[Prediction]:
        return task.decode_by_folds(learn(parts, share=share), train.examples, train.encoded, parts)

    count, stratified, drawn = len(set(folds.tolist())), None, folds
    if seem_drawn_at_random(task, train.examples):
        stratified = main_score(task, predictions(1.0, folds), train.examples)
        drawn = folds_of(task, train.examples, count, stratified=False)
        if learn_drawn is not None:
            learn, names = learn_drawn, 0.0
    by_shares = [predictions(share, drawn) for share in (*_SHARES, 1.0)]
    score, last_gain, error = measure_gain(task, by_shares[-1], by_shares[-2], train.examples)
    missing = max(1 - score, 0.0)
    missing_before = missing + last_gain
    factor = min(missing / missing_before, 1.0) if missing_before > 0 else 1.0
    training_rows = len(train) * (1 - 1 / count)
    return LearningCurve(
        tuple(round(share * training_rows) for share in (*_SHARES, 1.0)),
        (*(main_score(task, part, train.examples) for part in by_shares[:-1]), score),
        last_gain * factor,
        error * factor,
        stratified,
        names,
    )

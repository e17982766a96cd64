"""A finished model measured beside its baselines: on dev, on test, or by cross-validation."""

from collections.abc import Mapping
from copy import copy

from bertsmith.progress import Progress
from bertsmith.tasks.computing.task_model import TaskModel, outputs_of
from bertsmith.tasks.evaluating.evaluation import evaluate
from bertsmith.tasks.examples.folds import CROSS_VALIDATION
from bertsmith.tasks.examples.text_task import TextTask
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.heads.linear_start import FROZEN, FROZEN_ALONE
from bertsmith.tasks.task import Metrics, Prediction
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.finetuning.choice import Choice
from bertsmith.training.finetuning.choosing import evaluate_choice
from bertsmith.training.finetuning.column_study import ColumnStudy, study_by_folds, study_on
from bertsmith.training.finetuning.finetune_session import FinetuneSession
from bertsmith.training.finetuning.learning_curve import LearningCurve, draw_learning_curve
from bertsmith.training.finetuning.methods import FULL, LINEAR
from bertsmith.training.finetuning.results import Restart, Results, leading


def measure(
    session: FinetuneSession,
    recipe: FinetuneRecipe,
    model: TaskModel,
    restarts: list[Restart],
    choice: Choice | None = None,
    method: str = FULL,
    progress: Progress | None = None,
) -> Results:
    """Calibrates on dev, and measures the model and its baselines there and, once, on test. With a
    `choice`, what cross-validation said of the rows stands in dev's place. `progress` is of one split.
    """
    task, splits = session.task, {} if choice else {"dev": session.dev}
    if session.test is not None:
        splits["test"] = session.test
    if choice is not None:
        return _measure_choice(session, recipe, model, restarts, choice, splits, progress)
    frozen = _frozen(session, recipe, splits, progress) if method != LINEAR else {}
    outputs = {name: outputs_of(model, split.encoded, progress=progress) for name, split in splits.items()}
    figures = task.calibrate(outputs["dev"], session.dev.examples, session.dev.encoded)
    evaluations = {
        name: evaluate(task, outputs[name], session.data.train, split, frozen.get(name))
        for name, split in splits.items()
    }
    warnings, rows = session.data.warnings, len(session.data.train)
    found = tuple(restarts), leading(restarts), evaluations, figures, warnings
    columns = _columns(session, recipe, model)
    return Results(task, *found, rows, method=method, columns=columns)


def _measure_choice(
    session: FinetuneSession,
    recipe: FinetuneRecipe,
    model: TaskModel,
    restarts: list[Restart],
    choice: Choice,
    splits: Mapping[str, EncodedExamples],
    progress: Progress | None,
) -> Results:
    task = session.task
    assert session.folds is not None
    judged = session.train.some(choice.rows)
    figures = task.calibrate(choice.outputs, judged.examples, judged.encoded)
    evaluations = {CROSS_VALIDATION: evaluate_choice(task, choice, session.train, session.folds)}
    frozen = _frozen(session, recipe, splits, progress) if choice.method != LINEAR else {}
    if choice.method != LINEAR and (reached := _frozen_by_folds(session, choice)) is not None:
        evaluations[CROSS_VALIDATION].baselines[_frozen_name(session)] = reached
    for name, split in splits.items():
        outputs = outputs_of(model, split.encoded, progress=progress)
        evaluations[name] = evaluate(task, outputs, session.data.train, split, frozen.get(name))
    found = tuple(restarts), leading(restarts), evaluations, figures, session.data.warnings
    rows, curve = len(session.data.train), learning_curve(session)
    folds = len(set(session.folds.tolist()))
    columns = _columns(session, recipe, model)
    return Results(task, *found, rows, choice.tried, choice.method, curve, folds, columns)


def _frozen_by_folds(session: FinetuneSession, choice: Choice) -> Metrics | None:
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


def _columns(session: FinetuneSession, recipe: FinetuneRecipe, model: TaskModel) -> ColumnStudy | None:
    """What columns beside the text add; None where there are none, or the head isn't linear in features."""
    task, probe = session.task, session.probe
    if probe is None or session.linear is None or not isinstance(task, TextTask) or task.columns is None:
        return None
    strength = session.linear.strength
    if session.folds is not None:
        if len(probe) < len(session.train):
            return None
        return study_by_folds(task, probe, strength, session.train, session.folds, CROSS_VALIDATION)
    start = session.start(recipe, recipe.seed)
    return study_on(task, probe, strength, start, model, session.train, session.dev, "dev")


def learning_curve(session: FinetuneSession) -> LearningCurve | None:
    """What more rows would bring; None where they don't judge in turn."""
    if session.probe is None or session.linear is None or len(session.probe) < len(session.train):
        return None
    assert session.folds is not None
    return draw_learning_curve(
        session.task, session.probe, session.linear.strength, session.train, session.folds
    )


def _frozen_name(session: FinetuneSession) -> str:
    return FROZEN_ALONE if session.linear is None else FROZEN


def _frozen(
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

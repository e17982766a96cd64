"""Labelled examples in memory become a trained model, without a run's folder: for estimators."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bertsmith.errors import RecipeError
from bertsmith.machine import Hardware
from bertsmith.model.locate import locate_model
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.finetuning.choosing import MethodChoice, choose_method
from bertsmith.training.finetuning.effort import complete_recipe, default_method, plan_comparison
from bertsmith.training.finetuning.finetune_session import FinetuneSession
from bertsmith.training.finetuning.labelled_data import LabelledData
from bertsmith.training.finetuning.methods import AUTO, LINEAR, TRAINED, merge_and_bind, named_method
from bertsmith.training.finetuning.task_run import SilentObserver, TaskRun
from bertsmith.training.machine import make_plain_machine


@dataclass(frozen=True)
class TrainedModel:
    """The model, in evaluation mode on the host, and its tokenizer; the recipe with what was chosen for it,
    its method among this; and, where rows judged in turn, what each method reached.
    """

    model: TaskModel
    tokenizer: Tokenizer
    recipe: FinetuneRecipe
    choice: MethodChoice | None


def finetune_examples(
    task: Task[Any],
    recipe: FinetuneRecipe,
    train: Sequence[Any],
    dev: Sequence[Any] = (),
) -> TrainedModel:
    """Head, loop and settings of a run without its folder, for callers that train many small models and keep
    what they want of them, as scikit-learn's searches do. Trains on `train` and teaches `task` its labels.

    With `dev` the best evaluation's weights are kept, `recipe.patience` ends the run, and confidence is
    calibrated. Without, a few rows choose the method by cross-validation and calibrate; all of them train.
    A method that the recipe names trains once, and is judged and calibrated by folds only where the recipe
    asks for these, or where they cost next to nothing: for linear. The caller's torch generators stay as they
    were.
    Raises InputError for labels nothing can be learnt of, RecipeError, and TrainingStopped.
    """
    source = locate_model(recipe.model).folder
    if recipe.restarts > 1:
        raise RecipeError("restarts are for runs with files. Train once for each seed instead.")
    if recipe.folds is not None and dev:
        raise RecipeError(f"folds = {recipe.folds} would judge where a dev set does: leave one of them out.")
    task.fit(train)
    task.check([*train, *dev])
    machine = make_plain_machine(recipe.hardware, recipe.micro_batch_tokens, Hardware.detect())
    devices = [machine.device] if machine.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        data = LabelledData(task, list(train), list(dev))
        bench = FinetuneSession.prepare(recipe, source, data, machine)
        named, method, choice = named_method(recipe), default_method(bench, recipe), None
        if bench.folds is not None and (named in (AUTO, LINEAR) or recipe.folds is not None):
            choice = choose_method(bench, recipe, plan_comparison(bench, recipe))
            method = choice.method
        trained = complete_recipe(bench, method, recipe)
        if method in TRAINED and dev:
            model = _train_with_dev(bench, trained)
        else:
            model = bench.learn(method, trained, bench.train)
    if choice is not None:
        judged = bench.train.some(choice.rows)
        task.calibrate(choice.outputs, judged.examples, judged.encoded)
    elif dev:
        task.calibrate(outputs_of(model, bench.dev.encoded), dev, bench.dev.encoded)
    chosen = trained.model_copy(update={"method": method})
    return TrainedModel(model.cpu().eval(), bench.tokenizer, chosen, choice)


def _train_with_dev(bench: FinetuneSession, recipe: FinetuneRecipe) -> TaskModel:
    settings = recipe.resolved(bench.steps_per_epoch(recipe), recipe.seed)
    model = bench.start(recipe, recipe.seed)
    with TemporaryDirectory() as folder:
        run = TaskRun(
            *(
                bench.task,
                model,
                bench.train,
                bench.dev,
                settings,
                bench.machine,
                Path(folder),
                SilentObserver(),
            ),
            measure_first=LINEAR in bench.methods,
        )
        run.run()
        run.best.restore(model)
    model.head.finish()
    merge_and_bind(bench.task, model)
    return model

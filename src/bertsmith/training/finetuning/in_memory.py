"""Trains a model on labelled examples in memory, without a run folder. The estimators use it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertsmith.errors import RecipeError
from bertsmith.machine import Hardware
from bertsmith.model.locate import locate_model
from bertsmith.tasks.examples.held_out import group_of, remove_held
from bertsmith.tasks.examples.text_task import TextExample, TextTask
from bertsmith.tasks.heads.name_training import NamesStudy
from bertsmith.tasks.losses.gradient_cache import RngState
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.finetuning.choosing import MethodChoice, choose_method
from bertsmith.training.finetuning.effort import complete_recipe, default_method, plan_comparison
from bertsmith.training.finetuning.finetune_session import FinetuneSession
from bertsmith.training.finetuning.labelled_data import LabelledData, read_names
from bertsmith.training.finetuning.methods import AUTO, LINEAR, TRAINED, merge_and_bind, named_method
from bertsmith.training.finetuning.task_run import SilentObserver, TaskRun
from bertsmith.training.machine import make_plain_machine


@dataclass(frozen=True)
class TrainedModel:
    """The model, in evaluation mode on the CPU, its tokenizer, the recipe with the method and settings that
    were chosen, the choice between methods if they were compared by cross-validation, and what the names of
    the labels say of unlabelled texts, if the model learned from both.
    """

    model: TaskModel
    tokenizer: Tokenizer
    recipe: FinetuneRecipe
    choice: MethodChoice | None
    names: NamesStudy | None = None


def move_copies_to_train(
    task: TextTask, train: list[TextExample], dev: list[TextExample]
) -> tuple[list[TextExample], list[TextExample]]:
    """Both parts with dev's copies of training texts, whatever their case and punctuation, moved to train:
    they would favour what was trained on them.
    """
    known = {(group_of(task, example), example.columns) for example in train}
    is_copy = [(group_of(task, example), example.columns) in known for example in dev]
    copies = [example for example, is_known in zip(dev, is_copy, strict=True) if is_known]
    return [*train, *copies], [
        example for example, is_known in zip(dev, is_copy, strict=True) if not is_known
    ]


def finetune_examples(
    task: Task[Any],
    recipe: FinetuneRecipe,
    train: Sequence[Any],
    dev: Sequence[Any] = (),
    unlabelled: Sequence[Any] = (),
) -> TrainedModel:
    """Trains a model on `train`, as a run with files does, and fits `task` to its labels. This is for callers
    that train many small models and keep what they want of them, as scikit-learn's searches do.

    With `dev`, the weights of the best evaluation are kept, `recipe.patience` may end the training, and
    confidence is calibrated on dev. Without it, a few rows choose the method and calibrate by
    cross-validation, and all rows train the final model. A method that the recipe names is trained only once;
    it is evaluated and calibrated by folds if the recipe gives `folds`, or if it is linear, for which folds
    cost next to nothing. With the recipe's `names` of labels and `unlabelled` texts, `train` may be empty.
    The states of torch's generators are restored afterwards.

    Raises InputError for labels that nothing can be learned from, RecipeError, and TrainingStopped.
    """
    source = locate_model(recipe.model).folder
    if recipe.restarts > 1:
        raise RecipeError("restarts are for runs with files. Train once for each seed instead.")
    if recipe.folds is not None and dev:
        raise RecipeError(f"folds = {recipe.folds} would judge where a dev set does: leave one of them out.")
    data = LabelledData(task, list(train), list(dev))
    data.know_names(read_names(task, recipe), recipe.hint)
    data.is_judged = not data.learns_from_names_alone(recipe)
    data.fit_task()
    fresh = {(*task.texts(row), getattr(row, "columns", ())): row for row in reversed(unlabelled)}
    data.unlabelled = remove_held(
        task, [*fresh.values()][::-1], [*train, *dev]
    )  # each once, none that judges
    task.check([*train, *dev])
    machine = make_plain_machine(recipe.hardware, recipe.micro_batch_tokens, Hardware.detect())
    with RngState.kept(machine.device):
        session = FinetuneSession.prepare(recipe, source, data, machine)
        named, method, choice = named_method(recipe), default_method(session, recipe), None
        if session.folds is not None and (named in (AUTO, LINEAR) or recipe.folds is not None):
            choice = choose_method(session, recipe, plan_comparison(session, recipe))
            method = choice.method
        trained = complete_recipe(session, method, recipe)
        if method in TRAINED and dev and data.is_judged:
            model = _train_with_dev(session, trained)
        else:
            model = session.learn(method, trained, session.train)
    if choice is not None:
        split = session.train.some(choice.rows)
        task.calibrate(choice.outputs, split.examples, split.encoded)
    elif dev and data.is_judged:
        task.calibrate(outputs_of(model, session.dev.encoded), dev, session.dev.encoded)
    chosen = trained.model_copy(update={"method": method})
    return TrainedModel(model.cpu().eval(), session.tokenizer, chosen, choice, session.study_names(method))


def _train_with_dev(session: FinetuneSession, recipe: FinetuneRecipe) -> TaskModel:
    """Trains in a temporary folder and returns the model with the weights that were best on dev."""
    settings = recipe.resolve(session.steps_per_epoch(recipe), recipe.seed)
    model = session.start(recipe, recipe.seed)
    with TemporaryDirectory() as folder:
        run = TaskRun(
            session.task,
            model,
            session.train,
            session.dev,
            settings,
            session.machine,
            Path(folder),
            SilentObserver(),
            measure_first=LINEAR in session.methods,
        )
        run.run()
        run.best.restore(model)
    model.head.finish()
    merge_and_bind(session.task, model)
    return model

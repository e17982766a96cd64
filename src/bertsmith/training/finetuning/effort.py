"""How many epochs a method trains for on the rows of a session, and how much work that is.

Work is counted in FLOP of the encoder's matrix products, so that any machine chooses the same, however busy
it is. The speed of this machine is measured only to tell people how long something will take.
"""

import time
from collections.abc import Sequence

import numpy as np

from bertsmith.data.batch import PackedBatch
from bertsmith.machine import synchronize
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.onednn_matmul import fast_matmul
from bertsmith.model.flops import encoder_flops
from bertsmith.tasks.examples.encoding import EncodedExample, Layout, pack_examples
from bertsmith.tasks.finetuning import EncodedExamples, steps_of_epoch
from bertsmith.tasks.losses.gradient_cache import RngState
from bertsmith.tasks.task_model import TaskModel
from bertsmith.training.finetune_recipe import FLOP_A_MINUTE, FinetuneRecipe
from bertsmith.training.finetuning.choosing import MethodWork
from bertsmith.training.finetuning.finetune_session import FinetuneSession
from bertsmith.training.finetuning.methods import (
    AUTO,
    FULL,
    LINEAR,
    UNTRAINED,
    apply_method,
    list_compared_methods,
    named_method,
    start_model,
    suits_folds,
)
from bertsmith.training.machine import Machine

# The step that is timed: its tokens at most, how often it is repeated, and from how many seconds it isn't.
_MOST_TOKENS, _TRIALS, _SLOW = 512, 2, 1.0


def default_method(session: FinetuneSession, recipe: FinetuneRecipe) -> str:
    """The method to train by if none are compared: the one that the recipe names, else `full`. It is `linear`
    if the recipe allows no work (minutes=0) for rows that are too many to compare methods on.
    """
    named = named_method(recipe)
    if named != AUTO:
        return named
    if not session.data.is_judged:
        return session.methods[-1]  # with the texts, if there are any
    return LINEAR if recipe.minutes == 0 and _is_limited(session, recipe) else FULL


def complete_recipe(session: FinetuneSession, method: str, recipe: FinetuneRecipe) -> FinetuneRecipe:
    """The recipe by which the method trains on all rows, with epochs and rates chosen if the user gave none.
    Fewer epochs than usual are chosen if they would take more work than comparing methods may.
    """
    unlimited = unlimited_recipe(session, method, recipe)
    if method != FULL or "epochs" in recipe.model_fields_set or not _is_limited(session, recipe):
        return unlimited
    rows = len(session.train) + len(session.dev)
    work = count_epoch_work(session.config, session.train.encoded, unlimited)
    return unlimited.model_copy(update={"epochs": recipe.epochs_on_many(unlimited.epochs, rows, work)})


def unlimited_recipe(session: FinetuneSession, method: str, recipe: FinetuneRecipe) -> FinetuneRecipe:
    """The same as `complete_recipe`, with the usual number of epochs, whatever work they take."""
    return _apply_method(session.config, method, recipe, session.steps_per_epoch(recipe))


def _apply_method(config: BertConfig, method: str, recipe: FinetuneRecipe, steps: int) -> FinetuneRecipe:
    layers = config.num_hidden_layers
    return apply_method(method, recipe, layers).complete(config.hidden_size, layers, steps)


def _is_limited(session: FinetuneSession, recipe: FinetuneRecipe) -> bool:
    """Whether full training is limited to the work of comparing methods: if they would have been compared,
    had the rows been fewer.
    """
    rows = len(session.train) + len(session.dev)
    compares = session.folds is None and named_method(recipe) == AUTO and LINEAR in session.methods
    return compares and suits_folds(session.task, recipe) and recipe.is_held_out_unasked(rows)


# -- work ----------------------------------------------------------------------------------------------


def plan_comparison(session: FinetuneSession, recipe: FinetuneRecipe) -> MethodWork:
    """Counts the work of comparing the methods by the session's folds, and how much of it is allowed."""
    assert session.folds is not None
    fold_ids, rows = sorted(set(session.folds.tolist())), len(session.train)
    parts = [session.train.some(np.flatnonzero(session.folds != fold)) for fold in fold_ids]
    folds, final = dict[str, list[float]](), dict[str, float]()
    for method in list_compared_methods(recipe, session.methods):
        known = method in UNTRAINED and session.knows_all_features
        folds[method] = [
            0.0 if known else count_training_work(session, method, recipe, part) for part in parts
        ]
        final[method] = 0.0 if method in UNTRAINED else count_training_work(session, method, recipe)
    budget, look = (
        FLOP_A_MINUTE * minutes for minutes in (recipe.minutes_to_choose(rows), recipe.minutes_to_look(rows))
    )
    return MethodWork(folds, final, budget, look)


def count_training_work(
    session: FinetuneSession, method: str, recipe: FinetuneRecipe, rows: EncodedExamples | None = None
) -> float:
    """The FLOP of training by the method on these rows, by default on all training rows."""
    rows = rows or session.train
    feature_work = count_pass_work(session.config, rows.encoded)  # for the head's linear start or end
    if method in UNTRAINED:
        return feature_work
    auxiliary = session.auxiliary_task(method)
    task, examples = (
        (session.task, rows) if auxiliary is None else (auxiliary, auxiliary.auxiliary_examples(rows))
    )
    steps = steps_of_epoch(task, examples, recipe.batch_size)
    completed = _apply_method(session.config, method, recipe, steps)
    return feature_work + completed.epochs * count_epoch_work(session.config, examples.encoded, completed)


def count_pass_work(config: BertConfig, encoded: Sequence[EncodedExample]) -> float:
    """The FLOP of one forward pass of the encoder over the examples."""
    windows = [window for example in encoded for window in example.windows]
    lengths = np.array([len(window.token_ids) for window in windows], np.int64)
    return encoder_flops(config, lengths, sum(len(window.rows) for window in windows))


def count_epoch_work(config: BertConfig, encoded: Sequence[EncodedExample], recipe: FinetuneRecipe) -> float:
    """The FLOP of one epoch, forward and backward. A backward pass costs twice the forward pass: half is for
    the gradients of weights, which LoRA doesn't need, and frozen layers need neither half.
    """
    layers = config.num_hidden_layers
    backward = 1.0 if recipe.lora.rank else 2 * (1 - min(recipe.freeze_layers / layers, 1))
    return (1 + backward) * count_pass_work(config, encoded)


def measure_training_speed(session: FinetuneSession, recipe: FinetuneRecipe) -> float:
    """Measures how many FLOP a second this machine trains at, as busy as it is now, by some steps on a few
    examples. This is only for telling people about the time. torch's random state stays as it is.
    """
    machine, examples = session.machine, session.train.encoded
    model = start_model(recipe, session.task, session.source).model.to(machine.device)
    sizes = np.cumsum([example.tokens for example in examples[: recipe.batch_size]])
    batch = examples[: max(int(np.searchsorted(sizes, _MOST_TOKENS, side="right")), 1)]
    model.train()
    with RngState.kept(machine.device):
        seconds = _time_step(model, batch, machine)  # warms up
        if seconds < _SLOW:
            seconds = min(_time_step(model, batch, machine) for _ in range(_TRIALS))
    return count_epoch_work(model.config, batch, recipe) / seconds


@fast_matmul()
def _time_step(model: TaskModel, examples: Sequence[EncodedExample], machine: Machine) -> float:
    """The seconds of one step, forward and backward, with a loss that needs no labels."""
    start = time.perf_counter()
    batch = PackedBatch.of(pack_examples(examples, range(len(examples))), machine.device)
    with machine.autocast():
        loss = model(batch, Layout(examples, machine.device)).float().square().sum()
    if loss.requires_grad:
        loss.backward()
    model.zero_grad()
    synchronize(machine.device)
    return time.perf_counter() - start

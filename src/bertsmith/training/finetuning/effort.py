"""How long a method trains on the rows of a session, and what work that is.

What a method computes is counted, in FLOP of the encoder's matrix products, so that the same is chosen on
any machine, whatever else it has to do; how fast this one computes it is only for what people are told of
the time.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch

from bertsmith.data.batch import PackedBatch
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.onednn_matmul import fast_products
from bertsmith.model.flops import encoder_flops
from bertsmith.tasks.examples.encoding import EncodedExample, Layout, pack_examples
from bertsmith.tasks.finetuning import EncodedExamples, steps_of_epoch
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

_MOST_TOKENS, _TRIALS, _LONG = 512, 2, 1.0  # of a step that is tried, steps, seconds of one


def default_method(session: FinetuneSession, recipe: FinetuneRecipe) -> str:
    """The one that is named; else `full`, unless rows that aren't few are to get no work at all."""
    named = named_method(recipe)
    if named != AUTO:
        return named
    return LINEAR if recipe.minutes == 0 and _is_limited(session, recipe) else FULL


def complete_recipe(session: FinetuneSession, method: str, recipe: FinetuneRecipe) -> FinetuneRecipe:
    """What the method trains by on all rows."""
    usual = unlimited_recipe(session, method, recipe)
    if method != FULL or "epochs" in recipe.model_fields_set or not _is_limited(session, recipe):
        return usual
    rows = len(session.train) + len(session.dev)
    work = count_epoch_work(session.config, session.train.encoded, usual)
    return usual.model_copy(update={"epochs": recipe.epochs_on_many(usual.epochs, rows, work)})


def unlimited_recipe(session: FinetuneSession, method: str, recipe: FinetuneRecipe) -> FinetuneRecipe:
    """The same, whatever work its epochs are."""
    return _apply_method(session.config, method, recipe, session.steps_per_epoch(recipe))


def _apply_method(config: BertConfig, method: str, recipe: FinetuneRecipe, steps: int) -> FinetuneRecipe:
    layers = config.num_hidden_layers
    return apply_method(method, recipe, layers).completed(config.hidden_size, layers, steps)


def _is_limited(session: FinetuneSession, recipe: FinetuneRecipe) -> bool:
    """Whether methods would have been compared, within their work, if only the rows were fewer."""
    rows = len(session.train) + len(session.dev)
    compares = session.folds is None and named_method(recipe) == AUTO and LINEAR in session.methods
    return compares and suits_folds(session.task, recipe) and recipe.is_held_out_unasked(rows)


# -- work ----------------------------------------------------------------------------------------------


def plan_comparison(session: FinetuneSession, recipe: FinetuneRecipe) -> MethodWork:
    """Of the methods that are compared, and how much there may be."""
    assert session.folds is not None
    numbers, rows = sorted(set(session.folds.tolist())), len(session.train)
    parts = [session.train.some(np.flatnonzero(session.folds != number)) for number in numbers]
    folds, final = dict[str, list[float]](), dict[str, float]()
    for method in list_compared_methods(recipe, session.methods):
        known = method in UNTRAINED and session.knows_features
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
    """FLOP of what the method learns by from these rows, all by default."""
    rows = rows or session.train
    once = count_pass_work(session.config, rows.encoded)  # for what the head begins or ends with
    if method in UNTRAINED:
        return once
    teaching = session.teaching(method)
    task, taught = (session.task, rows) if teaching is None else (teaching, teaching.examples(rows))
    steps = steps_of_epoch(task, taught, recipe.batch_size)
    trained = _apply_method(session.config, method, recipe, steps)
    return once + trained.epochs * count_epoch_work(session.config, taught.encoded, trained)


def count_pass_work(config: BertConfig, encoded: Sequence[EncodedExample]) -> float:
    """Of one forward pass over the examples."""
    windows = [window for each in encoded for window in each.windows]
    lengths = np.array([len(window.token_ids) for window in windows], np.int64)
    return encoder_flops(config, lengths, sum(len(window.rows) for window in windows))


def count_epoch_work(config: BertConfig, encoded: Sequence[EncodedExample], recipe: FinetuneRecipe) -> float:
    """Of one forward and backward pass over the examples, which costs twice the forward pass where all is
    trained: half of that for gradients of weights, none of which are frozen layers' or those beside LoRA.
    """
    layers = config.num_hidden_layers
    backward = 1.0 if recipe.lora.rank else 2 * (1 - min(recipe.freeze_layers / layers, 1))
    return (1 + backward) * count_pass_work(config, encoded)


def measure_training_speed(session: FinetuneSession, recipe: FinetuneRecipe) -> float:
    """FLOP that this machine trains by in a second, as busy as it is now, from some steps of a few examples:
    to tell people of the time, and for nothing else. torch's random state stays as it is.
    """
    machine, examples = session.machine, session.train.encoded
    model = start_model(recipe, session.task, session.source).model.to(machine.device)
    sizes = np.cumsum([each.tokens for each in examples[: recipe.batch_size]])
    some = examples[: max(int(np.searchsorted(sizes, _MOST_TOKENS, side="right")), 1)]
    model.train()
    devices = [machine.device] if machine.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        seconds = _time_step(model, some, machine)  # which warms up
        if seconds < _LONG:
            seconds = min(_time_step(model, some, machine) for _ in range(_TRIALS))
    return count_epoch_work(model.config, some, recipe) / seconds


@fast_products()
def _time_step(model: TaskModel, some: Sequence[EncodedExample], machine: Machine) -> float:
    begun = time.perf_counter()
    batch = PackedBatch.of(pack_examples(some, range(len(some))), machine.device)
    with machine.autocast():
        loss = model(batch, Layout(some, machine.device)).float().square().sum()
    if loss.requires_grad:
        loss.backward()
    model.zero_grad()
    if machine.device.type == "cuda":  # which works on its own time
        torch.cuda.synchronize(machine.device)
    return time.perf_counter() - begun

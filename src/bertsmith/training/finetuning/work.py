"""What a training computes: counted, so that the same is chosen on any machine, whatever else it has to do;
and how fast this one computes it, for what people are told of the time.

Work is in FLOP of the encoder's matrix products.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bertsmith.data.batch import PackedBatch
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.onednn_matmul import fast_products
from bertsmith.model.flops import encoder_flops
from bertsmith.tasks.computing.task_model import TaskModel
from bertsmith.tasks.examples.encoding import Encoded, Layout, pack_examples
from bertsmith.training.finetune_recipe import FinetuneRecipe
from bertsmith.training.machine import Machine

_MOST_TOKENS, _TRIALS, _LONG = 512, 2, 1.0  # of a step that is tried, steps, seconds of one


@dataclass(frozen=True)
class Work:
    """What methods take, in FLOP: `folds` what each learns by from all folds but one, fold by fold, and
    `final` from all rows. Methods are compared until `budget` is used but for the final training of the next;
    until `look`, where it would be a method's first fold.
    """

    folds: Mapping[str, Sequence[float]]
    final: Mapping[str, float]
    budget: float
    look: float

    @property
    def methods(self) -> list[str]:
        """In their order, the simplest first."""
        return list(self.folds)

    def whole(self, method: str) -> float:
        """Of all folds and the final training."""
        return sum(self.folds[method]) + self.final[method]

    def of_all(self) -> float:
        """What is enough to judge all methods by all folds, and to train by any."""
        return sum(map(sum, self.folds.values())) + max(self.final.values())

    def fits(self, method: str, number: int, used: float) -> bool:
        """Whether this fold of the method, and its final training, are within what is left."""
        limit = self.budget if number else self.look
        return used + self.folds[method][number] + self.final[method] <= limit

    def out_of_reach(self) -> list[str]:
        """Methods that won't be tried: known beforehand, for each has its first fold in the first round."""
        used, found = 0.0, list[str]()
        for number, method in enumerate(self.methods):
            if number and not self.fits(method, 0, used):
                found.append(method)
            else:
                used += self.folds[method][0]
        return found


def pass_work(config: BertConfig, encoded: Sequence[Encoded]) -> float:
    """Of one forward pass over the examples."""
    windows = [window for each in encoded for window in each.windows]
    lengths = np.array([len(window.token_ids) for window in windows], np.int64)
    return encoder_flops(config, lengths, sum(len(window.rows) for window in windows))


def epoch_work(config: BertConfig, encoded: Sequence[Encoded], recipe: FinetuneRecipe) -> float:
    """Of one forward and backward pass over the examples, which costs twice the forward pass where all is
    trained: half of that for gradients of weights, none of which are frozen layers' or those beside LoRA.
    """
    layers = config.num_hidden_layers
    backward = 1.0 if recipe.lora.rank else 2 * (1 - min(recipe.freeze_layers / layers, 1))
    return (1 + backward) * pass_work(config, encoded)


def training_speed(
    model: TaskModel, examples: Sequence[Encoded], recipe: FinetuneRecipe, machine: Machine
) -> float:
    """FLOP that this machine trains by in a second, as busy as it is now, from some steps of a few examples:
    to tell people of the time, and for nothing else. torch's random state stays as it is.
    """
    sizes = np.cumsum([each.tokens for each in examples[: recipe.batch_size]])
    some = examples[: max(int(np.searchsorted(sizes, _MOST_TOKENS, side="right")), 1)]
    model.train()
    devices = [machine.device] if machine.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        seconds = _seconds_of_step(model, some, machine)  # which warms up
        if seconds < _LONG:
            seconds = min(_seconds_of_step(model, some, machine) for _ in range(_TRIALS))
    return epoch_work(model.config, some, recipe) / seconds


@fast_products()
def _seconds_of_step(model: TaskModel, some: Sequence[Encoded], machine: Machine) -> float:
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

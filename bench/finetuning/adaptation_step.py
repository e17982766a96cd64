"""What freezing and LoRA save in a training step of a six-layer encoder, in processor time of one thread.
Last answer (2026-11-21, Zen 3): the top three layers 0.66 of a step, LoRA 0.78, the pooler 0.36.

python bench/finetuning/adaptation_step.py
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

from bertsmith.data.batch import PackedBatch
from bertsmith.model.adaptation import freeze, trained_share
from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.model.lora import add_lora, targets_of
from bertsmith.training.optimizer import make_optimizer, set_learning_rate
from bertsmith.training.settings import OptimizerSettings
from harness import report

MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
VOCABULARY = 8192  # of the quickstart; ten models at once have to fit into memory
LAYERS = MINILM["num_hidden_layers"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--length", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(1)
    steps = {name: Step(edit, options.sequences, options.length) for name, edit in VARIANTS.items()}
    times = {name: [] for name in steps}
    for number in range(options.rounds + 1):
        for name, step in steps.items():
            began = time.process_time()
            step()
            if number:  # the first round warms up
                times[name].append(time.process_time() - began)
    full = statistics.median(times["everything"])
    rows = [
        {
            "trained": name,
            "share of the weights": f"{step.share:.2%}",
            "ms": f"{statistics.median(times[name]) * 1e3:.0f}",
            "of a full step": f"{statistics.median(times[name]) / full:.2f}",
            "by operations": EXPECTED.get(name, ""),
        }
        for name, step in steps.items()
    ]
    notes = [
        f"MiniLM's shape with random weights, {options.sequences} sequences of {options.length} tokens, "
        "dropout 0.1: forward, backward, AdamW. Medians of interleaved rounds, one thread, processor time.",
        "By operations: the layers' forward products once and, for trained layers, twice more.",
    ]
    report("adaptation-step", "A step with parts frozen", rows, notes)


class Step:
    """One training step of an edited encoder."""

    def __init__(self, edit: Callable[[Bert], None], sequences: int, length: int) -> None:
        torch.manual_seed(0)
        self.model = Bert(make_config({**MINILM, "vocab_size": VOCABULARY}, "the benchmark")).train()
        edit(self.model)
        self.share = trained_share(self.model)
        self.optimizer = make_optimizer(self.model, OptimizerSettings())
        set_learning_rate(self.optimizer, 1e-5)
        ids = np.random.default_rng(0).integers(0, VOCABULARY, sequences * length)
        self.batch = PackedBatch.pack(ids, np.zeros_like(ids), np.full(sequences, length))

    def __call__(self) -> None:
        states = self.model(self.batch)
        self.model.pool(states[self.batch.first_rows]).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)


def frozen(lowest: int) -> Callable[[Bert], None]:
    return lambda model: freeze(model, embeddings=True, lowest=lowest)


VARIANTS: dict[str, Callable[[Bert], None]] = {
    "everything": lambda model: None,
    **{f"the top {LAYERS - lowest} layers": frozen(lowest) for lowest in range(LAYERS)},
    "the pooler": frozen(LAYERS),
    "LoRA, query and value": lambda model: add_lora(model),
    "LoRA, every linear module": lambda model: add_lora(model, targets=targets_of(model)),
}
EXPECTED = {
    "everything": "1.00",
    **{f"the top {n} layers": f"{(LAYERS + 2 * n) / (3 * LAYERS):.2f}" for n in range(1, LAYERS + 1)},
    "the pooler": f"{1 / 3:.2f}",
}

if __name__ == "__main__":
    main()

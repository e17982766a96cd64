"""FLOP against torch's own counter and the task's; seconds against sums by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bertsmith.data.batch import Sequences
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.model.config import BertConfig, make_config, preset
from bertsmith.model.flops import muon_flops
from bertsmith.planning.accelerators import Accelerator
from bertsmith.planning.cost import (
    Implementation,
    StepPart,
    compute_exchange_seconds,
    compute_step_parts,
    flops_by_part,
)
from bertsmith.planning.workload import StepAmounts
from bertsmith.tasks.pretraining.pretraining import PretrainingModel, PretrainingTask
from bertsmith.text.tokens.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(495))]
TOKENIZER = Tokenizer.from_pieces(PIECES, lowercase=True)
LENGTHS = [48, 48, 48, 32, 32, 16]  # attention fills none of them up
GPU = Accelerator(
    "test", "test", "", "", {64: 0.5}, peak=1e12, memory=1e9, memory_bandwidth=1e9,
    link_bandwidth=1e8, gpus_per_node=4, network_bandwidth=1e7,
)  # fmt: skip


def config_with(dropout: float) -> BertConfig:
    shape = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 160}
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return make_config({"vocab_size": len(PIECES), **shape, **rates}, "test")


def task_of(config: BertConfig, next_sentence: bool) -> PretrainingTask:
    torch.manual_seed(0)
    store = SimpleNamespace(tokens=np.arange(5, len(PIECES)))
    streams: Any = [SimpleNamespace(tokenizer=TOKENIZER, store=store)]
    model = PretrainingModel(config, next_sentence).train()
    return PretrainingTask(model, streams, Masker(TOKENIZER, MaskingRates()), None, 0, torch.device("cpu"))


def batch() -> Sequences:
    draw, lengths, total = np.random.default_rng(0), np.array(LENGTHS), sum(LENGTHS)
    ids = draw.integers(5, len(PIECES), total)
    keys = draw.integers(0, 2**64, len(LENGTHS), np.uint64)
    return Sequences(ids, np.zeros(total, np.int64), lengths, keys, np.zeros(len(LENGTHS), np.int64))


def amounts(task: PretrainingTask, sequences: Sequences) -> StepAmounts:
    squares = float((sequences.lengths.astype(float) ** 2).sum())
    return StepAmounts(len(sequences), sum(LENGTHS), squares, task.host_masker.count(sequences))


@pytest.mark.parametrize("next_sentence", [True, False])
def test_operations_are_those_that_torch_counts(next_sentence: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward of the real model, attention by torch's operations, which alone it counts."""
    monkeypatch.setattr("bertsmith.model.layers.attention.is_kernel_faster", lambda *_: False)
    task, sequences = task_of(config_with(dropout=0.1), next_sentence), batch()
    with FlopCounterMode(display=False) as counter:
        torch.stack(list(task.loss(sequences).values())).sum().backward()
    step = amounts(task, sequences)
    predicted = flops_by_part(task.model.config, step, next_sentence)
    filler = 3 * 2 * (-step.masked % 16) * 64 * len(PIECES)  # masked positions up to whole registers
    assert sum(predicted.values()) == pytest.approx(counter.get_total_flops() - filler, rel=0.01)


@pytest.mark.parametrize("next_sentence", [True, False])
def test_operations_are_those_of_the_log(next_sentence: bool) -> None:
    task, sequences = task_of(config_with(dropout=0.0), next_sentence), batch()
    predicted = flops_by_part(task.model.config, amounts(task, sequences), next_sentence)
    del predicted["next sentence"]  # the pooler's, too small for the log
    assert sum(predicted.values()) == pytest.approx(task.flops(sequences), rel=1e-12)


def test_attention_grows_with_the_square_of_the_length_and_nothing_else_does() -> None:
    config = preset("base")
    short = flops_by_part(config, StepAmounts(8, 1024, 8 * 128**2, 150), True)
    long = flops_by_part(config, StepAmounts(2, 1024, 2 * 512**2, 156), True)
    assert long["attention"] == 4 * short["attention"]
    assert long["encoder layers"] == pytest.approx(short["encoder layers"], rel=0.001)
    assert long["vocabulary"] == short["vocabulary"] * 156 / 150


def test_an_implementation_without_our_shortcuts_computes_what_they_save() -> None:
    config, step = preset("base"), StepAmounts(8, 1024, 8 * 128**2, 150)
    ours = flops_by_part(config, step, False)
    theirs = flops_by_part(
        config, step, False, Implementation(logits_of_all_tokens=True, full_last_layer=True)
    )
    assert theirs["vocabulary"] == pytest.approx(ours["vocabulary"] * 1024 / 150)
    rows = 3 * (1024 - 150) * (2 * 768**2 + 4 * 768 * 3072)
    assert theirs["encoder layers"] - ours["encoder layers"] == pytest.approx(rows)


def test_seconds_are_products_over_the_reached_speed_and_bytes_over_the_bandwidth() -> None:
    config, step = config_with(0.1), StepAmounts(4, 512, 4 * 128**2, 76)
    parts = {part.name: part for part in compute_step_parts(config, 1000, step, True, GPU, gpus=1)}
    for name, flops in flops_by_part(config, step, True).items():
        assert parts[name].seconds == pytest.approx(flops / 0.5e12)
    assert parts["optimiser"].seconds == pytest.approx(40 * 1000 / 0.8e9)
    assert parts["exchange of gradients"].seconds == 0
    written = compute_step_parts(config, 1000, step, True, GPU, 1, how=Implementation(attention_passes=20))
    moved = 2 * 20 * 3 * 4 * 4 * 128**2  # bytes, passes, layers, heads, squares
    (attention,) = [part for part in written if part.name == "attention"]
    assert attention.seconds - parts["attention"].seconds == pytest.approx(moved / 0.8e9)


def test_products_are_divided_over_gpus_and_the_optimiser_is_not() -> None:
    step = StepAmounts(4, 512, 4 * 128**2, 76)
    one = {part.name: part for part in compute_step_parts(config_with(0.1), 1000, step, True, GPU, 1)}
    four = {part.name: part for part in compute_step_parts(config_with(0.1), 1000, step, True, GPU, 4)}
    assert four["encoder layers"].seconds == pytest.approx(one["encoder layers"].seconds / 4)
    assert four["optimiser"].seconds == one["optimiser"].seconds


def test_a_ring_moves_almost_twice_the_gradients_over_the_slowest_link() -> None:
    assert compute_exchange_seconds(1e6, GPU, 1) == 0
    assert compute_exchange_seconds(1e6, GPU, 4) == pytest.approx(2 * 3 / 4 * 1e6 / 0.8e8)
    assert compute_exchange_seconds(1e6, GPU, 8) == pytest.approx(2 * 7 / 8 * 1e6 / 0.8e7)


def test_only_what_the_last_backward_pass_does_not_hide_is_waited_for() -> None:
    config, step = config_with(0.1), StepAmounts(4, 512, 4 * 128**2, 76)

    def waiting(weights: int, micro_batches: int) -> float:
        parts = compute_step_parts(config, weights, step, True, GPU, 4, micro_batches)
        return parts[-1].seconds

    products = sum(flops_by_part(config, step, True).values()) / 4 / 0.5e12
    whole = compute_exchange_seconds(4 * 100_000, GPU, 4)
    assert waiting(100_000, 1) == pytest.approx(whole - products * 2 / 3)
    assert waiting(100_000, 4) == pytest.approx(whole - products / 4 * 2 / 3)
    assert waiting(10, 1) == 0


def test_gpus_that_divide_the_weights_exchange_them_for_every_micro_batch() -> None:
    """Gathered forward and backward, and the gradients scattered: three halves of an all-reduce."""
    config, step = config_with(0.1), StepAmounts(4, 512, 4 * 128**2, 76)

    def parts(micro_batches: int, sharded: bool) -> dict[str, StepPart]:
        made = compute_step_parts(config, 100_000, step, True, GPU, 4, micro_batches, sharded=sharded)
        return {part.name: part for part in made}

    products = sum(flops_by_part(config, step, True).values()) / 4 / 0.5e12
    waiting = parts(2, True)["exchange of weights and gradients"].seconds
    assert waiting == pytest.approx(2 * 1.5 * compute_exchange_seconds(4 * 100_000, GPU, 4) - products)
    assert parts(1, True)["optimiser"].seconds == parts(1, False)["optimiser"].seconds / 4


def test_muon_computes_on_every_gpu_whatever_the_batch() -> None:
    config, step = config_with(0.1), StepAmounts(4, 512, 4 * 128**2, 64)
    for gpus in (1, 4):
        plain, muon = (
            {part.name: part for part in compute_step_parts(config, 1000, step, True, GPU, gpus, muon=muon)}[
                "optimiser"
            ]
            for muon in (False, True)
        )
        assert muon.flops == gpus * muon_flops(config)
        of_one = muon_flops(config) / (GPU.peak * GPU.share(config.hidden_size))
        assert muon.seconds - plain.seconds == pytest.approx(of_one)
        assert muon.bytes == plain.bytes

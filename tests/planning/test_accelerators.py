"""The table of hardware: complete, with sources; and what happens between and beyond its entries."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bertsmith import machine as hardware
from bertsmith.data.batch import PackedBatch
from bertsmith.errors import InputError
from bertsmith.machine import Hardware
from bertsmith.model.config import make_config
from bertsmith.planning import plan as this_accelerator
from bertsmith.planning.accelerators import Accelerator, find_accelerator, list_accelerators
from bertsmith.planning.cost import flops_by_part
from bertsmith.planning.plan import measure_here, measure_share_of_peak, memory_bandwidth
from bertsmith.planning.workload import StepAmounts
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.training.settings import HardwareSettings

TWO = Accelerator("two", "two", "", "", {256: 0.4, 768: 0.6})


def test_every_entry_has_plausible_figures_and_says_where_they_are_from() -> None:
    for entry in list_accelerators().values():
        assert entry.source and entry.share_source, entry.name
        assert entry.precision in ("bfloat16", "float32")
        assert 1e13 < entry.peak < 1e16
        assert 1e10 < entry.memory < 1e12
        assert 1e11 < entry.memory_bandwidth < 1e13
        assert entry.network_bandwidth <= entry.link_bandwidth <= entry.memory_bandwidth
        assert all(0.1 < share < 0.8 for share in entry.shares.values())


def test_a_share_is_interpolated_between_widths_and_held_beyond_them() -> None:
    assert TWO.share(256) == 0.4
    assert TWO.share(512) == pytest.approx(0.5)
    assert TWO.share(640) == pytest.approx(0.55)
    assert (TWO.share(128), TWO.share(1024)) == (0.4, 0.6)
    assert [TWO.knows(width) for width in (128, 256, 500, 768, 1024)] == [False, True, True, True, False]


@pytest.mark.parametrize(("name", "near"), [("h1oo", "h100"), ("A100", "a100-"), ("hier", "here")])
def test_unknown_hardware_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(InputError, match=rf"(?s)Unknown hardware '{name}'. Did you mean '{near}.*h200"):
        find_accelerator(name)


def test_names_are_found_in_capitals_too() -> None:
    assert find_accelerator("H100") == find_accelerator("h100")


@pytest.mark.slow
def test_this_machine_is_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(this_accelerator, "_CPU_BYTES", 2**20)
    monkeypatch.setattr(hardware, "_CPU_SIZE", 64)
    plain = replace(Hardware.detect(), instructions=("avx2",), gpus=(), memory_available=5 * 10**9)
    shape = {"hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 2, "intermediate_size": 64}
    found = measure_here(make_config({"vocab_size": 99, **shape}, "test"), HardwareSettings(threads=3), plain)
    assert (found.name, found.memory, found.precision) == ("here-cpu", 5e9, "float32")
    assert found.peak > 0
    assert found.is_here and not find_accelerator("h100").is_here
    assert found.knows(32) and 0 < found.share(32) < math.inf
    assert asked == [3, torch.get_num_threads()]  # and then as the caller had them


def test_the_share_is_the_products_of_a_step_over_its_time_and_the_peak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The median, of four layers of six, the first step left out; random numbers stay as they were."""
    durations, speeds, layers = iter([9.0, 0.5, 0.25, 0.25, 7.0]), list[float](), list[int]()
    shape = {"hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 2, "intermediate_size": 64}
    config = make_config({"vocab_size": 99, **shape}, "test")
    four = config.model_copy(update={"num_hidden_layers": 4})

    def step(model: PretrainingModel, batch: PackedBatch, rows: Tensor, machine: Any) -> float:
        lengths = np.array(batch.lengths, float)
        assert len(lengths) == 32 and lengths.min() >= 64 and lengths.max() <= 128
        assert len(rows) == round(0.15 * lengths.sum()) == len(set(rows.tolist()))
        layers.append(len(model.encoder.layers))
        amounts = StepAmounts(32, lengths.sum(), (lengths**2).sum(), len(rows))
        duration = next(durations)
        speeds.append(sum(flops_by_part(four, amounts, False).values()) / duration)
        return duration

    monkeypatch.setattr(this_accelerator, "_time_step", step)
    torch.manual_seed(1)
    found = measure_share_of_peak(config, SimpleNamespace(peak=1e9), 1.0)  # type: ignore[arg-type]
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))
    assert layers == [4, 4, 4, 4]
    assert len(set(speeds)) == 4  # each batch is another one
    assert found == pytest.approx(sorted(speeds[1:])[1] / 1e9)


def test_bandwidth_is_twice_the_copied_bytes_over_the_median_time(monkeypatch: pytest.MonkeyPatch) -> None:
    durations = iter([9.0, 0.5, 0.25, 7.0, 0.25, 0.25])
    monkeypatch.setattr(this_accelerator, "_CPU_BYTES", 4000)
    monkeypatch.setattr(this_accelerator, "_time_copy", lambda source, target: next(durations))
    assert memory_bandwidth(torch.device("cpu"), 0.0) == 2 * 4000 / 0.25


def test_a_share_that_is_assumed_by_another_entrys_keeps_to_what_it_says() -> None:
    """Also after the other one was measured."""
    entries, compared = list_accelerators(), 0
    for entry in entries.values():
        if not (said := re.match(r"assumed: (as|less than|more than) ([\w-]+)", entry.share_source)):
            continue
        compared += 1
        ours, theirs = (
            [shares[width] for width in (768, 1024)] for shares in (entry.shares, entries[said[2]].shares)
        )
        expected = {"as": ours == theirs, "less than": ours < theirs, "more than": ours > theirs}
        assert expected[said[1]], entry.name
    assert compared >= 7

"""The table of hardware: complete, with sources; and what happens between and beyond its entries."""

from dataclasses import replace

import pytest
import torch

from bertsmith.errors import InputError
from bertsmith.planning import this_accelerator
from bertsmith.planning.accelerators import Accelerator, accelerators, entry_for_here, find_accelerator
from bertsmith.planning.this_accelerator import measure_here, memory_bandwidth
from bertsmith.training import hardware
from bertsmith.training.hardware import Hardware
from bertsmith.training.settings import HardwareSettings

TWO = Accelerator("two", "two", "", "", {256: 0.4, 768: 0.6})


def test_every_entry_has_plausible_figures_and_says_where_they_are_from() -> None:
    for entry in accelerators().values():
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


def test_this_machine_is_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(this_accelerator, "_CPU_BYTES", 2**20)
    monkeypatch.setattr(hardware, "_CPU_SIZE", 64)
    plain = replace(Hardware.detect(), instructions=("avx2",), gpus=(), memory_available=5 * 10**9)
    found = measure_here(HardwareSettings(threads=3), plain)
    assert (found.name, found.memory, found.precision) == ("here-cpu", 5e9, "float32")
    assert found.peak > 0
    assert found.is_here and not find_accelerator("h100").is_here
    assert found.shares == entry_for_here("cpu").shares
    assert asked == [3, torch.get_num_threads()]  # and then as the caller had them


def test_a_processor_with_bfloat16_has_shares_of_its_own() -> None:
    plain, half = entry_for_here("cpu"), entry_for_here("cpu", precision="bfloat16")
    assert half.is_here and half.name == plain.name == "here-cpu"
    assert all(half.shares[width] < share for width, share in plain.shares.items())
    assert not any(name.startswith("here") for name in accelerators())


def test_bandwidth_is_twice_the_copied_bytes_over_the_median_time(monkeypatch: pytest.MonkeyPatch) -> None:
    durations = iter([9.0, 0.5, 0.25, 7.0, 0.25, 0.25])
    monkeypatch.setattr(this_accelerator, "_CPU_BYTES", 4000)
    monkeypatch.setattr(this_accelerator, "_seconds_of_copy", lambda source, target: next(durations))
    assert memory_bandwidth(torch.device("cpu"), 0.0) == 2 * 4000 / 0.25

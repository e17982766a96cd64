"""Threads, device and precision of a run."""

from dataclasses import replace

import pytest
import torch

from bertsmith.errors import RecipeError
from bertsmith.machine import Gpu
from bertsmith.training import machine as machines
from bertsmith.training.machine import Ranks, make_plain_machine, set_up_machine
from bertsmith.training.settings import HardwareSettings
from machines import PLAIN


@pytest.mark.parametrize(
    ("asked", "ranks", "threads", "expected"),
    [
        (None, 1, None, 4),
        (None, 2, None, 2),
        ("3", 1, None, 3),
        ("3", 1, 2, 2),
        ("1", 2, None, 2),  # torchrun's own doing
        ("", 1, None, 4),
        ("0", 1, None, 4),
        ("many", 1, None, 4),
        ("3,2", 1, None, 3),  # of nested levels
    ],
)
def test_threads(
    asked: str | None, ranks: int, threads: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting goes before OMP_NUM_THREADS, and that before the cores."""
    found: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    monkeypatch.setattr(machines, "matmul_flops", lambda *_, **__: 1e11)
    monkeypatch.setattr(machines, "join_ranks", lambda _: Ranks(0, ranks, 0, ranks))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    set_up_machine(HardwareSettings(threads=threads), None, PLAIN)
    assert found == [expected]


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "join_ranks", lambda _: Ranks(1, 2, 1, 2))
    one_gpu = replace(PLAIN, gpus=(Gpu("only", 10**9, (8, 0)),))
    with pytest.raises(RecipeError, match=r"2 processes .* has 1 GPU\. Start as many: torchrun"):
        set_up_machine(HardwareSettings(device="cuda"), None, one_gpu)


def test_bfloat16_is_refused_where_a_gpu_lacks_it() -> None:
    old = replace(PLAIN, gpus=(Gpu("old", 10**9, (7, 0)),))
    with pytest.raises(RecipeError, match=r"compute capability 7\.0 has no bfloat16"):
        make_plain_machine(HardwareSettings(device="cuda", precision="bfloat16"), None, old)

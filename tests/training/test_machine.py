"""Threads and precision of a run."""

import pytest
import torch
from machines import PLAIN

from bertsmith.training import machine as machines
from bertsmith.training.distributed import Ranks
from bertsmith.training.machine import set_up_machine
from bertsmith.training.settings import HardwareSettings


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
    ],
)
def test_threads(
    asked: str | None, ranks: int, threads: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting goes before OMP_NUM_THREADS, and that before the cores."""
    found: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    monkeypatch.setattr(machines, "matmul_flops", lambda *_, **__: 1e11)
    monkeypatch.setattr(machines, "join", lambda _: Ranks(0, ranks))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    set_up_machine(HardwareSettings(threads=threads), None, PLAIN)
    assert found == [expected]

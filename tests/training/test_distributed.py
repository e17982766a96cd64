"""Alone, every function is the plain thing. What several ranks do together is in tests/faults."""

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bertsmith.training.machine import (
    Ranks,
    add_over_ranks,
    broadcast_value,
    join_ranks,
    leave_ranks,
    wait_for_ranks,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("environment", [{}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_one_process_joins_nothing(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert join_ranks("cpu") == Ranks(rank=0, count=1, local_rank=0)
    assert not dist.is_initialized()


def test_ranks_wait_longer_for_each_other_than_a_corpus_takes_to_be_tokenised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL would give up after ten minutes, gloo after thirty."""
    given: dict[str, Any] = {}
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **named: given.update(named))
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    assert join_ranks("cpu").rank == 1
    assert timedelta(hours=1) <= given["timeout"] <= timedelta(hours=6)


def test_alone_values_are_what_they_are() -> None:
    values = {"loss": 0.1 + 0.2, "stop": 0.0}
    assert add_over_ranks(values, CPU) == values
    assert broadcast_value(1 / 3, CPU) == 1 / 3


def test_alone_there_is_nobody_to_wait_for_or_leave() -> None:
    wait_for_ranks()
    leave_ranks()
    assert not torch.distributed.is_initialized()


def test_the_first_rank_of_all_is_the_first() -> None:
    """Not the first on each machine: one process writes a run's files."""
    assert [Ranks(rank, 4, rank % 2).is_first for rank in range(4)] == [True, False, False, False]

"""A student's thread: on one core, and opened in it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from bertsmith.serving.mirror.answering.student_thread import StudentThread


class _Counts:
    """Notes how many cores torch has where it is opened and asked."""

    file: Any = None

    def __init__(self) -> None:
        self.cores = [torch.get_num_threads()]

    def input_of(self, asked: Any, version: str) -> str | None:
        """Isn't asked."""

    def answer(self, texts: Sequence[str]) -> list[Any]:
        self.cores.append(torch.get_num_threads())
        return list(texts)


def test_it_computes_on_one_core_and_leaves_the_others_alone() -> None:
    """A second team of OpenMP's threads would have both teams' sleep between any two operations."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        thread = StudentThread("x", _Counts)
        assert asyncio.run(thread.answer("a text", 10)) == "a text"
        thread.close()
        assert thread.student.cores == [1, 1]  # type: ignore[attr-defined]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_what_opening_raises_is_raised() -> None:
    def broken() -> Any:
        raise FileNotFoundError("student.json")

    with pytest.raises(FileNotFoundError, match=r"student\.json"):
        StudentThread("x", broken)

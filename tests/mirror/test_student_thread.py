"""A student's thread: on one core, and opened in it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_student import make_student
from test_call_store import call_of

from bertsmith.mirror.answering.open_students import StudentThread
from bertsmith.mirror.student import MirrorStudent


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


def test_a_student_whose_model_gives_no_number_is_sure_of_nothing(tmp_path: Path) -> None:
    class Overflowed:
        def logits(self, texts: Sequence[str]) -> dict[str, Any]:
            return {"$.intent": np.full((len(texts), 3), np.nan)}

    call = call_of(1, schema={"type": "object", "properties": {"intent": {"enum": ["a", "b", "c"]}}})
    opened = MirrorStudent.open(make_student(tmp_path / "made", call, {}, {"intent": "a"}))
    (sure,) = opened.answer(["a text"])
    (found,) = MirrorStudent(opened.file, Overflowed()).answer(["a text"])
    assert (sure.is_sure, found.is_sure, found.confidence) == (True, False, 0.0)

"""Answers of many numbers: the same bytes, written without holding the event loop."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bertsmith.serving.protocols import routing
from bertsmith.serving.protocols.routing import JsonResponse, json_response

ROWS = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7


@pytest.mark.parametrize(
    "content",
    [
        ROWS,
        ROWS[0],
        list(ROWS),
        {"a": ROWS, 'é"': [], "c": {}, "d": [1, "x", None], "e": [[]], "f": [np.zeros((0, 3))]},
        {"results": [{"label": "x", "shares": {"a": 0.25, 3: 1e-9}}] * 3, "version": 1},
        {1: [1], None: [2]},
        [],
        [[True, [np.float32(0.1), np.int64(3)]]],
        "text",
    ],
    ids=str,
)
def test_what_is_written_in_parts_is_what_is_written_at_once(content: Any) -> None:
    assert b"".join(routing._write_parts(content)) == JsonResponse(content).body


def test_while_millions_of_numbers_are_written_the_event_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = np.random.default_rng(0).standard_normal((4000, 384), np.float32)
    goes_on, parts = threading.Event(), routing._write_parts

    def waiting(content: object) -> Iterator[bytes]:
        assert goes_on.wait(30)  # for the event loop, which can't come where it writes itself
        yield from parts(content)

    monkeypatch.setattr(routing, "_write_parts", waiting)

    async def ask() -> None:
        writing = asyncio.ensure_future(json_response(rows, {"x-model": "m"}))
        await asyncio.sleep(0.01)
        goes_on.set()
        answer = await writing
        assert answer.body == JsonResponse(rows).body
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-model"] == "m"

    asyncio.run(ask())


def test_a_small_answer_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "to_thread", None)
    answer = asyncio.run(json_response({"results": [1.5, 2.5]}, {}))
    assert answer.body == b'{"results":[1.5,2.5]}'

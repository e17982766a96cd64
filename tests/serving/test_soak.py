"""A service that has answered hundreds of thousands of requests is as it was after the first."""

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from served_models import TASKS, inputs_of, save_fine_tuned, save_pretrained

_CONNECTIONS, _LOOKED_EVERY = 16, 1000  # requests


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_three_hundred_thousand_requests_leave_nothing_behind(tmp_path: Path) -> None:
    """Of all tasks, lengths and sizes, a tenth of them wrong: memory has no slope that noise would not have,
    and there are no more descriptors and threads than after the first 20,000.
    """
    named = [f"{name}={save_fine_tuned(tmp_path / name, name)}" for name in TASKS]
    named.append(f"masked={save_pretrained(tmp_path / 'pretrained')}")
    command = [sys.executable, "-m", "bertsmith", "serve", *named, "--port", "0", "--no-log-requests"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            port = int(json.loads(server.stderr.readline())["address"].rpartition(":")[2])
            process = psutil.Process(server.pid)
            warm = asyncio.run(_ask(port, 20_000, process))
            before = process.num_fds(), process.num_threads()
            memory = asyncio.run(_ask(port, 280_000, process))
            after = process.num_fds(), process.num_threads()
        finally:
            server.terminate()
    assert len(warm) == 20
    assert after[1] <= before[1]
    assert after[0] <= before[0] + 2  # a connection that is just closing
    slope, error = _slope(memory)
    print(f"{slope:.1f} ± {error:.1f} bytes a request over 280,000")
    assert slope * 280_000 < 4_000_000 or slope < 2 * error


def _slope(memory: list[int]) -> tuple[float, float]:
    """Bytes a request, and the standard error, over means of ten looks: neighbours are not independent."""
    means = np.array(memory[: len(memory) // 10 * 10], float).reshape(-1, 10).mean(axis=1)
    at = np.arange(len(means)) * 10 * _LOOKED_EVERY
    (slope, _), covariance = np.polyfit(at, means, 1, cov=True)
    return float(slope), float(np.sqrt(covariance[0, 0]))


async def _ask(port: int, count: int, process: psutil.Process) -> list[int]:
    """The resident memory after each thousand."""
    draw, requests, left, memory = random.Random(count), _requests(), count, list[int]()

    async def one_connection() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while left > 0:
            left -= 1
            if left % _LOOKED_EVERY == 0:
                memory.append(process.memory_info().rss)
            name, body, status = draw.choice(requests)
            writer.write(
                f"POST /v1/{name} HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n".encode()
                + body
            )
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            assert f" {status} " in head.partition("\r\n")[0], (name, body, head)
            length = next(line for line in head.split("\r\n") if line.startswith("content-length:"))
            await reader.readexactly(int(length.partition(":")[2]))
        writer.close()

    await asyncio.gather(*(one_connection() for _ in range(_CONNECTIONS)))
    return memory


def _requests() -> list[tuple[str, bytes, int]]:
    """Model, body, and the status that it has."""
    found: list[tuple[str, Any, int]] = []
    for name in TASKS:
        for number, each in enumerate(inputs_of(name, 40)):
            many = [each] * (1 + number % 4)
            if name == "similarity":
                many = [text for pair in many for text in pair]
            found.append((name, {"inputs": many, "long_text": "windows"}, 200))
    found += [("masked", {"inputs": each}, 200) for each in inputs_of("masked-language", 40)]
    found += [
        ("nobody", {"inputs": "a"}, 404),
        ("masked", {"inputs": 3}, 422),
        ("tagging", {"input": "a"}, 422),
    ] * 10
    return [(name, json.dumps(body).encode(), status) for name, body, status in found]

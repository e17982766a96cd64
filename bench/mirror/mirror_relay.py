"""What the mirror's relay adds to a call while it records.
Last answer (2026-11-29, Zen 3): 1.1 ms at p50, 2.9 at p99.

    python bench/mirror/mirror_relay.py [--rate 200] [--seconds 20] [--rounds 3] [--store URL]

A scripted upstream, the mirror and the client share the machine's cores. Calls with a schema of 77 labels
come at moments of a Poisson process; the client asks the upstream directly and through the mirror in turn, on
connections that stay open, and each call's time runs from the moment it was due. Printed are p50 and p99 of
both and their differences, of each round and of all, and whether every call was stored.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn

_LABELS = [f"a_label_of_some_length_{number}" for number in range(77)]
_WAIT = 0.002  # seconds that the upstream takes
_PATIENCE = 120.0  # seconds for a process to begin or a store to be written
_CHAT = "/v1/chat/completions"


async def upstream(scope: Any, receive: Any, send: Any) -> None:
    """Answers as an LLM would, at once."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(_WAIT)
    message = {"role": "assistant", "content": json.dumps({"intent": _LABELS[3]})}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    body = json.dumps({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def request(number: int) -> bytes:
    """A message of some 400 characters."""
    text = f"{number}: " + "I would like to know why my card has been charged twice. " * 7
    schema = {"type": "object", "properties": {"intent": {"type": "string", "enum": _LABELS}}}
    return json.dumps(
        {
            "model": "m",
            "messages": [{"role": "system", "content": "Classify. " * 40}, {"role": "user", "content": text}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        }
    ).encode()


class Client:
    """Connections that stay open, the one used last first: as little as there can be between a call and its
    time.
    """

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self.host, self.port = host, int(port)
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, body: bytes) -> None:
        """One call."""
        reader, writer = self.open_one() or await asyncio.open_connection(self.host, self.port)
        head = f"POST {_CHAT} HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answered = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b" 200 " not in answered[:15]:
            raise SystemExit(f"not answered: {answered[:80]!r}")
        if b"transfer-encoding" in answered:
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
            await reader.readline()
        else:
            await reader.readexactly(int(answered.partition(b"content-length: ")[2].split(b"\r")[0]))
        self.idle.append((reader, writer))

    def open_one(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Of those that are idle, one that the server hasn't closed."""
        while self.idle:
            reader, writer = self.idle.pop()
            if not reader.at_eof():
                return reader, writer
        return None

    def close(self) -> None:
        """All connections."""
        for _, writer in self.idle:
            writer.close()


async def measure(url: str, rate: float, seconds: float, seed: int) -> np.ndarray:
    """Milliseconds of each call (n,), from the moment it was due."""
    draw, took, client = random.Random(seed), list[float](), Client(url)

    async def one(due: float, body: bytes) -> None:
        await client.ask(body)
        took.append((time.perf_counter() - due) * 1000)

    calls, due = [], time.perf_counter() + 0.2
    end, number = due + seconds, 0
    while due < end:
        body = request(number)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        calls.append(asyncio.ensure_future(one(due, body)))
        due += draw.expovariate(rate)
        number += 1
    await asyncio.gather(*calls)
    client.close()
    return np.array(took)


def start(command: list[str]) -> tuple["subprocess.Popen[str]", str]:
    """A process, and the address that it says."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if '"address"' in line:
            return process, str(json.loads(line)["address"])
    raise SystemExit("a process did not begin")


def serve_upstream() -> None:
    """As a process of its own."""
    config = uvicorn.Config(upstream, port=0, log_level="warning", timeout_keep_alive=600)
    socket = config.bind_socket()
    print(json.dumps({"address": f"http://127.0.0.1:{socket.getsockname()[1]}"}), file=sys.stderr, flush=True)
    uvicorn.Server(config).run(sockets=[socket])


def main() -> None:
    """Parses, and measures both ways in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", help="a database's URL; a new SQLite file unless said")
    parser.add_argument("--upstream", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.upstream:
        serve_upstream()
        return
    with tempfile.TemporaryDirectory() as folder:
        behind, url = start([sys.executable, __file__, "--upstream"])
        store = arguments.store or str(Path(folder) / "calls.sqlite")
        mirror, mirror_url = start(
            [sys.executable, "-m", "bertsmith", "mirror", "serve", "--upstream", url, "--store", store,
             "--port", "0", "--no-log-requests"]
        )  # fmt: skip
        try:
            compare(url, mirror_url, arguments)
        finally:
            mirror.terminate()
            mirror.wait(_PATIENCE)
            behind.terminate()
            behind.wait(_PATIENCE)


def compare(url: str, mirror_url: str, arguments: argparse.Namespace) -> None:
    """Prints a line a round and one of all."""
    for each in (url, mirror_url):
        asyncio.run(measure(each, 50, 2, 0))  # connections and caches
    before = stored(mirror_url)
    direct, through = list[np.ndarray](), list[np.ndarray]()
    for number in range(arguments.rounds):
        direct.append(asyncio.run(measure(url, arguments.rate, arguments.seconds, number)))
        through.append(asyncio.run(measure(mirror_url, arguments.rate, arguments.seconds, number)))
        show(f"round {number + 1}", direct[-1], through[-1])
    show("all", np.concatenate(direct), np.concatenate(through))
    print(f"stored {stored(mirror_url) - before:,} of {sum(map(len, through)):,} calls")


def stored(mirror_url: str) -> int:
    """Calls, once none waits any more."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        status = httpx.get(f"{mirror_url}/bertsmith/status").json()
        if not status["waiting"] and not status["under_way"]:
            return int(status["stored"])
        time.sleep(0.1)
    raise SystemExit("the store is not written")


def show(name: str, direct: np.ndarray, through: np.ndarray) -> None:
    """Milliseconds."""
    parts = []
    for percent in (50, 99):
        plain, mirrored = np.percentile(direct, percent), np.percentile(through, percent)
        parts.append(f"p{percent} {plain:.2f} → {mirrored:.2f} (+{mirrored - plain:.2f}) ms")
    print(f"{name}: {'; '.join(parts)}")


if __name__ == "__main__":
    main()

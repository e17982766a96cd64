"""Requests at random moments: as many a second as asked for, whatever the service does with them.

A closed loop waits for each answer before it asks again, and so spares a slow service; users don't.
"""

import asyncio
import json
import random
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from selectors import SelectSelector
from typing import Any, BinaryIO, NamedTuple

_LONGEST_WAIT = 20.0  # seconds


class Sample(NamedTuple):
    """`seconds` from the moment the request was due; status 0: no answer. `number` of the body."""

    number: int
    seconds: float
    status: int
    body: bytes


class Target(NamedTuple):
    """Where requests go."""

    port: int
    path: str
    headers: Mapping[str, str] = {}


def poisson(
    target: Target, bodies: Sequence[Mapping[str, Any]], rate: float, seconds: float, seed: int = 0
) -> list[Sample]:
    """Bodies in turn, `rate` a second on average, for so long.

    By select(), whose timeouts are exact: by epoll a request is sent up to a millisecond after it is due.
    """
    requests = [_encoded(target, body) for body in bodies]
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(SelectSelector())) as runner:
        return runner.run(_poisson(target, requests, rate, seconds, seed))


def ask_without_break(
    requests: Sequence[tuple[Target, Mapping[str, Any]]],
    clients: int,
    seconds: float,
    flood: Sequence[tuple[Target, Mapping[str, Any]]] = (),
    flooding: int = 0,
) -> list[Sample]:
    """Requests in turn by so many clients, each of which waits for its answer before it asks again; while
    others, whose answers aren't given, ask what is in `flood`. They begin half a second before.
    """
    return asyncio.run(_ask_without_break(requests, clients, seconds, flood, flooding))


async def _ask_without_break(
    requests: Sequence[tuple[Target, Mapping[str, Any]]],
    clients: int,
    seconds: float,
    flood: Sequence[tuple[Target, Mapping[str, Any]]],
    flooding: int,
) -> list[Sample]:
    pools = {target.port: _Pool(target.port) for target, _ in (*requests, *flood)}
    samples = list[Sample]()

    async def ask(
        asked: Iterator[tuple[int, tuple[Target, Mapping[str, Any]]]], end: float, kept: list[Sample]
    ) -> None:
        while (due := time.perf_counter()) < end:
            number, (target, body) = next(asked)
            kept.append(await pools[target.port].ask(number, _encoded(target, body), due))

    now = time.perf_counter()
    others = [ask(cycle(enumerate(flood)), now + seconds + 0.5, []) for _ in range(flooding) if flood]
    tasks = [asyncio.create_task(other) for other in others]
    await asyncio.sleep(0.5 if flood else 0)
    shared, end = cycle(enumerate(requests)), time.perf_counter() + seconds
    await asyncio.gather(*(ask(shared, end, samples) for _ in range(clients)), *tasks)
    for pool in pools.values():
        pool.close()
    return samples


def in_turn(target: Target, bodies: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """One after the other, on one connection, with as little work of the client's own as there can be: it
    shares the cores with the service, and would be counted as its time.
    """
    requests = [_encoded(target, body) for body in bodies]
    with (
        socket.create_connection(("127.0.0.1", target.port)) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return [_ask_alone(connection, answers, number, each) for number, each in enumerate(requests)]


def _ask_alone(connection: socket.socket, answers: BinaryIO, number: int, request: bytes) -> Sample:
    began = time.perf_counter()
    connection.sendall(request)
    status, length = int(answers.readline().split(b" ", 2)[1]), 0
    while (line := answers.readline()) != b"\r\n":
        if line.lower().startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    body = answers.read(length)
    return Sample(number, time.perf_counter() - began, status, body)


async def _poisson(
    target: Target, requests: Sequence[bytes], rate: float, seconds: float, seed: int
) -> list[Sample]:
    draw, pool, asked = random.Random(seed), _Pool(target.port), list[asyncio.Task[Sample]]()
    due = time.perf_counter()
    end = due + seconds
    while (due := due + draw.expovariate(rate)) < end:
        if (left := due - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        number = len(asked) % len(requests)
        asked.append(asyncio.create_task(pool.ask(number, requests[number], due)))
    found = await asyncio.gather(*asked)
    pool.close()
    return list(found)


class _Pool:
    """Connections that are kept, as clients do."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, number: int, request: bytes, due: float) -> Sample:
        try:
            async with asyncio.timeout(_LONGEST_WAIT):
                status, body = await self._ask(request)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            status, body = 0, b""
        return Sample(number, time.perf_counter() - due, status, body)

    async def _ask(self, request: bytes) -> tuple[int, bytes]:
        reader, writer = (
            self.free.pop() if self.free else await asyncio.open_connection("127.0.0.1", self.port)
        )
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = next(line for line in head.split("\r\n") if line.startswith("content-length:"))
        body = await reader.readexactly(int(length.partition(":")[2]))
        if "connection: close" in head:
            writer.close()
        else:
            self.free.append((reader, writer))
        return int(head.split(" ", 2)[1]), body

    def close(self) -> None:
        for _, writer in self.free:
            writer.close()


def _encoded(target: Target, body: Mapping[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    headers = {"host": "127.0.0.1", "content-type": "application/json", "content-length": str(len(content))}
    lines = [
        f"POST {target.path} HTTP/1.1",
        *(f"{k}: {v}" for k, v in (headers | dict(target.headers)).items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content

"""Runs in processes of their own, forked from one that has imported everything but computed nothing.

Importing torch takes seconds, forking milliseconds: that is what makes dozens of kills cheap. The process
that is forked from has run no operation of torch, so that no thread pool is lost in the fork.
"""

import multiprocessing
import multiprocessing.connection
import os
import socket
import sys
import time
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Protocol

CONTEXT = multiprocessing.get_context("forkserver")
# torch imports _dynamo for its first optimiser, which takes longer than all the training here.
IMPORTED = ["bertsmith.training.pretrain", "torch._dynamo", "tensorboardX", "tomli_w"]

# A rank that waits for a dead one is killed, as torchrun does; this is how long a healthy run may take.
PATIENCE = 300.0

Settings = dict[str, Any]


class Change(Protocol):
    """What a process does to itself before its run: a fault at a place, a defect, a recording."""

    def install(self) -> None: ...


def open_nursery() -> None:
    """Starts the process that is forked from; numpy's own threads would not survive a fork either."""
    CONTEXT.set_forkserver_preload(IMPORTED)
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    forkserver.ensure_running()


class Attempt:
    """One start of a run with all its ranks, and for each of them the changes made to its process."""

    def __init__(self, settings: Settings, *changes: Sequence[Change], ranks: int = 1) -> None:
        self.out = Path(settings["out"])
        self.began, began = CONTEXT.Pipe(duplex=False)
        port = _free_port() if ranks > 1 else 0
        each = [*changes, *([()] * (ranks - len(changes)))]
        self.processes = [
            CONTEXT.Process(target=train_in_child, args=(settings, rank, ranks, port, own, began))
            for rank, own in enumerate(each)
        ]
        for process in self.processes:
            process.start()
        began.close()

    def wait(self) -> list[int | None]:
        """Exit status of each rank (minus the signal's number). When one ends badly the rest are killed."""
        until = time.monotonic() + PATIENCE
        running = list(self.processes)
        while running and time.monotonic() < until:
            multiprocessing.connection.wait([process.sentinel for process in running], timeout=1)
            running = [process for process in running if process.exitcode is None]
            if any(process.exitcode for process in self.processes):
                break
        for process in running:
            process.kill()
        for process in self.processes:
            process.join()
        return [process.exitcode for process in self.processes]

    def kill_after(self, seconds: float, rank: int = 0) -> list[int | None]:
        """SIGKILL to one rank some time after training began, unless it is over by then."""
        self.began.poll(PATIENCE)
        self.processes[rank].join(seconds)
        self.processes[rank].kill()
        return self.wait()

    def complaint(self, rank: int = 0) -> str:
        """The error that ended a rank: its class and its sentence."""
        return _complaint_file(self.out, rank).read_text()


def finish(settings: Settings, *changes: Sequence[Change], ranks: int = 1) -> None:
    """Runs, or goes on, to the end."""
    attempt = Attempt(settings, *changes, ranks=ranks)
    assert attempt.wait() == [0] * ranks, [attempt.complaint(rank) for rank in range(ranks)]


def train_in_child(
    settings: Settings, rank: int, ranks: int, port: int, changes: Sequence[Change], began: Any
) -> None:
    """What a forked process does."""
    from bertsmith.training import machine, pretrain
    from bertsmith.training.loop import Loop
    from bertsmith.training.recipe import check_recipe

    _be_quiet()
    _be_rank(rank, ranks, port)
    machine.matmul_flops = lambda *_, **__: 1e11  # measuring the machine takes a second
    pretrain.write_summary = lambda *_: None  # and drawing curves two
    run = Loop.run

    def announced(loop: Loop) -> None:
        began.send_bytes(b"now")
        run(loop)

    Loop.run = announced
    for change in changes:
        change.install()
    try:
        pretrain.pretrain(check_recipe(settings, "the test"), resume=True)
    except BaseException as error:
        _complaint_file(Path(settings["out"]), rank).write_text(f"{type(error).__name__}: {error}")
        os._exit(1)


def _be_rank(rank: int, ranks: int, port: int) -> None:
    """As torchrun says it."""
    if ranks > 1:
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
        }


def _be_quiet() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(null, stream.fileno())


def _complaint_file(out: Path, rank: int) -> Path:
    return out.parent / f"{out.name}.rank-{rank}.error"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port

"""An embedding job that kills itself at a place, in a process that was forked after the imports."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

from bertsmith.inference.embedding import shards
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.embedding.job import embed_file
from bertsmith.inference.embedding.shards import ShardFolder

CONTEXT = multiprocessing.get_context("forkserver")
PATIENCE = 240.0

# (owner, function, whether the process dies before or after it)
PLACES: dict[str, tuple[Any, str, str]] = {
    "before a shard": (ShardFolder, "write", "before"),
    "after a shard": (ShardFolder, "write", "after"),
    "within the write of a file": (shards, "atomic_write", "before"),
    "before the ranges are noted": (ShardFolder, "note", "before"),
    "before joining": (ShardFolder, "join", "before"),
    "while joining": (shards, "flush", "before"),
    "before the parts are removed": (ShardFolder, "remove", "before"),
}


def kill_at(place: str, time: int, *arguments: Any, **settings: Any) -> int | None:
    """Runs `embed_file` with a SIGKILL at the `time`-th arrival at a place; the process's exit status."""
    CONTEXT.set_forkserver_preload(["bertsmith.inference.embedding.job"])
    process = CONTEXT.Process(target=_job, args=(place, time, arguments, settings))
    process.start()
    process.join(PATIENCE)
    return process.exitcode


def _job(place: str, time: int, arguments: tuple[Path, Path, Path], settings: dict[str, Any]) -> None:
    import torch

    torch.set_num_threads(1)
    owner, name, when = PLACES[place]
    original = getattr(owner, name)
    left = time

    def strike() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def struck(*given: Any, **named: Any) -> Any:
        if when == "before":
            strike()
        result = original(*given, **named)
        if when == "after":
            strike()
        return result

    setattr(owner, name, struck)
    model, table, out = arguments
    embed_file(Embedder(model), table, out, **settings)

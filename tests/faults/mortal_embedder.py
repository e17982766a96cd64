"""An embedder one of whose workers is killed, and which writes down who did what."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from signal import SIGKILL
from typing import Any, NamedTuple

from bertsmith.inference.embedder import Embedded, Embedder

PATIENCE = 120.0  # seconds in which a second machine must have begun


class Begun(NamedTuple):
    """One start of a shard."""

    process: int
    node: str
    first_text: str


class MortalEmbedder(Embedder):
    """The process that has computed a shard with the word `deadly` in it kills itself, the first time.

    Under `diary` it notes each shard that is begun, and `killed`, who died. No shard is begun before another
    machine has begun one too.
    """

    def __init__(self, model: Path, diary: Path, deadly: str) -> None:
        super().__init__(model)
        diary.mkdir()
        self.diary, self.deadly, self.at_home = diary, deadly, os.getpid()

    def embed_batches(self, texts: Iterable[str], *rest: Any, **named: Any) -> Iterator[Embedded]:
        shard = list(texts)
        away = os.getpid() != self.at_home  # an index embeds a text itself, to learn the width
        if away:
            self._note(shard[0])
        made = list(super().embed_batches(shard, *rest, **named))
        if away and any(self.deadly in text for text in shard):
            self._die_once()
        yield from made

    def begun(self) -> list[Begun]:
        """All starts of shards so far."""
        lines = (self.diary / "begun").read_text().splitlines() if (self.diary / "begun").exists() else []
        return [Begun(int(process), node, text) for process, node, text in (x.split("\t") for x in lines)]

    def killed(self) -> int:
        """Which process died; FileNotFoundError when none did."""
        return int((self.diary / "killed").read_text())

    def _note(self, first_text: str) -> None:
        import ray

        node = ray.get_runtime_context().get_node_id()
        with (self.diary / "begun").open("a") as file:
            file.write(f"{os.getpid()}\t{node}\t{first_text}\n")
        until = time.monotonic() + PATIENCE
        while len({each.node for each in self.begun()}) < 2 and time.monotonic() < until:
            time.sleep(0.1)

    def _die_once(self) -> None:
        mark = self.diary / "killed"
        if not mark.exists():
            mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), SIGKILL)

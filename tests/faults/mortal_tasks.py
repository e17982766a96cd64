"""Tasks on a cluster, one of which kills its worker the first time, and a diary of who did what."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from types import ModuleType
from typing import Any, NamedTuple

import psutil
import pytest

from bertsmith.text.workers import map_in_order_by_ray

PATIENCE = 120.0  # seconds in which a second machine must have begun


class Begun(NamedTuple):
    """One start of a task."""

    task: int
    process: int
    node: str


@dataclass(frozen=True)
class Mortal:
    """Calls `function`, and kills its own process when that has done the `deadly` task, the first time.

    No task is begun before another machine has begun one too.
    """

    function: Callable[..., Any]
    diary: Path
    deadly: int

    def __call__(self, task: int, *arguments: Any) -> Any:
        self._note(task)
        result = self.function(*arguments)
        if task == self.deadly and not (self.diary / "killed").exists():
            (self.diary / "killed").write_text(str(os.getpid()))
            os.kill(os.getpid(), SIGKILL)
        return result

    def _note(self, task: int) -> None:
        import ray

        node = ray.get_runtime_context().get_node_id()
        with (self.diary / "begun").open("a") as file:
            file.write(f"{task} {os.getpid()} {node}\n")
        until = time.monotonic() + PATIENCE
        while len({each.node for each in read_diary(self.diary)}) < 2 and time.monotonic() < until:
            time.sleep(0.1)


def make_mortal(monkeypatch: pytest.MonkeyPatch, module: ModuleType, diary: Path, deadly: int) -> None:
    """From here on what `module` does on a cluster is mortal; its tasks are counted from 0."""
    diary.mkdir()
    given = 0

    def ordered(function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        return map_in_order_by_ray(Mortal(function, diary, deadly), map(numbered, tasks))

    def numbered(task: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal given
        given += 1
        return (given - 1, *task)

    monkeypatch.setattr(module, "map_in_order_by_ray", ordered)


def read_diary(diary: Path) -> list[Begun]:
    """All starts of tasks so far."""
    lines = (diary / "begun").read_text().splitlines()
    return [Begun(int(task), int(process), node) for task, process, node in map(str.split, lines)]


def one_worker_died(diary: Path, deadly: int, least_tasks: int = 8) -> int:
    """Both machines worked, the deadly task was begun twice and every other once. Returns how many."""
    begun = read_diary(diary)
    assert len({each.node for each in begun}) == 2
    killed = int((diary / "killed").read_text())
    assert not psutil.pid_exists(killed)
    first, second = (each.process for each in begun if each.task == deadly)
    assert first == killed != second
    times = Counter(each.task for each in begun)
    assert times == Counter([*range(len(times)), deadly])
    assert len(times) >= least_tasks
    return len(times)

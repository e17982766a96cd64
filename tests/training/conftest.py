"""Loops over toy tasks, with logs that are closed in the end."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from toy_task import loop_of

from bertsmith.tasks.objective import Objective
from bertsmith.training.log import RunLog
from bertsmith.training.loop import Loop


@pytest.fixture
def new_loop() -> Iterator[Callable[..., Loop]]:
    """Makes a loop from a task, a folder and settings of a recipe."""
    with ExitStack() as logs:

        def make(task: Objective, folder: Path, **settings: Any) -> Loop:
            return loop_of(task, logs.enter_context(RunLog(folder, append=True)), settings)

        yield make

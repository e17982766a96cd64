"""Teachers, each made once."""

from collections.abc import Callable
from pathlib import Path

import pytest
from distil_rows import save_teacher


@pytest.fixture(scope="session")
def make_teacher(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """make_teacher(task, seed): its folder."""
    made: dict[tuple[str, int], Path] = {}

    def make(name: str, seed: int = 5) -> Path:
        if (name, seed) not in made:
            made[name, seed] = save_teacher(tmp_path_factory.mktemp(name), name, seed)
        return made[name, seed]

    return make

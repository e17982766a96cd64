"""An LLM on this machine, and a mirror in front of it."""

from collections.abc import Iterator
from pathlib import Path

import llm_answers
import pytest
from databases import address, postgresql, server  # noqa: F401
from running_mirror import RunningMirror, running_mirror
from scripted_upstream import Upstream, upstream_of


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with upstream_of(llm_answers.script) as running:
        yield running


@pytest.fixture
def mirror(upstream: Upstream, tmp_path: Path) -> Iterator[RunningMirror]:
    with running_mirror(tmp_path, upstream.url) as running:
        yield running

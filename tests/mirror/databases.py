"""Fixtures: new databases of either kind, PostgreSQL's on one server for all tests of a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgresql_server import emptied, postgresql_server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """A server's URL."""
    with postgresql_server() as url:
        yield url


@pytest.fixture
def server(postgresql: str) -> str:
    """The same with nothing in it."""
    return emptied(postgresql)


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a new database of either kind."""
    if request.param == "sqlite":
        return str(tmp_path / "calls.sqlite")
    return str(request.getfixturevalue("server"))

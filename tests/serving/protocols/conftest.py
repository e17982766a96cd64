"""Clients of others reach this machine alone, and tell nobody that they were used."""

import socket
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "false")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    connect = socket.socket.connect

    def here(self: socket.socket, address: Any) -> None:
        assert address[0] in ("127.0.0.1", "::1", "localhost") or self.family == socket.AF_UNIX, address
        connect(self, address)

    with patch.object(socket.socket, "connect", here):
        yield

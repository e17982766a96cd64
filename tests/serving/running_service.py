"""A service on 127.0.0.1, for real clients."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from bertsmith.serving.app import make_app
from bertsmith.serving.service import Service
from bertsmith.serving.settings import read_settings


@dataclass(frozen=True)
class Running:
    """A service that answers at `url`, its application, and the folder of each model by name."""

    url: str
    app: FastAPI
    folders: dict[str, Path]

    @property
    def service(self) -> Service:
        found: Service = self.app.state.service
        return found

    def of(self, name: str) -> str:
        """Where a client finds one model by its URL alone."""
        return f"{self.url}/models/{name}"


@contextmanager
def running(folders: dict[str, Path]) -> Iterator[Running]:
    """On a free port, until it is told to go on."""
    settings = read_settings([f"{name}={folder}" for name, folder in folders.items()], None, {}, {})
    app = make_app(settings)
    serving = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None))
    thread = threading.Thread(target=serving.run)
    thread.start()
    until = time.monotonic() + 60
    while not serving.started:
        assert thread.is_alive() and time.monotonic() < until, "the server didn't begin"
        time.sleep(0.01)
    port = serving.servers[0].sockets[0].getsockname()[1]
    try:
        yield Running(f"http://127.0.0.1:{port}", app, folders)
    finally:
        serving.should_exit = True
        thread.join(60)
    assert not thread.is_alive()

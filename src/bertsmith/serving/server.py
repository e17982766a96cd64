"""The application under uvicorn: a socket, signals, several processes.

SIGTERM, Ctrl-C   ready turns red, what was accepted is answered, exit status 0; a second one ends at once
SIGHUP            each model's folder is opened again, and served if it passes its probe
"""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from types import FrameType
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from bertsmith.errors import BertsmithError, InputError
from bertsmith.serving.app import make_app
from bertsmith.serving.json_log import LOG, log_to_stderr
from bertsmith.serving.metrics import MANY_PROCESSES
from bertsmith.serving.models import Models
from bertsmith.serving.settings import ServingSettings

_RESOLVED = "BERTSMITH_SERVE_RESOLVED"  # how a worker process learns of the settings
_ADVANCE = 0.2  # seconds that ready is red before the socket closes, with `drain_delay` on top
_LONGEST_HEADERS = 65_536  # bytes


def serve(settings: ServingSettings) -> None:
    """Serves until a signal comes. Raises InputError for an address that can't be used; as `open_model`."""
    models = Models(settings)
    models.open_all()
    log_to_stderr()
    with _listening(settings) as listener:
        host, port = listener.getsockname()[:2]
        _announce(settings, models, f"http://{f'[{host}]' if ':' in host else host}:{port}")
        if settings.workers == 1:
            app = make_app(settings, models)
            _Server(_config(settings, app), app, models).run(sockets=[listener])
        else:
            del models
            _serve_by_processes(settings, listener)


def worker_app() -> FastAPI:
    """The application of one of several processes, which share the machine's cores."""
    settings = ServingSettings.model_validate_json(os.environ[_RESOLVED])
    torch.set_num_threads(max(1, torch.get_num_threads() // settings.workers))
    log_to_stderr()
    return make_app(settings)


def _serve_by_processes(settings: ServingSettings, listener: socket.socket) -> None:
    os.environ[_RESOLVED] = settings.model_dump_json()
    with tempfile.TemporaryDirectory(prefix="bertsmith-metrics-") as folder:
        os.environ[MANY_PROCESSES] = folder
        application = "bertsmith.serving.server:worker_app"
        config = _config(settings, application, factory=True, workers=settings.workers)
        Multiprocess(config, [listener]).run()


class _Server(uvicorn.Server):
    """uvicorn's own ends by the signal that it caught, with its status; ours drains and ends with 0."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, models: Models) -> None:
        super().__init__(config)
        self.app, self.models = app, models
        self._loading: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """SIGHUP from now on is ours."""
        await super().startup(sockets)
        if hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called in a signal handler, between two steps of the loop."""
        health = self.app.state.health
        if health.leaving:
            self.force_exit = self.should_exit = True
            return
        health.leaving = True
        LOG.info("stopping: what was accepted is still answered")
        delay = _ADVANCE + self.app.state.service.settings.drain_delay
        asyncio.get_event_loop().call_soon_threadsafe(self._leave, delay)

    def _leave(self, delay: float) -> None:
        asyncio.get_running_loop().call_later(delay, setattr, self, "should_exit", True)

    def _reload(self) -> None:
        task = asyncio.ensure_future(self._reload_all())
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    async def _reload_all(self) -> None:
        for model in self.models:
            try:
                new = await asyncio.to_thread(self.models.replace, model.name)
                LOG.info("%s: version %d is served", new.name, new.version)
            except BertsmithError as error:
                LOG.error("%s stays as it was: %s", model.name, error)


def _config(settings: ServingSettings, app: Any, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.drain_seconds),
        h11_max_incomplete_event_size=_LONGEST_HEADERS,
        timeout_keep_alive=75,  # longer than the proxies in front, which else meet a closed connection
        **more,
    )


def _listening(settings: ServingSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except (OSError, UnicodeError) as error:
        listener.close()
        raise InputError(
            f"{settings.host}:{settings.port} can't be listened on: "
            f"{getattr(error, 'strerror', None) or error}. Choose another --port or --host; "
            "--port 0 takes a free one."
        ) from None
    listener.set_inheritable(True)
    return listener


def _announce(settings: ServingSettings, models: Models, address: str) -> None:
    """For people on a terminal; a line of JSON elsewhere, as all that follows."""
    if not sys.stderr.isatty():
        LOG.info(
            "serving",
            extra={"facts": {"address": address, "settings": json.loads(settings.model_dump_json())}},
        )
        return
    for model in models:
        name = str(model.compute_dtype).removeprefix("torch.")
        print(f"  {model.name:20}  {model.task}, {name}, {', '.join(model.operations)}", file=sys.stderr)
    first = next(iter(models)).name
    print(f"\nServing on {address}  (Ctrl-C stops)\n", file=sys.stderr)
    print(
        f"  curl {address}/v1/{first} -H 'content-type: application/json' -d '{{\"inputs\": \"a text\"}}'\n",
        file=sys.stderr,
    )

"""`bertsmith serve`: the socket first, then the models, then one process or several that answer."""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from bertsmith.errors import InputError
from bertsmith.files import lock
from bertsmith.machine import Hardware
from bertsmith.serving.app import make_app
from bertsmith.serving.draining_server import run_server
from bertsmith.serving.json_log import LOG, log_to_stderr
from bertsmith.serving.keys import Keys
from bertsmith.serving.models import Models
from bertsmith.serving.processes import run_processes, try_models
from bertsmith.serving.settings import ServingSettings

_BACKLOG = 2048  # connections that wait to be accepted


def serve(settings: ServingSettings) -> None:
    """Serves until a signal comes. Raises InputError for an address that can't be used, for a file of keys
    that can't be read and for a model that is called as a route; as `open_model`.
    """
    early = _noted_hang_ups()
    Keys(settings.keys_file)  # whatever is wrong is said before models are opened, which takes longest
    with (
        _process_noted(settings.pid_file),
        socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET) as listener,
    ):
        _take_address(listener, settings)
        torch.set_num_threads(min(torch.get_num_threads(), Hardware.detect().threads))  # a container's too
        models = Models(settings)
        make_app(settings, models)  # raises for a name that a route has
        if settings.workers == 1:
            models.open_all()
            lines = models.lines()
        else:
            lines = try_models(settings)
        log_to_stderr()
        announce = _announcement(settings, lines, listener)
        try:
            listener.listen(_BACKLOG)  # not before: whoever connects is answered
        except OSError as error:
            raise _unusable(settings, error) from None
        if settings.workers == 1:
            run_server(settings, models, listener, announce, early=early)
        else:
            run_processes(settings, listener, announce)


def _noted_hang_ups() -> list[int]:
    """SIGHUP from now on: whoever takes it over finds those that came before."""
    found = list[int]()
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda number, _: found.append(number))
    return found


@contextmanager
def _process_noted(path: Path | None) -> Iterator[None]:
    """The number of this process in a file, until the end. Raises InputError where another service has it."""
    if path is None:
        yield
        return
    try:
        file = path.open("a+")
    except OSError as error:
        raise InputError(
            f"--pid-file {path} can't be written: {error.strerror}. Name another file."
        ) from None
    with file:
        if not lock(file):
            raise InputError(f"--pid-file {path} is that of another service that runs. Name another file.")
        file.truncate(0)
        print(os.getpid(), file=file, flush=True)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _take_address(listener: socket.socket, settings: ServingSettings) -> None:
    """Another process that listens there already is found now; one that begins to meanwhile, later."""
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except (OSError, UnicodeError) as error:
        raise _unusable(settings, error) from None


def _unusable(settings: ServingSettings, error: Exception) -> InputError:
    return InputError(
        f"{settings.host}:{settings.port} can't be listened on: {getattr(error, 'strerror', None) or error}. "
        "Choose another --port or --host; --port 0 takes a free one."
    )


def _announcement(settings: ServingSettings, lines: list[str], listener: socket.socket) -> Callable[[], None]:
    """For people on a terminal, with a line of each model; a line of JSON elsewhere, as all that follows."""
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    if not sys.stderr.isatty():
        facts = {"message": "serving", "address": address, "settings": json.loads(settings.model_dump_json())}
        return lambda: LOG.info("serving", extra={"facts": facts})
    first = settings.models[0].name
    asking = f"curl {address}/v1/{first} -H 'content-type: application/json' -d '{{\"inputs\": \"a text\"}}'"
    text = "\n".join([*lines, f"\nServing on {address}  (Ctrl-C stops)\n", f"  {asking}\n"])
    return lambda: print(text, file=sys.stderr)

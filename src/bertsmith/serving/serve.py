"""`bertsmith serve`: binds the socket, opens the models, then answers in one process or in several.

One process
    SIGTERM, Ctrl-C   readiness fails, accepted requests are answered, exit status 0; a second signal ends the
                      process at once
    SIGHUP            each model's folder is opened again, and served if it passes its trial, and the files of
                      TLS are read; a signal that comes during the start takes effect when the start is done
Several worker processes on one socket, and a parent without models that watches them
    SIGTERM, Ctrl-C   is forwarded: each worker drains, then the parent exits with status 0; a second signal
                      kills the workers
    SIGHUP            is forwarded: each worker opens its models' folders again, as soon as it is ready
    a worker dies     another one replaces it, after growing pauses if that one can't start either;
                      one that dies before all were ready for the first time stops all, with status 1
"""

import asyncio
import json
import os
import shlex
import signal
import socket
import ssl
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, context, get_context
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from bertsmith.errors import BertsmithError, InputError, ResourceError
from bertsmith.files import lock
from bertsmith.machine import Hardware
from bertsmith.serving import LOG
from bertsmith.serving.admission import ApiKeys
from bertsmith.serving.app import make_app
from bertsmith.serving.http_server import (
    DrainingServer,
    UnixListener,
    bind_socket,
    log_to_stderr,
    open_tls,
    start_listening,
)
from bertsmith.serving.models import Models
from bertsmith.serving.monitoring import forget_dead_process, prepare_traces, share_metrics_folder
from bertsmith.serving.settings import ServingSettings

_UNREADY_SECONDS = 0.2  # that readiness fails before the socket closes, in addition to `drain_delay`
_POLL_SECONDS = 0.1  # between two checks for a second signal
_RESTART_SECONDS = 1.0  # before a dead worker is replaced; doubled after each one that wasn't ready
_LONGEST_RESTART_SECONDS = 60.0


def serve(settings: ServingSettings) -> None:
    """Serves until a signal comes. Raises InputError for an unusable address, an unreadable file of keys and
    a model whose name is a route's, and what `open_model` raises.
    """
    early_hangups = list[int]()  # the SIGHUPs before the server handles them
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda number, _: early_hangups.append(number))
    ApiKeys(settings.keys_file)  # raises before the models are opened, which takes longest
    if settings.tls_cert is not None and settings.tls_key is not None:
        open_tls(settings.tls_cert, settings.tls_key)
    with _write_pid_file(settings.pid_file), _bind(settings) as (listener, listen):
        # No more threads than a container's limit allows.
        torch.set_num_threads(min(torch.get_num_threads(), Hardware.detect().threads))
        models = Models(settings)
        make_app(settings, models)  # raises for a name that a route has
        if settings.workers == 1:
            models.open_all()
            lines = models.describe()
        else:
            lines = try_models(settings)
        log_to_stderr()
        prepare_traces()
        # The socket listens only now: a client that can connect is answered.
        announce = _make_announcement(settings, lines, listen())
        if settings.workers == 1:
            ServiceServer(settings, models, announce, early=early_hangups).serve_until_signal(listener)
        else:
            run_processes(settings, listener, announce)


@contextmanager
def _bind(settings: ServingSettings) -> Iterator[tuple[socket.socket, Callable[[], str]]]:
    """The socket of the settings, and a function that makes it listen and returns the address to announce.
    Raises InputError.
    """
    if settings.uds is not None:
        unix = UnixListener(settings.uds)
        try:
            yield unix.socket, unix.listen
        finally:
            unix.close()
        return
    with bind_socket(settings.host, settings.port) as listener:

        def listen() -> str:
            address = start_listening(listener, settings.host, settings.port)
            return address if settings.tls_cert is None else address.replace("http:", "https:", 1)

        yield listener, listen


@contextmanager
def _write_pid_file(path: Path | None) -> Iterator[None]:
    """Writes this process's id to a file that exists until the end. Raises InputError if another service has
    it.
    """
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


def _make_announcement(settings: ServingSettings, lines: list[str], address: str) -> Callable[[], None]:
    """A function that announces that the service is ready: on a terminal with the models and an example, else
    as a line of JSON.
    """
    if not sys.stderr.isatty():
        facts = {"message": "serving", "address": address, "settings": json.loads(settings.model_dump_json())}
        return lambda: LOG.info("serving", extra={"facts": facts})
    first, options = settings.models[0].name, ""
    if settings.uds is not None:
        scheme = "http" if settings.tls_cert is None else "https"
        options, base = f"--unix-socket {shlex.quote(str(settings.uds))} ", f"{scheme}://localhost"
    else:
        base = address
    example = (
        f"curl {options}{base}/v1/{first} -H 'content-type: application/json' -d '{{\"inputs\": \"a text\"}}'"
    )
    text = "\n".join([*lines, f"\nServing on {address}  (Ctrl-C stops)\n", f"  {example}\n"])
    return lambda: print(text, file=sys.stderr)


class ServiceServer(DrainingServer):
    """The server of one process, with the application and its open models.

    A worker process (`is_worker`) ignores a second signal: Ctrl-C and a supervisor's signal reach its parent
    too, which ends it. `early` collects the SIGHUPs that came before `startup`.
    """

    def __init__(
        self,
        settings: ServingSettings,
        models: Models,
        on_ready: Callable[[], None],
        *,
        is_worker: bool = False,
        early: Sequence[int] = (),
    ) -> None:
        self.app = make_app(settings, models)
        self.settings, self.models, self.on_ready, self.is_worker = settings, models, on_ready, is_worker
        # X-Forwarded-… is read by the application itself, of the proxies that the settings name.
        config: dict[str, Any] = {"proxy_headers": False}
        self._tls = self._read_tls()
        if (first_tls := self._tls) is not None:
            # Each connection turns to the newest certificate.
            first_tls.sni_callback = lambda opening, *_: setattr(opening, "context", self._tls)
            config["ssl_context_factory"] = lambda *_: first_tls
        super().__init__(self.app, settings.drain_seconds, **config)
        self._early = early
        self._reloading: asyncio.Task[None] | None = None
        self._reload_pending = False

    def _read_tls(self) -> ssl.SSLContext | None:
        """The context of the files of TLS; None without them. Raises InputError."""
        if self.settings.tls_cert is None or self.settings.tls_key is None:
            return None
        if self.settings.tls_key.stat().st_mode & stat.S_IROTH:
            LOG.warning("every user of this machine can read %s: chmod o-r it", self.settings.tls_key)
        return open_tls(self.settings.tls_cert, self.settings.tls_key)

    def _renew_tls(self) -> None:
        """Reads the files of TLS again, for connections from now on; if anything is wrong with them, the
        certificate from before stays.
        """
        try:
            if (newest := self._read_tls()) is not None:
                self._tls = newest
                LOG.info("the certificate was read again")
        except (InputError, OSError) as error:
            LOG.error("the certificate stays as it was: %s", error)

    def serve_until_signal(self, listener: socket.socket) -> None:
        """Serves until a signal; a second signal ends the process without returning."""
        self.run(sockets=[listener])
        if self.force_exit:
            os._exit(1)  # a normal exit would wait for the computing threads

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the server, and handles SIGHUP from now on."""
        await super().startup(sockets)
        if hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
            if self._early:
                self._reload()
        self.on_ready()

    def leave(self) -> None:
        """Begins to stop: readiness fails from now on, and answers close their connection, so that clients
        turn to another server.
        """
        self.app.state.health.leaving = True
        loop = asyncio.get_running_loop()

        def close_soon() -> None:
            LOG.info("stopping: what was accepted is still answered")
            closing = (b"connection", b"close")
            self.config.encoded_headers.append(closing)
            self.server_state.default_headers = [*self.server_state.default_headers, closing]
            loop.call_later(_UNREADY_SECONDS + self.settings.drain_delay, setattr, self, "should_exit", True)

        loop.call_soon_threadsafe(close_soon)

    def end_now(self) -> None:
        """Makes `shutdown` return at once, unless this is a worker, which its parent ends."""
        if not self.is_worker:
            self.force_exit = self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shuts down, but stops waiting at a second signal, where uvicorn would wait for the application."""
        ending = asyncio.ensure_future(super().shutdown(sockets))
        while not ending.done() and not self.force_exit:
            await asyncio.wait({ending}, timeout=_POLL_SECONDS)
        if ending.done():
            ending.result()

    def _reload(self) -> None:
        """Reloads all models. Signals that come during a reload cause one more reload together."""
        self._reload_pending = True
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.ensure_future(self._reload_while_pending())

    async def _reload_while_pending(self) -> None:
        while self._reload_pending:
            self._reload_pending = False
            self._renew_tls()
            for model in self.models:
                try:
                    new = await asyncio.to_thread(self.models.refresh, model.name)
                    was_rolled_back = self.models.was_rolled_back(model.name)
                    reason = "has what was rolled back" if was_rolled_back else "is as it was"
                    unchanged = "" if new is not model else f" still: its folder {reason}"
                    LOG.info("%s: version %d is served%s", new.name, new.version, unchanged)
                except BertsmithError as error:
                    LOG.error("%s stays as it was: %s", model.name, error)
                except Exception:
                    LOG.exception("%s stays as it was, by a bug", model.name)


def run_processes(settings: ServingSettings, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Runs worker processes until all have ended. Calls `on_ready` once all are ready. Exits with status 1 if
    one can't start.
    """
    with share_metrics_folder():
        all_started = _WorkerPool(settings, listener).run(on_ready)
    if not all_started:
        sys.exit(1)


def try_models(settings: ServingSettings) -> list[str]:
    """Opens and tries the models in a process of its own, which frees their memory when it ends. Returns
    `Models.describe`. Raises InputError if one can't be served.
    """
    ours, theirs = get_context("spawn").Pipe(duplex=False)
    process = get_context("spawn").Process(
        target=_run_trial, args=(settings.model_dump_json(), theirs), daemon=True
    )
    process.start()
    theirs.close()
    try:
        problem, lines = ours.recv()
    except EOFError:
        process.join()
        raise ResourceError(
            f"The process that tries the models ended with status {process.exitcode}. If it didn't say why, "
            "there is too little memory for them: serve smaller or fewer ones."
        ) from None
    finally:
        process.terminate()
        process.join()
    if problem:
        raise InputError(problem)
    descriptions: list[str] = lines
    return descriptions


def _run_trial(settings_json: str, answer: connection.Connection) -> None:
    """Sends the problem, "" if there is none, and the models' descriptions: the process of `try_models`."""
    _leave_signals_to_parent()
    models = Models(ServingSettings.model_validate_json(settings_json))
    try:
        models.open_all()
        result: tuple[str, list[str]] = ("", models.describe())
    except BertsmithError as error:
        result = (str(error), [])
    with suppress(BrokenPipeError):  # the parent has ended meanwhile
        answer.send(result)


@dataclass
class _Worker:
    """A worker process. It reports through the pipe `lifeline` that it is ready, and learns from the pipe's
    end that the parent has died. `reload_pending`: a SIGHUP came before it was ready, when it may already
    have read some folders.
    """

    process: context.SpawnProcess
    lifeline: connection.Connection
    ready: bool = False
    reload_pending: bool = False


class _WorkerPool:
    """The worker processes of a service, run by the parent: started, watched, replaced and stopped."""

    def __init__(self, settings: ServingSettings, listener: socket.socket) -> None:
        self.settings, self.listener = settings, listener
        self._workers: list[_Worker] = []
        self._stopping, self._announced, self._all_started = False, False, True
        self._start_times: list[float] = []  # of the replacements that are due, by time.monotonic
        self._failures = 0  # replacements in a row that died before they were ready

    def run(self, on_ready: Callable[[], None]) -> bool:
        """Runs the workers until all have ended. False if one could not start."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, self._forward_hangup)
        for _ in range(self.settings.workers):
            self._start_worker()
        while self._workers or (self._start_times and not self._stopping):
            self._handle_events()
            all_ready = not self._start_times and all(worker.ready for worker in self._workers)
            if not self._announced and all_ready and not self._stopping:
                self._announced = True
                on_ready()
        return self._all_started

    def _handle_events(self) -> None:
        """Waits for a worker to be ready or to die, or until one is due to be started, and handles it."""
        watched = [worker.process.sentinel for worker in self._workers]
        starting = [worker.lifeline for worker in self._workers if not worker.ready]
        if watched:
            connection.wait([*watched, *starting], timeout=1.0)
        else:
            time.sleep(_RESTART_SECONDS / 10)
        for worker in list(self._workers):
            if not worker.ready and worker.lifeline.poll():
                with suppress(EOFError):  # the worker died
                    worker.ready = bool(worker.lifeline.recv())
                self._failures = 0 if worker.ready else self._failures
                if worker.ready and worker.reload_pending:
                    _send_hangup(worker)
            if not worker.process.is_alive():
                self._replace(worker)
        for due in [start for start in self._start_times if start <= time.monotonic() and not self._stopping]:
            self._start_times.remove(due)
            self._start_worker()

    def _start_worker(self) -> None:
        """Starts one more worker process, and stops it at once if the service is stopping."""
        ours, theirs = get_context("spawn").Pipe()
        process = get_context("spawn").Process(
            target=_run_worker, args=(self.settings.model_dump_json(), self.listener, theirs)
        )
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))
        if self._stopping:  # the signal came during the start
            process.terminate()

    def _replace(self, dead: _Worker) -> None:
        """Schedules a worker in the place of a dead one, or stops all if the service has never been ready."""
        self._workers.remove(dead)
        forget_dead_process(dead.process.pid)
        if self._stopping:
            return
        LOG.error("process %s ended with status %s", dead.process.pid, dead.process.exitcode)
        if not dead.ready and not self._announced:
            self._all_started = False
            self._stop()
            return
        pause = min(_RESTART_SECONDS * 2**self._failures, _LONGEST_RESTART_SECONDS)
        if not dead.ready:
            self._failures += 1
            LOG.error("another could not begin in its place; the next one tries in %g seconds", pause)
        self._start_times.append(time.monotonic() + pause)

    def _stop(self, sig: int = 0, frame: object = None) -> None:
        """Lets all workers drain at the first call, a signal or a failed start; kills them at the next."""
        was_stopping, self._stopping = self._stopping, True
        for worker in list(self._workers):
            if was_stopping:
                worker.process.kill()
            else:
                worker.process.terminate()

    def _forward_hangup(self, sig: int, frame: object) -> None:
        """Forwards SIGHUP to the workers that are ready, and remembers it for the others."""
        for worker in list(self._workers):
            if worker.ready:
                _send_hangup(worker)
            else:
                worker.reload_pending = True


def _send_hangup(worker: _Worker) -> None:
    if worker.process.pid is not None:
        with suppress(ProcessLookupError):  # it died, and is replaced at the next event
            os.kill(worker.process.pid, signal.SIGHUP)


def _run_worker(settings_json: str, listener: socket.socket, lifeline: connection.Connection) -> None:
    """Runs one worker process, with its share of the cores."""
    _leave_signals_to_parent()
    settings = ServingSettings.model_validate_json(settings_json)
    torch.set_num_threads(max(1, Hardware.detect().threads // settings.workers))
    log_to_stderr()
    models = Models(settings)
    try:
        models.open_all()
    except BertsmithError as error:
        LOG.error("%s", error)
        sys.exit(2)

    def end_with_parent() -> None:
        """Stops this process when the parent dies; the parent never sends anything."""
        try:
            lifeline.recv()
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=end_with_parent, daemon=True).start()
    server = ServiceServer(settings, models, lambda: lifeline.send(True), is_worker=True)
    server.serve_until_signal(listener)


def _leave_signals_to_parent() -> None:
    """Ignores Ctrl-C and SIGHUP, which may reach the whole process group: the parent forwards them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

"""`bertsmith serve`: the socket first, then the models, then one process or several that answer.

One process
    SIGTERM, Ctrl-C   ready turns red, what was accepted is answered, exit status 0; a second one ends at once
    SIGHUP            each model's folder is opened again, and served if it passes its probe; where it came
                      while the service began, as soon as it has
Several, on one socket, and one that watches them and has no model
    SIGTERM, Ctrl-C   is passed on: each drains, then this one ends with status 0; a second one kills them
    SIGHUP            is passed on: each opens its models' folders again, one that isn't ready once it is
    a dead one        another is begun in its place, after growing pauses where that one can't begin either;
                      one that dies before all were ready the first time ends all, with status 1
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, context, get_context
from pathlib import Path
from threading import Thread

import torch

from bertsmith.errors import BertsmithError, InputError, ResourceError
from bertsmith.files import lock
from bertsmith.machine import Hardware
from bertsmith.serving import LOG
from bertsmith.serving.admission import Keys
from bertsmith.serving.app import make_app
from bertsmith.serving.http_server import DrainingServer, listen, listening, log_to_stderr
from bertsmith.serving.models import Models
from bertsmith.serving.monitoring import leave_metrics_of, metrics_of_several
from bertsmith.serving.settings import ServingSettings

_ADVANCE = 0.2  # seconds that ready is red before the socket closes, with `drain_delay` on top
_LOOK = 0.1  # seconds between two looks at whether a second signal came
_PAUSE = 1.0  # seconds before another takes a dead one's place; twice as many after each that wasn't ready
_LONGEST_PAUSE = 60.0


def serve(settings: ServingSettings) -> None:
    """Serves until a signal comes. Raises InputError for an address that can't be used, for a file of keys
    that can't be read and for a model that is called as a route; as `open_model`.
    """
    early = list[int]()  # SIGHUP from now on: whoever takes it over finds those that came before
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda number, _: early.append(number))
    Keys(settings.keys_file)  # whatever is wrong is said before models are opened, which takes longest
    with _process_noted(settings.pid_file), listening(settings.host, settings.port) as listener:
        torch.set_num_threads(min(torch.get_num_threads(), Hardware.detect().threads))  # a container's too
        models = Models(settings)
        make_app(settings, models)  # raises for a name that a route has
        if settings.workers == 1:
            models.open_all()
            lines = models.lines()
        else:
            lines = try_models(settings)
        log_to_stderr()
        # Not before: whoever connects is answered.
        announce = _announcement(settings, lines, listen(listener, settings.host, settings.port))
        if settings.workers == 1:
            ServiceServer(settings, models, announce, early=early).serve_until_signal(listener)
        else:
            run_processes(settings, listener, announce)


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


def _announcement(settings: ServingSettings, lines: list[str], address: str) -> Callable[[], None]:
    """For people on a terminal, with a line of each model; a line of JSON elsewhere, as all that follows."""
    if not sys.stderr.isatty():
        facts = {"message": "serving", "address": address, "settings": json.loads(settings.model_dump_json())}
        return lambda: LOG.info("serving", extra={"facts": facts})
    first = settings.models[0].name
    asking = f"curl {address}/v1/{first} -H 'content-type: application/json' -d '{{\"inputs\": \"a text\"}}'"
    text = "\n".join([*lines, f"\nServing on {address}  (Ctrl-C stops)\n", f"  {asking}\n"])
    return lambda: print(text, file=sys.stderr)


class ServiceServer(DrainingServer):
    """The application with its opened models, in one process.

    A worker is ended by the process that began it, so a second signal says nothing new to it: Ctrl-C and a
    supervisor's signal reach both. `early`: where SIGHUP is noted until it is ours.
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
        super().__init__(self.app, settings.drain_seconds)
        self.settings, self.models, self.on_ready, self.is_worker = settings, models, on_ready, is_worker
        self._early = early
        self._loading: asyncio.Task[None] | None = None
        self._load_again = False

    def serve_until_signal(self, listener: socket.socket) -> None:
        """Doesn't come back from a second one."""
        self.run(sockets=[listener])
        if self.force_exit:
            os._exit(1)  # the threads that compute would be waited for

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """SIGHUP from now on is ours."""
        await super().startup(sockets)
        if hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
            if self._early:
                self._reload()
        self.on_ready()

    def leave(self) -> None:
        """Ready is red from now on, and answers say that their connection ends with them: clients come back
        elsewhere.
        """
        self.app.state.health.leaving = True
        loop = asyncio.get_running_loop()

        def close_soon() -> None:
            LOG.info("stopping: what was accepted is still answered")
            closing = (b"connection", b"close")
            self.config.encoded_headers.append(closing)
            self.server_state.default_headers = [*self.server_state.default_headers, closing]
            loop.call_later(_ADVANCE + self.settings.drain_delay, setattr, self, "should_exit", True)

        loop.call_soon_threadsafe(close_soon)

    def end_now(self) -> None:
        """Wherever it is: see `shutdown`."""
        if not self.is_worker:
            self.force_exit = self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """A second signal ends it, wherever it is: uvicorn would wait for the application."""
        ending = asyncio.ensure_future(super().shutdown(sockets))
        while not ending.done() and not self.force_exit:
            await asyncio.wait({ending}, timeout=_LOOK)
        if ending.done():
            ending.result()

    def _reload(self) -> None:
        """However many signals come while models are opened, they are looked at once more."""
        self._load_again = True
        if self._loading is None or self._loading.done():
            self._loading = asyncio.ensure_future(self._reload_while_asked())

    async def _reload_while_asked(self) -> None:
        while self._load_again:
            self._load_again = False
            for model in self.models:
                try:
                    new = await asyncio.to_thread(self.models.refresh, model.name)
                    back = self.models.was_rolled_back(model.name)
                    why = "has what was rolled back" if back else "is as it was"
                    same = "" if new is not model else f" still: its folder {why}"
                    LOG.info("%s: version %d is served%s", new.name, new.version, same)
                except BertsmithError as error:
                    LOG.error("%s stays as it was: %s", model.name, error)
                except Exception:
                    LOG.exception("%s stays as it was, by a bug", model.name)


def run_processes(settings: ServingSettings, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Until all have ended; `on_ready` is called when all are ready. Exits with 1 where one can't begin."""
    with metrics_of_several():
        well = _Processes(settings, listener).run(on_ready)
    if not well:
        sys.exit(1)


def try_models(settings: ServingSettings) -> list[str]:
    """Opens and probes the models in a process that ends then, with all that they take; `Models.lines`.
    Raises InputError where one can't be served.
    """
    ours, theirs = get_context("spawn").Pipe(duplex=False)
    trying = get_context("spawn").Process(target=_try, args=(settings.model_dump_json(), theirs), daemon=True)
    trying.start()
    theirs.close()
    try:
        problem, lines = ours.recv()
    except EOFError:
        trying.join()
        raise ResourceError(
            f"The process that tries the models ended with status {trying.exitcode}. If it didn't say why, "
            "there is too little memory for them: serve smaller or fewer ones."
        ) from None
    finally:
        trying.terminate()
        trying.join()
    if problem:
        raise InputError(problem)
    found: list[str] = lines
    return found


def _try(settings_json: str, answer: connection.Connection) -> None:
    _leave_signals_to_parent()
    models = Models(ServingSettings.model_validate_json(settings_json))
    try:
        models.open_all()
        found: tuple[str, list[str]] = ("", models.lines())
    except BertsmithError as error:
        found = (str(error), [])
    with suppress(BrokenPipeError):  # the other one was ended meanwhile
        answer.send(found)


@dataclass
class _Worker:
    """`lifeline`: says when it is ready, and its end tells it that this process is gone. `owed`: SIGHUP came
    before that, when it may have read some folders already.
    """

    process: context.SpawnProcess
    lifeline: connection.Connection
    ready: bool = False
    owed: bool = False


class _Processes:
    def __init__(self, settings: ServingSettings, listener: socket.socket) -> None:
        self.settings, self.listener = settings, listener
        self._workers: list[_Worker] = []
        self._stopping, self._announced, self._well = False, False, True
        self._due: list[float] = []  # when each one that is missing is begun, by time.monotonic
        self._failures = 0  # one after the other

    def run(self, on_ready: Callable[[], None]) -> bool:
        """False where one couldn't begin."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, self._pass_on)
        for _ in range(self.settings.workers):
            self._begin()
        while self._workers or (self._due and not self._stopping):
            self._look()
            all_ready = not self._due and all(each.ready for each in self._workers)
            if not self._announced and all_ready and not self._stopping:
                self._announced = True
                on_ready()
        return self._well

    def _look(self) -> None:
        """Waits until something has happened."""
        watched = [each.process.sentinel for each in self._workers]
        unheard = [each.lifeline for each in self._workers if not each.ready]
        if watched:
            connection.wait([*watched, *unheard], timeout=1.0)
        else:
            time.sleep(_PAUSE / 10)
        for worker in list(self._workers):
            if not worker.ready and worker.lifeline.poll():
                with suppress(EOFError):  # it died
                    worker.ready = bool(worker.lifeline.recv())
                self._failures = 0 if worker.ready else self._failures
                if worker.ready and worker.owed:
                    _hang_up(worker)
            if not worker.process.is_alive():
                self._replace(worker)
        for due in [each for each in self._due if each <= time.monotonic() and not self._stopping]:
            self._due.remove(due)
            self._begin()

    def _begin(self) -> None:
        ours, theirs = get_context("spawn").Pipe()
        process = get_context("spawn").Process(
            target=_work, args=(self.settings.model_dump_json(), self.listener, theirs)
        )
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))
        if self._stopping:  # the signal came meanwhile
            process.terminate()

    def _replace(self, dead: _Worker) -> None:
        self._workers.remove(dead)
        leave_metrics_of(dead.process.pid)
        if self._stopping:
            return
        LOG.error("process %s ended with status %s", dead.process.pid, dead.process.exitcode)
        if not dead.ready and not self._announced:
            self._well = False
            self._stop()
            return
        pause = min(_PAUSE * 2**self._failures, _LONGEST_PAUSE)
        if not dead.ready:
            self._failures += 1
            LOG.error("another could not begin in its place; the next one tries in %g seconds", pause)
        self._due.append(time.monotonic() + pause)

    def _stop(self, sig: int = 0, frame: object = None) -> None:
        again, self._stopping = self._stopping, True
        for worker in list(self._workers):
            if again:
                worker.process.kill()
            else:
                worker.process.terminate()

    def _pass_on(self, sig: int, frame: object) -> None:
        for worker in list(self._workers):
            if worker.ready:
                _hang_up(worker)
            else:
                worker.owed = True


def _hang_up(worker: _Worker) -> None:
    if worker.process.pid is not None:
        with suppress(ProcessLookupError):  # it died, and is replaced at the next look
            os.kill(worker.process.pid, signal.SIGHUP)


def _work(settings_json: str, listener: socket.socket, lifeline: connection.Connection) -> None:
    """One process, with its share of the cores."""
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
        """It never says anything: what ends the wait is its death."""
        try:
            lifeline.recv()
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=end_with_parent, daemon=True).start()
    server = ServiceServer(settings, models, lambda: lifeline.send(True), is_worker=True)
    server.serve_until_signal(listener)


def _leave_signals_to_parent() -> None:
    """Ctrl-C, and what is sent to a whole group, reach us too; the other one passes them on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

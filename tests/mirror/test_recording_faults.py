"""Whatever happens to the store, calls are relayed; what counts as stored is there, whole and once."""

import asyncio
import http.client
import json
import math
import random
import signal
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import llm_answers
import pytest
from running_mirror import MirrorProcess, RunningMirror, mirror_process, running_mirror, wait_until
from scripted_upstream import Reply, Seen, Upstream, upstream_of
from sqlalchemy.exc import DataError, OperationalError
from test_call_store import call_of

from bertsmith.mirror.answering.ledger import Ledger
from bertsmith.mirror.answering.open_students import OpenStudents
from bertsmith.mirror.answering.stages import VOID
from bertsmith.mirror.call import CallOutcome, CallRouting
from bertsmith.mirror.exchange import Exchange
from bertsmith.mirror.formats.registry import DEFAULT_FORMAT
from bertsmith.mirror.recorder import Recorder
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.relay_server import run
from bertsmith.mirror.settings import read_settings
from bertsmith.mirror.store import Store
from bertsmith.serving.http_server import bind_socket

CHAT = "/v1/chat/completions"


def body_of(text: str) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "system", "content": "Classify."}, {"role": "user", "content": text}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": llm_answers.SCHEMA},
        },
    }


def rows(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Texts and answers in the file. Raises where one is half."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found = connection.execute(
            "SELECT c.messages, c.answer, v.schema FROM mirror_calls c "
            "JOIN mirror_versions v ON v.id = c.version"
        ).fetchall()
        (count,) = connection.execute("SELECT count(*) FROM mirror_calls").fetchone()
    assert count == len(found)  # none without its version
    for _, _, schema in found:
        assert json.loads(schema) == llm_answers.SCHEMA
    return [(json.loads(messages)[0][1], json.loads(answer)) for messages, answer, _ in found]


def offered(text: str) -> Exchange:
    """A call as the relay hands it over."""
    request = body_of(text)
    answer = b"".join(llm_answers.chat(request).pieces)
    asked = DEFAULT_FORMAT.read_request(request)
    return Exchange(DEFAULT_FORMAT, asked, 200, "application/json", "", [answer], True, time.time(), 0.1, 0.2)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_9_while_recording(upstream: Upstream, tmp_path: Path, kills: int) -> None:
    """What the status counted before is in the store; nothing twice, nothing half; the next one goes on."""
    path, draw = tmp_path / "calls.sqlite", random.Random(kills)
    asked: Counter[str] = Counter()
    before = 0
    for number in range(kills):
        with mirror_process("--upstream", upstream.url, "--store", path) as mirror:
            stopping = threading.Event()

            def send(client: int, number: int = number, mirror: MirrorProcess = mirror,
                     stopping: threading.Event = stopping) -> None:  # fmt: skip
                for count in range(100_000):
                    if stopping.is_set():
                        return
                    text = f"card {number} {client} {count}"
                    asked[text] += 1
                    with suppress(OSError, Exception):
                        mirror.ask(CHAT, body_of(text))

            threads = [threading.Thread(target=send, args=(client,)) for client in range(3)]
            for thread in threads:
                thread.start()
            wait_until(lambda mirror=mirror: mirror.ask("/bertsmith/status").json()["stored"] > 5)
            time.sleep(draw.random())
            stored = mirror.ask("/bertsmith/status").json()["stored"]
            mirror.process.send_signal(signal.SIGKILL)
            stopping.set()
            for thread in threads:
                thread.join()
        found = rows(path)
        texts = [text for text, _ in found]
        assert len(texts) == len(set(texts))
        assert set(texts) <= set(asked)
        assert all(answer == llm_answers.value_for(text) for text, answer in found)
        assert len(texts) >= before + stored
        before = len(texts)


@pytest.mark.parametrize("clients", [8, pytest.param(64, marks=pytest.mark.slow)])
def test_kill_9_loses_no_answer_but_the_latest(upstream: Upstream, tmp_path: Path, clients: int) -> None:
    """Clients that ask as fast as they are answered: what they had a moment before is in the store. Promised
    are 0.1 s; the clients, the upstream and other tests have the same cores, and may keep the mirror from its
    own for longer: so one of three mirrors has to keep the promise.
    """
    lost: list[float] = []
    while len(lost) < 3 and min(lost, default=math.inf) > 0.3:
        lost.append(_seconds_lost(upstream.url, tmp_path / f"calls-{len(lost)}.sqlite", clients))
    assert min(lost) <= 0.3, lost


def _seconds_lost(upstream: str, path: Path, clients: int) -> float:
    """How long before a kill -9 the first answer was given that isn't in the store."""
    answered = dict[str, float]()
    with mirror_process("--upstream", upstream, "--store", path) as mirror:
        stopping = threading.Event()

        def send(client: int) -> None:
            with closing(http.client.HTTPConnection("127.0.0.1", mirror.port, timeout=60)) as connection:
                for count in range(100_000):
                    if stopping.is_set():
                        return
                    text = f"card {client} {count}"
                    with suppress(OSError, http.client.HTTPException):
                        connection.request("POST", CHAT, json.dumps(body_of(text)))
                        connection.getresponse().read()
                        answered[text] = time.monotonic()

        threads = [threading.Thread(target=send, args=(client,)) for client in range(clients)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(answered) > 50 * clients)
        killed = time.monotonic()
        mirror.process.send_signal(signal.SIGKILL)
        stopping.set()
        for thread in threads:
            thread.join()
    stored = {text for text, _ in rows(path)}
    if len(stored) <= 30 * clients:  # more than a third was lost
        return math.inf
    return max((killed - at for text, at in answered.items() if text not in stored), default=0.0)


def test_an_answer_takes_its_turn_where_calls_come_faster_than_they_are_stored(tmp_path: Path) -> None:
    """But for no longer than a quarter of a second, and not where the store doesn't work."""
    store = FailingStore([])
    recorder = Recorder(store, Redactor((), {}), 10_000_000)  # type: ignore[arg-type]

    def seconds_of_a_turn() -> float:
        began = time.monotonic()
        asyncio.run(recorder.wait_while_behind())
        return time.monotonic() - began

    assert seconds_of_a_turn() < 0.05
    with ExitStack() as passed_on:
        for _ in range(50):
            passed_on.enter_context(recorder.passing_on(True))
        assert 0.2 < seconds_of_a_turn() < 1
        recorder.problem = "database is locked"
        assert seconds_of_a_turn() < 0.05
        recorder.problem = ""
    assert seconds_of_a_turn() < 0.05
    recorder.offer(replace(offered("card"), began=time.time() - 5))
    assert recorder.waiting_seconds > 4
    assert seconds_of_a_turn() > 0.2
    recorder.start()
    wait_until(lambda: recorder.waiting == 0)
    assert seconds_of_a_turn() < 0.05
    recorder.close(10)


def test_an_address_that_is_told_may_be_connected_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(Exception):
        """The address is known, and no more is wanted."""

    def announce(_: str, extra: dict[str, Any]) -> None:
        host, _, port = extra["facts"]["address"].removeprefix("http://").rpartition(":")
        socket.create_connection((host, int(port)), 5).close()
        raise Told

    for name in ("log_to_stderr", "sys.setswitchinterval"):
        monkeypatch.setattr(f"bertsmith.mirror.relay_server.{name}", lambda *_: None)
    monkeypatch.setattr("bertsmith.mirror.relay_server.LOG.info", announce)
    settings = read_settings(None, {"upstream": "http://localhost", "port": 0}, {})
    app: Any = None
    with bind_socket(settings.host, settings.port) as listener, pytest.raises(Told):
        run(settings, app, listener, activity="mirroring", destination="", logged_settings={})


def test_sigterm_stores_what_was_answered_and_ends_with_0(upstream: Upstream, tmp_path: Path) -> None:
    path = tmp_path / "calls.sqlite"
    with mirror_process("--upstream", upstream.url, "--store", path) as mirror:
        for number in range(40):
            assert mirror.ask(CHAT, body_of(f"card {number}")).status == 200
        mirror.process.send_signal(signal.SIGTERM)
        assert mirror.process.wait(60) == 0
        assert mirror.said("stopped")["lost"] == 0
    assert {text for text, _ in rows(path)} == {f"card {number}" for number in range(40)}


def test_sigterm_lets_an_answer_end(tmp_path: Path) -> None:
    def script(seen: Seen) -> Reply:
        reply = llm_answers.chat(seen.json())
        reply.pause = 0.1
        return reply

    with (
        upstream_of(script) as upstream,
        mirror_process("--upstream", upstream.url, "--store", tmp_path / "calls.sqlite") as mirror,
    ):
        found: list[Any] = []
        asking = threading.Thread(
            target=lambda: found.append(mirror.ask(CHAT, body_of("card") | {"stream": True}))
        )
        asking.start()
        wait_until(lambda: upstream.seen)
        mirror.process.send_signal(signal.SIGTERM)
        asking.join(60)
        assert mirror.process.wait(60) == 0
    assert found[0].body.endswith(b"data: [DONE]\n\n")
    assert rows(tmp_path / "calls.sqlite") == [("card", llm_answers.value_for("card"))]


def test_a_locked_database_delays_the_record_and_not_the_call(mirror: RunningMirror) -> None:
    with closing(sqlite3.connect(mirror.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        took = []
        for number in range(10):
            began = time.monotonic()
            assert mirror.ask(CHAT, body_of(f"card {number}")).status == 200
            took.append(time.monotonic() - began)
        assert sorted(took)[5] < 1
        problem = wait_until(lambda: mirror.ask("/bertsmith/status").json()["store_problem"])
        assert "locked" in problem
        status = mirror.ask("/bertsmith/status").json()
        assert (status["stored"], status["waiting"], status["dropped"]) == (0, 10, 0)
        other.execute("COMMIT")
    assert len(mirror.calls()) == 10
    assert mirror.ask("/bertsmith/status").json()["store_problem"] is None


def test_a_full_disk_delays_the_record_and_not_the_call(mirror: RunningMirror) -> None:
    """SQLite itself says that it has no page left."""
    with closing(mirror.store.engine.raw_connection()) as raw:
        (pages,) = raw.cursor().execute("PRAGMA page_count").fetchone()
    mirror.store.engine.dispose()
    from sqlalchemy import event

    limits = [pages]

    def bound(connection: Any, _: Any) -> None:
        connection.execute(f"PRAGMA max_page_count={limits[0]}")

    event.listen(mirror.store.engine, "connect", bound)
    for number in range(5):
        assert mirror.ask(CHAT, body_of(f"card {number} " + "x" * 20_000)).status == 200
    assert "full" in wait_until(lambda: mirror.app.recorder.problem)
    assert mirror.app.recorder.stored == 0
    limits[0] = 1_000_000
    mirror.store.engine.dispose()
    assert len(mirror.calls()) == 5


def test_a_queue_that_is_full_drops_and_counts_and_relays(tmp_path: Path, upstream: Upstream) -> None:
    with running_mirror(tmp_path, upstream.url, queue_bytes=6000) as mirror:
        with closing(sqlite3.connect(mirror.path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            for number in range(20):
                answer = mirror.ask(CHAT, body_of(f"card {number}"))
                assert answer.status == 200
            assert answer.headers["x-bertsmith"].endswith("reason=queue-full")
            recorder = mirror.app.recorder
            assert recorder.waiting > 0
            dropped = 20 - recorder.waiting
            other.execute("COMMIT")
        assert len(mirror.calls()) == 20 - dropped
        assert recorder.dropped == mirror.skipped()["openai-chat", "queue-full"] == dropped
        assert mirror.ask("/bertsmith/status").json()["dropped"] == dropped


class FailingStore:
    """Raises what it is told, then stores."""

    def __init__(self, errors: list[Exception]) -> None:
        self.errors, self.added, self.skipped = errors, list[str](), Counter[tuple[str, str]]()
        self.poison = ""

    def add(self, calls: Any, passed: Any) -> int:
        if self.errors:
            raise self.errors.pop(0)
        texts = [each.request.inputs[0].parts[0] for each in calls]
        if self.poison in texts:
            raise DataError("INSERT", {}, Exception("value out of range"))
        self.added += texts
        self.skipped.update(passed)
        return len(calls)


@pytest.fixture
def failing() -> Iterator[tuple[FailingStore, Recorder]]:
    store = FailingStore([])
    recorder = Recorder(store, Redactor((), {}), 10_000_000)  # type: ignore[arg-type]
    yield store, recorder
    recorder.close(10)


def test_each_failure_of_the_store_is_tried_again(failing: tuple[FailingStore, Recorder]) -> None:
    store, recorder = failing
    store.errors += [
        OperationalError("INSERT", {}, sqlite3.OperationalError("disk I/O error")),
        OSError(28, "No space left on device"),
    ]
    for number in range(3):
        assert recorder.offer(offered(f"card {number}"))
    recorder.start()
    wait_until(lambda: recorder.is_idle)
    assert store.added == ["card 0", "card 1", "card 2"]
    assert (recorder.stored, recorder.failed) == (3, 0)


def test_one_call_that_no_store_takes_fails_alone(failing: tuple[FailingStore, Recorder]) -> None:
    store, recorder = failing
    store.poison = "card 1"
    for number in range(3):
        recorder.offer(offered(f"card {number}"))
    recorder.start()
    wait_until(lambda: recorder.is_idle)
    assert store.added == ["card 0", "card 2"]
    assert (recorder.stored, recorder.failed) == (2, 1)


def test_what_is_counted_while_the_last_calls_are_written_is_stored_too(
    failing: tuple[FailingStore, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, recorder = failing
    store_them = store.add

    def add(calls: Any, passed: Any) -> int:
        if calls:
            recorder.count("openai-chat", "no-schema")
            recorder._ends_at = time.monotonic() + 10  # the mirror is stopped
        return store_them(calls, passed)

    monkeypatch.setattr(store, "add", add)
    recorder.offer(offered("card"))
    recorder.start()
    assert recorder.close(10) == 0
    assert (store.added, store.skipped) == (["card"], {("openai-chat", "no-schema"): 1})


def test_what_cannot_be_stored_in_time_is_counted_as_lost(failing: tuple[FailingStore, Recorder]) -> None:
    store, recorder = failing
    store.errors += [OperationalError("INSERT", {}, Exception("away")) for _ in range(1000)]
    recorder.offer(offered("card"))
    recorder.start()
    began = time.monotonic()
    assert recorder.close(0.5) == 1
    assert time.monotonic() - began < 5
    assert not recorder.offer(offered("late"))


def test_a_fault_of_ours_is_never_the_clients(mirror: RunningMirror, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr("bertsmith.mirror.relay.site_id", broken)
    answer = mirror.ask(CHAT, body_of("card"))
    assert answer.status == 200
    assert answer.headers["x-bertsmith"] == "passthrough; reason=mirror-error"
    monkeypatch.undo()
    monkeypatch.setattr("bertsmith.mirror.recorder.read_call", broken)
    assert mirror.ask(CHAT, body_of("card")).status == 200
    wait_until(lambda: mirror.app.recorder.failed == 1)
    monkeypatch.undo()
    assert mirror.ask(CHAT, body_of("transfer")).status == 200
    assert [each.completion.value["intent"] for each in mirror.calls()] == ["transfer"]


def test_an_audit_whose_answer_cannot_be_read_is_no_evidence(
    failing: tuple[FailingStore, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("bertsmith.mirror.recorder.read_call", fault)
    _, recorder = failing
    told: list[CallOutcome] = []
    recorder.on_outcome = told.append
    routing = CallRouting("v", "s", is_sure=True, probability=0.05, least=0.05, audit="a1")
    recorder.offer(replace(offered("card"), routing=routing))
    recorder.offer(offered("transfer"))
    recorder.start()
    wait_until(lambda: recorder.failed == 2 and recorder.is_idle)
    assert [(each.version, each.reason) for each in told] == [("v", "unreadable")]
    ledger = Ledger()
    ledger.outcome(told[0])
    folded = ledger.fold(OpenStudents())
    (comparison,) = folded.batches["s"].comparisons
    assert (comparison.audit, comparison.outcome) == ("a1", VOID)
    assert folded.tallies == {("v", "", "void-unreadable"): (1, 0.0)}


def test_an_error_that_no_database_names_fails_its_call_alone(
    failing: tuple[FailingStore, Recorder],
) -> None:
    store, recorder = failing
    store.errors += [OverflowError("Python int too large"), OverflowError("again")]
    recorder.count("openai-chat", "cut")
    for number in range(2):
        recorder.offer(offered(f"card {number}"))
    recorder.start()
    wait_until(lambda: recorder.is_idle)
    recorder.offer(offered("card 2"))
    wait_until(lambda: recorder.is_idle)
    assert store.added == ["card 0", "card 1", "card 2"]  # the second error met the counts alone


def test_a_batch_that_cannot_be_told_of_does_not_end_the_recording(
    failing: tuple[FailingStore, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, recorder = failing
    said = list[str]()
    monkeypatch.setattr(recorder, "_report", said.append)

    def told(_: Any) -> None:
        raise RuntimeError("a bug")

    recorder.on_outcome = told
    recorder.start()
    recorder.offer(offered("card 0"))
    wait_until(lambda: recorder.is_idle)
    assert "RuntimeError in a batch of 1 calls" in said
    recorder.on_outcome = None
    recorder.offer(offered("card 1"))
    wait_until(lambda: recorder.is_idle)
    assert store.added == ["card 0", "card 1"]


@pytest.mark.slow
def test_a_deletion_that_meets_a_reader_is_made_later(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "calls.sqlite"))
    recorder = Recorder(store, Redactor((), {}), 10_000_000, retention_days=1.0)
    with closing(sqlite3.connect(tmp_path / "calls.sqlite", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM mirror_calls").fetchone()
        recorder.offer(replace(offered("old"), began=1.0))
        recorder.start()
        wait_until(lambda: recorder.problem, 30)
        assert "another process is at work there" in recorder.problem
        recorder.offer(offered("new"))
        wait_until(lambda: recorder.stored == 2)
        reader.execute("COMMIT")
    recorder._expired_at = 0.0
    wait_until(lambda: recorder.is_idle and not recorder.problem)
    recorder.close(10)
    assert store.count() == 1
    store.close()


def test_a_count_of_tokens_that_no_column_holds_is_left_out(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "calls.sqlite"))
    call = call_of(1)
    huge = replace(call, completion=replace(call.completion, input_tokens=2**63, output_tokens=-1))
    assert store.add([huge]) == 1
    (found,) = store.calls(call.version)
    assert (found.completion.input_tokens, found.completion.output_tokens) == (None, None)
    store.close()


@pytest.mark.parametrize("suffixes", [["-wal"], ["-shm"], ["-wal", "-shm"]])
def test_a_log_that_is_removed_is_said_and_no_call_is_lost(
    tmp_path: Path, upstream: Upstream, suffixes: list[str]
) -> None:
    with running_mirror(tmp_path, upstream.url) as mirror:
        for number in range(5):
            mirror.ask(CHAT, body_of(f"card {number}"))
        assert len(mirror.calls()) == 5
        for suffix in suffixes:
            Path(f"{mirror.path}{suffix}").unlink()
        assert "was removed while the store" in mirror.ask("/bertsmith/status").json()["store_problem"]
        mirror.ask(CHAT, body_of("card 5"))
        mirror.settle()
        assert mirror.ask("/bertsmith/status").json()["store_problem"] is None
        assert len(rows(mirror.path)) == 6  # as another process reads it
        mirror.ask(CHAT, body_of("card 6"))
    assert {text for text, _ in rows(mirror.path)} == {f"card {number}" for number in range(7)}


def test_a_log_that_is_removed_while_somebody_reads_is_saved_when_that_has_ended(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "calls.sqlite"))
    assert store.add([call_of(number) for number in range(3)]) == 3
    reading = store.calls(call_of(1).version)
    next(reading)
    (tmp_path / "calls.sqlite-wal").unlink()
    (tmp_path / "calls.sqlite-shm").unlink()
    for _ in range(3):
        with pytest.raises(OperationalError, match="was removed while the store was open"):
            store.add([call_of(3)])
    assert len(list(reading)) == 2
    with pytest.raises(OperationalError, match="What it held is saved"):
        store.add([call_of(3)])
    assert store.add([call_of(3)]) == 1
    assert store.problem == ""
    assert len(rows(tmp_path / "calls.sqlite")) == 4  # as another process reads it
    store.close()


@pytest.mark.parametrize("what", ["is gone", "is another file by now"])
def test_a_store_that_is_moved_away_is_said_and_nothing_counts_as_stored_until_it_is_back(
    mirror: RunningMirror, what: str
) -> None:
    assert mirror.ask(CHAT, body_of("card 0")).status == 200
    assert len(mirror.calls()) == 1
    aside = mirror.path.with_name("aside.sqlite")
    mirror.path.rename(aside)
    if what != "is gone":
        mirror.path.write_bytes(b"")
    assert mirror.ask(CHAT, body_of("card 1")).status == 200
    problem = wait_until(lambda: mirror.ask("/bertsmith/status").json()["store_problem"])
    assert problem.startswith(f"{mirror.path} {what}: put back")
    mirror.store.engine.dispose()  # a connection that is made meanwhile makes no file
    for asked in (mirror.store.count, lambda: mirror.store.add([call_of(1)])):
        with pytest.raises(OperationalError, match=what):
            asked()
    assert mirror.ask(CHAT, body_of("card 2")).status == 200
    status = mirror.ask("/bertsmith/status").json()
    assert (status["stored"], status["waiting"]) == (1, 2)
    assert mirror.path.exists() == (what != "is gone")
    aside.replace(mirror.path)
    assert len(mirror.calls()) == 3
    assert mirror.ask("/bertsmith/status").json()["store_problem"] is None


def test_a_store_that_is_removed_is_said_in_the_log_and_its_calls_count_as_lost(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_mirror(tmp_path, upstream.url, drain_seconds=1) as mirror:
        mirror.path.unlink()
        assert mirror.ask(CHAT, body_of("card")).status == 200
        problem = wait_until(lambda: mirror.app.recorder.problem)
        assert problem.startswith(f"{mirror.path} is gone")
    said = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert f"the store can't be written and is tried again: {problem}" in said
    (stopped,) = [each for each in caplog.records if each.getMessage() == "stopped"]
    assert (stopped.facts["stored"], stopped.facts["lost"]) == (0, 1)  # type: ignore[attr-defined]

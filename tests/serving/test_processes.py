"""Processes that can't be begun again: what becomes of the others. Signals for those that aren't ready. What
the one that watches them has, and what it leaves.
"""

import logging
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from bertsmith.errors import InputError, ResourceError
from bertsmith.serving import serve
from bertsmith.serving.models import Models
from bertsmith.serving.monitoring import share_metrics_folder
from bertsmith.serving.serve import _Worker, _WorkerPool, try_models
from bertsmith.serving.settings import read_settings
from served_models import save_fine_tuned

LOOK = 0.5  # seconds between two looks at the processes, of which the first sees that one has died


class Made:
    """Stands for a process that the system began; what is tested is what is done about its death."""

    pid, exitcode, sentinel = 0, 2, -1

    def __init__(self, is_alive: bool) -> None:
        self.alive = is_alive

    def is_alive(self) -> bool:
        return self.alive

    def terminate(self) -> None:
        self.alive = False

    kill = terminate


class Line:
    """Its lifeline."""

    def poll(self) -> bool:
        return False


class Speaking(Line):
    """One that says when it is ready."""

    ready = False

    def poll(self) -> bool:
        return self.ready

    def recv(self) -> bool:
        return True


class Clock:
    """A time that passes by waiting alone, however busy the machine is."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[_WorkerPool, list[float]]]:
    """Two processes, of which one is dead and can't be begun again; and when that was tried, in seconds."""
    tried, clock = list[float](), Clock()
    settings = read_settings(["m=nowhere"], None, {"workers": 2}, {})
    with socket.socket() as listener:
        found = _WorkerPool(settings, listener)

        def begin() -> None:
            tried.append(clock.now)
            found._workers.append(_Worker(Made(False), Line()))  # type: ignore[arg-type]

        monkeypatch.setattr(found, "_start_worker", begin)
        monkeypatch.setattr(serve, "time", clock)
        monkeypatch.setattr(serve.connection, "wait", lambda *_, **__: clock.sleep(LOOK))
        monkeypatch.setattr(serve, "forget_dead_process", lambda _: None)
        yield found, tried


def test_one_that_cannot_be_begun_again_leaves_the_others_and_is_tried_more_and_more_seldom(
    watched: tuple[_WorkerPool, list[float]], caplog: pytest.LogCaptureFixture
) -> None:
    found, tried = watched
    alive: Any = Made(True)
    found._workers = [
        _Worker(alive, Line(), True),  # type: ignore[arg-type]
        _Worker(Made(False), Line(), True),  # type: ignore[arg-type]
    ]
    found._announced = True
    with caplog.at_level(logging.ERROR, "bertsmith.serving"):
        for _ in range(500):
            found._handle_events()
    pauses = [after - before - LOOK for before, after in pairwise(tried[:9])]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert alive.is_alive()
    assert not found._stopping
    assert "the next one tries in" in caplog.text


def test_one_that_cannot_begin_at_first_ends_all(watched: tuple[_WorkerPool, list[float]]) -> None:
    found, tried = watched
    alive: Any = Made(True)
    found._workers = [_Worker(alive, Line(), True), _Worker(Made(False), Line())]  # type: ignore[arg-type]
    found._handle_events()
    assert not alive.is_alive()
    assert not found._all_started
    assert tried == []


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs the signals of Unix")
def test_one_that_is_told_to_reload_before_it_is_ready_is_told_again_when_it_is(
    watched: tuple[_WorkerPool, list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = watched
    told = list[tuple[int, int]]()
    monkeypatch.setattr(os, "kill", lambda pid, sig: told.append((pid, sig)))
    serving, opening, says = Made(True), Made(True), Speaking()
    serving.pid, opening.pid = 1, 2
    found._workers = [
        _Worker(serving, Line(), True),  # type: ignore[arg-type]
        _Worker(opening, says),  # type: ignore[arg-type]
    ]
    found._forward_hangup(signal.SIGHUP, None)
    found._handle_events()
    assert told == [(1, signal.SIGHUP)]
    says.ready = True
    found._handle_events()
    found._handle_events()
    assert told == [(1, signal.SIGHUP), (2, signal.SIGHUP)]
    found._forward_hangup(signal.SIGHUP, None)
    assert told[2:] == told[:2]


def test_the_one_that_watches_several_opens_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would keep the memory that each of the others needs once more."""
    folder = save_fine_tuned(tmp_path / "m", "classification")
    settings = read_settings([f"m={folder}"], None, {"workers": 2, "port": 0}, {})
    monkeypatch.setattr(Models, "open_all", lambda self: pytest.fail("it was opened here"))
    monkeypatch.setattr(serve, "log_to_stderr", lambda: None)
    shown, begun = list[str](), list[int]()
    monkeypatch.setattr(serve, "_make_announcement", lambda _, lines, __: shown.extend(lines))
    monkeypatch.setattr(serve, "run_processes", lambda found, *_: begun.append(found.workers))
    threads, before = torch.get_num_threads(), signal.getsignal(signal.SIGHUP)
    try:
        serve.serve(settings)
    finally:
        torch.set_num_threads(threads)
        signal.signal(signal.SIGHUP, before)
    assert begun == [2]
    (line,) = shown
    assert line.split()[:2] == ["m", "classification,"]


@pytest.mark.slow
def test_a_model_that_cant_be_served_is_a_sentence_before_any_process_serves(tmp_path: Path) -> None:
    settings = read_settings([f"m={tmp_path / 'absent'}"], None, {"workers": 2}, {})
    with pytest.raises(InputError, match="absent"):
        try_models(settings)


def test_models_that_end_the_process_that_tries_them_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory ends, the system kills it. This one ends by an error: `abs` takes no two arguments."""
    monkeypatch.setattr(serve, "_run_trial", abs)
    with pytest.raises(ResourceError, match="ended with status 1"):
        try_models(read_settings(["m=nowhere"], None, {"workers": 2}, {}))


def test_metrics_of_a_service_that_was_killed_are_cleared_away_and_those_of_a_living_one_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "bertsmith-metrics-left"
    left.mkdir()
    (left / "counter_1.db").touch()
    with share_metrics_folder() as living:
        assert list(tmp_path.iterdir()) == [living]
        with share_metrics_folder() as another:
            assert set(tmp_path.iterdir()) == {living, another}
        assert list(tmp_path.iterdir()) == [living]
    assert list(tmp_path.iterdir()) == []

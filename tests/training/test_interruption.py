"""Signals are remembered while a run trains, and are what they were before it and after it."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from bertsmith.training.loop import Interruption

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    pass


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    """What the command line has: each of them unwinds the stack."""

    def terminate(*_: object) -> None:
        raise Terminated

    before = [
        signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.signal(signal.SIGTERM, terminate),
        signal.signal(signal.SIGHUP, terminate),
    ]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_remembered(number: signal.Signals) -> None:
    with Interruption() as interruption:
        assert not interruption.requested
        send(number)
        assert interruption.requested


def test_a_second_ctrl_c_ends_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), Interruption():
        send(signal.SIGINT)
        send(signal.SIGINT)
        pytest.fail("still running")


@pytest.mark.parametrize("first", SIGNALS)
def test_sigterm_never_ends_it_early(first: signal.Signals) -> None:
    with Interruption() as interruption:
        send(first)
        send(signal.SIGTERM)
        send(signal.SIGHUP)
        send(signal.SIGTERM)
        assert interruption.requested


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated), (signal.SIGHUP, Terminated)],
)
def test_it_ends_as_the_signal_would_have_ended_it(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    with pytest.raises(raised), Interruption() as interruption:
        send(number)
        interruption.end()


def test_what_nohup_has_ignored_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interruption() as interruption:
        send(signal.SIGHUP)
        assert not interruption.requested


def test_a_rank_that_got_no_signal_ends_as_by_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt), Interruption() as interruption:
        interruption.end()


def test_handlers_are_given_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interruption():
        assert [signal.getsignal(number) for number in SIGNALS] != before
        send(signal.SIGINT)
    assert [signal.getsignal(number) for number in SIGNALS] == before
    with pytest.raises(Terminated):
        send(signal.SIGTERM)


def test_handlers_are_given_back_after_an_error() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ValueError, match="trouble"), Interruption():
        raise ValueError("trouble")
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_elsewhere_than_in_the_main_thread_signals_are_left_alone() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    seen: list[object] = []

    def work() -> None:
        with Interruption() as interruption:
            seen.extend([interruption.requested, *(signal.getsignal(number) for number in SIGNALS)])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, *before]

"""Fixtures that every part of the suite may use."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import hypothesis
import pytest
import torch
from matplotlib.backends.backend_svg import FigureCanvasSVG

from bertsmith.model.cpu import kernels
from bertsmith.tasks.heads import linear_start
from bertsmith.training import machine
from chromium import Browser, chromium

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

WAYS = ("torch", "avx2", "avx512", "avx512_vnni")

# Tiny models gain nothing from more threads, and wait for them on a busy machine; so do commands under test.
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)

# A machine with other work on it is slow, not wrong.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

# A shell starts a background job with Ctrl-C ignored, nohup with SIGHUP, and their children inherit that:
# commands under test would not hear the signals that tests send them.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_sessionstart() -> None:
    """Nothing that is collected goes again, and looking through it for cycles takes a sixth of the time."""
    gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """In a fresh clone Python compiles all tests and what they import, which takes longer than all else that
    collecting does: one process does it, and the others wait instead of doing the same.
    """
    is_compiled = (Path(__file__).parent / "training" / "__pycache__").exists()
    if is_compiled or sys.dont_write_bytecode or sys.platform == "win32":
        return (yield)
    import fcntl

    with Path(__file__).open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        return (yield)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _speed_measured_once() -> Iterator[None]:
    """Each training measures the machine's speed, which takes half a second."""
    with patch.object(machine, "matmul_flops", cache(machine.matmul_flops)):
        yield


@pytest.fixture(autouse=True, scope="module")
def _in_a_hurry(request: pytest.FixtureRequest) -> Iterator[None]:
    """Most modules ask what becomes of a linear model and of a picture, not how good they are. Those that do
    are marked as thorough.
    """
    if request.node.get_closest_marker("thorough"):
        yield
        return
    with (
        patch.object(linear_start.minimise, "__defaults__", (12,)),  # of 100 steps
        patch.object(linear_start, "_STRENGTHS", (1.0, 0.06)),
        patch.object(FigureCanvasSVG, "print_svg", lambda _, file, **given: file.write("<svg></svg>")),
    ):
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the repository; a machine without it skips the test and says so."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs the real data in ../shared/data, which this machine doesn't have")
    return SHARED_DATA


@pytest.fixture(params=WAYS)
def inference_way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Torch's operations, as where no kernel was compiled, and each library that this processor can run."""
    way, here = request.param, kernels.find_instruction_set()
    library = None
    if way != "torch":
        if here not in WAYS or WAYS.index(way) > WAYS.index(here):
            pytest.skip(f"this processor has no {way}")
        if (found := kernels.load_library(way)) is None:
            assert "CC" in os.environ or not shutil.which("gcc"), "GCC is here: pip install once more"
            pytest.skip("nothing was compiled")
        library = Mock(wraps=found)
    with patch.object(kernels, "load_library", lambda _: library):
        yield way
    assert library is None or library.mock_calls


@pytest.fixture(scope="session")
def chromium_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if (program := chromium()) is None:
        pytest.skip("needs Chromium (Debian: apt install chromium)")
    opened = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture
def browser(chromium_process: Browser) -> Browser:
    chromium_process.open_tab()
    chromium_process.resize(1280, 900)
    return chromium_process

"""Ready and live turn red when nothing is computed, whatever still arrives, and never by traffic alone."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bertsmith.serving import monitoring
from bertsmith.serving.models import Models, probe_once
from bertsmith.serving.monitoring import Health
from bertsmith.serving.refusals import Refusal
from bertsmith.serving.service import Service, ServiceRequest
from bertsmith.serving.settings import read_settings
from served_models import save_fine_tuned


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_fine_tuned(tmp_path_factory.mktemp("served") / "model", "classification")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (
        ("_PROBE_SECONDS", 0.02),
        ("_READY_SECONDS", 0.5),
        ("_STUCK_SECONDS", 0.3),
        ("_DEAD_SECONDS", 1.0),
    ):
        monkeypatch.setattr(monitoring, name, seconds)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Service, Health, threading.Event]]:
    """Its workers compute while the event is set; the health's own pass always does."""
    settings = read_settings([f"m={folder}"], None, {"timeout_ms": 600_000}, {})
    models = Models(settings)
    models.open_all()
    service, go_on = Service(settings, models), threading.Event()
    go_on.set()
    run = models["m"].operations["predict"].forward  # type: ignore[attr-defined]
    usual = run.compute

    def compute(batch: Any, layout: Any) -> Any:
        if threading.current_thread().name.startswith(("all-cores", "one-core")):
            assert go_on.wait(60)
        return usual(batch, layout)

    object.__setattr__(run, "compute", compute)
    health = Health(service)
    service.start()
    health.start()
    try:
        yield service, health, go_on
    finally:
        go_on.set()
        await health.stop()
        await service.stop()


async def until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def test_ready_is_red_while_work_waits_and_none_is_finished_though_more_arrives(folder: Path) -> None:
    async def ask() -> None:
        async with running(folder) as (service, health, go_on):
            assert (await service.answer(ServiceRequest(["bano"]))).results
            go_on.clear()
            asked = []

            async def arrive() -> None:
                while True:
                    asked.append(asyncio.ensure_future(service.answer(ServiceRequest(["bano"]))))
                    await asyncio.sleep(0.05)

            arriving = asyncio.ensure_future(arrive())
            await until(lambda: health.problem() == "work waits, and none is finished")
            assert not health.is_dead  # its own forward pass computes
            arriving.cancel()
            go_on.set()
            for each in await asyncio.gather(*asked, return_exceptions=True):
                assert not isinstance(each, Exception) or isinstance(each, Refusal)
            await until(lambda: health.problem() is None)

    asyncio.run(ask())


def test_a_long_queue_alone_leaves_ready_green(folder: Path) -> None:
    async def ask() -> None:
        async with running(folder) as (service, health, _):
            asked = [asyncio.ensure_future(service.answer(ServiceRequest(["bano"] * 20))) for _ in range(50)]
            while not all(each.done() for each in asked):
                assert health.problem() is None
                await asyncio.sleep(0.01)

    asyncio.run(ask())


def test_without_a_forward_pass_ready_turns_red_and_then_live(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> None:
        async with running(folder) as (_, health, _):
            await asyncio.sleep(0.7)  # no traffic, and green by passes of its own
            assert health.problem() is None
            monkeypatch.setattr(monitoring, "probe_once", lambda model: 1 / 0)
            await until(lambda: health.problem() == "no forward pass of late")
            await until(lambda: health.is_dead)
            monkeypatch.setattr(monitoring, "probe_once", probe_once)
            await until(lambda: health.problem() is None and not health.is_dead)

    asyncio.run(ask())
    assert "a forward pass that only tests failed" in caplog.text


def test_whoever_leaves_is_not_ready_and_still_alive(folder: Path) -> None:
    async def ask() -> None:
        async with running(folder) as (service, health, _):
            health.leaving = True
            assert health.problem() == "the service is stopping"
            assert not health.is_dead
            assert (await service.answer(ServiceRequest(["bano"]))).results

    asyncio.run(ask())

"""The application under Ray Serve, on this machine: replicas taken away and killed while clients ask."""

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bertsmith.serving.settings import read_settings
from live_server import START, LiveServer, Load
from served_models import save_fine_tuned

ray = pytest.importorskip("ray", reason="needs the extra ray")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
ROUTE, BODY = "/v1/intents", {"inputs": ["bano delo", "kano"]}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of Ray's HTTP proxy."""
    from ray import serve

    with pytest.MonkeyPatch.context() as environment, socket.socket() as free:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        free.bind(("127.0.0.1", 0))
        chosen = free.getsockname()[1]
        free.close()
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address="127.0.0.1",
        )
        serve.start(http_options={"host": "127.0.0.1", "port": chosen})
        yield chosen
        serve.shutdown()
        ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_fine_tuned(tmp_path_factory.mktemp("served") / "model", "classification")


@pytest.fixture(scope="module")
def server(port: int, folder: Path) -> LiveServer:
    run(folder, 2)
    return LiveServer(None, port, [])  # type: ignore[arg-type]


def run(folder: Path, replicas: int) -> None:
    from ray import serve

    from bertsmith.serving.ray_serve import deployment

    settings = read_settings([f"intents={folder}"], None, {"max_body_bytes": 100_000}, {})
    serve.run(deployment(settings, replicas), name="bertsmith", route_prefix="/")


def replicas() -> list[psutil.Process]:
    """The processes that compute."""
    family = psutil.Process().children(recursive=True)
    return [each for each in family if "ServeReplica:bertsmith:Replica" in _command(each)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # gone meanwhile
        return ""


def until_there_are(count: int) -> list[psutil.Process]:
    end = time.monotonic() + START
    while len(found := replicas()) != count:
        assert time.monotonic() < end, found
        time.sleep(0.1)
    return found


def test_the_application_is_the_same(server: LiveServer) -> None:
    answer = server.ask(ROUTE, BODY)
    assert (answer.status, answer.json()["model"]) == (200, "intents")
    assert answer.headers["x-request-id"]
    assert server.ask("/health/ready").status == 200
    assert server.ask("/v1/nobody", BODY).status == 404
    assert server.ask(ROUTE, b"a" * 200_000).status == 413
    assert server.ask("/admin/models/intents/reload", b"").status == 403


@pytest.mark.parametrize("times", [1, 5])
def test_a_replica_is_killed_under_load_and_no_request_is_lost(server: LiveServer, times: int) -> None:
    load = Load(server, ROUTE, {"inputs": ["bano delo kano"] * 200})
    with load.running(clients=8):
        for _ in range(times):
            load.wait(50)
            until_there_are(2)[0].send_signal(signal.SIGKILL)
            load.wait(50)
        until_there_are(2)
        load.wait(50)
    assert load.failures == {}
    assert {answer.status for answer in load.answers.values()} == {200}
    assert len({answer.body for answer in load.answers.values()}) == 1


def test_a_replica_is_taken_away_under_load_and_no_request_is_lost(server: LiveServer, folder: Path) -> None:
    load = Load(server, ROUTE, BODY)
    with load.running(clients=8):
        load.wait(50)
        run(folder, 1)
        until_there_are(1)
        load.wait(50)
    assert load.failures == {}
    assert {answer.status for answer in load.answers.values()} == {200}

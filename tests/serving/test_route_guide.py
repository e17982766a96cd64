"""The guide to a route is followed from outside the package: its code is written down, and served models
answer Cohere's own client by it.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cohere
import httpx
import pytest
from cohere.core.api_error import ApiError

from bertsmith import Predictor
from bertsmith.cli.main import main
from bertsmith.serving.app import make_app
from bertsmith.serving.settings import read_settings
from live_server import LiveServer, live_server, threaded_server
from served_models import save_fine_tuned

PAGE = Path(__file__).parents[2] / "docs" / "add-a-format-or-route.md"
GUIDE = PAGE.read_text("utf-8").partition("\n## A route\n")[2]
NAME = "cohere_classify:PROTOCOL"
ROUTE = "/v1/classify"
TEXTS = ["bano delo", "firu", "guma kano lelo miru bano"]
KEY = "a-key-of-sixteen-or-more"
OPERATOR = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_fine_tuned(tmp_path_factory.mktemp("served") / "model", "classification")


@pytest.fixture(autouse=True)
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """cohere_classify.py in the working folder, as if written by the page's reader."""
    monkeypatch.chdir(tmp_path)
    ((name, text),) = re.findall(r"^```python (\S+)\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    (tmp_path / name).write_text(text)
    yield
    for module in ("cohere_classify", "others"):
        sys.modules.pop(module, None)


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator[LiveServer]:
    """With a key, and small limits."""
    keys = tmp_path / "keys.txt"
    keys.write_text(f"website {KEY}\n")
    given = {"routes": NAME, "keys_file": keys, "max_inputs": 8, "max_body_bytes": 1024}
    with threaded_server(make_app(read_settings([f"intents={folder}"], None, given, {}))) as running:
        yield running


def classified(server: LiveServer, key: str = KEY, **more: Any) -> Any:
    with httpx.Client() as http:
        client = cohere.Client(api_key=key, base_url=f"http://127.0.0.1:{server.port}", httpx_client=http)
        return client.classify(inputs=TEXTS, **more)


def test_coheres_client_reads_a_models_classes_and_they_are_counted_and_documented(
    server: LiveServer, folder: Path
) -> None:
    expected = Predictor.load(folder).predict(TEXTS)
    for more in ({}, {"model": "intents", "truncate": "NONE"}):
        found = classified(server, **more).classifications
        assert [each.input for each in found] == TEXTS
        assert [each.prediction for each in found] == [each["label"] for each in expected]
        assert [each.confidence for each in found] == [each["confidence"] for each in expected]
        labels = [{name: value.confidence for name, value in each.labels.items()} for each in found]
        assert labels == [each["probabilities"] for each in expected]
    counted = server.ask("/metrics", headers=OPERATOR).body.decode()
    line = f'bertsmith_requests_total{{model="intents",route="{ROUTE}",status="200"}} 2.0'
    assert line in counted.splitlines()
    shown = server.ask("/openapi.json", headers=OPERATOR).json()["paths"][ROUTE]["post"]
    assert shown["tags"] == ["Cohere"] and "400" in shown["responses"]


def test_what_it_cant_do_is_refused_as_everywhere_in_its_own_envelope(server: LiveServer) -> None:
    with pytest.raises(ApiError) as caught:
        classified(server, examples=[cohere.ClassifyExample(text="bano", label="no")])
    assert (caught.value.status_code, caught.value.body["message"][:21]) == (400, "Neither examples nor ")
    with pytest.raises(ApiError) as caught:
        classified(server, key="another-key-of-many-letters")
    assert caught.value.status_code == 401
    for body, status, said in (
        ({"inputs": "bano"}, 400, "inputs: input should be a valid list."),
        ({"inputs": ["bano"], "shuffle": 1}, 400, "there is no 'shuffle' here: inputs, model, truncate"),
        ({"inputs": ["bano"], "model": "absent"}, 404, "There is no model 'absent' here."),
        ({"inputs": ["bano"] * 9}, 400, "The request has 9 inputs; this service takes 8 at a time."),
        ({"inputs": ["bano " * 40], "truncate": "NONE"}, 400, "is longer than the 24 tokens"),
        (b"[", 400, "The body can't be read as JSON"),
    ):
        answer = server.ask(ROUTE, body, OPERATOR)
        assert answer.status == status and set(answer.json()) == {"message"}
        assert said in answer.json()["message"]
    late = server.ask(ROUTE, {"inputs": ["bano"]}, OPERATOR | {"x-timeout-ms": "soon"})
    assert (late.status, "x-timeout-ms must be a number" in late.json()["message"]) == (400, True)
    assert server.ask(ROUTE, {"inputs": ["bano " * 400]}, OPERATOR).status == 413  # before any route
    other = server.ask(ROUTE, headers=OPERATOR)
    assert (other.status, other.headers["allow"]) == (405, "POST")


def test_what_is_no_route_or_has_a_path_of_ours_is_refused_before_a_model_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "others.py").write_text(
        "from bertsmith.serving.protocols.routing import Protocol\n"
        "def answer(): pass\n"
        "def at(path):\n"
        "    return Protocol('own', lambda router, _: router.add_api_route(path, answer, methods=['POST']))\n"
        "TAKEN, ALL, HIDDEN = at('/v1/rerank'), at('/v1/{name}'), at('/models/mine')\n"
        "FREE, AGAIN = at('/own/{name}'), at('/own/{other}')\n"
    )
    for name, said in {
        "nowhere:PROTOCOL": "'nowhere:PROTOCOL' can't be imported: No module named 'nowhere'",
        "cohere_classify:OTHER": "can't be imported: module 'cohere_classify' has no attribute 'OTHER'",
        "cohere_classify": "can't be imported",
        "cohere_classify:add_routes": "is not a bertsmith.serving.protocols.routing.Protocol",
        "others:TAKEN": "'others:TAKEN' can't have POST /v1/rerank: the service has POST /v1/rerank already",
        "others:ALL": "can't have POST /v1/{name}: the service has POST /v1/{model} already",
        "others:HIDDEN": "can't have POST /models/mine: the service has POST /models/{model} already",
        "others:FREE,others:AGAIN": "can't have POST /own/{other}: the service has POST /own/{name} already",
    }.items():
        assert main(["serve", "m=absent", "--port", "0", "--routes", name]) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    assert main(["serve", "classify=absent", "--port", "0", "--routes", NAME]) == 2
    assert "/v1/classify is a route of the service" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_each_of_several_processes_has_it(folder: Path) -> None:
    with live_server(f"intents={folder}", "--workers", "2", "--routes", NAME) as server:
        answers = [server.ask(ROUTE, {"inputs": TEXTS}) for _ in range(40)]
        assert {each.status for each in answers} == {200}
        for each in answers:
            first, *_ = each.json()["classifications"]
            assert first["input"] == TEXTS[0]

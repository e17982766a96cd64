"""The OpenAPI document says the truth, and nothing that it allows or forbids is a failure of the service."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from hypothesis import HealthCheck

from bertsmith.serving.app import make_app
from bertsmith.serving.refusals import Refusal, list_refusal_classes
from bertsmith.serving.settings import read_settings
from live_server import LiveServer, threaded_server
from served_models import TASKS, save_fine_tuned, save_pretrained

OPERATOR = {"authorization": f"Bearer {'o' * 20}"}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    folder = tmp_path_factory.mktemp("served")
    (folder / "keys").write_text(f"operator {'o' * 20} admin\n")
    folders: dict[str, Path] = {name: save_fine_tuned(folder / name, name) for name in TASKS}
    folders["masked"] = save_pretrained(folder / "masked")
    named = [f"{name}={path}" for name, path in folders.items()]
    return make_app(read_settings(named, None, {"keys_file": folder / "keys"}, {}))


@pytest.fixture(scope="module")
def server(app: FastAPI) -> Iterator[LiveServer]:
    with threaded_server(app) as found:
        yield found


def test_the_document_names_every_refusal_that_a_route_may_give(app: FastAPI) -> None:
    statuses = {str(kind.status) for kind in list_refusal_classes()}
    for path, methods in app.openapi()["paths"].items():
        for method, operation in methods.items():
            assert statuses <= set(operation["responses"]), (method, path)
            assert operation["summary"]
    described = app.openapi()["paths"]["/v1/{model}"]["post"]["responses"]["422"]["description"]
    assert all(kind.code in described for kind in list_refusal_classes() if kind.status == 422)
    assert {kind.code for kind in list_refusal_classes(Refusal)} >= {
        "overloaded",
        "too_large",
        "internal_error",
    }


def test_a_request_is_compared_with_the_routes_of_its_path_alone(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FastAPI compares it with all routes of all routers, which would be most of what a refusal takes."""
    usual, compared = APIRoute.matches, list[str]()

    def matches(self: APIRoute, scope: Any) -> Any:
        compared.append(self.path)
        return usual(self, scope)

    monkeypatch.setattr(APIRoute, "matches", matches)
    answer = server.ask("/v1/classification", {"inputs": "bano"}, OPERATOR)
    assert answer.status == 200
    assert set(compared) == {"/v1/{model:model}"}


ALL = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def test_a_path_has_its_methods_and_names_them_to_all_others(app: FastAPI, server: LiveServer) -> None:
    """RFC 9110, section 15.5.6; HEAD is GET without its body (9.3.2)."""
    for path, known in {**app.openapi()["paths"], "/health": {"get"}, "/ping": {"get"}}.items():
        methods = {name.upper() for name in known} | ({"HEAD"} if "get" in known else set())
        methods |= {"GET", "HEAD"} if path == "/" else set()  # the page
        place = path.replace("{model}", "tagging").replace("{name}", "tagging").replace("{task}", "ner")
        for method in ALL:
            answer = server.ask(place, headers=OPERATOR, method=method)
            assert (answer.status == 405) == (method not in methods), (method, path)
            if method not in methods:
                assert answer.headers["allow"] == ", ".join(sorted(methods)), (method, path)
    for path in ("/health", "/health/live", "/health/ready", "/ping", "/metrics", "/v1/models"):
        head = server.ask(path, headers=OPERATOR, method="HEAD")
        assert (head.status, head.body) == (200, b"") and server.ask(path, headers=OPERATOR).body


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/completions", {"model": "tagging", "prompt": "bano"}),
        ("POST", "/v1/chat/completions", {"model": "tagging", "messages": []}),
        ("POST", "/v1/moderations", {"input": "bano"}),
        ("POST", "/v1/nothing", {"inputs": "bano"}),
        ("POST", "/v1/nothing", "no object"),
        ("GET", "/v1/nothing", None),
        ("HEAD", "/v1/nothing", None),
        ("PUT", "/v1/nothing", {}),
        ("GET", "/v1/models/nothing", None),
        ("POST", "/models/nothing", {"wrong": 1}),
        ("POST", "/models/nothing/pipeline/ner", {"wrong": 1}),
        ("GET", "/models/nothing", None),
        ("GET", "/v1", None),
        ("POST", "/v2/embed", {"texts": ["bano"]}),
        ("GET", "/nothing", None),
    ],
)
def test_what_there_is_not_is_not_found_whatever_is_sent(
    server: LiveServer, method: str, path: str, body: Any
) -> None:
    assert server.ask(path, body, OPERATOR, method).status == 404
    assert server.ask("/v1/nothing", b"{", {**OPERATOR, "content-encoding": "gzip"}).status == 422


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_that_schemathesis_finds_is_a_failure_of_the_service(
    app: FastAPI, server: LiveServer
) -> None:
    """What the document's schemas allow, and what they don't, to models that are there (in short:
    tests/serving/test_published_schema.py).
    """
    import schemathesis  # seconds, which only this test needs

    few = hypothesis.settings(
        max_examples=200, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    statuses = set()

    def answer_is_documented(case: schemathesis.Case, model: str) -> None:
        for name in {"model", "name"} & set(case.path_parameters):
            case.path_parameters[name] = model
        answer = case.call(f"http://127.0.0.1:{server.port}", headers=OPERATOR, timeout=60)
        assert answer.status_code < 500, (case.as_curl_command(), answer.text)
        documented = set(case.operation.definition.raw["responses"])
        assert str(answer.status_code) in documented, (case.as_curl_command(), answer.text)
        statuses.add(answer.status_code)

    for found in schemathesis.openapi.from_dict(app.openapi()).get_all_operations():
        operation = found.ok()
        for mode in schemathesis.GenerationMode:
            with suppress(hypothesis.errors.Unsatisfiable):  # nothing is wrong of what has no parameters
                cases = operation.as_strategy(mode), st.sampled_from([*TASKS, "masked"])
                few(hypothesis.given(*cases)(answer_is_documented))()
    assert statuses >= {200, 422}
    assert server.ask("/health/ready").status == 200

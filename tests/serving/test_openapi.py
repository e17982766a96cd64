"""The OpenAPI document says the truth, and nothing that it allows or forbids is a failure of the service."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck

from bertsmith.serving.app import make_app
from bertsmith.serving.refusals import Refusal, kinds
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
    statuses = {str(kind.status) for kind in kinds()}
    for path, methods in app.openapi()["paths"].items():
        for method, operation in methods.items():
            assert statuses <= set(operation["responses"]), (method, path)
            assert operation["summary"]
    described = app.openapi()["paths"]["/v1/{model}"]["post"]["responses"]["422"]["description"]
    assert all(kind.code in described for kind in kinds() if kind.status == 422)
    assert {kind.code for kind in kinds(Refusal)} >= {"overloaded", "too_large", "internal_error"}


@pytest.mark.parametrize(
    "examples", [5, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_nothing_that_schemathesis_finds_is_a_failure_of_the_service(
    app: FastAPI, server: LiveServer, examples: int
) -> None:
    """What the document's schemas allow, and what they don't, to models that are there."""
    few = hypothesis.settings(
        max_examples=examples, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    statuses = set()

    def answer_is_documented(case: schemathesis.Case, model: str) -> None:
        for name in {"model", "name"} & set(case.path_parameters):
            case.path_parameters[name] = model
        answer = case.call(f"http://127.0.0.1:{server.port}", headers=OPERATOR, timeout=60)
        assert answer.status_code < 500, (case.as_curl_command(), answer.text)
        documented = {*case.operation.definition.raw["responses"], "405"}
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

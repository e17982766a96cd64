"""Bodies against the schema that the app publishes: what it forbids is refused, what it admits is answered or
refused by a documented error, null is as if nothing was said, and nothing is a failure of the service.
"""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from bertsmith.serving.app import make_app
from bertsmith.serving.settings import read_settings
from served_models import PIECES, TASKS, save_encoder, save_fine_tuned, save_pretrained

JSON = {"content-type": "application/json"}
PAIR = {"source_sentence": "bano", "sentences": ["delo", "bano"]}
QUESTIONS = {
    "law": {"type": "noul", "instructions": "?", "criteria": "law"},
    "which": {"type": "choice", "criteria": {"no": None, "yes": None, "perhaps": "?"}},
    "how": {"type": "score", "instructions": "?", "criteria": ["no", "perhaps", "yes"]},
}
ASKED = [
    {"type": "predicate", "name": "law", "instructions": "?"},
    {
        "type": "choice",
        "instructions": "?",
        "choices": [{"value": each} for each in ("no", "yes", "perhaps")],
    },
    {"type": "score", "name": "s", "instructions": "?", "levels": [{"label": "no"}, {"label": "yes"}]},
]
MESSAGES = [{"role": "user", "content": [{"type": "input_text", "text": "bano"}]}]
# A path and a body that is answered; the path in the document where it has a name in it.
ANSWERED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/embeddings", {"model": "encoder", "input": ["bano", "delo firu"]}, ""),
    ("/embed", {"model": "encoder", "inputs": [[5, 6], "delo"]}, ""),
    ("/embed_all", {"model": "encoder", "inputs": "bano"}, ""),
    ("/predict", {"model": "classification", "inputs": [["bano"], ["delo"]]}, ""),
    ("/similarity", {"model": "encoder", "inputs": PAIR, "parameters": {"truncate": True}}, ""),
    ("/tokenize", {"model": "encoder", "inputs": ["bano delos"]}, ""),
    ("/decode", {"model": "encoder", "ids": [[5, 6], [7]]}, ""),
    ("/rerank", {"model": "reranking", "query": "bano", "texts": ["bano", "delo"]}, ""),
    ("/rerank", {"model": "reranking", "query": "bano", "documents": ["bano", {"text": "delo"}]}, ""),
    ("/v1/rerank", {"model": "reranking", "query": "bano", "documents": [{"text": "delo"}]}, ""),
    ("/v2/rerank", {"model": "reranking", "query": "bano", "documents": ["bano", "delo"]}, ""),
    ("/models/encoder", {"inputs": "bano", "parameters": {"normalize": False}}, "/models/{model}"),
    ("/models/classification", {"inputs": "bano", "parameters": {"top_k": 2}}, "/models/{model}"),
    ("/models/classification", {"inputs": "bano", "options": {"use_cache": False}}, "/models/{model}"),
    ("/models/masked", {"inputs": "bano [MASK]", "parameters": {"top_k": 2}}, "/models/{model}"),
    ("/pipeline/ner", {"inputs": ["bano"], "parameters": {"ignore_labels": ["O"]}}, "/pipeline/{task}"),
    ("/v1/systemone", {"model": "auto", "state": {"ticket": "bano"}, "questions": QUESTIONS}, ""),
    ("/v1/decisions", {"model": "auto", "input": MESSAGES, "questions": ASKED}, ""),
    ("/v1/classification", {"inputs": ["bano"], "timeout_ms": 9000}, "/v1/{model}"),
    ("/v1/encoder", {"inputs": "bano", "operation": "embed", "options": {"dimensions": 4}}, "/v1/{model}"),
]  # fmt: skip
CASES = pytest.mark.parametrize(("path", "body", "named"), ANSWERED, ids=[each[0] for each in ANSWERED])
FREE = ("state", "criteria", "questions", "data")  # objects whose names are the client's own


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    folder = tmp_path_factory.mktemp("served")
    folders: dict[str, Path] = {name: save_fine_tuned(folder / name, name) for name in TASKS}
    folders |= {"masked": save_pretrained(folder / "masked"), "encoder": save_encoder(folder / "encoder")}
    return make_app(read_settings([f"{name}={path}" for name, path in folders.items()], None, {}, {}))


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as found:
        yield found


@pytest.fixture(scope="module")
def operation_of(app: FastAPI) -> Callable[[str], dict[str, Any]]:
    return lambda path: app.openapi()["paths"][path]["post"]


@pytest.fixture(scope="module")
def validator_of(app: FastAPI) -> Callable[[str], Any]:
    document = app.openapi()

    def find(path: str) -> Any:
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        whole = json.loads(json.dumps({**schema, "components": document["components"]}))
        return jsonschema.Draft202012Validator(whole)

    return find


def answer_of(client: TestClient, path: str, body: Any) -> tuple[int, Any]:
    answer = client.post(path, content=body if isinstance(body, bytes) else json.dumps(body), headers=JSON)
    found = answer.json()
    if isinstance(found, dict):
        found.pop("id", None)  # another one for each request
    return answer.status_code, found


def places(body: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all values."""
    yield before
    inside = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for name, value in inside:
        yield from places(value, (*before, name))


def changed(body: Any, place: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    """A copy, in which `change` was given what holds the place, and its name there."""
    holder = found = {"": copy.deepcopy(body)}
    for name in ("", *place)[:-1]:
        holder = holder[name]
    change(holder, ("", *place)[-1])
    return found[""]


STRANGE = st.sampled_from([None, True, False, 0, 1, -1, 5.5, 2**62, -(2**63), 1e300, "", "5", "bano", "\x00"])
STRANGE |= st.sampled_from([[], {}, [[]], [None], [True], [1.5], {"text": "a"}, {"text": None}, {"type": []}])
STRANGE |= st.integers(1, 200).map(lambda depth: json.loads("[" * depth + "]" * depth))
NAMES = st.sampled_from(
    ["type", "criteria", "value", "label", "choices", "name", "text", "data", "sentences", "top_k"]
)
STRANGE |= st.recursive(
    STRANGE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)


@CASES
@pytest.mark.parametrize(
    "count", [30, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_a_body_is_answered_or_refused_as_the_schema_says(
    client: TestClient,
    operation_of: Callable[[str], dict[str, Any]],
    validator_of: Callable[[str], Any],
    path: str,
    body: dict[str, Any],
    named: str,
    count: int,
) -> None:
    """One to three changes of a body that is answered: a value replaced, left away, or a key added."""
    operation, validator = operation_of(named or path), validator_of(named or path)
    assert validator.is_valid(body) and answer_of(client, path, body)[0] == 200

    @settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def ask(data: st.DataObject) -> None:
        sent: Any = body
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.sampled_from([*places(sent)]))
            value, how = data.draw(STRANGE), data.draw(st.sampled_from(["replace", "remove", "add"]))

            def change(holder: Any, name: Any, value: Any = value, how: str = how) -> None:
                if how == "add" and isinstance(holder[name], dict):
                    holder[name][data.draw(st.sampled_from(["other", "text", "model", "type", "inputs"]))] = (
                        value
                    )
                elif how == "add" and isinstance(holder[name], list):
                    holder[name].append(value)
                elif how == "remove" and name != "":
                    del holder[name]
                else:
                    holder[name] = value

            sent = changed(sent, place, change)
        status, answer = answer_of(client, path, sent)
        assert status < 500 and str(status) in operation["responses"], (sent, answer)
        if not validator.is_valid(sent):
            assert 400 <= status < 500, (sent, answer, next(validator.iter_errors(sent)).message)

    ask()


@CASES
def test_null_is_as_if_nothing_was_said(
    client: TestClient, validator_of: Callable[[str], Any], path: str, body: dict[str, Any], named: str
) -> None:
    """Every field that the schema lets be null; those that it wants, and that are null, are refused."""
    validator, usual = validator_of(named or path), answer_of(client, path, body)
    for name in _fields(validator):
        sent = {**body, name: None}
        if name in body:
            sent, expected = {**body, name: None}, {key: each for key, each in body.items() if key != name}
            assert answer_of(client, path, sent)[0] == answer_of(client, path, expected)[0]
            continue
        assert validator.is_valid(sent)
        assert answer_of(client, path, sent) == usual, name


def _fields(validator: Any) -> dict[str, Any]:
    """Of all the objects that a body may be."""
    found: dict[str, Any] = {}
    left = [validator.schema]
    while left:
        schema = left.pop()
        if "$ref" in schema:
            left.append(validator.schema["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
        left += [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
        found |= schema.get("properties", {})
    fields = {name: schema for name, schema in found.items() if schema}
    return fields if "documents" not in fields or "texts" not in fields else {"model": fields["model"]}


@CASES
def test_truth_and_text_are_no_numbers_and_numbers_no_truth(
    client: TestClient, validator_of: Callable[[str], Any], path: str, body: dict[str, Any], named: str
) -> None:
    for name, schema in _fields(validator_of(named or path)).items():
        kinds = {each.get("type") for each in (schema, *schema.get("anyOf", ()))}
        wrong: list[Any] = [True, "5"] if kinds & {"integer", "number"} else []
        wrong += [1, "true"] if "boolean" in kinds else []
        for value in wrong:
            status, answer = answer_of(client, path, {**body, name: value})
            assert 400 <= status < 500, (name, value, answer)


@CASES
def test_an_object_in_a_body_has_no_key_that_is_dropped(
    client: TestClient, path: str, body: dict[str, Any], named: str
) -> None:
    for place in places(body):
        if place and (place[-1] in FREE or place[:1] == ("state",)):
            continue

        def add(holder: Any, name: Any) -> None:
            if isinstance(holder[name], dict):
                holder[name]["unheard_of"] = 1

        sent = changed(body, place, add)
        if sent != body:
            status, answer = answer_of(client, path, sent)
            assert 400 <= status < 500 and "unheard_of" in json.dumps(answer), (place, answer)


RAW = [
    "NaN",
    "-Infinity",
    "1e400",
    "1" * 400,
    "-0",
    r'"\ud800"',
    r'"\udc00\ud800"',
    "[" * 70 + "]" * 70,
    '"a',
    "01",
]


@CASES
def test_no_json_that_is_none_or_strange_is_a_failure(
    client: TestClient, path: str, body: dict[str, Any], named: str
) -> None:
    for name in body:
        for raw in RAW:
            status, answer = answer_of(
                client, path, json.dumps({**body, name: "@"}).replace('"@"', raw).encode()
            )
            assert status < 500, (name, raw, answer)
            if raw not in ("1e400", "1" * 400, "-0", *RAW[7:8]):
                assert 400 <= status < 500, (name, raw, answer)
        twice = f'{{"{name}": [[0.5]], {json.dumps(body)[1:]}'.encode()  # the later one of two counts
        assert answer_of(client, path, twice)[0] == 200
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/jsonp",
        "a",
    ):
        answer = client.post(path, content=json.dumps(body), headers={"content-type": kind})
        assert 400 <= answer.status_code < 500, kind
    assert client.post(
        path, content=json.dumps(body), headers={"content-type": "application/x+json"}
    ).is_success


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/models/nli", {"inputs": "bano", "parameters": {"candidate_labels": ["a"], "multi_label": "yes"}}),
        ("/models/tagging", {"inputs": "bano", "parameters": {"aggregation_strategy": False}}),
        ("/models/encoder", {"inputs": {**PAIR, "other": 1}}),
        ("/models/classification", {"inputs": "bano", "parameters": {"top_k": True}}),
        ("/v1/masked", {"inputs": "[MASK]", "options": {"top": True}}),
        ("/v1/classification", {"inputs": "bano", "timeout_ms": True}),
        ("/v1/classification", {"inputs": {"text": "bano", "other": "delo"}}),
        ("/v1/question-answering", {"inputs": {"question": "bano", "context": "delo", "other": 1}}),
        ("/v1/decisions", {"model": "auto", "questions": ASKED, "input": [{**MESSAGES[0], "other": 1}]}),
        ("/embed", {"model": "encoder", "inputs": [5, len(PIECES)]}),
        ("/v1/encoder", {"inputs": [[5, 30_000]]}),
        ("/v1/encoder", {"inputs": [[5, -1]]}),
        ("/embed_all", {"model": "encoder", "inputs": [[5, 2**62]]}),
        ("/decode", {"model": "encoder", "ids": [[5, len(PIECES)]]}),
    ],
)
def test_what_was_once_taken_for_something_else_is_refused(
    client: TestClient, path: str, body: dict[str, Any]
) -> None:
    status, answer = answer_of(client, path, body)
    assert 400 <= status < 500, answer


def test_null_options_and_parameters_are_the_usual_ones(client: TestClient) -> None:
    for path, body, name, null in (
        ("/v1/masked", {"inputs": "bano [MASK]"}, "options", {"top": None, "targets": None}),
        ("/v1/encoder", {"inputs": "bano"}, "options", {"kind": None, "dimensions": None, "normalise": None}),
        ("/models/tagging", {"inputs": "bano delo"}, "parameters", {"aggregation_strategy": None}),
        (
            "/models/classification",
            {"inputs": "bano"},
            "parameters",
            {"function_to_apply": None, "top_k": None},
        ),
        ("/models/encoder", {"inputs": "bano"}, "parameters", {"normalize": None, "candidate_labels": None}),
        ("/models/encoder", {"inputs": "bano"}, "normalize", None),
    ):
        assert answer_of(client, path, {**body, name: null}) == answer_of(client, path, body)

"""Bodies that nobody meant: each is answered or refused in its protocol's words, and none is a bug's 500."""

import json
import time
from typing import Any

import httpx
import pytest
from running_service import Running

ROUTES = (
    "/v1/embeddings",
    "/embed",
    "/embed_all",
    "/predict",
    "/similarity",
    "/tokenize",
    "/decode",
    "/rerank",
    "/v2/rerank",
    "/models/encoder",
    "/models/tagging",
    "/models/nli",
    "/models/question-answering",
    "/models/masked-language",
    "/",
    "/v1/systemone",
    "/v1/decisions",
)
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": [0.5] * 400_000}),
        ("/embed", {"inputs": [[1, 0.5]] * 150_000}),
        ("/predict", {"inputs": [[0.5]] * 150_000}),
        ("/decode", {"ids": [0.5] * 400_000}),
        ("/tokenize", {"inputs": "a " * 400_000, "model": "encoder"}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [1] * 400_000}}),
        ("/rerank", {"query": "a", "documents": [{}] * 400_000}),
        ("/v1/systemone", {"state": "a", "questions": {str(n): 0 for n in range(120_000)}}),
        (
            "/v1/systemone",
            {"state": "a", "questions": {"q": {"type": "noul"} | {str(n): 0 for n in range(120_000)}}},
        ),
        ("/v1/decisions", {"model": "auto", "input": "a", "questions": [0] * 400_000}),
        ("/models/masked-language", {"inputs": "[MASK]", "parameters": {"targets": ["a"] * 300_000}}),
        ("/models/nli", {"inputs": ["a"] * 2000, "parameters": {"candidate_labels": ["a"] * 2000}}),
    ],
)
def test_megabytes_of_nonsense_are_refused_soon(server: Running, path: str, body: Any) -> None:
    began = time.monotonic()
    response = httpx.post(server.url + path, content=json.dumps(body), headers=JSON, timeout=60)
    assert response.status_code in (400, 413, 422), response.text[:200]
    assert len(response.text) < 2000
    assert time.monotonic() - began < 10  # 20 to 60 s where every wrong element is told


COMPARED = {"source_sentence": "bano", "sentences": ["delo"]}
RANKED = {"model": "reranking", "query": "bano", "documents": ["bano", "delo"]}


@pytest.mark.parametrize(
    ("path", "body", "option"),
    [
        ("/v1/embeddings", {"model": "encoder", "input": "bano"}, {"dimension": 4}),
        ("/v1/embeddings", {"model": "encoder", "input": "bano"}, {"truncate_prompt_tokens": 1}),
        ("/embed?model=encoder", {"inputs": "bano"}, {"normalise": False}),
        ("/similarity", {"model": "encoder", "inputs": COMPARED}, {"kind": "query"}),
        ("/tokenize?model=encoder", {"inputs": "bano"}, {"lower": True}),
        ("/v2/rerank", RANKED, {"truncate_prompt_tokens": 4}),
        ("/v2/rerank", RANKED, {"top_n": 0}),
        ("/rerank?model=reranking", {"query": "bano", "texts": ["bano"]}, {"top_n": 1}),
        ("/models/classification", {"inputs": "bano"}, {"topk": 1}),
        ("/models/encoder", {"inputs": "bano"}, {"normalise": False}),
    ],
)
def test_an_option_that_the_route_does_not_know_is_refused_by_its_name(
    server: Running, path: str, body: dict[str, Any], option: dict[str, Any]
) -> None:
    nothing = {"user": "u", "priority": 3, "timeout": None}
    assert httpx.post(server.url + path, json=body | nothing).status_code == 200
    refused = httpx.post(server.url + path, json=body | option)
    assert 400 <= refused.status_code < 500 and next(iter(option)) in refused.text


def test_a_parameter_is_read_beside_the_inputs_too(server: Running) -> None:
    url = f"{server.url}/models/classification"
    beside = httpx.post(url, json={"inputs": "bano", "top_k": 1}).json()
    assert beside == httpx.post(url, json={"inputs": "bano", "parameters": {"top_k": 1}}).json()
    assert beside != httpx.post(url, json={"inputs": "bano"}).json()


@pytest.mark.parametrize("tokens", [[True, False], [["5", "6"]]])
def test_only_whole_numbers_are_ids_of_tokens(server: Running, tokens: Any) -> None:
    for path, name in (("/v1/embeddings", "input"), ("/embed", "inputs"), ("/decode", "ids")):
        refused = httpx.post(server.url + path, json={"model": "encoder", name: tokens})
        assert refused.status_code in (400, 422), path


def test_a_body_that_is_sent_as_no_json_is_told_how(server: Running) -> None:
    response = httpx.post(f"{server.url}/embed", content='{"inputs": "bano"}')
    assert response.status_code == 422
    assert "must be a JSON object, sent with content-type: application/json" in response.json()["error"]


def test_all_that_a_field_may_be_is_told(server: Running) -> None:
    response = httpx.post(f"{server.url}/embed", json={"inputs": 7})
    assert (
        response.json()["error"] == "inputs: input should be a valid string, or input should be a valid list."
    )
    questions = {"a": {"type": "noul"}, "b": {"type": "choice"}}
    refused = httpx.post(f"{server.url}/v1/systemone", json={"state": "bano", "questions": questions})
    assert refused.json()["detail"][0]["msg"].startswith("questions.a.noul: ")


@pytest.mark.parametrize("path", ROUTES)
def test_what_is_no_json_is_refused(server: Running, path: str) -> None:
    for content in (b"", b"{", b'{"inputs": NaN}', b"\xff\xfe", b"[" * 5000, b'{"inputs": "\\ud800"}'):
        response = httpx.post(server.url + path, content=content, headers=JSON)
        assert response.status_code in (400, 422), (content[:20], response.text)
        assert response.headers["content-type"] == "application/json"

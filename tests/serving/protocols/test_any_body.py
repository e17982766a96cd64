"""Bodies that nobody meant: each is answered or refused in its protocol's words, and none is a bug's 500."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running_service import Running

ROUTES = {
    "/v1/embeddings": ("input", "model", "encoding_format", "dimensions", "kind", "long_text", "user"),
    "/embed": (
        "inputs",
        "model",
        "truncate",
        "truncation_direction",
        "prompt_name",
        "normalize",
        "dimensions",
    ),
    "/embed_all": ("inputs", "model", "truncate", "prompt_name"),
    "/predict": ("inputs", "model", "truncate", "raw_scores"),
    "/similarity": ("inputs", "model", "parameters"),
    "/tokenize": ("inputs", "model", "add_special_tokens", "prompt_name"),
    "/decode": ("ids", "model", "skip_special_tokens"),
    "/rerank": ("query", "texts", "documents", "model", "top_n", "raw_scores", "return_text"),
    "/v2/rerank": ("query", "documents", "model", "top_n", "max_tokens_per_doc"),
    "/models/encoder": ("inputs", "parameters", "normalize", "prompt_name", "dimensions", "truncate"),
    "/models/tagging": ("inputs", "parameters"),
    "/models/nli": ("inputs", "parameters"),
    "/models/question-answering": ("inputs", "parameters"),
    "/models/masked-language": ("inputs", "parameters"),
    "/": ("inputs", "parameters", "model"),
    "/v1/systemone": ("state", "questions", "model"),
    "/v1/decisions": ("input", "questions", "model"),
}
MODELS = ("encoder", "tagging", "nli", "urgent", "reranking", "regression", "masked-language", "auto")
WORDS = (
    "bano",
    "delo [MASK]",
    "",
    "query",
    "Left",
    "base64",
    "choice",
    "noul",
    "user",
    "none",
    "\u00e9\U0001f600\x00",
)
KEYS = (
    "type",
    "criteria",
    "instructions",
    "value",
    "label",
    "choices",
    "levels",
    "name",
    "role",
    "content",
    "text",
    "data",
    "source_sentence",
    "sentences",
    "question",
    "context",
    "text_pair",
    "true",
    "top_k",
    "targets",
    "candidate_labels",
    "aggregation_strategy",
    "ignore_labels",
    "multi_label",
    "function_to_apply",
    "hypothesis_template",
    "normalize",
    "dimensions",
    "truncate",
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.integers(0, 20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from((*WORDS, *MODELS))
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("path", ROUTES)
def test_any_json_is_answered_or_refused(server: Running, path: str) -> None:
    fields = st.fixed_dictionaries(
        {}, optional=dict.fromkeys(ROUTES[path], VALUES) | {"model": st.sampled_from(MODELS)}
    )

    with httpx.Client(base_url=server.url) as client:

        @settings(max_examples=40, suppress_health_check=list(HealthCheck), derandomize=True)
        @given(fields | VALUES)
        def ask(body: Any) -> None:
            response = client.post(path, content=json.dumps(body))
            assert response.status_code in (200, 400, 404, 413, 422, 424), (body, response.text)
            response.json()

        ask()


@pytest.mark.parametrize("path", ROUTES)
def test_what_is_no_json_is_refused(server: Running, path: str) -> None:
    for content in (b"", b"{", b'{"inputs": NaN}', b"\xff\xfe", b"[" * 5000, b'{"inputs": "\\ud800"}'):
        response = httpx.post(server.url + path, content=content)
        assert response.status_code in (400, 422), (content[:20], response.text)
        assert response.headers["content-type"] == "application/json"

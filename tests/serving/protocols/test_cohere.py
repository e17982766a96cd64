"""Cohere's own client against the service, and those who ask for documents in its manner."""

import asyncio
from collections.abc import Iterator
from typing import Any

import cohere
import httpx
import pytest
from cohere.core.api_error import ApiError
from running_service import Running

from bertsmith import Predictor
from bertsmith.serving.refusals import ServiceOverload

DOCUMENTS = ["bano delo", "firu", "guma kano lelo miru bano", "bano delo"]


@pytest.fixture
def client(server: Running) -> Iterator[cohere.ClientV2]:
    with httpx.Client() as http:
        yield cohere.ClientV2(api_key="none", base_url=server.url, httpx_client=http)


@pytest.fixture(scope="module")
def scores(server: Running) -> list[float]:
    found = Predictor.load(server.folders["reranking"]).predict([("bano", each) for each in DOCUMENTS])
    return [float(each["score"]) for each in found]


def test_documents_are_ranked_by_the_models_scores(client: cohere.ClientV2, scores: list[float]) -> None:
    found = client.rerank(model="reranking", query="bano", documents=DOCUMENTS)
    assert {each.index: each.relevance_score for each in found.results} == dict(enumerate(scores))
    order = sorted(range(4), key=lambda number: (-scores[number], number))
    assert [each.index for each in found.results] == order
    assert found.id and found.meta is not None and found.meta.api_version is not None
    assert found.meta.api_version.version == "2"
    assert found.meta.billed_units is not None and found.meta.billed_units.search_units == 1
    best = client.rerank(model="reranking", query="bano", documents=DOCUMENTS, top_n=2)
    assert [each.index for each in best.results] == order[:2]


def test_the_asynchronous_client_too(server: Running, scores: list[float]) -> None:
    async def ask() -> Any:
        async with httpx.AsyncClient() as http:
            client = cohere.AsyncClientV2(api_key="none", base_url=server.url, httpx_client=http)
            return await client.rerank(model="reranking", query="bano", documents=DOCUMENTS)

    found = asyncio.run(ask())
    assert {each.index: each.relevance_score for each in found.results} == dict(enumerate(scores))


def test_the_first_version_gives_documents_back(server: Running, scores: list[float]) -> None:
    documents: Any = [{"text": each} for each in DOCUMENTS]
    with httpx.Client() as http:
        client = cohere.Client(api_key="none", base_url=server.url, httpx_client=http)
        found = client.rerank(model="reranking", query="bano", documents=documents, return_documents=True)
        plain = client.rerank(model="reranking", query="bano", documents=DOCUMENTS)
    for each in found.results:
        assert each.document is not None and each.document.text == DOCUMENTS[each.index]
        assert each.relevance_score == scores[each.index]
    assert all(each.document is None for each in plain.results)


def test_one_path_answers_texts_and_documents_each_in_its_shape(server: Running, scores: list[float]) -> None:
    documents = {"query": "bano", "documents": DOCUMENTS, "model": "reranking", "return_documents": True}
    found = httpx.post(f"{server.url}/rerank", json=documents).json()
    assert found["model"] == "reranking" and found["usage"]["total_tokens"] > 20
    for each in found["results"]:
        assert each["relevance_score"] == scores[each["index"]]
        assert each["document"] == {"text": DOCUMENTS[each["index"]]}
    texts = {"query": "bano", "texts": DOCUMENTS}
    listed = httpx.post(f"{server.url}/rerank?model=reranking", json=texts).json()
    assert {each["index"]: each["score"] for each in listed} == dict(enumerate(scores))
    for body in ({"query": "bano"}, {"query": "bano", "texts": "bano", "model": "reranking"}):
        refused = httpx.post(f"{server.url}/rerank", json=body)
        assert refused.status_code == 422
        assert refused.json()["error"] == refused.json()["message"]


def test_errors_are_those_of_the_client(server: Running, client: cohere.ClientV2) -> None:
    with pytest.raises(cohere.NotFoundError) as unknown:
        client.rerank(model="rerank-v3.5", query="bano", documents=DOCUMENTS)
    assert "There is no model 'rerank-v3.5' here" in unknown.value.body["message"]
    for model, options, said in (
        ("encoder", {}, "it has no rerank"),
        ("reranking", {"max_tokens_per_doc": 8}, "max_tokens_per_doc = 8 isn't done here"),
        ("reranking", {"documents": []}, "There are no inputs"),
    ):
        more: Any = {"documents": DOCUMENTS, **options}
        with pytest.raises(cohere.BadRequestError) as refused:
            client.rerank(model=model, query="bano", **more)
        assert said in refused.value.body["message"]
    wrong = httpx.post(f"{server.url}/v2/rerank", json={"model": "reranking", "query": 3, "documents": []})
    assert (wrong.status_code, wrong.json()["message"][:6]) == (400, "query:")


def test_a_refusal_for_a_while_is_one_for_the_client(
    server: Running, client: cohere.ClientV2, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refusing(request: Any) -> Any:
        raise ServiceOverload("Full.", retry_after=0.02)

    monkeypatch.setattr(server.service, "answer", refusing)
    with pytest.raises(ApiError) as refused:
        client.rerank(
            model="reranking", query="bano", documents=DOCUMENTS, request_options={"max_retries": 0}
        )
    assert refused.value.status_code == 429 and refused.value.body == {"message": "Full."}

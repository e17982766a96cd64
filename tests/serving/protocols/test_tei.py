"""Text Embeddings Inference's clients, in haystack and llama-index, and its routes by themselves.

The clients take seconds to import, so that is done where they are used: each process that tests collects all
files.
"""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from running_service import Running, running

from bertsmith import Embedder, Predictor
from served_models import save_fine_tuned

TEXTS = ["bano delo", "firu", "guma kano lelo miru bano"]
LONG = "bano " * 60


@pytest.fixture(scope="module")
def embedder(server: Running) -> Embedder:
    return Embedder(server.folders["encoder"])


def post(server: Running, path: str, body: dict[str, Any], status: int = 200) -> Any:
    response = httpx.post(server.url + path, json=body)
    assert response.status_code == status, response.text
    return response.json()


# -- clients -----------------------------------------------------------------------------------------------


def test_llama_index_embeds_queries_and_texts(encoder_server: Running, embedder: Embedder) -> None:
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    client = TextEmbeddingsInference(model_name="encoder", base_url=encoder_server.url)
    expected = embedder.documents(TEXTS)
    np.testing.assert_allclose(client.get_text_embedding_batch(TEXTS), expected, atol=1e-7)
    np.testing.assert_allclose(client.get_query_embedding(TEXTS[0]), expected[0], atol=1e-7)
    found = asyncio.run(client.aget_text_embedding_batch(TEXTS))
    np.testing.assert_allclose(found, expected, atol=1e-7)
    long = client.get_text_embedding(LONG)  # it says truncate: true
    np.testing.assert_allclose(long, embedder.documents([LONG])[0], atol=1e-7)


def test_llama_index_names_one_of_several_models_by_its_endpoint(server: Running, embedder: Embedder) -> None:
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    client = TextEmbeddingsInference(
        model_name="encoder", base_url=server.url, endpoint="/embed?model=encoder"
    )
    np.testing.assert_allclose(client.get_text_embedding(TEXTS[0]), embedder.documents(TEXTS)[0], atol=1e-7)


def test_haystack_embeds_texts_and_documents(
    server: Running, encoder_server: Running, embedder: Embedder
) -> None:
    from haystack import Document
    from haystack_integrations.components.embedders.huggingface_api import (
        HuggingFaceAPIDocumentEmbedder,
        HuggingFaceAPITextEmbedder,
    )

    expected = embedder.documents(TEXTS)
    for url in (encoder_server.url, server.of("encoder")):
        kind: Any = {"api_type": "text_embeddings_inference", "api_params": {"url": url}, "normalize": True}
        texts, several = (
            HuggingFaceAPITextEmbedder(**kind),
            HuggingFaceAPIDocumentEmbedder(**kind, progress_bar=False),
        )
        np.testing.assert_allclose(texts.run(TEXTS[0])["embedding"], expected[0], atol=1e-6)
        documents = several.run([Document(content=each) for each in TEXTS])["documents"]
        texts.close()
        several.close()
        np.testing.assert_allclose([each.embedding for each in documents], expected, atol=1e-6)


def test_haystack_ranks_documents(server: Running) -> None:
    from haystack import Document
    from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker

    scores = [each["score"] for each in ranked(server, "bano", TEXTS)]
    with running({"reranking": server.folders["reranking"]}) as alone:
        ranker = HuggingFaceTEIRanker(url=alone.url, top_k=2)
        found = ranker.run(query="bano", documents=[Document(content=each) for each in TEXTS])["documents"]
    best = sorted(range(3), key=lambda number: -scores[number])[:2]
    assert [each.content for each in found] == [TEXTS[number] for number in best]
    assert [each.score for each in found] == pytest.approx([scores[number] for number in best], abs=1e-6)


def ranked(server: Running, query: str, texts: list[str]) -> Any:
    return Predictor.load(server.folders["reranking"]).predict([(query, text) for text in texts])


# -- routes ------------------------------------------------------------------------------------------------


def test_embed_reads_what_tei_reads(server: Running, embedder: Embedder) -> None:
    def embed(inputs: Any, **more: Any) -> Any:
        return post(server, "/embed", {"inputs": inputs, "model": "encoder", **more})

    expected = embedder.documents(TEXTS)
    ids = [*embedder.tokenizer.encode(TEXTS[0]).ids]
    np.testing.assert_allclose(embed(TEXTS), expected, atol=1e-7)
    np.testing.assert_allclose(embed(TEXTS[0]), expected[:1], atol=1e-7)
    np.testing.assert_allclose(embed(ids), expected[:1], atol=1e-7)
    np.testing.assert_allclose(embed([ids, TEXTS[1]]), expected[:2], atol=1e-7)
    np.testing.assert_allclose(embed(TEXTS, prompt_name="query"), embedder.queries(TEXTS), atol=1e-7)
    assert np.abs(embedder.queries(TEXTS) - expected).max() > 1e-3
    plain = Embedder(server.folders["encoder"], normalise=False).documents(TEXTS)
    np.testing.assert_allclose(embed(TEXTS, normalize=False), plain, rtol=1e-6)
    short = Embedder(server.folders["encoder"], dimensions=4).documents(TEXTS)
    np.testing.assert_allclose(embed(TEXTS, dimensions=4), short, atol=1e-6)


def test_vectors_of_tokens_have_the_text_s_mean(server: Running) -> None:
    found = post(server, "/embed_all", {"inputs": TEXTS, "model": "encoder"})
    assert [len(each) for each in found] == [4, 3, 7]  # with the two special tokens
    plain = Embedder(server.folders["encoder"], normalise=False).documents(TEXTS)
    np.testing.assert_allclose([np.mean(each, axis=0) for each in found], plain, rtol=1e-4, atol=1e-4)


def test_more_vectors_of_tokens_than_fit_into_an_answer_are_refused(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.serving.operations.embed._MOST_NUMBERS", 4 * 16)
    assert len(post(server, "/embed_all", {"inputs": TEXTS[0], "model": "encoder"})[0]) == 4
    error = post(server, "/embed_all", {"inputs": TEXTS, "model": "encoder"}, 422)
    assert "The vectors of 14 tokens are 224 numbers; at most 64" in error["error"]


def test_long_texts_are_cut_or_refused_as_truncate_says(server: Running, embedder: Embedder) -> None:
    body = {"inputs": LONG, "model": "encoder"}
    for way in (True, None):
        found = post(server, "/embed", {**body, "truncate": way})
        np.testing.assert_allclose(found, embedder.documents([LONG]), atol=1e-7)
    error = post(server, "/embed", {**body, "truncate": False}, 422)
    assert error["error_type"] == "Validation" and "longer than the 32 tokens" in error["error"]
    left = post(server, "/embed", {**body, "truncate": True, "truncation_direction": "Left"}, 424)
    assert "cut at their end" in left["error"]


def test_predict_sorts_calibrated_probabilities(server: Running) -> None:
    model = Predictor.load(server.folders["classification"])
    for text, found in zip(TEXTS, post(server, *predicted([[each] for each in TEXTS])), strict=True):
        (expected,) = model.predict([text])
        assert {each["label"]: each["score"] for each in found} == expected["probabilities"]
        assert [each["score"] for each in found] == sorted(expected["probabilities"].values(), reverse=True)
    assert post(server, *predicted(TEXTS[0])) == post(server, *predicted([[TEXTS[0]]]))[0]
    (expected,) = Predictor.load(server.folders["nli"]).predict([("bano", "delo")])
    pair = post(server, *predicted(["bano", "delo"], "nli"))
    assert {each["label"]: each["score"] for each in pair} == expected["probabilities"]


def predicted(inputs: Any, model: str = "classification", **more: Any) -> tuple[str, Any]:
    return "/predict", {"inputs": inputs, "model": model, **more}


def test_raw_scores_are_the_heads_logits(server: Running) -> None:
    raw = post(server, *predicted(TEXTS[0], raw_scores=True))
    usual = post(server, *predicted(TEXTS[0]))
    assert [each["label"] for each in raw] == [each["label"] for each in usual]
    weights = np.exp([each["score"] for each in raw])
    np.testing.assert_allclose(weights / weights.sum(), [each["score"] for each in usual], atol=2e-6)
    (expected,) = Predictor.load(server.folders["regression"]).predict([TEXTS[0]])
    for way in (False, True):
        (only,) = post(server, *predicted(TEXTS[0], "regression", raw_scores=way))
        assert only == {"label": "score", "score": pytest.approx(expected["score"], rel=1e-6)}


def test_a_head_of_vectors_has_no_raw_scores(tmp_path: Path) -> None:
    with running({"retrieval": save_fine_tuned(tmp_path / "retrieval", "retrieval")}) as alone:
        for way in (False, True):
            refused = post(alone, *predicted([["bano", "delo"]], "retrieval", raw_scores=way), status=424)
            assert "is a model for retrieval: it gives no label of a text" in refused["error"]


def test_rerank_gives_texts_and_raw_scores_on_request(server: Running) -> None:
    body = {"query": "bano", "texts": TEXTS, "model": "reranking"}
    found = post(server, "/rerank", body)
    expected = [each["score"] for each in ranked(server, "bano", TEXTS)]
    assert [each["score"] for each in found] == sorted((each["score"] for each in found), reverse=True)
    assert {each["index"]: each["score"] for each in found} == dict(enumerate(expected))
    raw = post(server, "/rerank", {**body, "raw_scores": True, "return_text": True})
    assert [each["index"] for each in raw] == [each["index"] for each in found]
    for one, other in zip(raw, found, strict=True):
        assert one["text"] == TEXTS[one["index"]]
        assert 1 / (1 + np.exp(-one["score"])) == pytest.approx(other["score"], abs=1e-6)


def test_similarity_is_the_cosine(server: Running, embedder: Embedder) -> None:
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS}
    found = post(server, "/similarity", {"inputs": inputs, "model": "encoder"})
    vectors = embedder.documents(TEXTS)
    np.testing.assert_allclose(found, vectors @ vectors[0], atol=1e-6)
    queries = embedder.queries(TEXTS)
    asked = {"inputs": inputs, "parameters": {"prompt_name": "query"}}
    np.testing.assert_allclose(
        post(server, "/similarity?model=encoder", asked), queries @ queries[0], atol=1e-6
    )


def test_tokens_and_back(server: Running) -> None:
    body = {"inputs": ["Bano delos?"], "model": "encoder"}
    (found,) = post(server, "/tokenize", body)
    assert [each["text"] for each in found] == ["[CLS]", "Bano", "delo", "s", "?", "[SEP]"]
    assert [each["special"] for each in found] == [True, False, False, False, False, True]
    assert [(each["start"], each["stop"]) for each in found[1:3]] == [(0, 4), (5, 9)]
    assert found[0]["start"] is None
    (bare,) = post(server, "/tokenize", {**body, "add_special_tokens": False})
    assert bare == found[1:-1]
    ids = [each["id"] for each in found]
    assert post(server, "/decode", {"ids": ids, "model": "encoder"}) == ["bano delos?"]
    kept = {"ids": [ids, ids], "model": "encoder", "skip_special_tokens": False}
    assert post(server, "/decode", kept) == ["[CLS] bano delos? [SEP]"] * 2
    assert "There is no token 99" in post(server, "/decode", {"ids": [99], "model": "encoder"}, 422)["error"]
    refused = post(server, "/tokenize", {**body, "prompt_name": "x"}, 422)["error"]
    assert refused == "prompt_name must be query or document, found 'x'."


def test_tokens_are_not_made_when_the_time_for_them_is_over(server: Running) -> None:
    for path, inputs in (("/tokenize", {"inputs": "bano"}), ("/decode", {"ids": [5]})):
        body = {**inputs, "model": "encoder"}
        late = httpx.post(f"{server.url}{path}", json=body, headers={"x-timeout-ms": "0.000001"})
        assert late.status_code == 504


def test_info_tells_what_a_model_is(server: Running, encoder_server: Running) -> None:
    found = httpx.get(f"{encoder_server.url}/info").json()
    assert (found["model_id"], found["max_input_length"]) == ("encoder", 32)
    assert found["model_type"] == {"embedding": {"pooling": "mean"}}
    assert found["model_dtype"] in ("int16", "float32") and found["auto_truncate"] is True
    kinds = {
        name: next(iter(httpx.get(f"{server.url}/info", params={"model": name}).json()["model_type"].items()))
        for name in ("urgent", "reranking", "tagging")
    }
    assert kinds["urgent"] == (
        "classifier",
        {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}},
    )
    assert kinds["reranking"][0] == "reranker" and kinds["tagging"][0] == "classifier"


def test_errors_are_in_tei_s_words(server: Running, encoder_server: Running) -> None:
    def error(path: str, body: Any, status: int, where: Running = server) -> tuple[str, str]:
        found = post(where, path, body, status)
        return found["error_type"], found["error"]

    assert error("/predict", {"inputs": "bano"}, 424, encoder_server)[0] == "Backend"
    kind, said = error("/embed", {"inputs": "bano", "model": "absent"}, 404)
    assert kind == "Validation" and "There is no model 'absent'" in said
    assert "Name a model" in error("/embed", {"inputs": "bano"}, 404)[1]
    assert error("/embed", {"inputs": 3, "model": "encoder"}, 422)[0] == "Validation"
    assert error("/embed", {"inputs": [], "model": "encoder"}, 400)[0] == "Empty"
    assert error("/embed", {"inputs": ["bano"] * 2049, "model": "encoder"}, 422)[0] == "Validation"
    kind, said = error("/predict", {"inputs": "bano", "model": "tagging"}, 424)
    assert (kind, said) == ("Backend", "tagging is a model for tagging: it gives no label of a text.")
    assert error("/predict", {"inputs": [["a", "b", "c"]], "model": "nli"}, 422)[0] == "Validation"

"""huggingface_hub's InferenceClient against the service, and transformers on the same folders."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from running_service import Running, running
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bertsmith import Embedder, MaskedLanguageModel, Predictor
from bertsmith.serving.protocols import pipelines as masks_and_vectors
from served_models import save_unanswerable

TEXTS = ["bano delo", "firu", "guma kano lelo miru bano"]
LONG = "bano delo firu. guma kano? lelo " * 12


@pytest.fixture
def client(server: Running) -> Iterator[Callable[[str], InferenceClient]]:
    """Of a model, by its name."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(InferenceClient(model=server.of(name)))


def post(server: Running, path: str, body: dict[str, Any], status: int = 200) -> Any:
    response = httpx.post(server.url + path, json=body)
    assert response.status_code == status, response.text
    return response.json()


Of = Callable[[str], InferenceClient]


def test_features_are_vectors_of_texts(server: Running, client: Of) -> None:
    embedder = Embedder(server.folders["encoder"])
    expected = embedder.documents(TEXTS)
    one = client("encoder").feature_extraction(TEXTS[0])
    assert one.shape == (1, 16)
    np.testing.assert_array_equal(one, expected[:1])
    np.testing.assert_array_equal(client("encoder").feature_extraction(TEXTS), expected)
    queries = client("encoder").feature_extraction(TEXTS, prompt_name="query", dimensions=4)
    short = Embedder(server.folders["encoder"], dimensions=4).queries(TEXTS)
    np.testing.assert_allclose(queries, short, atol=1e-6)
    plain = Embedder(server.folders["encoder"], normalise=False).documents(TEXTS)
    np.testing.assert_array_equal(client("encoder").feature_extraction(TEXTS, normalize=False), plain)
    with pytest.raises(HfHubHTTPError, match="longer than the 32 tokens"):
        client("encoder").feature_extraction(LONG, truncate=False)
    with pytest.raises(HfHubHTTPError, match="cut at their end"):
        client("encoder").feature_extraction(LONG, truncate=True, truncation_direction="left")


def test_texts_are_classified(server: Running, client: Of) -> None:
    for name in ("classification", "multi-label", "urgent"):
        (expected,) = Predictor.load(server.folders[name]).predict(TEXTS[:1])
        found = client(name).text_classification(TEXTS[0])
        assert {each.label: each.score for each in found} == expected["probabilities"]
        assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
        assert len(client(name).text_classification(TEXTS[0], top_k=1)) == 1
    (number,) = Predictor.load(server.folders["regression"]).predict(TEXTS[:1])
    (only,) = client("regression").text_classification(TEXTS[0])
    assert (only.label, only.score) == ("score", number["score"])


def test_functions_are_applied_to_the_logits_as_transformers_does(server: Running, client: Of) -> None:
    folder = server.folders["classification"]
    logits = transformers_logits(folder, TEXTS[:1])[0]
    wanted = {
        "none": logits,
        "sigmoid": 1 / (1 + np.exp(-logits)),
        "softmax": np.exp(logits) / np.exp(logits).sum(),
    }
    labels = Predictor.load(folder).task.labels
    for function, scores in wanted.items():
        found = client("classification").text_classification(TEXTS[0], function_to_apply=function)  # type: ignore[arg-type]
        given = {each.label: each.score for each in found}
        np.testing.assert_allclose([given[label] for label in labels], scores, rtol=2e-2, atol=2e-3)


def transformers_logits(folder: Any, texts: list[Any]) -> Any:
    """In float32, where the service multiplies in int16: equal to three digits or so."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        pairs = isinstance(texts[0], tuple)
        given = tuple(map(list, zip(*texts, strict=True))) if pairs else (texts,)
        return model(**tokenizer(*given, padding=True, return_tensors="pt")).logits.numpy()


def test_entities_are_found_with_their_place(server: Running, client: Of) -> None:
    (expected,) = Predictor.load(server.folders["tagging"]).predict([LONG])
    found = client("tagging").token_classification(LONG)
    assert expected["entities"]
    assert [(each.entity_group, each.start, each.end, each.word) for each in found] == [
        (each["label"], each["start"], each["end"], each["text"]) for each in expected["entities"]
    ]
    assert client("tagging").token_classification(LONG, aggregation_strategy="first") == found
    words = client("tagging").token_classification(LONG, aggregation_strategy="none")
    tagged = [*zip(expected["tags"], expected["confidence"], expected["words"], strict=True)]
    assert [(each.entity, each.score, each.word) for each in words] == [
        each for each in tagged if each[0] != "O"
    ]
    for each in words:
        assert LONG[each.start : each.end] == each.word
    for group in found:
        inside = [each.score for each in words if group.start <= each.start < group.end]
        assert group.score == pytest.approx(math.fsum(inside) / len(inside))
    everything = client("tagging").token_classification(
        LONG, aggregation_strategy="none", ignore_labels=["B-LOC"]
    )
    assert [each.entity for each in everything] == [tag for tag in expected["tags"] if tag != "B-LOC"]
    with pytest.raises(HfHubHTTPError, match="read from its first piece"):
        client("tagging").token_classification(LONG, aggregation_strategy="max")
    with pytest.raises(HfHubHTTPError, match="The parameter 'stride' isn't done here"):
        client("tagging").token_classification(LONG, stride=3)


def test_what_lies_between_entities_can_be_shown_too(server: Running) -> None:
    body = {"inputs": [LONG], "parameters": {"ignore_labels": []}}
    (groups,) = post(server, "/models/tagging", body)
    (expected,) = Predictor.load(server.folders["tagging"]).predict([LONG])
    assert [each for each in groups if each["entity_group"] != "O"] == post(
        server, "/models/tagging", {"inputs": LONG}
    )
    covered = sum(len(each["word"].replace(" ", "")) for each in groups)
    assert covered == len(LONG.replace(" ", ""))
    assert {each["entity_group"] for each in groups} <= {"O", "PER", "LOC"}
    assert len(expected["entities"]) == len([g for g in groups if g["entity_group"] != "O"])


def test_questions_are_answered_from_the_passage(server: Running, client: Of) -> None:
    model = Predictor.load(server.folders["question-answering"])
    for question in ("bano delo ?", "firu ?", "lelo ?"):
        (expected,) = model.predict([(question, LONG)])
        found: Any = client("question-answering").question_answering(question=question, context=LONG)
        assert (found.answer, found.start, found.end, found.score) == (
            expected["answer"],
            expected["start"],
            expected["end"],
            expected["confidence"],
        )
    with pytest.raises(HfHubHTTPError, match="top_k above 1"):
        client("question-answering").question_answering(question="bano ?", context=LONG, top_k=2)


def test_masks_are_filled(server: Running, client: Of) -> None:
    text = "bano [MASK] firu."
    model = MaskedLanguageModel.load(server.folders["masked-language"])
    (expected,) = model.fill_mask(text, top=5)
    found = client("masked-language").fill_mask(text)
    assert [each.token_str for each in found] == [each.token for each in expected]
    np.testing.assert_allclose(
        [each.score for each in found], [each.probability for each in expected], rtol=1e-4
    )
    for each in found:
        word = "" if each.token_str.startswith("[") else each.token_str  # special ones aren't shown
        assert each.sequence.replace(" ", "") == f"bano{word.removeprefix('##')}firu."
    assert len(client("masked-language").fill_mask(text, top_k=2)) == 2
    every = {each.token_str: each.score for each in client("masked-language").fill_mask(text, top_k=14)}
    targets = client("masked-language").fill_mask(text, targets=["guma", "lelo"])
    assert {each.token_str: each.score for each in targets} == {
        name: every[name] for name in ("guma", "lelo")
    }
    with pytest.raises(HfHubHTTPError, match="'zebra' is no piece of the vocabulary"):
        client("masked-language").fill_mask(text, targets=["zebra"])
    two = post(server, "/models/masked-language", {"inputs": "[MASK] delo [MASK]"})
    assert [len(each) for each in two] == [5, 5]
    assert "[MASK]" in two[0][0]["sequence"]
    with pytest.raises(HfHubHTTPError, match=r"has no \[MASK\]"):
        client("masked-language").fill_mask("bano")


def test_sentences_are_compared(server: Running, client: Of) -> None:
    vectors = Embedder(server.folders["encoder"]).documents(TEXTS)
    found = client("encoder").sentence_similarity(TEXTS[0], TEXTS)
    np.testing.assert_allclose(found, vectors @ vectors[0], atol=1e-6)


def test_a_model_of_entailment_classifies_by_labels_it_never_saw(server: Running, client: Of) -> None:
    labels = ["delo", "guma kano", "miru"]
    pairs = [(TEXTS[0], f"firu {label}.") for label in labels]
    logits = transformers_logits(server.folders["nli"], pairs)  # contradiction, entailment, neutral
    weights = np.exp(logits[:, 1])
    found = client("nli").zero_shot_classification(TEXTS[0], labels, hypothesis_template="firu {}.")
    scores = {each.label: each.score for each in found}
    np.testing.assert_allclose(
        [scores[each] for each in labels], weights / weights.sum(), rtol=2e-2, atol=2e-3
    )
    several = client("nli").zero_shot_classification(
        TEXTS[0], labels, multi_label=True, hypothesis_template="firu {}."
    )
    scores = {each.label: each.score for each in several}
    expected = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    np.testing.assert_allclose([scores[each] for each in labels], expected, rtol=2e-2, atol=2e-3)
    with pytest.raises(HfHubHTTPError, match="urgent can't classify by labels it never saw"):
        client("urgent").zero_shot_classification(TEXTS[0], labels)


def test_a_label_that_is_sent_twice_is_scored_twice(client: Of) -> None:
    ranked = client("nli").zero_shot_classification(TEXTS[0], ["delo", "miru", "delo"])
    scores: dict[str, list[float]] = {"delo": [], "miru": []}
    for element in ranked:
        scores[element.label].append(element.score)
    assert len(scores["delo"]) == 2 and scores["delo"][0] == pytest.approx(scores["delo"][1], abs=1e-4)
    assert sum(scores["delo"] + scores["miru"]) == pytest.approx(1, abs=1e-4)


def test_a_pipeline_finds_its_only_model_and_takes_lists(server: Running) -> None:
    listed = post(server, "/pipeline/ner", {"inputs": [LONG, TEXTS[0]]})
    assert listed[0] == post(server, "/models/tagging", {"inputs": LONG})
    asked = {"question": "bano ?", "context": LONG}
    (found,) = post(server, "/pipeline/question-answering", {"inputs": [asked]})
    assert found == post(server, "/models/question-answering/pipeline/question-answering", {"inputs": asked})
    pair = {"inputs": {"text": "bano", "text_pair": "delo"}, "parameters": {"top_k": 1}}
    ((best,),) = post(server, "/models/nli", pair)
    (expected,) = Predictor.load(server.folders["nli"]).predict([("bano", "delo")])
    assert best == {"label": expected["label"], "score": expected["confidence"]}
    assert "Name a model" in post(server, "/pipeline/text-classification", {"inputs": "bano"}, 404)["error"]
    assert "no pipeline 'poetry'" in post(server, "/pipeline/poetry", {"inputs": "bano"}, 404)["error"]


def test_a_server_of_one_model_answers_at_its_root(encoder_server: Running, server: Running) -> None:
    with InferenceClient(base_url=encoder_server.url) as client:
        np.testing.assert_array_equal(
            client.feature_extraction(TEXTS), Embedder(server.folders["encoder"]).documents(TEXTS)
        )
    with running({"tags": server.folders["tagging"]}) as alone:
        assert post(alone, "/", {"inputs": LONG}) == post(server, "/models/tagging", {"inputs": LONG})
    assert "Name a model" in post(server, "/", {"inputs": "bano"}, 404)["error"]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/models/absent", {"inputs": "bano"}, 404, "There is no model 'absent'"),
        ("/models/encoder", {}, 422, "inputs: field required"),
        ("/models/encoder", {"inputs": "bano", "prompt_name": ["query"]}, 422, "prompt_name"),
        ("/models/encoder", {"inputs": "bano", "parameters": {"normalize": "x"}}, 422, "normalize"),
        ("/models/encoder", {"inputs": "bano", "encoding_format": "base64"}, 422, "base64"),
        ("/models/encoder/pipeline/fill-mask", {"inputs": "bano"}, 422, "it has no fill_mask"),
        ("/models/tagging/pipeline/question-answering", {"inputs": "bano"}, 422, "answers no questions"),
        ("/models/urgent/pipeline/ner", {"inputs": "bano"}, 422, "it tags no words"),
        ("/models/tagging", {"inputs": {"text": "bano"}}, 422, "inputs must be a text"),
        (
            "/models/question-answering",
            {"inputs": ["bano ?", "delo"], "parameters": {"handle_impossible_answer": "no"}},
            422,
            "handle_impossible_answer must be true or false",
        ),
        ("/models/urgent", {"inputs": 7}, 422, "found 7"),
        ("/models/urgent", {"inputs": "bano", "parameters": {"top_k": "2"}}, 422, "top_k must be"),
        ("/models/urgent", {"inputs": "bano", "parameters": {"seed": 2}}, 422, "'seed' isn't done"),
        ("/models/nli", {"inputs": "a", "parameters": {"candidate_labels": "b"}}, 422, "list of texts"),
    ],
)
def test_what_cannot_be_done_is_said(
    server: Running, path: str, body: dict[str, Any], status: int, said: str
) -> None:
    assert said in post(server, path, body, status)["error"]


def test_an_answer_that_there_must_be_is_not_made_up(tmp_path: Path) -> None:
    folder = save_unanswerable(tmp_path / "silent")
    with running({"silent": folder}) as server:
        body: dict[str, Any] = {"inputs": {"question": "bano ?", "context": "delo"}}
        assert post(server, "/models/silent", body)["answer"] == ""
        for asked, status in ((True, 200), (False, 422)):
            body["parameters"] = {"handle_impossible_answer": asked}
            said = post(server, "/models/silent", body, status)
        assert "asks for one all the same" in said["error"]


def test_texts_around_more_candidates_than_fit_into_an_answer_are_refused(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"inputs": "bano [MASK] [MASK]", "parameters": {"top_k": 3}}
    assert len(post(server, "/pipeline/fill-mask", body)) == 2
    monkeypatch.setattr(masks_and_vectors, "_MOST_TOKENS", 29)  # 2 masks, 3 candidates, 5 tokens each
    said = post(server, "/pipeline/fill-mask", body, 413)["error"]
    assert "6 texts of 30 tokens together; at most 29" in said

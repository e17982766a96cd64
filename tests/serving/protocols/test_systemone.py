"""System One's client against the service: what heads answer, and what they refuse."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from running_service import Running, running
from systemone import AsyncClient, Choice, Client, Noul, Score, SystemOneError
from systemone.local import spread_confidence

from bertsmith import Predictor
from served_models import save_fine_tuned, save_mixed

TEXT = "bano delo firu"


def probabilities(server: Running, name: str, text: Any = TEXT) -> dict[str, float]:
    (found,) = Predictor.load(server.folders[name]).predict([text])
    return dict(found["probabilities"])


def ask(server: Running, state: Any, questions: dict[str, Any], model: str | None = None) -> Any:
    with Client(server.url) as client:
        return client.system_one(state, questions, model)


def test_options_that_are_a_models_labels_are_chosen_from(server: Running) -> None:
    expected = probabilities(server, "classification")
    options = {"PERHAPS": None, "no": "not at all", "Yes": None}
    found = ask(server, TEXT, {"q": Choice("Will it?", options)})
    answer = found.choices["q"]
    shares = [expected[each.lower()] for each in options]
    assert list(answer.probabilities) == list(options)
    np.testing.assert_allclose([*answer.probabilities.values()], shares, atol=2e-6)
    assert answer.choice.lower() == max(expected, key=lambda label: expected[label])
    assert answer.confidence == pytest.approx(spread_confidence(shares), abs=3e-6)
    assert (found.model, found.usage.output_tokens) == ("classification", 0)
    assert found.usage.input_tokens == 5  # [CLS] bano delo firu [SEP]


def test_a_question_is_answered_by_the_model_it_is_called_after(server: Running) -> None:
    found = ask(server, TEXT, {"urgent": Noul("Is it urgent?"), "nothing": Noul("yes")}, "urgent")
    expected = probabilities(server, "urgent")["yes"]
    assert found.nouls["urgent"].noul == found.nouls["nothing"].noul == pytest.approx(expected, abs=1e-6)


def test_labels_are_named_by_id_criterion_or_instructions(server: Running) -> None:
    expected = probabilities(server, "multi-label")
    questions = {
        "sport": Noul("Is it about sport?"),
        "q2": Noul("Is it about money?", {"true": "money", "false": None}),
        "q3": Noul("LAW"),
    }
    for model in (None, "auto", "multi-label"):
        found = ask(server, TEXT, questions, model)
        for name, label in (("sport", "sport"), ("q2", "money"), ("q3", "law")):
            assert found.nouls[name].noul == pytest.approx(expected[label], abs=1e-6)
    one_of_three = ask(server, TEXT, {"perhaps": Noul("Perhaps?")}).nouls["perhaps"].noul
    assert one_of_three == pytest.approx(probabilities(server, "classification")["perhaps"], abs=1e-6)


def test_levels_are_the_classes_of_a_head_in_the_questions_order(server: Running) -> None:
    levels = ["bad", "fair", "good"]
    shares = np.array([probabilities(server, "mood")[each.title()] for each in levels])
    answer = ask(server, TEXT, {"q": Score("How is it?", levels)}).scores["q"]
    assert answer.score == pytest.approx(shares @ np.arange(3), abs=1e-5)
    assert answer.legend == {"0": "bad", "1": "fair", "2": "good"}
    np.testing.assert_allclose([answer.probabilities[str(n)] for n in range(3)], shares, atol=2e-6)
    distance = (shares * np.abs(np.arange(3) - shares.argmax())).sum() / (2 / 3)
    assert answer.confidence == pytest.approx(max(0, 1 - distance), abs=1e-5)
    stars = ask(server, TEXT, {"q": Score("Stars?", ["1", "2", "3", "4"])}).scores["q"]
    expected = sum(number * share for number, share in enumerate(probabilities(server, "stars").values()))
    assert stars.score == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("model", ["regression", "similarity"])
def test_a_number_has_its_place_between_two_levels(server: Running, model: str) -> None:
    state: Any = TEXT if model == "regression" else {"text": TEXT, "text_pair": "guma kano"}
    given = TEXT if model == "regression" else (TEXT, "guma kano")
    (expected,) = Predictor.load(server.folders[model]).predict([given])
    below = np.floor(expected["score"]) - 1
    levels = [str(below + step) for step in range(4)]
    answer = ask(server, state, {model: Score("How much?", levels)}).scores[model]
    assert answer.score == pytest.approx(expected["score"] - below, abs=2e-6)
    shares = np.array([answer.probabilities[str(n)] for n in range(4)])
    assert shares.sum() == pytest.approx(1) and (shares > 0).sum() <= 2
    beyond = [str(expected["score"] + step) for step in (1, 2, 3)]
    clipped = ask(server, state, {"q": Score("How much?", beyond)}, model).scores["q"]
    assert (clipped.score, clipped.confidence) == (0, 1)


def test_a_head_is_asked_once_for_all_its_questions(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, asked = server.service.answer, list[Any]()

    async def noting(request: Any) -> Any:
        asked.append(request.model)
        return await answer(request)

    monkeypatch.setattr(server.service, "answer", noting)
    questions = {
        "sport": Noul("Sport?"),
        "law": Noul("Law?"),
        "urgent": Noul("Urgent?"),
        "q": Choice("Will it?", {"yes": None, "no": None, "perhaps": None}),
    }
    found = ask(server, TEXT, questions)
    assert sorted(asked) == ["classification", "multi-label", "urgent"]
    assert found.usage.input_tokens == 15
    assert set(found.nouls) == {"sport", "law", "urgent"} and set(found.choices) == {"q"}


def test_every_head_that_was_asked_is_in_the_metrics(server: Running) -> None:
    def computed() -> dict[str, float]:
        page = httpx.get(f"{server.url}/metrics").text
        line = re.compile(r'^bertsmith_\w*request_tokens_sum\{model="([^"]+)"\} ([\d.]+)$', re.MULTILINE)
        return {name: float(tokens) for name, tokens in line.findall(page)}

    before = computed()
    ask(server, TEXT, {"law": Noul("Law?"), "urgent": Noul("Urgent?")})
    after = computed()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert {name: tokens for name, tokens in grown.items() if tokens} == {"multi-label": 5, "urgent": 5}


def test_nothing_is_computed_for_a_request_that_is_refused(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(request: Any) -> Any:
        raise AssertionError("a head was asked")

    monkeypatch.setattr(server.service, "answer", never)
    with pytest.raises(SystemOneError, match="No model here has the label 'poem'"):
        ask(server, TEXT, {"law": Noul("Law?"), "poem": Noul("Is it a poem?")})


def test_a_state_is_read_as_text(server: Running) -> None:
    question = {"urgent": Noul("Urgent?")}

    def noul(state: Any) -> Any:
        return ask(server, state, question).nouls["urgent"].noul

    assert noul({"ticket": TEXT}) == noul(TEXT)
    several = {"a": "bano", "b": ["delo", 1]}
    assert noul(several) == noul(json.dumps(several, indent=2)) != noul(TEXT)
    pair = {"text": TEXT, "text_pair": "guma"}
    found = ask(server, pair, {"nli": Choice("?", {"Entailment": 0, "Neutral": 0, "Contradiction": 0})})
    expected = probabilities(server, "nli", (TEXT, "guma"))
    assert found.choices["nli"].probabilities["Neutral"] == pytest.approx(expected["neutral"], abs=2e-6)


def test_of_labels_that_differ_in_case_alone_the_one_that_is_named_is_meant(tmp_path: Path) -> None:
    folder = save_fine_tuned(tmp_path / "country", "classification", labels=["US", "us"])
    (expected,) = Predictor.load(folder).predict([TEXT])
    with running({"country": folder}) as alone:
        found = ask(alone, TEXT, {"US": Noul("?"), "us": Noul("?")}).nouls
        for label in ("US", "us"):
            assert found[label].noul == pytest.approx(expected["probabilities"][label], abs=1e-6)
        with pytest.raises(SystemOneError, match="differ in case alone: name one as it is"):
            ask(alone, TEXT, {"Us": Noul("?")}, "country")


def test_a_model_with_columns_beside_its_text_reads_them_from_the_state(tmp_path: Path) -> None:
    state = {"text": "bano delo", "age": 30, "plan": "b"}
    options = {"stays": 0, "leaves": 0}
    (expected,) = Predictor.load(save_mixed(tmp_path / "mixed")).predict([state])
    (other,) = Predictor.load(tmp_path / "mixed").predict([state | {"age": 1}])
    assert abs(expected["probabilities"]["stays"] - other["probabilities"]["stays"]) > 1e-3
    with running({"mixed": tmp_path / "mixed"}) as alone:
        found = ask(alone, state, {"mixed": Choice("?", options)}).choices["mixed"]
        assert found.probabilities["stays"] == pytest.approx(expected["probabilities"]["stays"], abs=2e-3)
        part = {"type": "input_json", "data": state}
        choices = [{"value": value} for value in options]
        asked = {"type": "choice", "name": "mixed", "instructions": "?", "choices": choices}
        body = {"model": "auto", "input": [{"role": "user", "content": [part]}], "questions": [asked]}
        (answer,) = httpx.post(f"{alone.url}/v1/decisions", json=body).json()["answers"]
        assert answer["probabilities"][0]["probability"] == found.probabilities["stays"]
        with pytest.raises(SystemOneError, match="no column 'plan'"):
            ask(alone, {"text": "bano", "age": 30}, {"mixed": Choice("?", options)})


def test_the_asynchronous_client_too(server: Running) -> None:
    async def go() -> Any:
        async with AsyncClient(server.url) as client:
            return await client.system_one(TEXT, {"urgent": Noul("Urgent?")})

    expected = probabilities(server, "urgent")["yes"]
    assert asyncio.run(go()).nouls["urgent"].noul == pytest.approx(expected, abs=1e-6)


YES = {"yes": None, "no": None}


@pytest.mark.parametrize(
    ("questions", "model", "said"),
    [
        ({"q": Choice("?", {"red": None, "blue": None})}, None, "No model here has the labels 'red', 'blue'"),
        ({"q": Choice("?", YES)}, "classification", "has the labels 'no', 'perhaps', 'yes'"),
        ({"q": Choice("?", {**YES, "maybe": None})}, "urgent", "all of them and no other"),
        (
            {"q": Choice("?", {"sport": 0, "law": 0, "money": 0})},
            "multi-label",
            "doesn't choose one of several",
        ),
        ({"yes": Noul("yes")}, None, "classification, urgent could each answer"),
        ({"q": Noul("Is it urgent?")}, "urgent", "doesn't say which label of urgent is meant"),
        ({"q": Noul("Is it?")}, None, "No model here has the label 'q', 'Is it?'"),
        ({"q": Noul("yes")}, "regression", "has no label that holds or doesn't"),
        ({"q": Score("?", ["low", "high"])}, "regression", "levels must be numbers in even steps"),
        ({"q": Score("?", ["1", "2", "4"])}, "regression", "levels must be numbers in even steps"),
        ({"q": Score("?", ["1", "2"])}, None, "No model here has the labels '1', '2'"),
        ({"nli": Choice("?", {"entailment": 0, "neutral": 0, "contradiction": 0})}, None, "a pair of texts"),
        ({"tagging": Choice("?", YES)}, None, "tagging is a model for tagging"),
    ],
)
def test_what_no_head_can_answer_is_refused_by_its_id(
    server: Running, questions: dict[str, Any], model: str | None, said: str
) -> None:
    good = {"sport": Noul("Sport?")} if model is None else {}
    body = {
        "state": TEXT,
        "model": model,
        "questions": {name: each.to_dict() for name, each in {**good, **questions}.items()},
    }
    refused = httpx.post(f"{server.url}/v1/systemone", json=body)
    assert refused.status_code == 422
    (problem,) = refused.json()["detail"]
    assert problem["loc"] == ["body", "questions", *questions] and problem["type"] == "unanswerable"
    assert said in problem["msg"]
    with pytest.raises(SystemOneError, match="unanswerable"):
        ask(server, TEXT, questions, model)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"questions": {"q": {"type": "noul", "instructions": "?"}}}, ["body", "state"]),
        ({"state": "x", "questions": {}}, ["body", "questions"]),
        ({"state": "x", "questions": {"q": {"type": "noul"}}}, ["body", "questions", "q", "noul"]),
        ({"state": "x", "questions": {"q": {"type": "poem"}}}, ["body", "questions", "q"]),
        (
            {"state": "x", "questions": {"q": {"type": "choice", "criteria": {"a": 0}, "more": 1}}},
            ["body", "questions", "q", "choice"],
        ),
        (
            {"state": "x", "questions": {"q": {"type": "score", "criteria": ["a"]}}},
            ["body", "questions", "q", "score", "criteria"],
        ),
    ],
)
def test_a_wrong_body_says_where(server: Running, body: Any, place: list[str]) -> None:
    refused = httpx.post(f"{server.url}/v1/systemone", json=body)
    assert refused.status_code == 422
    (problem,) = refused.json()["detail"]
    assert problem["loc"] == place and problem["msg"] and problem["type"] == "invalid_request"


def test_other_refusals_are_a_sentence(server: Running) -> None:
    with pytest.raises(SystemOneError, match="There is no model 'jev' here") as unknown:
        ask(server, TEXT, {"urgent": Noul("?"), "q": Noul("law")}, "jev")
    assert unknown.value.status == 404
    deep: Any = "x"
    for _ in range(300):
        deep = [deep]
    body = {"state": deep, "questions": {"urgent": {"type": "noul", "instructions": "?"}}}
    refused = httpx.post(f"{server.url}/v1/systemone", json=body)
    assert refused.status_code == 422 and "nested more than 64 deep" in refused.json()["detail"][0]["msg"]

"""OpenAI's own client asks for decisions."""

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from running_service import Running

from bertsmith import Predictor

TEXT = "bano delo firu"


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        yield client


def probabilities(server: Running, name: str) -> dict[str, float]:
    (found,) = Predictor.load(server.folders[name]).predict([TEXT])
    return dict(found["probabilities"])


def choices(*values: Any) -> Any:
    return [{"value": value} for value in values]


def test_questions_of_all_kinds_are_answered_in_their_order(server: Running, client: openai.OpenAI) -> None:
    found = client.decisions.create(
        model="auto",
        input=TEXT,
        questions=[
            {
                "type": "score",
                "name": "s",
                "instructions": "?",
                "levels": [{"label": str(n)} for n in (1, 2, 3, 4)],
            },
            {"type": "predicate", "name": "law", "instructions": "Is it about law?"},
            {"type": "choice", "name": "c", "instructions": "?", "choices": choices("yes", "no", "perhaps")},
            {"type": "predicate", "instructions": "Is it a poem?"},
            {"type": "predicate", "instructions": "Sport"},
        ],
    )
    score, law, choice, poem, sport = found.answers
    stars = np.array([*probabilities(server, "stars").values()])
    assert score.type == "score" and score.score == pytest.approx(stars @ np.arange(4), abs=1e-5)
    assert [(each.value, each.label) for each in score.probabilities] == [(n, str(n + 1)) for n in range(4)]
    labels = probabilities(server, "multi-label")
    assert law.type == "predicate" and law.name == "law"
    assert law.probability == pytest.approx(labels["law"], abs=1e-6)
    expected = probabilities(server, "classification")
    assert choice.type == "choice" and choice.choice == max(expected, key=lambda label: expected[label])
    for each in choice.probabilities:
        assert each.probability == pytest.approx(expected[str(each.value)], abs=2e-6)
    assert choice.confidence == pytest.approx((max(expected.values()) - 1 / 3) / (2 / 3), abs=3e-6)
    assert poem.type == "refusal" and poem.name is None
    assert "No model here has the label" in poem.model_extra["reason"]  # type: ignore[index]
    assert sport.type == "predicate" and sport.probability == pytest.approx(labels["sport"], abs=1e-6)
    assert found.usage.input_tokens == found.usage.total_tokens == 15


def test_truth_values_and_texts_differ(server: Running, client: openai.OpenAI) -> None:
    for values in ((True, False), ("true", "false")):
        found = client.decisions.create(
            model="urgent",
            input=TEXT,
            questions=[{"type": "choice", "instructions": "?", "choices": choices(*values)}],
        )
        assert found.answers[0].type == "refusal"  # its labels are yes and no
    both = client.decisions.create(
        model="urgent",
        input=TEXT,
        questions=[
            {"type": "choice", "name": "q", "instructions": "?", "choices": choices("yes", "no", True)}
        ],
    )
    assert both.answers[0].type == "refusal" and both.answers[0].name == "q"


def test_a_users_messages_are_the_input(server: Running, client: openai.OpenAI) -> None:
    question: Any = {"type": "predicate", "name": "urgent", "instructions": "?"}

    def probability(given: Any) -> Any:
        found = client.decisions.create(model="auto", input=given, questions=[question]).answers[0]
        return found.probability  # type: ignore[union-attr]

    text = {"type": "input_text", "text": TEXT}
    plain = probability(TEXT)
    assert probability([{"role": "user", "content": TEXT}]) == plain
    assert probability([{"role": "user", "content": [text]}]) == plain
    data = {"type": "input_json", "data": {"ticket": TEXT}}
    assert probability([{"role": "user", "content": [data]}]) == plain
    two = [{"role": "user", "content": [text]}, {"role": "user", "content": "guma"}]
    assert probability(two) == probability(f"{TEXT}\nguma") != plain


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}], "has an image"),
        ([{"role": "system", "content": "bano"}], "a message of the role system"),
        ([{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}], "function_call"),
        ([], "input has no text"),
    ],
)
def test_what_the_models_do_not_read_is_refused(client: openai.OpenAI, given: Any, said: str) -> None:
    question: Any = {"type": "predicate", "name": "law", "instructions": "?"}
    with pytest.raises(openai.BadRequestError, match=said):
        client.decisions.create(model="auto", input=given, questions=[question])


def test_errors_are_openai_s(server: Running, client: openai.OpenAI) -> None:
    question: Any = {"type": "predicate", "name": "law", "instructions": "?"}
    with pytest.raises(openai.NotFoundError) as unknown:
        client.decisions.create(model="gpt-6-luna", input=TEXT, questions=[question])
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="Two questions have the name 'law'"):
        client.decisions.create(model="auto", input=TEXT, questions=[question, question])
    wrong = httpx.post(f"{server.url}/v1/decisions", json={"model": "auto", "input": TEXT, "questions": []})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "questions"

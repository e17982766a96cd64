"""The cheap tier: the numbers of scikit-learn, without it; soft targets; a student's file of words."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mirrored_calls import calls_of, intent_of
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from bertsmith.errors import ModelError
from bertsmith.metrics.baselines import TOKEN
from bertsmith.mirror.fields import AnswerShape, Field
from bertsmith.mirror.learning.learned_calls import LearnedCall, join_by_text
from bertsmith.mirror.learning.targets import build_heads, build_targets
from bertsmith.mirror.learning.tiers import fit_word_model, train_word_candidate
from bertsmith.mirror.student import WordModel

INTENTS = ("card", "transfer", "other")
SHAPE = AnswerShape(fields=(Field(keys=("intent",), kind="enum", values=INTENTS),), order=(("intent",),))
TEXTS = [call.request.inputs[0].parts[0] for call in calls_of(120)]


def learned(
    text: str, value: object, number: int = 0, path: str = "$.intent", **spread: float
) -> LearnedCall:
    spreads = {path: list(spread.items())} if spread else {}
    return LearnedCall(f"{number}", float(number), "relay", text, {path: value}, spreads)


CALLS = [learned(text, intent_of(text), number) for number, text in enumerate(TEXTS)]


def test_logits_are_those_of_scikit_learn() -> None:
    heads = build_heads(SHAPE, CALLS)
    model = fit_word_model(CALLS, heads, SHAPE)
    assert model is not None
    vectoriser = TfidfVectorizer(ngram_range=(1, 2), token_pattern=TOKEN, sublinear_tf=True, dtype=np.float32)
    features = vectoriser.fit_transform(TEXTS)
    gold = [INTENTS.index(intent_of(text)) for text in TEXTS]
    reference = LogisticRegression(C=10.0, max_iter=200).fit(features, gold)
    unseen = ["visa WIRE hello, bano bano?", "nothing known", "", "wire now " * 5]
    expected = reference.decision_function(vectoriser.transform(unseen))
    np.testing.assert_allclose(model.logits(unseen)["$.intent"], expected, atol=1e-4)
    vectors = vectoriser.transform(unseen).toarray()
    np.testing.assert_allclose(model.vectors(unseen).toarray(), vectors, atol=1e-6)


def test_two_classes_and_labels_are_those_of_scikit_learn() -> None:
    shape = AnswerShape(fields=(Field(keys=("topics",), kind="labels", values=("visa", "now")),))
    calls = [
        learned(text, tuple(each for each in ("visa", "now") if each in text), n, "$.topics")
        for n, text in enumerate(TEXTS)
    ]
    model = fit_word_model(calls, build_heads(shape, calls), shape)
    assert model is not None
    vectoriser = TfidfVectorizer(ngram_range=(1, 2), token_pattern=TOKEN, sublinear_tf=True, dtype=np.float32)
    features = vectoriser.fit_transform(TEXTS)
    for place, label in enumerate(("visa", "now")):
        gold = [label in text for text in TEXTS]
        reference = LogisticRegression(C=10.0, solver="liblinear").fit(features, gold)
        expected = reference.decision_function(features)
        np.testing.assert_allclose(model.logits(TEXTS)["$.topics"][:, place], expected, atol=1e-4)


def test_doubts_of_the_teacher_are_learned() -> None:
    sure = [learned(text, "card" if n % 2 else "other", n) for n, text in enumerate(["a x", "b y"] * 40)]
    doubtful = [
        learned(call.text, call.values["$.intent"], n, card=0.6, other=0.4) if "b" in call.text else call
        for n, call in enumerate(sure)
    ]
    shares = []
    for calls in (sure, doubtful):
        candidate = train_word_candidate(calls, calls[:20], SHAPE)
        assert candidate is not None
        (guess,) = candidate.predict(["b y"])["$.intent"]
        assert guess.value == "card"
        shares.append(guess.confidence)
    assert shares[0] > 0.9 and shares[1] == pytest.approx(0.6, abs=0.1)


def test_values_that_training_never_showed_teach_nothing_and_are_never_said() -> None:
    calls = [learned(text, "card" if "visa" in text else "other", n) for n, text in enumerate(TEXTS)]
    heads = build_heads(SHAPE, calls)
    assert heads[0].classes == (0, 2)
    strange = [learned("visa", "transfer")]
    assert np.isnan(build_targets(heads[0], SHAPE.fields[0], strange)).all()
    doubtful = [
        learned("visa", "transfer", transfer=0.9, card=0.1),
        learned("visa", "card", card=0.9, transfer=0.1),
    ]
    assert np.isnan(build_targets(heads[0], SHAPE.fields[0], doubtful)).all(axis=1).tolist() == [True, False]


def test_a_field_of_one_answer_gets_it_though_the_teacher_gave_others_a_thousandth() -> None:
    """As log probabilities always do."""
    field = Field(keys=("urgent",), kind="boolean", values=(True, False))
    shape = AnswerShape(fields=(field,), order=(("urgent",),))
    doubt = {"$.urgent": [(False, 0.999), (True, 0.001)]}
    calls = [
        LearnedCall(str(n), 0.0, "relay", text, {"$.urgent": False}, doubt) for n, text in enumerate("ab")
    ]
    for given in (
        calls,
        [*calls, replace(calls[0], values={"$.urgent": True})],
    ):  # one was drawn all the same
        candidate = train_word_candidate(given, calls, shape)
        assert candidate is not None
        assert [guess.value for guess in candidate.predict(["a", "c"])["$.urgent"]] == [False, False]


def test_a_number_is_answered_within_its_tolerance() -> None:
    field = Field(keys=("n",), kind="number", tolerance=2.0)
    shape = AnswerShape(fields=(field,), order=(("n",),))
    draw = np.random.default_rng(0)
    calls = [
        learned(f"{word} bano", 10.0 * place + float(draw.random()), n, "$.n")
        for n in range(60)
        for place, word in enumerate(("low", "middle", "high"))
    ]
    candidate = train_word_candidate(calls, calls[:30], shape)
    assert candidate is not None
    for word, wanted in (("low", 0.5), ("middle", 10.5), ("high", 20.5)):
        (guess,) = candidate.predict([f"{word} bano"])["$.n"]
        assert guess.value == pytest.approx(wanted, abs=1.0) and guess.confidence > 0.9


def test_the_file_of_words_gives_the_same_numbers(tmp_path: Path) -> None:
    model = fit_word_model(CALLS, build_heads(SHAPE, CALLS), SHAPE)
    assert model is not None
    model.save(tmp_path)
    again = WordModel.load(tmp_path)
    assert np.array_equal(again.logits(TEXTS)["$.intent"], model.logits(TEXTS)["$.intent"])
    (tmp_path / "words.json").write_text('["one"]')
    with pytest.raises(ModelError, match="don't fit"):
        WordModel.load(tmp_path)
    (tmp_path / "words.safetensors").write_bytes(b"cut")
    with pytest.raises(ModelError, match="can't be read"):
        WordModel.load(tmp_path)


def test_marks_belong_to_words_but_not_in_students_of_before(tmp_path: Path) -> None:
    calls = [learned(text, "card" if n % 2 else "other", n) for n, text in enumerate(["कि", "के"] * 20)]
    model = fit_word_model(calls, build_heads(SHAPE, calls), SHAPE)
    assert model is not None and set(model.indices) == {"कि", "के"}
    model.save(tmp_path)
    assert WordModel.load(tmp_path).indices == model.indices
    (tmp_path / "words.json").write_text('["क", "ि"]')
    before = WordModel.load(tmp_path)
    before.save(tmp_path)
    assert [WordModel.load(tmp_path)._vectorize("कि")[0], before._vectorize("कि")[0]] == [[0, 1], [0, 1]]


def test_syllables_are_words_where_no_blanks_divide_them_but_not_in_students_of_before(
    tmp_path: Path,
) -> None:
    texts = ["ไปมา", "ไปนา"]
    calls = [learned(text, "card" if n % 2 else "other", n) for n, text in enumerate(texts * 20)]
    model = fit_word_model(calls, build_heads(SHAPE, calls), SHAPE)
    assert model is not None and {"ไป", "มา", "นา"} < set(model.indices)
    model.save(tmp_path)
    (tmp_path / "words.json").write_text(
        (tmp_path / "words.json").read_text().replace("with syllables", "with marks")
    )
    assert len(model._vectorize("ไปมา")[0]) == 3  # with the pair of both
    assert len(WordModel.load(tmp_path)._vectorize("ไปมา")[0]) == 0


def test_a_number_that_is_answered_is_one_that_the_teacher_has_said() -> None:
    shape = AnswerShape(fields=(Field(keys=("n",), kind="number"),), order=(("n",),))
    said = [3 * number for number in range(90)]
    calls = [learned("a text", number, number, "$.n") for number in said]
    (head,) = build_heads(shape, calls)
    assert len(head.centres) == 24
    assert set(head.centres) <= set(said)
    answers = [guess.value for guess in head.predict(shape.fields[0], 30 * np.eye(24))]
    assert all(isinstance(each, int) for each in answers)


def test_texts_without_words_and_quotes_are_not_for_this_tier() -> None:
    assert train_word_candidate([learned(" ", "card")] * 60, CALLS[:5], SHAPE) is None


def test_a_text_that_came_often_is_learned_once_by_what_was_said_most() -> None:
    calls = [learned("a", value, n) for n, value in enumerate(["card", "other", "card", "card"])]
    (one,) = join_by_text(calls, SHAPE)
    assert one.values == {"$.intent": "card"}
    assert dict(one.probabilities["$.intent"]) == {"card": pytest.approx(0.75), "other": pytest.approx(0.25)}
    assert join_by_text(calls[:1], SHAPE) == calls[:1]

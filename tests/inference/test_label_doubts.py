"""Confident learning, by its definition and beside cleanlab; and rows drawn as their gradients lie."""

import random

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from bertsmith.arrays import Floats, Ints
from bertsmith.inference.suggesting.label_doubts import (
    class_thresholds,
    find_contradictions,
    find_doubts,
    ngrams_of,
    off_diagonal,
)
from bertsmith.inference.suggesting.near_copies import SAME, CharacterNgrams
from bertsmith.inference.suggesting.suggest import choose_rows
from bertsmith.tasks.examples.text_task import TextExample


def drawn(rows: int, classes: int, seed: int, surer: float = 2) -> tuple[Floats, Ints]:
    """Probabilities that mostly agree with the labels, every class among these."""
    draw = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), draw.integers(0, classes, rows - classes)])
    logits = draw.normal(0, 1.5, (rows, classes))
    logits[np.arange(rows), labels] += surer
    weights = np.exp(logits)
    return weights / weights.sum(1, keepdims=True), labels


def test_a_threshold_is_the_mean_probability_of_those_that_bear_the_label() -> None:
    probabilities = np.array([[0.9, 0.1, 0.0], [0.5, 0.5, 0.0], [0.2, 0.8, 0.0]])
    assert class_thresholds(probabilities, np.array([0, 0, 1])) == pytest.approx([0.7, 0.8, 1.0])


def test_a_class_the_model_is_never_sure_of_is_not_doubted_for_that() -> None:
    """Row 3 is likelier 0 than its label 1, but less so than rows of 0 are."""
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2], [0.45, 0.55], [0.55, 0.45], [0.95, 0.05]])
    labels = np.array([0, 0, 1, 1, 1])
    assert off_diagonal(probabilities, labels).tolist() == [False, False, False, False, True]
    found = find_doubts(probabilities, labels)
    assert found.order[0] == 4 and found.wrong == 1


def test_a_label_that_is_the_likeliest_of_all_is_not_counted_as_wrong() -> None:
    """Row 2 reaches the threshold of 1 (0.45) and not that of its label 0 (0.83)."""
    probabilities = np.array([[0.95, 0.05], [0.95, 0.05], [0.55, 0.45], [0.6, 0.4], [0.5, 0.5]])
    labels = np.array([0, 0, 0, 1, 1])
    assert off_diagonal(probabilities, labels).tolist() == [False] * 5


def test_a_label_is_doubted_by_what_its_class_usually_has() -> None:
    """Row 2 has 0.5 where its class has 0.8 usually, row 5 0.4 where its class has 0.45."""
    probabilities = np.array([[0.95, 0.05], [0.95, 0.05], [0.5, 0.5], [0.55, 0.45], [0.5, 0.5], [0.6, 0.4]])
    labels = np.array([0, 0, 0, 1, 1, 1])
    assert find_doubts(probabilities, labels).order.tolist()[:2] == [2, 5]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 5, 20])
def test_the_doubtful_are_cleanlabs(classes: int, seed: int) -> None:
    filters = pytest.importorskip("cleanlab.filter")
    probabilities, labels = drawn(400, classes, seed)
    theirs = filters.find_label_issues(labels, probabilities, filter_by="confident_learning", n_jobs=1)
    ours = off_diagonal(probabilities, labels)
    # Where several classes reach their threshold, cleanlab counts for the likeliest of all, reached or not.
    likeliest = probabilities.argmax(1)
    clear = probabilities.max(1) >= class_thresholds(probabilities, labels)[likeliest]
    assert (ours == theirs)[clear].all()
    assert ours[clear].sum() > 5


def test_wrong_labels_come_first() -> None:
    probabilities, labels = drawn(1000, 10, 0, surer=4)
    draw = np.random.default_rng(1)
    wrong = draw.choice(1000, 50, replace=False)
    labels[wrong] = (labels[wrong] + draw.integers(1, 10, 50)) % 10
    found = find_doubts(probabilities, labels)
    assert len(set(found.order[:50].tolist()) & set(wrong.tolist())) >= 35
    assert 40 <= found.wrong <= 100


def test_rows_lie_as_the_products_of_features_and_residuals_do() -> None:
    draw = np.random.default_rng(0)
    features, residuals = draw.normal(size=(40, 6)), draw.normal(size=(40, 3))
    chosen = choose_rows(features, residuals, 12, seed=3)
    places = (features[:, :, None] * residuals[:, None, :]).reshape(40, -1)
    again, nearest = np.random.default_rng(3), np.full(40, np.inf)
    expected = [int(np.square(places).sum(1).argmax())]
    while len(expected) < 12:
        nearest = np.minimum(nearest, np.square(places - places[expected[-1]]).sum(1))
        expected.append(int(again.choice(40, p=nearest / nearest.sum())))
    assert chosen.tolist() == expected
    assert len(set(expected)) == 12


def test_rows_that_tell_nothing_new_are_not_drawn() -> None:
    same = np.ones((5, 2))
    assert len(choose_rows(same, np.full((5, 3), 0.5), 4)) == 1
    assert choose_rows(same[:0], np.zeros((0, 3)), 4).tolist() == []
    assert len(choose_rows(np.eye(3), np.full((3, 2), 0.5), 10)) == 3


def test_near_copies_are_found_by_their_characters() -> None:
    texts = ["My card has not arrived yet", "my card has not arrived yet!", "Where is the nearest bank?", ""]
    characters = CharacterNgrams(texts)
    assert [(pair.first, pair.second) for pair in characters.pairs()] == [(0, 1)]
    assert characters.first_of_each([0, 1, 2], []) == [0, 2]
    assert characters.first_of_each([2, 1], [0]) == [2]
    assert list(CharacterNgrams(["", " "]).pairs()) == []


def texts_with_copies(rows: int, seed: int = 0) -> list[str]:
    """Half are copies of the others with some words replaced, or all words kept."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 9))) for _ in range(400)]
    weights = [1 / (place + 1) for place in range(400)]  # Zipf's law
    texts = [draw.choices(words, weights, k=draw.choice((3, 12, 60))) for _ in range(rows // 2)]
    for text in texts[:]:
        changed = {place: draw.choice(words) for place in draw.sample(range(len(text)), draw.randrange(3))}
        texts.append([changed.get(place, word) for place, word in enumerate(text)])
    return [" ".join(text) for text in texts]


@pytest.mark.parametrize(
    ("first", "second", "likeness"),
    [
        ("मैं घर जाता हूँ", "मैं घर जाती हूँ", 0.0),  # the vowel says who goes: it was 1
        ("की", "का", 0.0),
        ("café au lait", "cafe\u0301 au lait", 1.0),  # the accent on its own
        ("👍", "👍", 1.0),  # texts without words were never compared
        (":-)", ":-)", 1.0),
        (":-)", ":-(", 0.0),
    ],
)
def test_marks_belong_to_their_letters_and_texts_need_no_words(
    first: str, second: str, likeness: float
) -> None:
    found = [pair.likeness for pair in CharacterNgrams([first, second, "another text"]).pairs()]
    assert found == ([pytest.approx(likeness, abs=1e-5)] if likeness >= SAME else [])


def test_the_near_copies_are_those_of_all_pairs() -> None:
    """Whatever wasn't compared whole."""
    texts = texts_with_copies(600)
    found = {(pair.first, pair.second): pair.likeness for pair in CharacterNgrams(texts).pairs()}
    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5)).fit_transform(texts)
    cosines = np.triu((vectors @ vectors.T).toarray(), 1)
    first, second = np.nonzero(cosines >= SAME)
    assert len(first) > 100 and list(found) == list(zip(first.tolist(), second.tolist(), strict=True))
    assert [*found.values()] == pytest.approx(cosines[first, second].tolist(), abs=1e-5)
    kinds = [row % 3 for row in range(len(texts))]
    unlike = [pair for pair in found if kinds[pair[0]] != kinds[pair[1]]]
    assert [(first, second) for first, second, _ in CharacterNgrams(texts).pairs(kinds)] == unlike
    known, rows = range(100), range(100, 600)
    kept = list[int]()
    for row in rows:
        if not any((other, row) in found for other in (*known, *kept)):
            kept.append(row)
    assert CharacterNgrams(texts).first_of_each(rows, known) == kept


def test_few_of_the_pairs_of_long_texts_are_compared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them would be 20,000 rows of 200 words for a quarter of an hour."""
    draw = np.random.default_rng(0)
    texts = [" ".join(str(word) for word in draw.zipf(1.3, 200)) for _ in range(200)]
    compared, whole = [], CharacterNgrams._likeness

    def counted(self: CharacterNgrams, row: int, others: Ints) -> Floats:
        compared.append(len(others))
        return whole(self, row, others)

    monkeypatch.setattr(CharacterNgrams, "_likeness", counted)
    found = list(CharacterNgrams([*texts, texts[7]]).pairs())
    assert [(pair.first, pair.second) for pair in found] == [(7, 200)]
    assert sum(compared) < 200 * 199 / 2 / 20


def test_rows_with_other_columns_are_no_copies() -> None:
    """Where columns decide, nearly all rows were passed over as copies, and told as slips."""

    def row(plan: str, label: str, age: str | float = 30) -> TextExample:
        return TextExample("My card has not arrived yet", None, label, "here", columns=(plan, age))

    assert find_contradictions([row("free", "wait", "30"), row("free", "wait", "30.0")]) == []
    assert len(find_contradictions([row("free", "wait", "30"), row("free", "call")])) == 1  # CSV beside JSON
    rows = [row("free", "wait"), row("pro", "call"), row("free", "call")]
    assert [(first, second) for first, second, _ in find_contradictions(rows)] == [(rows[0], rows[2])]
    assert ngrams_of(rows).first_of_each([1, 2], [0]) == [1]


def test_categories_that_are_equal_as_numbers_alone_are_no_copies() -> None:
    rows = [
        TextExample("It fails", None, *more)
        for more in (("a", "1", None, ("007",)), ("b", "2", None, ("7",)))
    ]
    assert find_contradictions(rows, ["category"]) == []
    assert len(find_contradictions(rows, ["number"])) == len(find_contradictions(rows)) == 1


def test_pairs_in_the_other_order_are_no_copies() -> None:
    """A dog is an animal, but an animal needn't be a dog."""
    pairs = [("A poodle barks", "Some dog barks"), ("Some dog barks", "A poodle barks")]
    pairs += [
        ("emergency landing", "today"),
        ("emergency", "landing today"),
        ("A poodle barks!", "some dog barks"),
    ]
    rows = [TextExample(*pair, str(number), "here") for number, pair in enumerate(pairs)]
    (copies,) = find_contradictions(rows)
    assert (copies.first, copies.second) == (rows[0], rows[4])
    assert copies.likeness == pytest.approx(1)


def test_rows_without_a_text_are_copies_by_what_stands_beside_it() -> None:
    """One row was suggested twice."""
    for texts in (["", " ", "", ""], ["", " ", "", "text"]):
        assert CharacterNgrams(texts, ["a", "a", "b", "a"]).first_of_each([1, 2, 3], [0]) == (
            [2, 3] if texts[3] else [2]
        )
        assert CharacterNgrams(texts, ["a", "a", "b", "b"]).first_of_each([0, 1, 2], []) == [0, 2]


def test_several_labels_contradict_each_other_as_sets() -> None:
    def row(*labels: str) -> TextExample:
        return TextExample("My card has not arrived yet", None, labels, "here")

    assert find_contradictions([row("red", "cat"), row("cat", "red")]) == []
    assert len(find_contradictions([row("red", "cat"), row("cat", "dog"), row("dog", "cat")])) == 2
    assert find_contradictions([]) == []

"""Baselines equal the same model put together by scikit-learn's pipeline, repeat themselves, stay within
their bounds and say so; what is degenerate has an answer too.
"""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from bertsmith.metrics import baselines

GOOD, BAD = (
    ["a good film", "good fun , well made", "what a joy !"],
    ["a bad film", "dull and bad", "boring ?"],
)


def test_the_majority_is_the_most_frequent_answer_of_train() -> None:
    assert baselines.majority_class([2, 0, 2, 1], 3).predictions.tolist() == [2, 2, 2]
    assert baselines.majority_class([1, 0], 1).predictions.tolist() == [0]
    sets = np.array([[1, 0], [0, 0], [0, 0], [0, 1]])
    assert baselines.majority_labels(sets, 2).predictions.tolist() == [[False, False], [False, False]]
    assert baselines.mean_number([1.0, 2.0, 6.0], 2).predictions.tolist() == [3.0, 3.0]


def test_classes_are_learned_from_words() -> None:
    found = baselines.tfidf_classes(GOOD + BAD, [1, 1, 1, 0, 0, 0], ["good joy", "bad , boring", "boring ?"])
    assert found.name == "TF-IDF + logistic regression"
    assert found.predictions.tolist() == [1, 0, 0]


def test_classes_are_learned_from_words_that_no_blanks_divide() -> None:
    good, bad = ["อาหารอร่อยมาก", "ร้านนี้อร่อยดี", "ขนมอร่อย"], ["บริการแย่มาก", "ร้านนี้แย่", "รสชาติแย่จัง"]
    found = baselines.tfidf_classes(good + bad, [1, 1, 1, 0, 0, 0], ["กาแฟอร่อย", "กาแฟแย่"])
    assert found.predictions.tolist() == [1, 0]


def test_several_labels_are_learned_each_by_itself() -> None:
    texts = ["oil up", "oil down", "gold up", "gold down", "oil and gold up"] * 3
    gold = np.array([[w in text for w in ("oil", "gold", "up", "text", "")] for text in texts])
    found = baselines.tfidf_labels(texts, gold, ["gold up", "oil down"]).predictions
    # The last two columns: a label that train never has, and one that every text has.
    assert found.tolist() == [[False, True, True, False, True], [True, False, False, False, True]]


def test_one_label_that_varies_is_learned_too() -> None:
    gold = np.array([[True, False]] * 3 + [[False, False]] * 3)
    assert baselines.tfidf_labels(GOOD + BAD, gold, ["good", "bad"]).predictions.tolist() == [
        [True, False],
        [False, False],
    ]


def test_numbers_follow_the_words() -> None:
    found = baselines.tfidf_numbers(GOOD + BAD, [5, 5, 5, 1, 1, 1], ["good", "bad"]).predictions
    assert found[0] > 3.2 > 2.8 > found[1]


def test_pairs_are_told_apart_by_what_they_share() -> None:
    words = ["red", "blue", "green", "cold", "warm", "old", "new", "big"]
    pairs = [(a, b) for a in words for b in words]
    gold = np.array([int(a == b) for a, b in pairs])
    found = baselines.tfidf_classes(pairs, gold, [("unseen red", "unseen red"), ("warm", "old")])
    assert found.predictions.tolist() == [1, 0]
    scores = baselines.tfidf_numbers(pairs, gold, [("red", "red"), ("warm", "old")]).predictions
    assert scores[0] > scores[1]


def test_the_cosine_is_that_of_tfidf_vectors() -> None:
    """Idf is ln((1 + n) / (1 + df)) + 1, as scikit-learn has it."""
    train = [("a b", "a c"), ("a", "d")]
    once, often = np.log(5 / 2) + 1, np.log(5 / 4) + 1
    found = baselines.tfidf_cosine(train, [("a b", "a c"), ("a b", "a b"), ("b", "c"), ("new", "b")])
    expected = [often**2 / (often**2 + once**2), 1.0, 0.0, 0.0]
    assert found.predictions == pytest.approx(expected, abs=1e-6)


def test_each_word_has_its_most_frequent_tag() -> None:
    words = [["Paris", "is", "Paris"], ["Paris", "Hilton"], ["may", "May"]]
    tags = [["B-LOC", "O", "B-LOC"], ["B-PER", "I-PER"], ["O", "B-PER"]]
    found = baselines.frequent_tags(words, tags, [["Paris", "unknown"], [], ["Hilton", "May", "may"]])
    assert found.predictions == [["B-LOC", "O"], [], ["I-PER", "B-PER", "O"]]
    parts = baselines.frequent_tags([["a", "dog", "a"]], [["DET", "NOUN", "DET"]], [["cat"]])
    assert parts.predictions == [["DET"]]
    tied = baselines.frequent_tags([["w", "w"]], [["B-Y", "B-X"]], [["w"]])
    assert tied.predictions == [["B-X"]]


def test_what_gives_nothing_to_learn_has_an_answer() -> None:
    assert baselines.tfidf_classes(GOOD, [1, 1, 1], BAD).predictions.tolist() == [1, 1, 1]
    assert baselines.tfidf_classes(["", " ", ""], [1, 0, 1], ["text"]).predictions.tolist() == [1]
    assert baselines.tfidf_classes(GOOD + BAD, [1, 1, 1, 0, 0, 0], []).predictions.tolist() == []
    assert baselines.tfidf_classes(["😀", "😡"] * 3, [1, 0] * 3, ["😀", "😡"]).predictions.tolist() == [1, 0]
    assert baselines.tfidf_cosine([("", "")], [("a", "a")]).predictions.tolist() == [0.0]


def test_beyond_the_bounds_rows_are_sampled_and_the_name_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, gold = (GOOD + BAD) * 20, np.array([1, 1, 1, 0, 0, 0] * 20)
    monkeypatch.setattr(baselines, "MOST_ROWS", 60)
    first, again = (baselines.tfidf_classes(texts, gold, ["good", "bad"]) for _ in range(2))
    assert first.name == "TF-IDF + logistic regression (60 of 120 rows)"
    assert first.predictions.tolist() == again.predictions.tolist() == [1, 0]
    monkeypatch.setattr(baselines, "MOST_CHARACTERS", sum(map(len, texts)) // 4)
    assert baselines.tfidf_numbers(texts, gold, ["good"]).name.endswith("(30 of 120 rows)")
    monkeypatch.setattr(baselines, "MOST_DECISIONS", 20)
    two = np.stack([gold, 1 - gold], axis=1)
    assert baselines.tfidf_labels(texts, two, ["good"]).name.endswith("(10 of 120 rows)")


def test_sst2_scores_what_bags_of_words_score_there(shared_data: Path) -> None:
    """On 8,000 of the 67,349 phrases: a wrong column or a lost feature shows at once."""
    texts, gold = sst2(shared_data / "sst2/train.tsv", step=8)
    dev_texts, dev_gold = sst2(shared_data / "sst2/dev.tsv", step=1)
    found = baselines.tfidf_classes(texts, gold, dev_texts).predictions
    assert (found == dev_gold).mean() > 0.76


def sst2(path: Path, step: int) -> tuple[list[str], np.ndarray]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1::step]
    return [text for text, _ in rows], np.array([int(label) for _, label in rows])


@pytest.mark.slow
def test_reuters_topics_score_what_bags_of_words_score_there(shared_data: Path) -> None:
    rows = {
        part: [
            json.loads(line)
            for line in (shared_data / f"reuters/{part}.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        for part in ("train", "test")
    }
    topics = sorted({topic for row in rows["train"] for topic in row["topics"]})
    gold = {
        part: np.array([[t in row["topics"] for t in topics] for row in its]) for part, its in rows.items()
    }
    texts = {part: [f"{row['title']}\n{row['text']}" for row in its] for part, its in rows.items()}
    found = baselines.tfidf_labels(texts["train"], gold["train"], texts["test"]).predictions
    hits = (found & gold["test"]).sum()
    assert 2 * hits / (found.sum() + gold["test"].sum()) > 0.84


def test_rare_labels_are_given_from_probabilities_that_train_decides() -> None:
    """Regularised on few rows, no probability of a rare label reaches a half."""
    names = ["tin", "zinc", "lead", "iron", "coal", "wool", "silk", "rice"]
    draw = np.random.default_rng(0)

    def news(name: str) -> str:
        return " ".join([name, *(f"word{number}" for number in draw.integers(0, 60, 10))])

    texts = [news(name) for _ in range(6) for name in names]
    gold = np.array([[name in text for name in names] for text in texts])
    found = baselines.tfidf_labels(texts, gold, [news(name) for name in names]).predictions
    assert found.diagonal().mean() >= 0.5
    assert found.sum() <= 2 * found.diagonal().sum()

"""The decoder of answers: against a search over all pairs, and right to the character on awkward texts."""

import math
import string
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.tasks.examples.answer_spans import (
    RankedAnswers,
    WindowScores,
    best_pairs,
    decode,
    gold_span,
)
from bertsmith.tasks.examples.encoding import owner, windows
from bertsmith.text.tokens.tokenizer import Tokenizer

LETTERS = string.ascii_lowercase + string.digits + "äß東한й,.-€"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
UNCASED = Tokenizer.from_pieces(PIECES, lowercase=True)

# Words that lower-casing, dropping accents and cleaning change in length, or that no vocabulary holds.
WORDS = st.sampled_from(
    [
        *(
            "Brno",
            "café",
            "cafe\u0301",
            "ÄÖ",
            "A\u0308",
            "İstanbul",
            "straße",
            "ﬁn",
            "東京",
            "한국",
            "й",
            "и\u0306",
        ),
        *(
            "a\u0301\u0327",
            "🙂",
            "👍🏽",
            "👩\u200d🚀",
            "❤\ufe0f",
            "\U0001f3f4\U000e0067\U000e007f",
            "🇨🇿",
            "x\u00ady",
        ),
        *("1,000.5", "e-mail", "“so”", "€5", "क्षि", "ก็", "\u200bzero", "Ǆ", "A" * 120),
    ]
)
GAPS = st.sampled_from([" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", " \u200b "])
TEXTS = st.lists(st.tuples(WORDS, GAPS), min_size=1, max_size=12)
NOISE = st.text(st.characters(codec="utf-8"), max_size=40)
SCORES = st.integers(-6, 6).map(lambda number: number / 2)


def offsets_of(text: str) -> np.ndarray:
    return np.array(UNCASED.encode(text).offsets, np.int64).reshape(-1, 2)


def pointing_at(offsets: np.ndarray, first: int, last: int) -> WindowScores:
    """The scores of a model that is sure of one pair of tokens."""
    start, end = np.zeros(len(offsets), np.float32), np.zeros(len(offsets), np.float32)
    start[first], end[last] = 9, 9
    return WindowScores(start, end, offsets, 0.0, 0.0)


@settings(max_examples=80, deadline=None)
@given(parts=TEXTS, data=st.data())
def test_words_come_back_as_they_stand_in_the_text(parts: list[tuple[str, str]], data: st.DataObject) -> None:
    """Gold characters → tokens → best pair → characters: whole words survive the round to the last accent."""
    text, places = "", []
    for word, gap in parts:
        places.append((len(text), len(text) + len(word)))
        text += word + gap
    first = data.draw(st.integers(0, len(parts) - 1))
    last = data.draw(st.integers(first, len(parts) - 1))
    start, end = places[first][0], places[last][1]
    offsets = offsets_of(text)
    span = gold_span(offsets, start, end, (0, len(offsets)))
    assert span is not None
    answer = decode(text, [pointing_at(offsets, *span)], longest=2000).answers[0]
    assert answer.text == text[answer.start : answer.end]
    assert answer.text == text[start:end].strip("\u200b")  # invisible, and no token begins with it


@settings(max_examples=80, deadline=None)
@given(text=NOISE, data=st.data())
def test_an_answer_is_cut_from_the_text_whatever_the_text(text: str, data: st.DataObject) -> None:
    offsets = offsets_of(text)
    if not len(offsets):
        return
    first = data.draw(st.integers(0, len(offsets) - 1))
    last = data.draw(st.integers(first, len(offsets) - 1))
    answers = decode(text, [pointing_at(offsets, first, last)], longest=len(offsets)).answers
    best = answers[0]
    assert best.text == text[best.start : best.end] != ""
    assert best.start == offsets[first, 0]
    assert best.end >= offsets[last, 1]
    assert not any(character.isalnum() for character in text[offsets[last, 1] : best.end])


@settings(max_examples=120, deadline=None)
@given(
    scores=st.lists(st.tuples(SCORES, SCORES), max_size=25),
    longest=st.integers(1, 30),
    count=st.integers(1, 40),
)
def test_the_best_pairs_are_those_of_a_full_search(
    scores: list[tuple[float, float]], longest: int, count: int
) -> None:
    start, end = np.array(scores, np.float32).reshape(-1, 2).T
    tokens = range(len(scores))
    pairs = [(i, j) for i, j in product(tokens, tokens) if i <= j < i + longest]
    ordered = sorted(pairs, key=lambda pair: (-(start[pair[0]] + end[pair[1]]), *pair))[:count]
    assert best_pairs(start, end, longest, count) == [(i, j, start[i] + end[j]) for i, j in ordered]


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.integers(1, 40), room=st.integers(2, 16), seed=st.integers(0, 999), longest=st.integers(1, 9)
)
def test_each_answer_starts_in_the_one_window_that_owns_its_first_token(
    tokens: int, room: int, seed: int, longest: int
) -> None:
    random = np.random.default_rng(seed)
    passage = "".join(chr(97 + token % 26) for token in range(tokens))
    offsets = np.stack([np.arange(tokens), np.arange(tokens) + 1], axis=1)
    ranges = windows(range(tokens), room, room // 2)
    owners = owner(ranges)
    scored, expected = [], []
    for index, (begin, end) in enumerate(ranges):
        starts, ends = random.normal(size=(2, end - begin)).astype(np.float32)
        owned = owners[begin:end] == index
        scored.append(WindowScores(starts, ends, offsets[begin:end], 0.5 - index, -1.0, owned))
        for i, j in product(range(end - begin), repeat=2):
            if i <= j < i + longest and owned[i]:
                expected.append((float(starts[i] + ends[j]), begin + i, begin + j + 1))
    expected.sort(key=lambda row: -row[0])
    decoded = decode(passage, scored, longest=longest, n_best=5)
    assert [(answer.score, answer.start, answer.end) for answer in decoded.answers] == expected[:5]
    assert decoded.null_odds == pytest.approx(-0.5 - (len(ranges) - 1) - expected[0][0])


def test_the_same_characters_from_two_windows_are_one_answer() -> None:
    offsets = np.array([[0, 1], [1, 2]])
    low = WindowScores(np.array([1.0, 0.0]), np.array([1.0, 0.0]), offsets, 0.0, 0.0)
    high = WindowScores(np.array([2.0, 0.0]), np.array([2.0, 0.0]), offsets, 3.0, 3.0)
    decoded = decode("ab", [low, high])
    assert [(answer.text, answer.score) for answer in decoded.answers] == [("a", 4), ("ab", 2), ("b", 0)]
    assert decoded.null_odds == -4  # the lowest null score, of the first window, against the best answer


def test_confidence_is_the_product_of_both_softmax_probabilities() -> None:
    scores = WindowScores(np.array([1.0, 0.0]), np.array([0.0, 2.0]), np.array([[0, 1], [2, 3]]), 0.5, -1.0)
    answer = decode("a b", [scores]).answers[0]
    assert answer.text == "a b"
    assert answer.start_probability == pytest.approx(math.e / (math.e + 1 + math.exp(0.5)))
    assert answer.end_probability == pytest.approx(math.exp(2) / (1 + math.exp(2) + math.exp(-1)))
    assert answer.confidence == pytest.approx(answer.start_probability * answer.end_probability)


def test_blanks_inside_byte_level_tokens_are_no_part_of_the_answer() -> None:
    offsets = np.array([[0, 1], [1, 5], [5, 6]])  # "a", " big", "\n"
    assert decode("a big\n", [pointing_at(offsets, 1, 2)]).answers[0].text == "big"
    assert all(answer.text.strip() for answer in decode("a big\n", [pointing_at(offsets, 2, 2)]).answers)


def test_none_is_chosen_above_the_threshold_only() -> None:
    decoded = decode("ab", [pointing_at(np.array([[0, 1], [1, 2]]), 0, 1)])
    assert decoded.null_odds == -18
    assert [decoded.choose(threshold) for threshold in (-18.5, -19.0)] == [None, None]
    assert decoded.choose(-18.0) == decoded.choose() == decoded.answers[0]


def test_a_passage_without_tokens_has_no_answer() -> None:
    nothing = WindowScores(np.zeros(0), np.zeros(0), np.zeros((0, 2), np.int64), 1.0, 1.0)
    assert decode("\u200b", [nothing]) == RankedAnswers((), math.inf)
    assert decode("\u200b", [nothing]).choose() is None


def test_wrong_scores_are_refused() -> None:
    one = np.zeros(1)
    with pytest.raises(ValueError, match="the model has diverged"):
        decode("a", [WindowScores(np.array([np.nan]), one, np.array([[0, 1]]), 0.0, 0.0)])
    with pytest.raises(ValueError, match="as start scores, 1; found 2"):
        decode("a", [WindowScores(one, np.zeros(2), np.array([[0, 1]]), 0.0, 0.0)])
    with pytest.raises(ValueError, match="expected a window"):
        decode("a", [])


def test_a_gold_answer_is_found_in_the_windows_that_hold_all_of_it() -> None:
    offsets = offsets_of("one cafe\u0301, two")
    tokens = UNCASED.encode("one cafe\u0301, two").tokens
    first, last = tokens.index("c"), tokens.index("##e", tokens.index("c"))
    for end in (8, 9):  # with and without the accent that the tokenizer dropped
        assert gold_span(offsets, 4, end, (0, len(tokens))) == (first, last)
    assert gold_span(offsets, 4, 9, (first, last + 1)) == (0, last - first)
    assert gold_span(offsets, 4, 9, (first + 1, len(tokens))) is None
    assert gold_span(offsets, 4, 9, (0, last)) is None
    assert gold_span(offsets, 3, 4, (0, len(tokens))) is None  # a blank

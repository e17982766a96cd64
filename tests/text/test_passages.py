"""Documents are cut into passages that stand in them exactly as they are, and that lose nothing."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.errors import InputError
from bertsmith.text.retrieval.passages import Passage, PassageSettings, sentence_ends, split_passages
from bertsmith.text.tokens.tokenizer import Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?-"
TOKENIZER = Tokenizer.from_pieces(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)],
    lowercase=True,
)
SMALL = PassageSettings(tokens=12, overlap=4)
# What breaks offsets: accents in one character and in two, emoji of one and of several, every kind of blank.
ODD = [
    "é",
    "e\u0301",
    "🙂",
    "👩\u200d🔬",
    "ß",
    "中文",
    "\t",
    "\r\n",
    "\n\n",
    "\u00a0",
    "\u2003",
    "\x0b",
    "\ufffd",
    "İ",
]
TEXTS = st.lists(
    st.one_of(st.sampled_from([*ODD, " ", ". ", "! ", "Mr. Smith ", "e.g. "]), st.text(max_size=8)),
    max_size=40,
).map("".join)


def tokens(text: str) -> int:
    return len(TOKENIZER.encode(text).ids)


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, size=st.integers(8, 20), overlap=st.integers(0, 4))
def test_a_passage_is_what_stands_at_its_place_and_nothing_is_lost(
    text: str, size: int, overlap: int
) -> None:
    found = split_passages(text, TOKENIZER, PassageSettings(tokens=size, overlap=overlap))
    for passage in found:
        assert text[passage.start : passage.end] == passage.text
        assert passage.text == passage.text.strip() != ""
    covered = {place for passage in found for place in range(passage.start, passage.end)}
    assert all(place in covered for place, character in enumerate(text) if not character.isspace())
    starts = [passage.start for passage in found]
    assert starts == sorted(set(starts)), "passages stand in order, none twice"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(8, 30))
def test_none_is_longer_than_asked_for_and_only_the_last_is_shorter_than_half(seed: int, size: int) -> None:
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 3))) for _ in range(120)]
    text = "".join(word + draw.choice([" ", " ", ". ", "\n", "\n\n", "  "]) for word in words)
    found = split_passages(text, TOKENIZER, PassageSettings(tokens=size, overlap=0))
    counts = [tokens(passage.text) for passage in found]
    assert max(counts) <= size
    assert min(counts[:-1]) >= size // 2
    assert sum(counts) == tokens(text), "without an overlap no token stands in two passages"


def test_a_short_text_is_one_passage_and_a_blank_one_none() -> None:
    assert split_passages("  a b c\n", TOKENIZER, SMALL) == [Passage(2, 7, "a b c")]
    assert split_passages(" \n\t\r\n", TOKENIZER, SMALL) == []
    assert split_passages("", TOKENIZER, SMALL) == []


def test_a_paragraph_is_a_better_end_than_a_sentence_and_that_a_better_one_than_a_word() -> None:
    paragraph = "a b c d e f g.\n\nh i. j k l m n o p q"
    assert split_passages(paragraph, TOKENIZER, SMALL)[0].text == "a b c d e f g."
    sentence = "a b c d. Now f g h. I j k l m n o p q r"
    assert split_passages(sentence, TOKENIZER, SMALL)[0].text == "a b c d. Now f g h."
    line = "a b c d e f g h\ni j k l m n o p q"
    assert split_passages(line, TOKENIZER, SMALL)[0].text == "a b c d e f g h"
    assert split_passages("ab cd ef gh ij kl mn op", TOKENIZER, SMALL)[0].text == "ab cd ef gh ij kl"


def test_the_overlap_begins_with_a_sentence_where_it_can() -> None:
    text = "a b c d e f g. Now i j. Then l m n o p q r s"
    first, second, *_ = split_passages(text, TOKENIZER, PassageSettings(tokens=16, overlap=6))
    assert first.text == "a b c d e f g. Now i j."
    assert second.text.startswith("Now i j. Then")


def test_a_word_longer_than_a_passage_is_cut() -> None:
    found = split_passages("a" * 60, TOKENIZER, PassageSettings(tokens=10, overlap=0))
    assert "".join(passage.text for passage in found) == "a" * 60
    assert {len(passage.text) for passage in found} == {10}


@pytest.mark.parametrize(
    "text", ["\u3042" * 9_999, "a" + " " * 9_999 + "b", "a " * 40 + "\u3042" * 400 + " b" * 40]
)
def test_what_is_one_token_or_none_for_the_model_still_ends(text: str) -> None:
    """A word of any length is one [UNK], and blanks are nothing: a passage had no bound."""
    found = split_passages(text, TOKENIZER, PassageSettings(tokens=10, overlap=2))
    assert max(len(passage.text) for passage in found) <= 2 * 10 * 100
    covered = {place for passage in found for place in range(passage.start, passage.end)}
    assert all(place in covered for place, character in enumerate(text) if not character.isspace())


def test_an_unknown_word_of_usual_length_is_one_token() -> None:
    text = "a b c d \u3042\u3042\u3042 e f g h i j"
    assert (
        split_passages(text, TOKENIZER, PassageSettings(tokens=8, overlap=0))[0].text
        == "a b c d \u3042\u3042\u3042 e f g"
    )


def test_sentences_end_where_the_splitter_says_in_the_text_as_it_stands() -> None:
    text = "Dr. Smith\tcame  late.\r\nNobody   minded.\n\n“Really?” She did."
    ends = list(sentence_ends(text, "en"))
    pieces = [text[start:end] for start, end in zip([0, *ends], ends)]
    assert "".join(pieces) == text
    assert [" ".join(piece.split()) for piece in pieces] == [
        "Dr. Smith came late.",
        "Nobody minded.",
        "“Really?”",
        "She did.",
    ]


def test_an_overlap_of_more_than_half_is_refused() -> None:
    with pytest.raises(InputError, match=r"at most half of a passage's 10 tokens, found 6"):
        PassageSettings(tokens=10, overlap=6).checked()


@pytest.mark.parametrize("blanks", ["  ", "\n\n", " " * 300])
def test_no_passage_is_only_the_end_of_the_one_before(blanks: str) -> None:
    """With an overlap of half a passage, the blanks behind it could make a passage of the overlap alone."""
    text = f"abcd{blanks}efgh{blanks}".join(["ij kl mn op. "] * 6)
    found = split_passages(text, TOKENIZER, PassageSettings(tokens=8, overlap=4))
    ends = [passage.end for passage in found]
    assert ends == sorted(set(ends))

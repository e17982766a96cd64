"""Entities by character offsets → words and tags → the same offsets."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from bertsmith.errors import InputError
from bertsmith.metrics.entities import Span
from bertsmith.tasks.examples.tagged_example import character_spans, tag_text, word_offsets

LATIN = ["Zoë", "e\u0301a", "x", "7", "!", "हिन्दी", "\u200b", "\ud800", "É", "5€"]
UNSPACED = ["東", "京", "が", "カ\u3099", "ー", "ไ", "ก็", "เทพ", "서울", "ᄀ", "、", "ﾊ"]
PICTURES = ["😀", "👩\u200d👧", "👍🏽", "🇩🇪", "❤️"]
WORD = st.sampled_from([*LATIN, *UNSPACED, *PICTURES])
GAP = st.sampled_from(["", " ", "  ", "\t", "\n", "\u3000", "\u00a0"])


PIECES = st.lists(st.tuples(WORD, GAP), max_size=12)


@settings(max_examples=60, derandomize=True)
@given(PIECES, st.data())
def test_spans_on_word_borders_come_back_to_the_character(
    pieces: list[tuple[str, str]], data: st.DataObject
) -> None:
    check_round_trip(pieces, data)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=20_000)
@given(PIECES, st.data())
def test_spans_come_back_in_many_cases(pieces: list[tuple[str, str]], data: st.DataObject) -> None:
    check_round_trip(pieces, data)


def check_round_trip(pieces: list[tuple[str, str]], data: st.DataObject) -> None:
    text = "".join(word + gap for word, gap in pieces)
    offsets = word_offsets(text)
    spans, place = [], 0
    while place < len(offsets):
        words = data.draw(st.integers(1, len(offsets) - place))
        if data.draw(st.booleans()):
            label = data.draw(st.sampled_from(["PER", "a-b"]))
            spans.append(Span(label, offsets[place][0], offsets[place + words - 1][1]))
        place += words
    tagged = tag_text(text, reversed(spans))
    assert character_spans(tagged.tags, tagged.offsets) == spans
    assert tagged.widened == []
    assert tagged.words == [text[start:end] for start, end in tagged.offsets]
    left = "".join(text[a:b] for a, b in zip([0] + [e for _, e in offsets], [s for s, _ in offsets] + [None]))
    assert left.replace("\u200b", "").strip() == "", "only blanks lie between words"


def test_words_are_split_at_blanks_and_punctuation_and_chinese_characters_stand_alone() -> None:
    text = "Don't  pay\t3.5€ in 東京, Zoe\u0308!"
    words = [text[start:end] for start, end in word_offsets(text)]
    assert words == ["Don", "'", "t", "pay", "3", ".", "5€", "in", "東", "京", ",", "Zoe\u0308", "!"]


def test_a_span_amid_a_word_is_widened_and_listed_and_blanks_at_its_ends_do_not_count() -> None:
    text = "Parisian lofts of  Marie Curie ."
    spans = [Span("LOC", 0, 5), Span("PER", 18, 31)]
    tagged = tag_text(text, spans)
    assert tagged.tags == ["B-LOC", "O", "O", "B-PER", "I-PER", "O"]
    assert tagged.widened == [Span("LOC", 0, 5)]
    assert character_spans(tagged.tags, tagged.offsets) == [Span("LOC", 0, 8), Span("PER", 19, 30)]


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 5), (4, 8)], r"A from 0 to 5 \('Marie'\) and the span B from 4 to 8 .* overlap"),
        ([(0, 11), (6, 11)], "overlap"),
        ([(6, 8), (8, 11)], r"\('Cu'\) and .* \('rie'\) lie in one word"),
        ([(5, 6)], "at least one word; .* has none"),
        ([(3, 3)], "at least one character .* found A from 3 to 3"),
        ([(6, 12)], "within the text of 11 characters, found A from 6 to 12"),
        ([(-3, 2)], "found A from -3 to 2"),
        ([(4, 2)], "found A from 4 to 2"),
    ],
)
def test_spans_that_cannot_be_tags_are_refused(spans: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tag_text("Marie Curie", [Span(label, *span) for label, span in zip("AB", spans)])


def test_a_tag_is_needed_for_each_word() -> None:
    with pytest.raises(ValueError, match="1 tags for 2 words"):
        character_spans(["O"], word_offsets("Marie Curie"))


def test_the_words_of_a_long_text_are_those_of_the_whole() -> None:
    text = "Don't pay 3.5\u20ac in \u6771\u4eac, Zoe\u0308!\n\t\u00a0 " * 4000 + "x" * 40_000 + " end"
    words = [pre_tokenizers.Split(Regex(r"\p{Han}"), "isolated"), pre_tokenizers.BertPreTokenizer()]
    whole = [offsets for _, offsets in pre_tokenizers.Sequence(words).pre_tokenize_str(text)]
    assert list(word_offsets(text)) == whole
    assert list(word_offsets(text)[7:9]) == whole[7:9]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("私はＡＢＣ東京タワーへTシャツ。", "私 は ＡＢＣ 東 京 タ ワ ー へ T シ ャ ツ 。"),
        ("กรุงเทพ\u200bน้ำ", "ก รุ ง เ ท พ น้ ำ"),
        ("서울에서 Seoul에서東", "서울에서 Seoul에서 東"),
        ("😀Anna👍🏽x 👩\u200d👧🇩🇪🇫🇷 ❤️z", "😀 Anna 👍🏽 x 👩\u200d👧 🇩🇪 🇫🇷 ❤️ z"),
        ("soft\u00adhyphen東", "soft\u00adhyphen 東"),
        ("か\u3099a→b10月1日", "か\u3099 a → b10 月 1 日"),
        ("ភ្នំពេញ ကို", "ភ្ នំ ពេ ញ ကို"),
    ],
)
def test_in_scripts_without_blanks_each_character_is_a_word_with_its_marks(text: str, words: str) -> None:
    assert list(word_offsets(text).words(text)) == words.split()


def test_marked_korean_is_divided_by_syllables() -> None:
    text = "서울에서 Seoul에서"
    assert list(word_offsets(text, syllables=True).words(text)) == [
        "서",
        "울",
        "에",
        "서",
        "Seoul",
        "에",
        "서",
    ]
    assert tag_text(text, [Span("LOC", 0, 2)]).tags[:3] == ["B-LOC", "I-LOC", "O"]


@pytest.mark.parametrize(
    "text", ["私は東京タワーへ行く", "กรุงเทพเป็นเมืองหลวง", "我爱北京天安门", "서울에서김철수"]
)
def test_every_span_of_whole_characters_comes_back(text: str) -> None:
    offsets = word_offsets(text, syllables=True)
    for first in range(len(offsets)):
        for last in range(first, len(offsets)):
            span = Span("X", offsets[first][0], offsets[last][1])
            tagged = tag_text(text, [span])
            assert tagged.widened == []
            assert character_spans(tagged.tags, tagged.offsets) == [span]

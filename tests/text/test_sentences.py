"""Paragraphs and sentences: where a line end breaks, and where a full stop does not."""

import json
import re
from pathlib import Path
from random import Random

import pytest
import sentencex
from hypothesis import given
from hypothesis import strategies as st
from sentencex import segment

from bertsmith.text.prose.sentences import (
    LineLayout,
    RawDocument,
    read_sentences,
    split_paragraphs,
    split_sentences,
)


def found(text: str, layout: LineLayout = "folded") -> list[str]:
    return read_sentences(RawDocument(0, "d", text, layout), "en")


def test_folded_lines_are_joined_and_blank_lines_break() -> None:
    text = "This line was folded by an editor at about\nseventy columns. A second one.\n\nNew paragraph"
    assert found(text) == [
        "This line was folded by an editor at about seventy columns.",
        "A second one.",
        "New paragraph",
    ]


def test_headings_and_list_items_stay_apart() -> None:
    text = (
        "Results\nThe first of the findings is by far the most\nimportant one:\n"
        "- apples and pears that are ripe\n- plums"
    )
    assert list(split_paragraphs(text)) == [
        "Results",
        "The first of the findings is by far the most important one:",
        "- apples and pears that are ripe",
        "- plums",
    ]


def test_in_wide_text_every_line_is_a_paragraph() -> None:
    assert list(split_paragraphs("word " * 30 + "\nshort line\nanother")) == [
        ("word " * 30).strip(),
        "short line",
        "another",
    ]


def test_paragraph_lines_break_without_a_full_stop() -> None:
    assert found("Early life\nBorn in Kiel. Died in Bonn.", "paragraph-lines") == [
        "Early life",
        "Born in Kiel.",
        "Died in Bonn.",
    ]


def test_sentence_lines_are_taken_as_they_are() -> None:
    assert found("One. Two.\n\n  Three   spaces ", "sentence-lines") == ["One. Two.", "Three spaces"]


def test_abbreviations_and_dotted_names_do_not_end_a_sentence() -> None:
    assert split_sentences("Mr. Smith uses torch.Tensor and sympy.Matrix. He is happy.", "en") == [
        "Mr. Smith uses torch.Tensor and sympy.Matrix.",
        "He is happy.",
    ]


def test_scripts_without_spaces_are_split_at_their_own_full_stops() -> None:
    assert split_sentences("今日は晴れです。明日は雨です。", "ja") == ["今日は晴れです。", "明日は雨です。"]


@pytest.mark.parametrize("language", ["zh", "ja", "en"])
def test_a_long_paragraph_without_spaces_is_split_as_the_library_does_and_in_linear_time(
    language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [
        "今天天气很好。",
        "我们去公园！",
        "真的？",
        "（他说。真的。）好。",
        "“走！我们走。”",
        '"走。走"，',
        "ガ！？",
        "也3。",  # before a digit the library misses an end, see below
        "他说",
    ]
    text = "".join(Random(0).choices(some, k=900))
    parts: list[int] = []

    def measured(language: str, text: str) -> list[str]:
        parts.append(len(text))
        return segment(language, text)

    monkeypatch.setattr(sentencex, "segment", measured)
    assert split_sentences(text, language) == [piece.strip() for piece in segment(language, text)]
    assert max(parts) < 1100 and len(parts) > 3
    parts.clear()
    split_sentences("（" + "今天天气很好。" * 3000, language)  # a bracket that is never closed
    assert max(parts) < 6000


@pytest.mark.parametrize(
    "sentences",
    [
        ["价格是5元。", "3天后涨价！", "iOS很好？", "Android也好。", "１２３。"],
        ["（见第3章。2节）完了。", "3个人说“好。3天后见。”", "然后走了。"],
        ["他买了iPhone？", "a是字母。", "B也是。", "（完）"],
    ],
)
def test_chinese_sentences_end_before_digits_and_letters_too(sentences: list[str]) -> None:
    """Compared with one another by hand: sentencex finds ends before Chinese characters and capitals."""
    assert split_sentences("".join(sentences), "zh") == sentences


def test_chinese_sentences_joined_without_a_blank_are_found_again(shared_data: Path) -> None:
    """Rows that begin with a digit or a letter, behind others; sentencex finds 65 of 300."""
    lines = (shared_data / "parallel" / "zh.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line)["text"] for line in lines]
    whole = [row for row in rows if row[-1] in "。！？" and split_sentences(row, "zh") == [row]]
    behind = [row for row in whole if re.match("[0-9A-Za-z]", row)]
    assert len(behind) > 50
    for before, row in zip(Random(0).choices(whole, k=len(behind)), behind, strict=True):
        assert split_sentences(before + row, "zh") == [before, row]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_splitting_loses_nothing_but_white_space(text: str) -> None:
    pieces = split_sentences(text, "en")
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(piece and piece == piece.strip() for piece in pieces)


def test_khmer_and_tibetan_end_sentences_with_marks_of_their_own() -> None:
    assert split_sentences("ខ្ញុំទៅផ្សារ។ គាត់មក។", "km") == ["ខ្ញុំទៅផ្សារ។", "គាត់មក។"]
    assert split_sentences("«ខ្ញុំទៅផ្សារ។» គាត់មក។", "km") == ["«ខ្ញុំទៅផ្សារ។» គាត់មក។"]
    assert split_sentences("བོད་སྐད། ། ང་འགྲོ་གི་ཡོད།", "bo") == ["བོད་སྐད། །", "ང་འགྲོ་གི་ཡོད།"]


@pytest.mark.parametrize("language", ["th", "en"])
def test_a_thai_paragraph_is_divided_at_blanks_between_its_letters(language: str) -> None:
    clause, short = "สำหรับผู้ที่ติดตามการเปลี่ยนผ่านเรื่องนี้จะแตกต่างไปเล็กน้อยแต่ไม่มาก", "เขากล่าว"
    assert split_sentences(f"{clause} {short} {clause} {short}", language) == [
        clause,
        f"{short} {clause}",
        short,
    ]
    assert split_sentences(f"{clause} 25 {short} (ไทย)", language) == [f"{clause} 25 {short} (ไทย)"]
    assert split_sentences(short, language) == [short]


@pytest.mark.parametrize("language", ["ja", "en"])
@pytest.mark.parametrize(
    "sentences",
    [
        ["彼は「Hello, world!」と言った。", "次の文です。"],
        ["彼は「行く。帰る。」と言った。", "（注。ここ。）です。", "終わり。"],
        ["『本当？！はい。「いや！」だ。』と聞いた。", "はい。"],
        ["本当？！", "ﾊﾝｶｸのﾃｽﾄ｡", "｢はい｡いいえ｡｣と言う｡", "すごい！！", "え⁉", "そう．"],
        ["円周率は３．１４である．", "アドレスはｗｗｗ．ｊｐだ．"],
        ["`を入力します。", "次の文です。", "`の後。"],
        ["`foo`は関数です。", "次に`bar`を呼ぶ。"],
        ['"走る。歩く。"と書く。', '"Hello, world!"と書く。', '６"のねじ。', "次。"],
        ["閉じない「かっこ。", "次の文です。"],
        ["開かないかっこ。」", "次の文だ。"],
        ["これはSmithの本です。", "Really? ", "そうです。"],
        ["「はい！」、と答えた。", "え？、と思う。", "終わりがない"],
        ["すごいね(笑)。", "そう。", '"続ける"を押す。', "2回目の次。", ".txtを開く。"],
        ["開かない。」、と言う。", "次。"],
    ],
)
def test_japanese_sentences_end_outside_of_brackets(sentences: list[str], language: str) -> None:
    assert split_sentences("".join(sentences), language) == [sentence.strip() for sentence in sentences]


@given(st.text('あ。！「」（）"`『』a.! ', max_size=80))
def test_splitting_japanese_loses_nothing_and_cuts_in_no_short_bracket(text: str) -> None:
    pieces = split_sentences(text, "ja")
    assert "".join("".join(pieces).split()) == "".join(text.split())
    whole = f"は「{text.translate(dict.fromkeys(map(ord, '「」')))}。」だ。"
    assert len(split_sentences(whole, "ja")) == 1


def test_a_long_japanese_paragraph_is_split_in_linear_time() -> None:
    sentence = "彼は「Hello, world!」と言い、（笑。）駅へ行った。"
    assert split_sentences(sentence * 20_000, "ja") == [sentence] * 20_000
    assert len(split_sentences("「" * 20_000 + "次。" * 20_000 + "の", "ja")) == 20_001
    assert len(split_sentences("「" * 50_000 + ")" * 50_000 + "の", "ja")) == 1


def test_folded_lines_of_japanese_are_joined_without_a_blank() -> None:
    first, second = (
        "春はあけぼの。やうやう白くなりゆく山ぎは、すこし明かりて、紫だ",
        "ちたる雲の細くたなびきたる。",
    )
    assert list(split_paragraphs(f"{first}\n{second}")) == [first + second]
    assert list(split_paragraphs(f"これは English\nの{first}")) == ["これは English", f"の{first}"]
    assert list(split_paragraphs(f"{first}\nword word word word word word word word")) == [
        f"{first} word word word word word word word word"
    ]


def test_lines_of_more_than_sixty_wide_characters_are_paragraphs() -> None:
    assert list(split_paragraphs("春" * 61 + "\n" + "夏" * 50)) == ["春" * 61, "夏" * 50]
    assert list(split_paragraphs("春" * 60 + "\n" + "夏" * 50)) == ["春" * 60 + "夏" * 50]

"""Tagged sentences from columns and from JSON lines."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.errors import InputError
from bertsmith.text.labelled.conll import MarkedText, TaggedSentence, read_tagged

SMALL = "-DOCSTART- -X- O\n\nEU NNP B-ORG\n# # O\n\n-DOCSTART- -X- O\n\n\nRome NNP B-LOC"
MORE = "1-2\tdu\t_\t_\n1\tde\tde\tADP\n2\tle\tle\tDET\n2.1\tx\tx\tX\n"


def put(folder: Path, content: str, name: str = "a.conll") -> Path:
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize(
    ("file", "sentences", "words", "documents"),
    [  # Tjong Kim Sang and De Meulder 2003, table 1
        ("iob2_train.txt", 14_041, 203_621, 946),
        ("eng.testa", 3_250, 51_362, 216),
        ("eng.testb", 3_453, 46_435, 231),
    ],
)
def test_conll_2003_has_its_published_counts(
    shared_data: Path, file: str, sentences: int, words: int, documents: int
) -> None:
    found = read_tagged(shared_data / "conll2003" / file)
    assert len(found) == sentences
    assert sum(len(sentence.words) for sentence in found) == words
    assert len({sentence.document for sentence in found}) == found[-1].document + 1 == documents


def test_sentences_documents_and_places(tmp_path: Path) -> None:
    path = put(tmp_path, SMALL)
    assert read_tagged(path) == [
        TaggedSentence(("EU", "#"), ("B-ORG", "O"), 0, f"{path}, line 3"),
        TaggedSentence(("Rome",), ("B-LOC",), 1, f"{path}, line 9"),
    ]
    assert [sentence.tags for sentence in read_tagged(path, tag_column=2)] == [("NNP", "#"), ("NNP",)]
    assert [sentence.tags for sentence in read_tagged(path, tagged=False)] == [(), ()]


def test_tabs_keep_blanks_in_words_and_a_no_break_space_is_a_word(tmp_path: Path) -> None:
    assert read_tagged(put(tmp_path, "New York\tB-LOC\n"))[0].words == ("New York",)
    assert read_tagged(put(tmp_path, "\u00a0 O\n"))[0].words == ("\u00a0",)


def test_conll_u_has_comments_contractions_and_documents(tmp_path: Path) -> None:
    path = put(tmp_path, f"# newdoc\n# text = du\n{MORE}\n# newdoc\n{MORE}\n", "a.conllu")
    assert [(s.words, s.tags, s.document) for s in read_tagged(path)] == [
        (("de", "le"), ("ADP", "DET"), document) for document in (0, 1)
    ]


_WORD = st.text(st.characters(codec="utf-8", exclude_characters=" \t\n\r\0"), min_size=1)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.tuples(_WORD, _WORD.filter(str.strip)), min_size=1), min_size=1))
def test_both_forms_give_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[tuple[str, str]]]
) -> None:
    folder = tmp_path_factory.mktemp("tagged")
    columns = "\n\n".join("\n".join(f"w {word} {tag}" for word, tag in sentence) for sentence in sentences)
    found = read_tagged(put(folder, columns), word_column=2)
    sentences = [[(word, tag.strip()) for word, tag in sentence] for sentence in sentences]
    assert [list(zip(sentence.words, sentence.tags)) for sentence in found] == sentences
    usable = [sentence for sentence in sentences if all(word.strip() for word, _ in sentence)]
    rows = [{"tokens": [w for w, _ in s], "labels": [t for _, t in s]} for s in [*usable, [("a", "O")]]]
    again = read_tagged(put(folder, "\n".join(map(json.dumps, rows)), "a.jsonl"))
    assert [list(zip(s.words, s.tags)) for s in again] == [*usable, [("a", "O")]]


@pytest.mark.parametrize(
    ("content", "options", "complaint"),
    [
        ("\n\n", {}, r"a\.conll has no sentences"),
        ("a N O\nb N\n", {}, r"a\.conll, line 2: expected 3 columns, found 2: 'b N'"),
        ("a N O\nb N\n", {"tag_column": 3}, r"a\.conll, line 2: expected 3 columns, found 2"),
        ("a\n", {}, r"a\.conll, line 1: expected 2 columns, found 1"),
        ("a\tO\n\tO\n", {}, r"a\.conll, line 2: expected a word and a tag, found an empty column"),
        ("a O\n", {"tag_column": 0}, "columns count from 1"),
        ("a O\n", {"tag_column": "ner"}, "CoNLL columns have numbers only"),
    ],
)
def test_a_broken_line_is_named(
    tmp_path: Path, content: str, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        read_tagged(put(tmp_path, content), **options)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"words": ["a", "b"], "tags": ["O"]}, "line 2: .* found 2 words and 1 tags"),
        ({"words": ["a"], "ner_tags": [3]}, "line 2: expected strings under 'ner_tags', found 3"),
        (
            {"text": "a", "tokens": [{"text": "a", "start": 0}], "spans": []},
            "line 2: expected strings .* Name the key of the text or of its words with --text",
        ),
        ({"words": "a", "tags": "O"}, "line 2: expected a list of strings under 'words', found str"),
        ({"sentence": "a"}, "line 2: no column 'words'. There are: sentence"),
        ({"text": "a"}, "line 2: no column 'spans'. There are: text"),
        ({"words": [], "tags": ["O"]}, "line 2: found 'tags', but no text under 'words'"),
        (
            {"text": " ", "spans": [{"start": 0, "end": 1, "label": "X"}]},
            "line 2: found 'spans', but no text under 'text'",
        ),
        (
            {"text": "a", "spans": [[0, 1]]},
            r"line 2: expected 'spans', a list of objects .* found \[\[0, 1\]\]",
        ),
        (
            {"text": "a", "spans": [{"start": 0, "end": 0.5, "label": "X"}]},
            "line 2: expected 'spans', .* in whole characters",
        ),
        (
            {"text": "a", "spans": [{"start": 0, "end": float("inf"), "label": "X"}]},
            "line 2: expected 'spans', .* in whole characters",
        ),
    ],
)
def test_a_broken_object_is_named(tmp_path: Path, row: dict[str, Any], complaint: str) -> None:
    good = {"words": ["a"], "tags": ["O"]}
    with pytest.raises(InputError, match=complaint):
        read_tagged(put(tmp_path, json.dumps(good) + "\n" + json.dumps(row), "a.jsonl"))


@pytest.mark.parametrize(
    "content",
    [
        "Anna Weber visits Oslo\nThe court sits\n",
        "Anna Weber\nCarl Fox\n",  # equally long, but nothing divides them
        "Anna Weber\n\nCarl Fox\n",  # and these would be sentences of one word
        "Anna\n\nThe court sits\nin Oslo\n",
    ],
)
@pytest.mark.parametrize("name", ["plain.txt", "plain", "plain.txt.gz"])
def test_to_predict_running_text_is_a_sentence_a_line(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    lines = content.removesuffix("\n").split("\n")
    assert read_tagged(path, tagged=False) == [
        MarkedText(line, (), f"{path}, line {number}") for number, line in enumerate(lines, 1)
    ]


@pytest.mark.parametrize("name", ["a.txt", "eng.testa", "a.conll"])
@pytest.mark.parametrize(
    "content", [SMALL, "EU\tB-ORG\nmoves\tO\n\nNew York\tB-LOC\n", "EU\nmoves\n\nRome\n"]
)
def test_columns_are_known_by_their_looks_whatever_the_ending(
    tmp_path: Path, name: str, content: str
) -> None:
    found = read_tagged(put(tmp_path, content, name), tagged=False)
    assert all(isinstance(sentence, TaggedSentence) for sentence in found)
    assert (len(found), len(found[0].words)) == (2, 2)


def test_conll_2003_is_predicted_as_columns(shared_data: Path) -> None:
    for name in ("iob2_test.txt", "eng.testb"):
        found = read_tagged(shared_data / "conll2003" / name, tagged=False)
        assert (len(found), found[0].words[:2]) == (3_453, ("SOCCER", "-"))


def test_running_text_under_the_name_of_columns_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "Anna Weber visits Oslo\nThe court sits\n")
    with pytest.raises(InputError, match=r"a\.conll, line 2: expected 4 columns, found 3.*--format lines"):
        read_tagged(path, tagged=False)
    assert [type(each) for each in read_tagged(path, tagged=False, format="lines")] == [MarkedText] * 2
    with pytest.raises(InputError, match=r"There is no format 'lines' .* Choose one of conll, conllu, json"):
        read_tagged(path, format="lines")


@pytest.mark.parametrize("packed", [False, True])
def test_text_and_words_may_stand_in_one_file(tmp_path: Path, packed: bool) -> None:
    rows = [
        {"text": "Anna visits", "spans": [{"start": 0, "end": 4, "label": "PER"}]},
        {"words": ["Rome"], "tags": ["B-LOC"]},
    ]
    content = "\n".join(map(json.dumps, rows)).encode()
    path = tmp_path / ("a.jsonl.gz" if packed else "a.jsonl")
    path.write_bytes(gzip.compress(content) if packed else content)
    marked, sentence = read_tagged(path)
    assert marked == MarkedText("Anna visits", (("PER", 0, 4),), f"{path}, line 1")
    assert sentence == TaggedSentence(("Rome",), ("B-LOC",), 1, f"{path}, line 2")
    assert read_tagged(path, tagged=False)[0] == MarkedText("Anna visits", (), f"{path}, line 1")


def test_standard_input_is_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.TextIOWrapper(io.BytesIO(b'{"text": "Anna Weber visits Oslo"}\n'))
    monkeypatch.setattr("sys.stdin", piped)
    (found,) = read_tagged("-", tagged=False)
    assert found == MarkedText("Anna Weber visits Oslo", (), "standard input, line 1")


def test_another_key_may_hold_the_text(tmp_path: Path) -> None:
    path = put(tmp_path, '{"body": "Anna visits"}', "a.jsonl")
    assert read_tagged(path, word_column="body", tagged=False)[0] == MarkedText(
        "Anna visits", (), f"{path}, line 1"
    )


def test_a_sentence_of_nothing_but_contractions_is_none(tmp_path: Path) -> None:
    content = "1-2\tdel\t_\t_\n8.1\tsaw\t_\tVERB\n\n1\tde\t_\tADP\n"
    (found,) = read_tagged(put(tmp_path, content, "a.conllu"))
    assert (found.words, found.where) == (("de",), f"{tmp_path}/a.conllu, line 4")


EMOJI = "😀 张三去北京。\nAnna Müller kam."
CHARACTERS = {"张三": 2, "北京": 5, "Anna Müller": 9}


def marked(tmp_path: Path, text: str, spans: list[tuple[int, int, str]], key: str = "text") -> Path:
    found = [{"start": start, "end": end, "label": "X", key: words} for start, end, words in spans]
    path = tmp_path / "spans.jsonl"
    path.write_text(json.dumps({"text": text, "spans": found}) + "\n")
    return path


def counted(size: Callable[[str], int], text: str = EMOJI) -> list[tuple[int, int, str]]:
    return [
        (size(text[: text.index(words)]), size(text[: text.index(words)]) + size(words), words)
        for words in CHARACTERS
    ]


@pytest.mark.parametrize("key", ["text", "surface", "mention", "word"])
def test_spans_that_say_their_text_are_read_where_they_stand_there(tmp_path: Path, key: str) -> None:
    (found,) = read_tagged(marked(tmp_path, EMOJI, counted(len), key))
    assert isinstance(found, MarkedText)
    assert [found.text[start:end] for _, start, end in found.spans] == [*CHARACTERS]


@pytest.mark.parametrize(
    ("size", "unit"),
    [
        (lambda text: len(text.encode("utf-16-le")) // 2, "UTF-16 units"),
        (lambda text: len(text.encode()), "bytes of UTF-8"),
    ],
)
def test_offsets_in_other_units_are_refused_and_named(
    tmp_path: Path, size: Callable[[str], int], unit: str
) -> None:
    sentence = rf"line 1: .* but its text says '张三'.* 3 of the 3 .*count {unit}"
    for key in ("text", "value", "quote", "entity"):
        with pytest.raises(InputError, match=sentence):
            read_tagged(marked(tmp_path, EMOJI, counted(size), key))


@pytest.mark.parametrize("value", ["Zhang San", "北京"])
def test_a_value_that_the_text_has_nowhere_or_elsewhere_is_none_of_the_spans_own(
    tmp_path: Path, value: str
) -> None:
    (found,) = read_tagged(marked(tmp_path, EMOJI, [(2, 4, value)], "value"))
    assert isinstance(found, MarkedText) and found.spans == (("X", 2, 4),)


@pytest.mark.parametrize(
    ("text", "there", "unit"),
    [
        ("a\nb\nAnna kam", "a\r\nb\r\nAnna kam", r"a line feed as two \(CRLF\)"),
        ("a\r\nb\r\nAnna kam", "a\nb\nAnna kam", "as one"),
        ("a b Anna kam", " a b Anna kam", "from 1"),
    ],
)
def test_offsets_of_another_spelling_of_the_text_are_named(
    tmp_path: Path, text: str, there: str, unit: str
) -> None:
    start = there.index("Anna")
    with pytest.raises(InputError, match=unit):
        read_tagged(marked(tmp_path, text, [(start, start + 4, "Anna")]))


WORDS = ["Anna", "Müller", "Rom"]
LINES = ["😀 Anna kam.", "Von 😀 Müller 🎉 nichts.", "\u201cJa\u201d 😀 nach Rom\nund weg", "Nun Anna."]


def without_texts(path: Path, lines: list[str], at: Callable[[str], int], ends: tuple[int, int]) -> Path:
    rows = []
    for line in lines:
        name = next(name for name in WORDS if name in line)
        start = line.index(name)
        places = at(line[:start]) + ends[0], at(line[: start + len(name)]) + ends[1]
        rows.append({"text": line, "spans": [{"start": places[0], "end": places[1], "label": "X"}]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("at", "ends", "unit"),
    [
        (lambda text: len(text.encode("utf-16-le")) // 2, (0, 0), "UTF-16 units"),
        (lambda text: len(text.encode()), (0, 0), "bytes of UTF-8"),
        (len, (1, 1), "from 1"),
        (len, (0, -1), "the last character as the end"),
        (len, (1, 0), "from 1, with the last character as the end"),
    ],
)
def test_spans_that_would_be_words_in_other_units_are_refused(
    tmp_path: Path, at: Callable[[str], int], ends: tuple[int, int], unit: str
) -> None:
    with pytest.raises(InputError, match=rf"line 1: the span X .* divides a word\. . such .* count {unit}"):
        read_tagged(without_texts(tmp_path / "a.jsonl", LINES, at, ends))
    assert len(read_tagged(without_texts(tmp_path / "b.jsonl", LINES, len, (0, 0)))) == 4


def test_some_spans_that_divide_words_among_many_that_do_not_are_slips(tmp_path: Path) -> None:
    wrong = without_texts(tmp_path / "a.jsonl", LINES, len, (0, -1)).read_text()
    right = without_texts(tmp_path / "b.jsonl", LINES, len, (0, 0)).read_text()
    path = tmp_path / "c.jsonl"
    path.write_text(wrong + right * 10)
    assert len(read_tagged(path)) == 44


def test_a_label_of_a_span_is_a_name(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": "Anna", "spans": [{"start": 0, "end": 4, "label": label}]} for label in (" PER ", None)]
    path.write_text(json.dumps(rows[0]))
    (found,) = read_tagged(path)
    assert isinstance(found, MarkedText) and found.spans == (("PER", 0, 4),)
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="line 2: expected a label, found nothing"):
        read_tagged(path)


@pytest.mark.parametrize("labels", [("O", "PER"), ("B-PER", "I-PER")])
def test_a_span_is_not_labelled_by_a_tag(tmp_path: Path, labels: tuple[str, str]) -> None:
    spans = [{"start": 5 * n, "end": 5 * n + 4, "label": label} for n, label in enumerate(labels)]
    with pytest.raises(InputError, match=r"line 1: the label of a span is '[OI].*', which is a word's tag"):
        read_tagged(put(tmp_path, json.dumps({"text": "Anna Rosa kam", "spans": spans}), "a.jsonl"))


@pytest.mark.parametrize("name", ["a.csv", "a.csv.x", "a.PARQUET", "a.xlsx"])
@pytest.mark.parametrize("tagged", [True, False])
def test_a_table_is_refused_by_its_name(tmp_path: Path, name: str, tagged: bool) -> None:
    path = put(tmp_path, "id,text\n1,Anna kam\n", name)
    with pytest.raises(InputError, match=r"not from a table\. Make it JSON lines .* pandas\.read_"):
        read_tagged(path, tagged=tagged)
    found = read_tagged(path, tagged=False, format="lines")
    assert len(found) == 2


def test_ends_that_are_the_last_character_are_named(tmp_path: Path) -> None:
    spans = [(start, end - 1, words) for start, end, words in counted(len)]
    with pytest.raises(InputError, match="count the last character as the end"):
        read_tagged(marked(tmp_path, EMOJI, spans))
    spans = [(start, end - 1, words) for start, end, words in counted(lambda each: len(each.encode()))]
    with pytest.raises(InputError, match="bytes of UTF-8 and the last character as the end"):
        read_tagged(marked(tmp_path, EMOJI, spans))


def test_a_single_span_that_is_off_is_refused_without_a_guess(tmp_path: Path) -> None:
    spans = [*counted(len)[:2], (0, 4, "Anna Müller")]
    with pytest.raises(InputError, match=r"1 of the 3 spans that say their text\. Offsets must count"):
        read_tagged(marked(tmp_path, EMOJI, spans))


def test_blanks_and_composed_accents_of_a_spans_text_do_not_count(tmp_path: Path) -> None:
    text = "Anna  Mu\u0308ller kam"
    (found,) = read_tagged(marked(tmp_path, text, [(0, 13, "Anna Müller ")]))
    assert isinstance(found, MarkedText)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (
            {"tokens": ["Rome"], "tags": ["NNP"], "ner_tags": ["B-LOC"]},
            "'tags' and 'ner_tags' could both be the",
        ),
        (
            {"words": ["rome"], "tokens": ["Rome"], "tags": ["B-LOC"]},
            "'words' and 'tokens' could both be the",
        ),
        (
            {"text": "Rome", "spans": [], "entities": [{"start": 0, "end": 4, "label": "LOC"}]},
            "both be the spans",
        ),
        ({"text": "Rome", "spans": [{"start": 0, "end": "0_4", "label": "LOC"}]}, "in whole characters"),
    ],
)
def test_of_two_lists_none_is_chosen_silently(tmp_path: Path, row: dict[str, Any], complaint: str) -> None:
    path = put(tmp_path, json.dumps(row), "a.jsonl")
    with pytest.raises(InputError, match=complaint):
        read_tagged(path)


def test_a_null_key_is_as_good_as_none(tmp_path: Path) -> None:
    """pandas writes nulls where two kinds of rows are one table: the rows of the second kind were empty."""
    rows = [
        {"words": ["Rome"], "tags": ["B-LOC"], "text": None, "spans": None, "entities": None},
        {"words": None, "tags": None, "text": "Rome is old", "spans": None, "entities": []},
    ]
    path = put(tmp_path, "\n".join(map(json.dumps, rows)), "a.jsonl")
    for tagged in (True, False):
        first, second = read_tagged(path, tagged=tagged)
        assert isinstance(first, TaggedSentence)
        assert first.words == ("Rome",)
        assert isinstance(second, MarkedText)
        assert second.text == "Rome is old"


def test_of_two_lists_one_is_named_or_is_no_other(tmp_path: Path) -> None:
    row = {"tokens": ["Rome"], "words": ["Rome"], "tags": ["NNP"], "ner_tags": ["B-LOC"], "text": "Rome"}
    path = put(tmp_path, json.dumps(row), "a.jsonl")
    assert read_tagged(path, tag_column="ner_tags")[0].tags == ("B-LOC",)  # type: ignore[union-attr]
    path = put(tmp_path, json.dumps(row | {"ner_tags": [5]}), "a.jsonl")  # numbers, which aren't read
    assert read_tagged(path)[0].tags == ("NNP",)  # type: ignore[union-attr]

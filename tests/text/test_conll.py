"""Tagged sentences from columns and from JSON lines."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.errors import InputError
from bertsmith.text.conll import Sentence, read_tagged

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
        Sentence(("EU", "#"), ("B-ORG", "O"), 0, "a.conll, line 3"),
        Sentence(("Rome",), ("B-LOC",), 1, "a.conll, line 9"),
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
@given(st.lists(st.lists(st.tuples(_WORD, _WORD), min_size=1), min_size=1))
def test_both_forms_give_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[tuple[str, str]]]
) -> None:
    folder = tmp_path_factory.mktemp("tagged")
    columns = "\n\n".join("\n".join(f"w {word} {tag}" for word, tag in sentence) for sentence in sentences)
    found = read_tagged(put(folder, columns), word_column=2)
    assert [list(zip(sentence.words, sentence.tags)) for sentence in found] == sentences
    usable = [sentence for sentence in sentences if all(w.strip() and t.strip() for w, t in sentence)]
    rows = [{"tokens": [w for w, _ in s], "labels": [t for _, t in s]} for s in [*usable, [("a", "O")]]]
    again = read_tagged(put(folder, "\n".join(map(json.dumps, rows)), "a.jsonl"))
    assert [list(zip(s.words, s.tags)) for s in again] == [*usable, [("a", "O")]]


@pytest.mark.parametrize(
    ("content", "options", "complaint"),
    [
        ("\n\n", {}, r"^a\.conll has no sentences"),
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
        ({"words": "a", "tags": "O"}, "line 2: expected a list of strings under 'words', found str"),
        ({"words": [], "tags": []}, "line 2: expected words, found an empty list"),
        ({"text": "a", "spans": []}, "line 2: no column 'words'. There are: text, spans"),
    ],
)
def test_a_broken_object_is_named(tmp_path: Path, row: dict[str, Any], complaint: str) -> None:
    good = {"words": ["a"], "tags": ["O"]}
    with pytest.raises(InputError, match=complaint):
        read_tagged(put(tmp_path, json.dumps(good) + "\n" + json.dumps(row), "a.jsonl"))

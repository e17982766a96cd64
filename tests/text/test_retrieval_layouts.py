"""BEIR, NanoBEIR, TREC, ReQA and WikiQA files become one kind of data; real files with their published
counts.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsmith.errors import InputError
from bertsmith.text.retrieval.layouts import read_retrieval_data
from bertsmith.text.retrieval.retrieval_data import RetrievalData, join_title

DOCUMENTS = """<doc><docno>a</docno><title>Red &amp; blue</title>
<author>n. n.</author><text>A cat
sleeps.</text></doc>
<DOC>
<DOCNO> b </DOCNO>
<TEXT>First.</TEXT><TEXT>Second.</TEXT>
</DOC>
"""
TOPICS = "<top>\n<num> Number: 31\n<title> Topic: old cats\n<desc> Description:\nWhich?\n</top>\n"


def beir(folder: Path, **files: str) -> Path:
    """A small collection, with some of its files replaced."""
    usual = {
        "corpus": '{"_id": "a", "title": "Cats", "text": "They sleep."}\n{"_id": 7, "text": "Dogs run."}\n',
        "queries": '{"_id": "q", "text": "who sleeps?"}\n',
        "qrels": "query-id\tcorpus-id\tscore\nq\ta\t2\nq\t7\t0\n",
    } | files
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(usual["corpus"])
    (folder / "queries.jsonl").write_text(usual["queries"])
    (folder / "qrels/test.tsv").write_text(usual["qrels"])
    return folder


def trec(folder: Path, documents: str = DOCUMENTS, topics: str = TOPICS, judged: str = "31 0 a 1\n") -> Path:
    folder.mkdir()
    (folder / "docs.sgml").write_text(documents)
    (folder / "topics").write_text(topics)
    (folder / "qrels.txt").write_text(judged)
    (folder / "README.md").write_text("A document looks like this:\n\n<doc>...</doc>")
    return folder


def reqa(path: Path, **values: object) -> Path:
    usual = {"questions": ["who?"], "candidates": ["he", "she"], "ground_truths": [[1]]}
    path.write_text(json.dumps(usual | values))
    return path


def test_beir(tmp_path: Path) -> None:
    data = read_retrieval_data(beir(tmp_path / "cats"))
    assert data == RetrievalData(
        "cats",
        {"a": "Cats They sleep.", "7": "Dogs run."},
        {"q": "who sleeps?"},
        {"q": {"a": 2, "7": 0}},
    )


def test_beir_packed_and_of_another_split(tmp_path: Path) -> None:
    folder = beir(tmp_path / "cats")
    packed = gzip.compress((folder / "corpus.jsonl").read_bytes())
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.jsonl.gz").write_bytes(packed)
    (folder / "qrels/dev.tsv").write_text("query-id\tcorpus-id\tscore\nq\t7\t1\n")
    assert read_retrieval_data(folder, split="dev").judgements == {"q": {"7": 1}}
    (folder / "qrels/test.tsv.gz").write_bytes(gzip.compress((folder / "qrels/test.tsv").read_bytes()))
    (folder / "qrels/test.tsv").unlink()
    assert read_retrieval_data(folder, split="test").judgements
    with pytest.raises(InputError, match=r"qrels/train.tsv. There are: dev, test"):
        read_retrieval_data(folder, split="train")


@pytest.mark.parametrize("other", ["test.tsv.bak", "test.tsv~", "test.tsv.gz"])
def test_beirs_judgements_are_those_of_the_plain_file(tmp_path: Path, other: str) -> None:
    folder = beir(tmp_path / "cats")
    older = b"query-id\tcorpus-id\tscore\nq\t7\t1\n"
    (folder / "qrels" / other).write_bytes(gzip.compress(older) if other.endswith(".gz") else older)
    assert read_retrieval_data(folder).judgements == {"q": {"a": 2, "7": 0}}


def nanobeir(folder: Path, **judged: dict[str, list[Any]]) -> Path:
    """A small collection, with judgements by the name of their file."""
    tables = {"corpus/train": {"_id": ["a", "b"], "text": ["They sleep.", "Dogs run."]}}
    tables |= {"queries/train": {"_id": ["q"], "text": ["who sleeps?"]}}
    for name, columns in (tables | {f"qrels/{name}": columns for name, columns in judged.items()}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


def test_nanobeirs_judgements_are_those_of_the_split(tmp_path: Path) -> None:
    judged = {
        "train-00000-of-00001": {"query-id": ["q"], "corpus-id": ["b"]},
        "test-00000-of-00002": {"query-id": ["q"], "corpus-id": ["a"], "score": [2]},
        "test-00001-of-00002": {"query-id": ["q"], "corpus-id": ["b"], "score": [0]},
    }
    folder = nanobeir(tmp_path / "cats", **judged)
    assert read_retrieval_data(folder).judgements == {"q": {"a": 2, "b": 0}}
    assert read_retrieval_data(folder, split="train").judgements == {"q": {"b": 1}}
    with pytest.raises(InputError, match=r"no judgements of 'dev' in qrels/. There are: test, train. Choose"):
        read_retrieval_data(folder, split="dev")


def test_nanobeirs_only_split_is_taken_whatever_its_name(tmp_path: Path) -> None:
    folder = nanobeir(tmp_path / "cats", train={"query-id": ["q"], "corpus-id": ["a"]})
    assert read_retrieval_data(folder, split="test").judgements == {"q": {"a": 1}}


def test_grades_may_be_whole_numbers_in_a_column_of_fractions(tmp_path: Path) -> None:
    def judged(*grades: float | None) -> dict[str, list[Any]]:
        return {"query-id": ["q", "q"], "corpus-id": ["a", "b"], "score": [*grades]}

    assert read_retrieval_data(nanobeir(tmp_path / "x", test=judged(2.0, 0.0))).judgements == {
        "q": {"a": 2, "b": 0}
    }
    assert read_retrieval_data(nanobeir(tmp_path / "y", test=judged(2.0, None))).judgements == {
        "q": {"a": 2, "b": 1}
    }
    for wrong in (0.5, float("nan"), float("inf")):
        with pytest.raises(InputError, match=r"test.parquet, row 2: expected a grade, a whole number"):
            read_retrieval_data(nanobeir(tmp_path / "z", test=judged(1.0, wrong)))


def test_nanobeirs_ids_are_in_every_row(tmp_path: Path) -> None:
    folder = nanobeir(tmp_path / "x", test={"query-id": ["q", "q"], "corpus-id": ["a", None]})
    with pytest.raises(InputError, match=r"test.parquet, row 2: expected an id, found nothing"):
        read_retrieval_data(folder)
    pq.write_table(pa.table({"_id": ["a", None], "text": ["x", "y"]}), folder / "corpus/test.parquet")
    with pytest.raises(InputError, match=r"row 2: expected an id, found nothing"):
        read_retrieval_data(folder)


def test_a_part_of_beirs_corpus_is_not_the_corpus(tmp_path: Path) -> None:
    folder = beir(tmp_path / "cats")
    (folder / "corpus.jsonl").rename(folder / "corpus.jsonl.part1")
    with pytest.raises(
        InputError, match=r"expected corpus.jsonl, as BEIR's layout has it, found no such file"
    ):
        read_retrieval_data(folder)


def test_a_grade_has_no_underscore(tmp_path: Path) -> None:
    folder = beir(tmp_path / "cats", qrels="query-id\tcorpus-id\tscore\nq\ta\t1_0\n")
    with pytest.raises(InputError, match=r"line 2: expected a grade, a whole number .* found '1_0'"):
        read_retrieval_data(folder)


def test_trec(tmp_path: Path) -> None:
    data = read_retrieval_data(trec(tmp_path / "cats"))
    assert data == RetrievalData(
        "cats",
        {"a": "Red & blue A cat sleeps.", "b": "First. Second."},
        {"31": "old cats"},
        {"31": {"a": 1}},
    )


def test_trec_packed_beside_what_is_no_text(tmp_path: Path) -> None:
    folder = trec(tmp_path / "cats")
    (folder / "docs.sgml").unlink()
    (folder / "docs.xml.gz").write_bytes(
        gzip.compress(("\ufeff<?xml version='1.0'?>\n<xml>" + DOCUMENTS).encode())
    )
    (folder / "more.xml").write_text("<doc><docno>c</docno><text>Third.</text></doc>")
    (folder / "logo.png").write_bytes(b"\x89PNG\0\0\0")
    assert list(read_retrieval_data(folder).documents) == ["a", "b", "c"]


def test_trec_judged_by_the_topics_order(tmp_path: Path) -> None:
    topics = "".join(f"<top><num>{n}</num><title>topic {n}</title></top>" for n in (1, 4, 9))
    by_order = read_retrieval_data(trec(tmp_path / "a", topics=topics, judged="2 0 a 1\n3 0 b 1\n"))
    assert by_order.queries == {"1": "topic 1", "2": "topic 4", "3": "topic 9"}
    assert "places in their file" in by_order.notes[0]
    by_number = read_retrieval_data(trec(tmp_path / "b", topics=topics, judged="1 0 a 1\n9 0 b 1\n"))
    assert (list(by_number.queries), by_number.notes) == (["1", "4", "9"], ())


def test_reqa(tmp_path: Path) -> None:
    data = read_retrieval_data(reqa(tmp_path / "squad_test.json"))
    assert data == RetrievalData("squad_test", {"0": "he", "1": "she"}, {"0": "who?"}, {"0": {"1": 1}})
    assert read_retrieval_data(tmp_path) == data
    train = tmp_path / "train.json"
    train.write_text(json.dumps({"questions": ["a?", "b?", "c?"], "answers": ["x", "y", "x"]}))
    assert read_retrieval_data(train).judgements == {"0": {"0": 1}, "1": {"1": 1}, "2": {"0": 1}}


def test_wikiqa(tmp_path: Path) -> None:
    path = tmp_path / "test.tsv"
    path.write_text('who ?\the "is\t0\nwhere ?\there\t1\nwho ?\tshe is\t1\n')
    data = read_retrieval_data(path)
    assert data.queries == {"q1": "who ?", "q2": "where ?"}
    assert data.documents == {"q1-1": 'he "is', "q2-1": "here", "q1-2": "she is"}
    assert data.candidates == {"q1": ("q1-1", "q1-2"), "q2": ("q2-1",)}
    assert data.judgements == {"q1": {"q1-1": 0, "q1-2": 1}, "q2": {"q2-1": 1}}


def test_a_title_that_the_text_begins_with_is_not_said_twice() -> None:
    assert join_title("wing flow .", "wing flow . an experiment") == "wing flow . an experiment"
    assert join_title(" Wings ", "They fly.\n") == "Wings They fly."
    assert (join_title("", "text"), join_title("title", "")) == ("text", "title")


def test_what_is_odd_is_kept_or_left_out_and_said(tmp_path: Path) -> None:
    corpus = '{"_id": "a", "text": "x"}\n{"_id": "e", "title": null, "text": " "}\n'
    qrels = "query-id\tcorpus-id\tscore\nq\ta\t1\nq\tgone\t1\nlost\ta\t1\n"
    data = read_retrieval_data(beir(tmp_path / "odd", corpus=corpus, qrels=qrels))
    assert data.documents == {"a": "x", "e": ""}
    assert data.judgements == {"q": {"a": 1, "gone": 1}}
    assert [note.split(":")[0] for note in data.notes] == [
        "1 documents are empty",
        "1 judged documents are not in the collection",
        "1 judged queries are not among the queries",
    ]


def test_queries_without_a_relevant_document_are_not_measured(tmp_path: Path) -> None:
    queries = "".join(json.dumps({"_id": name, "text": name}) + "\n" for name in ("p", "q", "r"))
    qrels = "query-id\tcorpus-id\tscore\np\ta\t0\nq\ta\t1\n"
    assert read_retrieval_data(beir(tmp_path / "x", queries=queries, qrels=qrels)).judged_queries() == {
        "q": "q"
    }


QRELS = "query-id\tcorpus-id\tscore\n"


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (
            {"corpus": '{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}'},
            "corpus.jsonl, line 2: a second doc",
        ),
        ({"corpus": '{"_id": "a", "text": "x\\u0000"}'}, "corpus.jsonl, line 1: document 'a' holds a NUL"),
        ({"corpus": '{"_id": "a b", "text": "x"}'}, "line 1: expected an id without blanks"),
        ({"corpus": '{"_id": "a", "body": "x"}'}, "line 1: expected text under 'text', found nothing"),
        ({"corpus": '{"_id": "a"'}, "corpus.jsonl, line 1: expected one JSON object"),
        ({"corpus": "\0\0\0"}, "corpus.jsonl: expected jsonl text, found binary data"),
        ({"corpus": "\n"}, "expected at least one document, found none"),
        ({"queries": '{"_id": "q", "text": "  "}'}, "queries.jsonl, line 1: query 'q' is empty"),
        ({"queries": '{"_id": "q", "text": "x"}\n' * 2}, "queries.jsonl, line 2: a second query"),
        ({"qrels": "q\ta\t1\n"}, "test.tsv: no column 'query-id'"),
        ({"qrels": QRELS + "q\ta\tyes\n"}, "test.tsv, line 2: expected a grade"),
        ({"qrels": QRELS + "q\ta\t1\nq\ta\t2\n"}, "test.tsv, line 3: document 'a' has grade 2"),
        ({"qrels": QRELS + "x\ta\t1\n"}, "test.tsv: not one judged query is in the data"),
        ({"qrels": QRELS + "q\tx\t1\n"}, "Judged is 'x', for example, and the data has 'a'"),
    ],
)
def test_what_beir_cannot_mean_is_refused(tmp_path: Path, files: dict[str, str], complaint: str) -> None:
    with pytest.raises(InputError) as refusal:
        read_retrieval_data(beir(tmp_path / "x", **files))
    assert complaint in str(refusal.value)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (
            {"documents": "<doc>\n<docno>a</docno><text>x\n<doc>"},
            "docs.sgml, line 1: this <doc> has no </doc>",
        ),
        ({"documents": "\n<doc><docno>a</docno></doc>"}, "docs.sgml, line 2: expected <docno>, and <title>"),
        ({"topics": "<top><num>1</top>"}, "topics, line 1: expected <num> and <title>"),
        ({"judged": "31 0 a 1\n31 a 1\n"}, "qrels.txt, line 2: expected 4 columns"),
        ({"judged": "31 a 1\n"}, "found no judgements in TREC's layout"),
        ({"documents": "31 0 b 1\n"}, "found no documents in TREC's layout"),
        ({"judged": TOPICS}, "found no judgements"),
        ({"documents": DOCUMENTS + "<doc><docno>a</docno><text/><title></title></doc>"}, "line 8: a second"),
    ],
)
def test_what_trec_cannot_mean_is_refused(tmp_path: Path, files: dict[str, str], complaint: str) -> None:
    with pytest.raises(InputError) as refusal:
        read_retrieval_data(trec(tmp_path / "x", **files))
    assert complaint in str(refusal.value)


def test_two_files_of_judgements_are_refused(tmp_path: Path) -> None:
    folder = trec(tmp_path / "x")
    (folder / "more.qrels").write_text("31 0 b 1\n")
    with pytest.raises(InputError, match=r"one file of judgements, found more.qrels, qrels.txt"):
        read_retrieval_data(folder)


def test_reqa_in_another_encoding(tmp_path: Path) -> None:
    values = {"questions": ["wo?"], "candidates": ["M\u00fcnchen", "K\u00f6ln"], "ground_truths": [[1]]}
    path = tmp_path / "test.json"
    path.write_bytes(json.dumps(values, ensure_ascii=False).encode("latin-1"))
    assert read_retrieval_data(path, encoding="latin-1").documents == {"0": "M\u00fcnchen", "1": "K\u00f6ln"}
    with pytest.raises(InputError, match=r"test.json: expected utf-8 text, found 0xfc .*'latin-1'"):
        read_retrieval_data(path)
    path.write_text('{"questions": [')
    with pytest.raises(InputError, match=r"test.json is not valid JSON"):
        read_retrieval_data(path)


def test_an_id_that_no_run_file_could_hold_is_refused(tmp_path: Path) -> None:
    folder = beir(tmp_path / "cats")
    corpus = folder / "corpus.jsonl"
    corpus.write_text(corpus.read_text() + '{"_id": "x\\ud800", "text": "more"}\n')
    with pytest.raises(InputError, match=r"the id 'x\\ud800' holds half of a UTF-16 pair"):
        read_retrieval_data(folder)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"ground_truths": [[2]]}, "question 0: expected a list of places among 2 candidates"),
        ({"ground_truths": [1]}, "question 0: expected a list of places"),
        ({"ground_truths": []}, "1 questions, but answers for 0"),
        ({"questions": [3]}, "questions[0]: expected text, found int"),
        ({"questions": None}, "expected a list under 'questions'. There are: questions, candidates"),
    ],
)
def test_what_reqa_cannot_mean_is_refused(tmp_path: Path, values: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError) as refusal:
        read_retrieval_data(reqa(tmp_path / "test.json", **values))
    assert complaint in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("who ?\the\tyes\n", "test.tsv, line 1: expected 0 or 1"),
        ("who ?\the\t1\nwho ?\tshe\n", "test.tsv, line 2: expected 3 columns"),
        (" \the\t1\n", "test.tsv, line 1: query 'q1' is empty"),
    ],
)
def test_what_wikiqa_cannot_mean_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "test.tsv").write_text(text)
    with pytest.raises(InputError) as refusal:
        read_retrieval_data(tmp_path / "test.tsv")
    assert complaint in str(refusal.value)


def test_a_layout_that_cannot_be_told_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "data.txt").touch()
    with pytest.raises(InputError, match="--format: reqa or wikiqa"):
        read_retrieval_data(tmp_path / "data.txt")
    with pytest.raises(InputError, match="found no documents and no topics and no judgements"):
        read_retrieval_data(tmp_path)
    with pytest.raises(
        InputError, match=r"no layout 'msmarco'. Choose one of beir, nanobeir, trec, reqa, wikiqa"
    ):
        read_retrieval_data(tmp_path, format="msmarco")
    with pytest.raises(InputError, match="Name the folder"):
        read_retrieval_data(tmp_path / "data.txt", format="beir")
    with pytest.raises(InputError, match=r"expected corpus.jsonl"):
        read_retrieval_data(tmp_path, format="beir")
    with pytest.raises(InputError, match=r"one file \*dev.tsv, found 0. There are: none"):
        read_retrieval_data(tmp_path, format="wikiqa", split="dev")
    with pytest.raises(InputError, match="does not exist"):
        read_retrieval_data(tmp_path / "nowhere")


def test_real_collections_have_their_published_counts(shared_data: Path) -> None:
    cranfield = read_retrieval_data(shared_data / "ir_cranfield")
    assert (len(cranfield.documents), len(cranfield.queries)) == (1400, 225)
    assert sum(map(len, cranfield.judgements.values())) == 1837
    assert cranfield.queries["3"].startswith("what problems of heat conduction")  # its <num> is 4
    assert "2 documents are empty" in cranfield.notes[1]
    squad = read_retrieval_data(shared_data / "reqa_squad")
    assert (len(squad.documents), len(squad.judged_queries())) == (10_246, 10_539)
    wikiqa = read_retrieval_data(shared_data / "wikiqa")
    assert (len(wikiqa.documents), len(wikiqa.queries), len(wikiqa.judged_queries())) == (6165, 633, 243)

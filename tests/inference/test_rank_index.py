"""An index measured on questions whose right document is known, and what it can filter by."""

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from index_samples import SETTINGS, WordEmbedder, write_files

from bertsmith.errors import FilterError, InputError
from bertsmith.inference.index import search
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.ranking import rank_by_index, rank_model_or_index
from bertsmith.inference.ranking.results import compare
from bertsmith.text.retrieval.documents import Documents
from bertsmith.text.retrieval.judged_questions import read_judged_questions
from bertsmith.text.retrieval.retrieval_data import RetrievalData

PAGES = {
    "cats.md": "---\ntitle: Cats\ndate: 2024-05-01\nyear: 2024\ntags: [pets, fur]\ndraft: true\n"
    "country: no\n---\n"
    "# About\nThe old cat sleeps. The small cat sleeps. A cat runs. The cat sings. The cat sleeps. Red cat.",
    "dogs.md": "+++\ntitle = 'Dogs'\nyear = 2020\n+++\nThe blue dog runs. A large dog sleeps.",
    "birds.txt": "---\ntitle: no Markdown\n---\nThe green bird sings.",
    "broken.md": "---\ntitle: [open\n---\nA red bird sleeps.",
    "rule.md": "---\n\nA rule comes first.\n\n---\nThe new dog runs.",
    "bomb.md": "---\na: &a [x, x]\nb: [*a, *a]\n---\nA large bird runs.",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("pages")
    write_files(folder / "pages", PAGES)
    for name in PAGES:
        os.utime(folder / "pages" / name, (1.7e9, 1.7e9))  # 2023-11-14
    return Index.build([str(folder / "pages")], folder / "index", embedder=WordEmbedder(), passages=SETTINGS)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("year = 2024", {"pages/cats.md"}),
        ("year < 2024", {"pages/dogs.md"}),
        ("date = '2024-05-01'", {"pages/cats.md"}),
        ("draft", {"pages/cats.md"}),
        ("country = 'no'", {"pages/cats.md"}),  # false by YAML 1.1
        ("tags LIKE '%fur%'", {"pages/cats.md"}),
        ("title = 'Dogs'", {"pages/dogs.md"}),
        (
            "file_date = '2023-11-14' AND year IS NULL",
            {f"pages/{n}" for n in PAGES} - {"pages/cats.md", "pages/dogs.md"},
        ),
    ],
)
def test_front_matter_and_the_files_date_are_columns(index: Index, where: str, expected: set[str]) -> None:
    hits = index.search("cat dog bird sleeps runs sings", k=100, mode="vector", where=where)
    assert {hit.document_id for hit in hits} == expected


def test_front_matter_is_no_text_and_places_stay_those_of_the_file(index: Index) -> None:
    hits = index.search("cat", k=100, mode="vector")
    for hit in hits:
        page = PAGES[hit.document_id.removeprefix("pages/")]
        assert page[hit.start : hit.end] == hit.text
        assert page[: hit.start].count("\n") + 1 == hit.line
    texts = " ".join(hit.text for hit in hits if hit.document_id.endswith(("cats.md", "dogs.md")))
    assert "year" not in texts and "2024" not in texts


def test_front_matter_that_cannot_be_read_is_text_and_is_told(tmp_path: Path) -> None:
    documents = Documents([str(write_files(tmp_path / "pages", PAGES))])
    texts = {document.id: document.text for document in documents}
    assert texts["pages/broken.md"] == PAGES["broken.md"] and texts["pages/rule.md"] == PAGES["rule.md"]
    assert "2 front matters (bomb.md, broken.md)" in documents.skipped.sentence().replace("pages/", "")


def test_the_date_of_a_file_alone_embeds_nothing_anew(tmp_path: Path) -> None:
    pages, embedder = write_files(tmp_path / "pages", PAGES), WordEmbedder()
    Index.build([str(pages)], tmp_path / "index", embedder=embedder, passages=SETTINGS)
    embedded = embedder.embedded
    for name in PAGES:
        os.utime(pages / name, (1.6e9, 1.6e9))
    again = Index.build([str(pages)], tmp_path / "index", embedder=embedder, passages=SETTINGS)
    assert (
        embedder.embedded == embedded and again.changes is not None and again.changes.unchanged == len(PAGES)
    )


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
def test_hits_per_document_are_the_best_passage_of_each(index: Index, mode: str) -> None:
    passages = index.search("the cat sleeps", k=100, mode=mode)  # type: ignore[arg-type]
    first: dict[str, float] = {}
    for hit in passages:
        first.setdefault(hit.document_id, hit.score)
    grouped = index.search("the cat sleeps", k=3, mode=mode, per_document=True)  # type: ignore[arg-type]
    assert [(hit.document_id, hit.score) for hit in grouped] == list(first.items())[:3]
    assert len(passages) > len(first)  # or nothing was grouped


def test_few_documents_with_many_passages_each_still_give_k_documents(tmp_path: Path) -> None:
    pages = {"many.txt": "The cat sleeps. " * 400, "one.txt": "The dog sleeps.", "two.txt": "A bird sings."}
    index = Index.build(
        [str(write_files(tmp_path / "pages", pages))],
        tmp_path / "index",
        embedder=WordEmbedder(),
        passages=SETTINGS,
    )
    hits = index.search("cat sleeps", k=3, mode="hybrid", per_document=True)
    assert {hit.document_id for hit in hits} == {"pages/many.txt", "pages/one.txt", "pages/two.txt"}


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("yeer > 3", "there is no column yeer"),
        ('title = "x"', "'single quotes'"),
        ("title > 3", "it compares a column of another kind with 3"),
        ("start > 'abc'", "it compares a column of another kind"),
        ("start +", "it ends where more is expected"),
        ("", "it ends where more is expected"),
        ("start", "not a condition"),
        ("start / 0 > 1", "it divides by 0"),
        ("cast(title as int) > 2", "try_cast"),
        ("'x", "no closing quote"),
        ("start IN ()", "it isn't SQL near )"),
        ("regexp_match(title, '[')", "regular expression"),
        ("title LIKE 'a' ESCAPE 'bb'", "ESCAPE takes one character"),
    ],
)
def test_a_filter_is_refused_in_our_words(index: Index, where: str, reason: str) -> None:
    with pytest.raises(FilterError) as refused:
        index.search("cat", mode="text", where=where)
    told = str(refused.value)
    assert reason in told
    for theirs in (
        "Schema error",
        "parser",
        "literal",
        "SELECT",
        "Arrow",
        "Utf8",
        "Query Execution",
        "cargo",
    ):
        assert theirs not in told.replace(where, "")


def test_an_index_is_ranked_by_what_its_searches_show(index: Index, tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    asked = [("the old cat", "cats.md"), ("a large dog", "dogs.md"), ("green bird", "birds.txt")]
    rows = [{"question": text, "document": f"pages/{name}"} for text, name in asked]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = read_judged_questions(questions, index.texts())
    systems = rank_by_index(index, data, k=6, depth=6)
    for system, mode in zip(systems, ("text", "vector", "hybrid"), strict=True):
        for id, query in data.judged_queries().items():
            shown = index.search(query, k=6, mode=mode, per_document=True)  # type: ignore[arg-type]
            assert [name for name, _ in system.rankings[id]] == [hit.document_id for hit in shown]
    found = compare(systems, data, ("mrr@10",), {})
    reciprocal = []  # by hand, of the words' ranking
    for query, name in asked:
        ids = [hit.document_id for hit in index.search(query, k=6, mode="text", per_document=True)]
        reciprocal.append(1 / (ids.index(f"pages/{name}") + 1))
    assert found.figures[0].scores.means["mrr@10"] == pytest.approx(sum(reciprocal) / 3)
    assert "BM25" in found.verdict()


def test_the_first_k_are_those_of_a_search_for_k_however_many_are_kept(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fused search for more reads more candidates, and so its re-ranker read more than 50."""
    monkeypatch.setattr(search, "CANDIDATES", 2)
    queries = {query: query for query in ("the cat", "dog sings", "large red")}
    data = RetrievalData("pages", index.texts(), queries, {id: {"pages/cats.md": 1} for id in queries})
    read = list[int]()

    def reranker(query: str, passages: Sequence[str]) -> Sequence[float]:
        read.append(len(passages))
        return [float(len(passage) % 7) for passage in passages]

    *_, hybrid, reranked = rank_by_index(index, data, 2, 6, reranker)
    most = max(read)
    for system, model in ((hybrid, None), (reranked, reranker)):
        for query, ranking in system.rankings.items():
            shown = index.search(query, k=2, per_document=True, reranker=model)
            assert [name for name, _ in ranking][:2] == [hit.document_id for hit in shown]
            assert len(ranking) > 2
    assert max(read) == most


def rank(index: Index, questions: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    monkeypatch.setattr(Index, "open", lambda path: index)
    usual = {"reranker": None, "format": None, "split": "test", "encoding": "utf-8", "k": 10, "depth": 10}
    usual |= {"reranked": 50, "queries": None, "english": True}
    return rank_model_or_index(str(index.path), questions, **usual | options)


def test_settings_that_an_index_does_not_follow_are_refused_and_not_reported(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = tmp_path / "questions.CSV.gz"  # its ending is read as that of every table
    questions.write_bytes(gzip.compress(b"question,document\nwhich cat?,pages/cats.md\n"))
    with pytest.raises(InputError, match="--reranked has no effect on an index"):
        rank(index, questions, monkeypatch, reranked=5)
    with pytest.raises(InputError, match="--no-english has no effect on an index"):
        rank(index, questions, monkeypatch, english=False)
    facts = rank(index, questions, monkeypatch).to_json()
    assert (facts["reranked"], facts["english"], facts["depth"]) == (None, None, 10)


def test_questions_about_other_documents_are_refused(index: Index, tmp_path: Path) -> None:
    questions = tmp_path / "questions.csv"
    questions.write_text("question,document\nwhich cat?,cats.md\n")
    with pytest.raises(InputError, match=r"row 2|line 2.*cats\.md.*Did you mean .*pages/cats\.md"):
        read_judged_questions(questions, index.texts())
    questions.write_text("asks,document\nwhich cat?,pages/cats.md\n")
    with pytest.raises(InputError, match="expected a column question or query or text, found asks, document"):
        read_judged_questions(questions, index.texts())


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", "question,document,relevance\nwho?,7,1\nwho?,8,0.1\n", "line 3.*whole number.*'0.1'"),
        ("a.csv", "question,document,grade\nwho?,7,1\nwho?,7,0\n", "line 3.*grade 0.*but 1 further up"),
        ("a.csv", "question,document,score,grade\nwho?,7,0.3,2\n", {"7": 2}),  # by the table of names
        ("a.csv", "question,document,label\nwho?,7,1\nwho?,8,0\n", {"7": 1, "8": 0}),  # as reranking has it
        ("a.csv", "question,document,is_relevant\nwho?,7,1\nwho?,8,0\n", {"7": 1, "8": 0}),
        (
            "a.csv",
            "question,document,label\nwho?,7,cars\n",
            "line 2, column 'label': expected a finite number",
        ),
        ("a.csv", "question,document\nwho?,1.0\nwho?,true\nwho?,8.0\n", {"1.0": 1, "true": 1, "8": 1}),
        (
            "a.jsonl",
            '{"question": "who?", "document": 7}\n{"question": "who?", "document": 8, "grade": 0}\n',
            {"7": 1, "8": 0},
        ),
    ],
)
def test_grades_and_ids_of_judged_questions_count_as_they_stand(
    tmp_path: Path, name: str, content: str, expected: dict[str, int] | str
) -> None:
    (tmp_path / name).write_text(content)
    documents = dict.fromkeys(("1", "1.0", "7", "8", "true"), "a text")
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            read_judged_questions(tmp_path / name, documents)
    else:
        assert read_judged_questions(tmp_path / name, documents).judgements == {"q1": expected}

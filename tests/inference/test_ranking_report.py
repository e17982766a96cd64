"""The page of a comparison, and its folder, which is whole or absent."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bertsmith.errors import InputError
from bertsmith.inference.ranking.ranking import System
from bertsmith.inference.ranking.report import (
    best_system,
    figure_table,
    find_failures,
    render_comparison,
    write_comparison,
)
from bertsmith.inference.ranking.results import Comparison, compare
from bertsmith.metrics.ranking_scores import ranking_scores
from bertsmith.text.retrieval.retrieval_data import RetrievalData
from bertsmith.text.retrieval.trec_run import read_run

ATTACK = "</style><script>alert(1)</script><img src=x onerror=alert(1)>"


def comparison() -> Comparison:
    """Of four queries the second system answers q1 and q2 better, q3 worse, and finds nothing for q4."""
    documents = {"a": "alpha", "b": ATTACK, "c": "gamma " * 100}
    queries = {f"q{n}": f"{ATTACK} {n}" for n in range(1, 5)}
    judgements = {f"q{n}": {"a": 1} for n in range(1, 4)} | {"q4": {"c": 2, "gone": 1}}
    first = {"q1": "ba", "q2": "cba", "q3": "ab", "q4": "bc"}
    second = {"q1": "ab", "q2": "bac", "q3": "bca", "q4": "ab"}
    systems = [
        System(
            name,
            {q: [(d, -float(rank)) for rank, d in enumerate(ranked)] for q, ranked in found.items()},
            1.5,
        )
        for name, found in (("BM25", first), ("dense", second))
    ]
    data = RetrievalData("three", documents, queries, judgements)
    return compare(systems, data, ["mrr@10", "recall@2"], {"model": "m"})


def test_the_table_shows_each_system_beside_the_baseline() -> None:
    columns, rows = figure_table(comparison())
    assert columns == ["", "MRR@10", "95 % interval", "recall@2", "above BM25", "p", "ms/query"]
    assert [row[0] for row in rows] == ["BM25", "dense (by embeddings)"]
    assert rows[0][1] == f"{(1 / 2 + 1 / 3 + 1 + 1 / 2) / 4:.4f}"
    assert rows[0][4:] == ["", "", "1.5"]
    assert rows[1][4].startswith(f"{(1 + 1 / 2 + 1 / 3) / 4 - 7 / 12:+.4f} (")


def test_failures_are_the_worst_queries_of_the_best_system() -> None:
    found = comparison()
    best = best_system(found)
    assert best.system.name == "BM25"
    listed = find_failures(found, best)
    assert [failure.id for failure in listed] == ["q2", "q1", "q4"]
    assert listed[0].scores == "BM25 0.333 · dense (by embeddings) 0.500"
    assert [(hit.rank, hit.document, hit.grade) for hit in listed[0].first] == [
        (1, "c", 0),
        (2, "b", 0),
        (3, "a", 1),
    ]
    assert listed[0].first[0].text.endswith("…")
    assert (listed[2].expected.rank, listed[2].expected.document) == (2, "c")  # the higher grade


def test_a_relevant_document_that_was_not_found_is_shown() -> None:
    found = comparison()
    worst = find_failures(found, found.figures[1])[0]
    assert (worst.id, worst.expected.rank, worst.expected.document) == ("q4", None, "c")
    nothing = System("nothing", {query: [] for query in found.queries}, 1.0)
    assert ">not found<" in render_comparison(compare([nothing], found.data, found.metrics, {}), "")


def test_the_relevant_document_is_shown_once_and_marked() -> None:
    page = render_comparison(comparison(), "")
    card = page[page.index(">q2 ·") : page.index(">q1 ·")]
    assert card.count("<small>a</small>") == 1
    assert card.count("words gold") == 1


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found.append(tag)


def test_the_page_holds_pictures_and_escapes_what_texts_hold() -> None:
    page = render_comparison(comparison(), "bertsmith rank minilm data")
    assert page == render_comparison(comparison(), "bertsmith rank minilm data")
    assert "dense (by embeddings): 2 queries better than BM25, 2 worse" in page
    assert "bertsmith rank minilm data" in page
    assert Tags(page).found.count("svg") == 1
    assert not {"script", "img"} & set(Tags(page).found)


def test_the_folder_holds_runs_that_give_the_same_figures(tmp_path: Path) -> None:
    found = comparison()
    write_comparison(tmp_path / "out", found, "again")
    plain = json.loads((tmp_path / "out/results.json").read_text())
    for figures in found.figures:
        run = read_run(tmp_path / "out/runs" / f"{figures.system.name.lower()}.run")
        rankings = {query: list(scores.items()) for query, scores in run.items()}
        again = ranking_scores(rankings, found.data.judgements, found.metrics)
        assert again.means == plain["systems"][figures.system.name]["scores"]
    assert "again" in (tmp_path / "out/report.html").read_text()


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    with pytest.raises(InputError, match="already exists"):
        write_comparison(tmp_path, comparison(), "")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]

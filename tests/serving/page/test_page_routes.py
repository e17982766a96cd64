"""The page's files: a policy that lets nothing in from elsewhere, and no file that isn't the page's."""

import json
from pathlib import Path

import pytest
from page_trials import TEXT, Served

from served_models import save_fine_tuned


def test_the_policy_lets_nothing_in_from_elsewhere(served: Served) -> None:
    for path in ("", "page/static/page.js", "page/static/page.css"):
        status, headers, body = served.get(path)
        assert status == 200
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "https://" not in body
        assert "<style" not in body


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fpage.py", "%2Fetc%2Fpasswd", "..", "page.html%00"])
def test_no_other_file_can_be_had(name: str, served: Served) -> None:
    assert served.get("page/static/" + name)[0] == 404


def test_the_page_offers_a_text_of_the_runs_own_data(tmp_path: Path) -> None:
    """The first that the model was tried on, where its folder is still that of a run."""
    rows = {
        "classification": {"id": 1, "text": "my card was swallowed", "gold": "card"},
        "similarity": {"text": "a dog", "text_pair": "a puppy"},
        "tagging": {"words": ["Ada", "lived"], "gold": ["B-PER", "O"]},
        "retrieval": {"query": "who?", "document": "Ada."},
        "regression": None,
    }
    folders = {name: save_fine_tuned(tmp_path / name / "model", name) for name in rows}
    for name, row in rows.items():
        if row is not None:
            (tmp_path / name / "predictions").mkdir()
            (tmp_path / name / "predictions" / "dev.jsonl").write_text(json.dumps(row) + "\nbroken")
    (tmp_path / "classification" / "predictions" / "test.jsonl").write_text("broken")
    running = Served(folders)
    try:
        found = {
            each["name"]: each["example"] for each in json.loads(running.get("page/models")[2])["models"]
        }
    finally:
        running.stop()
    assert found == {
        "classification": ["my card was swallowed"],
        "similarity": ["a dog", "a puppy"],
        "tagging": ["Ada lived"],
        "retrieval": ["who?", "Ada."],
        "regression": None,
    }


def test_without_the_page_there_is_none(folders: dict[str, Path]) -> None:
    bare = Served({"classification": folders["classification"]}, page=False)
    try:
        for path in ("", "page/static/page.js", "page/models"):
            assert bare.get(path)[0] in (404, 405)  # / may be asked by POST
        assert bare.post("page/attention", {"model": "classification", "input": TEXT})[0] == 404
    finally:
        bare.stop()

"""Predictions as JSON lines: whole or absent, one at a time."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bertsmith.errors import InputError
from bertsmith.files import require_output, write_jsonl


def test_a_file_holds_one_object_a_line(tmp_path: Path) -> None:
    rows = [{"text": "é\u2028🎉\n", "score": 0.1}, {"text": "", "score": None}]
    assert write_jsonl(rows, tmp_path / "a.jsonl") == 2
    lines = (tmp_path / "a.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == rows
    assert lines[-1] == ""


def test_an_error_on_the_way_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("old")

    def broken() -> Iterator[dict[str, int]]:
        yield {"a": 1}
        raise KeyError("x")

    with pytest.raises(KeyError):
        write_jsonl(broken(), tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_jsonl([{"a": float("nan")}], tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_standard_output_has_each_record_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    def watched() -> Iterator[dict[str, int]]:
        yield {"a": 1}
        assert capsys.readouterr().out == '{"a": 1}\n'
        yield {"a": 2}

    assert write_jsonl(watched(), "-") == 2
    assert capsys.readouterr().out == '{"a": 2}\n'


def test_missing_folders_are_made_as_for_folders_and_go_again_on_an_error(tmp_path: Path) -> None:
    out = tmp_path / "none" / "below" / "a.jsonl"
    require_output(out, False, [])
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_jsonl([{"a": float("nan")}], out)
    assert not [*tmp_path.iterdir()]
    write_jsonl([{"a": 1}], out)
    assert out.read_text() == '{"a": 1}\n'
    with pytest.raises(InputError, match=r"cannot be written: Not a directory"):
        require_output(out / "b.jsonl", False, [])
    with pytest.raises(InputError, match=r"can't be made: File exists"):
        write_jsonl([], out / "b.jsonl")


def test_half_of_a_utf16_pair_goes_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": "caf\u00e9 \ud83d \U0001f389"}]
    write_jsonl(rows, tmp_path / "a.jsonl")
    assert [json.loads((tmp_path / "a.jsonl").read_text(encoding="utf-8"))] == rows
    write_jsonl(rows, "-")
    assert json.loads(capsys.readouterr().out) == rows[0]

"""One file as a command writes it: nothing lost unasked, pipes as they are, nothing left behind."""

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bertsmith.errors import InputError
from bertsmith.files import atomic_folder, require_output, write_jsonl

ROWS = [{"a": 1}, {"a": 2}]
LINES = '{"a": 1}\n{"a": 2}\n'


def test_what_is_there_is_replaced_only_when_asked(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    require_output(out, False, [])
    out.write_text("old")
    with pytest.raises(InputError, match=r"already exists.* or replace it with --overwrite"):
        require_output(out, False, [])
    require_output(out, True, [tmp_path / "in.csv"])
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("out.jsonl", "old")]


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX's")
def test_a_private_file_or_folder_that_is_replaced_stays_private(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.touch(mode=0o600)
    write_jsonl(ROWS, out)
    assert (out.read_text(), stat.S_IMODE(out.stat().st_mode)) == (LINES, 0o600)
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    for overwrite in (False, True):  # an empty folder, then one with a file
        with atomic_folder(folder, overwrite) as partial:
            (partial / "a").touch()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("link", [None, Path.symlink_to, Path.hardlink_to])
def test_what_is_read_is_never_replaced(tmp_path: Path, link: object) -> None:
    (tmp_path / "model").mkdir()
    weights, table = tmp_path / "model" / "model.safetensors", tmp_path / "in.csv"
    for read in (weights, table):
        read.write_text("precious")
        out = read
        if callable(link):
            out = tmp_path / f"{read.name}.link"
            link(out, read)
        with pytest.raises(InputError, match="would overwrite it"):
            require_output(out, True, ["-", table, tmp_path / "model"])


def test_a_table_on_standard_input_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\nred\n")
    code = "import sys; from bertsmith.files import *; require_output(sys.argv[1], True, ['-'])"
    with (tmp_path / "in.csv").open() as table:
        command = [sys.executable, "-c", code, str(tmp_path / "in.csv")]
        done = subprocess.run(command, stdin=table, capture_output=True, text=True)
    assert "would overwrite it" in done.stderr


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe, found = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    require_output(pipe, False, [])
    assert write_jsonl(ROWS, pipe) == 2
    reader.join()
    assert found == [LINES]
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_is_written_to_and_stays() -> None:
    require_output("/dev/null", False, [])
    assert write_jsonl(ROWS, "/dev/null") == 2
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_standard_output_by_its_other_name_goes_on_where_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    print("before", flush=True)
    require_output("/dev/stdout", False, [])
    write_jsonl(ROWS, "/dev/stdout")
    print("after", flush=True)
    assert capfd.readouterr().out == f"before\n{LINES}after\n"


def test_a_link_is_written_through(tmp_path: Path) -> None:
    link = tmp_path / "link.jsonl"
    (tmp_path / "folder").mkdir()
    link.symlink_to("folder/target.jsonl")
    require_output(link, False, [])
    write_jsonl(ROWS, link)
    assert link.is_symlink()
    assert (tmp_path / "folder" / "target.jsonl").read_text() == LINES
    with pytest.raises(InputError, match="already exists"):
        require_output(link, False, [])


def test_a_socket_is_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.chdir(tmp_path)  # its name may have 108 bytes
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("socket")
        with pytest.raises(InputError, match="is neither a file nor a pipe"):
            require_output("socket", True, [])


def test_records_of_a_killed_writer_are_cleared_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom bertsmith.files import write_jsonl\n"
        "def rows():\n    yield {'a': 1}\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_jsonl(rows(), sys.argv[1])"
    )
    out = tmp_path / "out.jsonl"
    assert subprocess.run([sys.executable, "-c", code, str(out)]).returncode == -9
    assert [each.name.split("-")[0] for each in tmp_path.iterdir()] == [".out.jsonl.partial"]
    write_jsonl(ROWS, out)
    assert [each.name for each in tmp_path.iterdir()] == ["out.jsonl"]
    assert [json.loads(line) for line in out.read_text().splitlines()] == ROWS

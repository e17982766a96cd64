"""Folders that are whole or absent, whatever killed processes left beside them."""

import os
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest

from bertsmith import files
from bertsmith.errors import BertsmithError, InputError
from bertsmith.files import atomic_folder, atomic_write, read_json, require_new_folder, write_json

DIES_WHILE_REPLACING = """
import os, signal, sys
from pathlib import Path
from bertsmith.files import atomic_folder, read_json, require_new_folder

rename, left = Path.rename, int(sys.argv[2])

def renamed(path, target):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(path, target)

Path.rename = renamed
with atomic_folder(Path(sys.argv[1]), overwrite=True) as folder:
    (folder / "content").write_text("new")
"""


def write(path: Path, content: str) -> None:
    with atomic_folder(path, overwrite=True) as folder:
        (folder / "content").write_text(content)


def test_half_a_utf_16_pair_is_written_as_json_writes_it(tmp_path: Path) -> None:
    """A row of a test file with one cost the page, after all the work."""
    write_json(tmp_path / "facts.json", {"label": "a\ud83d"})
    assert read_json(tmp_path / "facts.json") == {"label": "a\ud83d"}
    atomic_write(tmp_path / "page.html", "<p>a\ud83dé</p>")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "<p>a\\ud83dé</p>"


def killed_at_rename(path: Path, number: int) -> None:
    command = [sys.executable, "-c", DIES_WHILE_REPLACING, str(path), str(number)]
    assert subprocess.run(command).returncode == -9


@pytest.mark.parametrize("rename", [1, 2])
def test_a_kill_while_replacing_loses_neither_the_old_nor_disk_for_good(tmp_path: Path, rename: int) -> None:
    path = tmp_path / "model"
    write(path, "old")
    killed_at_rename(path, rename)
    assert len(list(tmp_path.iterdir())) == 2  # the old one, under its name or aside, and the new one
    with pytest.raises(InputError, match="already exists"), atomic_folder(path):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    assert (path / "content").read_text() == "old"
    write(path, "newer")
    assert (path / "content").read_text() == "newer"


def test_what_a_living_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    others = [tmp_path / f".model.{kind}-{os.getppid()}" for kind in ("partial", "old")]
    strangers = [tmp_path / name for name in (".model.partial-x", ".model.notes-1", ".model2.partial-1")]
    for folder in (*others, *strangers):
        folder.mkdir()
    write(tmp_path / "model", "new")
    assert all(folder.exists() for folder in (*others, *strangers))


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere" / "model", "old")
    link = tmp_path / "link"
    link.symlink_to(Path("elsewhere") / "model")
    write(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "elsewhere" / "model" / "content").read_text() == "new"
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["content", "elsewhere", "link", "model"]


def test_a_link_that_was_put_aside_is_cleared_and_what_it_leads_to_left(tmp_path: Path) -> None:
    write(tmp_path / "other", "kept")
    (tmp_path / ".model.old-999999999").symlink_to("other")
    write(tmp_path / "model", "new")
    write(tmp_path / "model", "newer")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model", "other"]
    assert (tmp_path / "other" / "content").read_text() == "kept"


@pytest.mark.parametrize("name", ["a[b]c", "*", "model"])
def test_names_are_taken_literally(tmp_path: Path, name: str) -> None:
    other = tmp_path / ".abc.partial-999999999"
    mine = tmp_path / f".{name}.partial-999999999"
    other.mkdir()
    mine.mkdir()
    write(tmp_path / name, "new")
    assert other.exists() and not mine.exists()


def test_an_empty_folder_is_free_and_the_current_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    path.mkdir()
    with atomic_folder(path) as folder:
        (folder / "content").write_text("new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    assert (path / "content").read_text() == "new"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError, match="already exists"), atomic_folder(Path()):
        pytest.fail("the work began")
    with pytest.raises(InputError, match="already exists"), atomic_folder(path):
        pass


def test_no_folder_takes_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine")
    with pytest.raises(InputError, match="model already exists"), atomic_folder(tmp_path / "model", True):
        pass
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("model", "mine")]


def test_the_later_of_two_writers_at_once_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with pytest.raises(InputError, match="already exists"), atomic_folder(path):
        with atomic_folder(tmp_path / "other") as sooner:
            (sooner / "content").write_text("the sooner's")
        (tmp_path / "other").rename(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    assert (path / "content").read_text() == "the sooner's"


@pytest.mark.parametrize("content", ["{", "9" * 5000, "[" * 200_000, "\udcff"])
def test_what_is_no_json_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content, errors="surrogateescape")
    with pytest.raises(InputError, match="is not valid JSON"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("has_psutil", [True, False])  # bertsmith-run comes without
def test_files_of_a_killed_process_are_cleared_by_the_next_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_psutil: bool
) -> None:
    if not has_psutil:
        monkeypatch.setitem(sys.modules, "psutil", None)
    left = [tmp_path / f".a.json.partial-{number}" for number in (999999999, os.getppid())]
    for each in left:
        each.write_text("half")
    atomic_write(tmp_path / "a.json", "{}")
    assert sorted(tmp_path.iterdir()) == sorted([left[1], tmp_path / "a.json"])


def test_a_failure_leaves_no_folder_that_was_made_for_it(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for place in ("there/new/x", "new/deep/x", "x"):
        with pytest.raises(ValueError, match="fault"), atomic_folder(tmp_path / place) as folder:
            (folder / "content").write_text("half")
            raise ValueError("fault")
    assert [each.name for each in tmp_path.rglob("*")] == ["there"]


@pytest.mark.parametrize("place", ["file/x", "file/x/y", "/proc/x"])
def test_a_place_that_can_hold_nothing_gets_a_sentence(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BertsmithError, match=r"can't be made|cannot be written|No permission"):
        write(tmp_path / place, "new")
    with pytest.raises(BertsmithError, match=r"cannot be written|No permission"):
        atomic_write(tmp_path / place, "new")
    with pytest.raises(BertsmithError, match=r"cannot be written|No permission"):
        require_new_folder(tmp_path / place)
    require_new_folder(tmp_path / "new" / "deep")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_checksum_is_known_again_until_the_file_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where size and time of the new content are the old one's."""
    path, other = tmp_path / "weights", tmp_path / "other"
    path.write_bytes(b"one")
    times = path.stat()
    monkeypatch.setattr(files, "_YOUNG", -1)
    first = files.sha256_of_unchanged(path)
    assert first == sha256(b"one").hexdigest()
    with monkeypatch.context() as patch:
        patch.setattr(files, "sha256", lambda _: "read again")
        assert files.sha256_of_unchanged(path) == first
    time.sleep(0.02)
    path.write_bytes(b"two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert files.sha256_of_unchanged(path) == sha256(b"two").hexdigest()
    other.write_bytes(b"six")
    other.replace(path)
    assert files.sha256_of_unchanged(path) == sha256(b"six").hexdigest()
    monkeypatch.undo()
    path.write_bytes(b"ten")  # the same moment, perhaps: read in any case
    assert files.sha256_of_unchanged(path) == sha256(b"ten").hexdigest()

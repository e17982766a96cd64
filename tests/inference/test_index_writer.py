"""Two processes at one index: what one has made is never the other's to remove. And a power cut."""

import contextlib
import fcntl
import random
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from index_samples import SETTINGS, WordEmbedder, content, sentences, write_files

pytest.importorskip("lancedb")

from bertsmith import files
from bertsmith import files as locks
from bertsmith.errors import InputError
from bertsmith.inference.index import index as index_module
from bertsmith.inference.index import writer as index_writer
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.manifest import MANIFEST, IndexModel
from bertsmith.inference.index.passage_table import PassageTable
from bertsmith.inference.index.writer import create_index, writing
from bertsmith.inference.lock import sole_writer
from bertsmith.text.retrieval.documents import SearchDocument, strip_part

MODEL = IndexModel(name="none", sha256="", dimension=16)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write_files(tmp_path / "docs", {"a.txt": sentences(1, 3), "b.txt": sentences(2, 3)})


def build(docs: Path) -> Index:
    return Index.build([docs], docs.parent / "index", embedder=WordEmbedder(), passages=SETTINGS)


def test_who_is_refused_does_not_remove_the_index_that_another_writes(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another build takes the lock between the making of the index and its first document."""
    with contextlib.ExitStack() as other:

        def created(folder: Path, *arguments: object) -> None:
            create_index(folder, *arguments)  # type: ignore[arg-type]
            other.enter_context(sole_writer(folder))

        monkeypatch.setattr(index_module, "create_index", created)
        with pytest.raises(InputError, match="is being written to by process"):
            build(docs)
        assert (docs.parent / "index" / MANIFEST).exists()


def test_of_two_first_builds_one_makes_the_index_and_the_other_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second comes while the first is making its table."""
    folder, make = tmp_path / "index", PassageTable.create
    second = threading.Thread(target=create_index, args=(folder, MODEL, SETTINGS))

    def slowly(*arguments: object) -> PassageTable:
        monkeypatch.setattr(PassageTable, "create", make)
        second.start()
        second.join(0.5)
        return make(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(PassageTable, "create", slowly)
    create_index(folder, MODEL, SETTINGS)
    made = (folder / MANIFEST).stat().st_ino
    second.join()
    assert (folder / MANIFEST).stat().st_ino == made
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_the_lock_of_a_folder_that_was_removed_keeps_nobody_out(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, lock = build(docs).path, fcntl.flock

    def removed(file: object, how: int) -> None:
        lock(file, how)  # type: ignore[arg-type]
        shutil.rmtree(folder)

    monkeypatch.setattr(locks.fcntl, "flock", removed)
    with pytest.raises(InputError, match="was removed by another process"), sole_writer(folder):
        pass


def test_all_that_a_commit_names_was_forced_to_disk_before(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[Path] = set()
    commits = 0

    def noted(path: Path) -> None:
        flushed.add(path)
        files_flush(path)

    def commit(folder: Path, manifest: object) -> None:
        nonlocal commits
        if not folder.name.startswith("."):  # that of a new index is forced to disk with its folder
            commits += 1
            table = folder / "passages.lance"
            assert {table, *table.rglob("*")} <= flushed
        write(folder, manifest)  # type: ignore[arg-type]

    files_flush, write = files.flush, index_writer.write_index_manifest
    index = build(docs)
    flushed |= set(index.path.rglob("*"))
    monkeypatch.setattr(index_writer, "flush", noted)
    monkeypatch.setattr(index_writer, "write_index_manifest", commit)
    with writing(index.path) as writer:
        writer.remove({"docs/a.txt"})  # and the writer dies
    flushed |= set(index.path.rglob("*"))  # what it left is never named
    with writing(index.path) as writer:
        writer.commit()  # of the version that undoes it
    assert commits == 1
    write_files(docs, {"a.txt": sentences(3, 3)})
    index = build(docs)
    assert commits >= 4
    monkeypatch.undo()
    assert content(index) == content(
        Index.build([docs], docs.parent / "fresh", embedder=WordEmbedder(), passages=SETTINGS)
    )


NO_VECTORS = np.zeros((0, 16), np.float32)


def blank(id: str) -> SearchDocument:
    return SearchDocument(id, "", "", "", "")


def test_documents_are_counted_right_whatever_was_put_in_and_removed(docs: Path) -> None:
    """Parts of one that stand without its first among them, as where that is blank."""
    draw = random.Random(0)
    ids = ["a", "a#part2", "a#part3", "b#part2", "b#part3", "c", "d#1", "d#part", "e#partly"]
    with writing(build(docs).path) as writer:
        for _ in range(20):
            chosen = draw.sample(ids, draw.randrange(1, 5))
            if draw.random() < 0.5:
                writer.replace([blank(id) for id in chosen], [], NO_VECTORS)
            else:
                writer.remove(chosen)
            writer.commit()
            assert writer.manifest.documents == len({strip_part(id) for id in writer.known})


def test_a_commit_does_not_count_all_documents_anew(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a table without ids, say, which has a commit for every two thousand rows."""
    looked_at = list[str]()

    def noted(id: str) -> str:
        looked_at.append(id)
        return strip_part(id)

    monkeypatch.setattr(index_writer, "strip_part", noted)
    with writing(build(docs).path) as writer:
        writer.replace([blank(f"t.csv#{number}") for number in range(200)], [], NO_VECTORS)
        writer.commit()
        assert writer.manifest.documents == 202
    assert len(looked_at) < 200

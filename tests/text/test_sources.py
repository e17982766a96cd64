"""Finding files and reading their bytes: order, what is passed over, and what is said when one is broken."""

import gzip
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
import zstandard
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from bertsmith.errors import EncodingError, InputError
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.files.sources import find_sources
from bertsmith.text.files.streams import SourceFile, SourceStream

TEXT = "".join(f"Line number {n} of the file, not like the others.\n" for n in range(3000))


def stream(path: Path, **settings: object) -> SourceStream:
    chosen = CorpusSettings.model_validate(settings)
    (file,) = find_sources([str(path)], chosen).sources
    assert isinstance(file, SourceFile)
    return SourceStream(file, chosen)


def lines(path: Path, **settings: object) -> list[str]:
    with stream(path, **settings) as opened:
        return list(opened.lines(limit=1000))


def test_folders_are_searched_in_order_without_hidden_and_excluded_files(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    for name in ("b/2.txt", "b/1.txt", "a.txt", ".hidden", ".git/c.txt", "b/notes.md", "weird [1]*.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text")
    found = find_sources([str(folder)], CorpusSettings(exclude=("*.md",)))
    names = [source.name for source in found.sources]
    assert names == ["texts/a.txt", "texts/b/1.txt", "texts/b/2.txt", "texts/weird [1]*.txt"]
    assert (found.hidden, found.excluded) == (2, 1)
    only = find_sources([str(folder)], CorpusSettings(include=("?.txt",)))
    assert [source.name for source in only.sources] == names[:3]


@pytest.mark.parametrize("spelled", ["docs", "link", "docs/", "docs/../docs"])
def test_a_folder_is_left_out_however_it_is_spelled(
    spelled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.txt", "out/b.txt", "outer.txt", "out/deep/.c"):
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_text("text")
    (tmp_path / "link").symlink_to("docs")
    monkeypatch.chdir(tmp_path)
    for left_out in (Path("docs/out"), tmp_path / "link" / "out"):
        found = find_sources([spelled], CorpusSettings(), left_out)
        assert [Path(source.name).name for source in found.sources] == ["a.txt", "outer.txt"]
        assert found.hidden == 0
    everything = find_sources([spelled], CorpusSettings(), tmp_path / "elsewhere")
    assert len(everything.sources) == 3
    with pytest.raises(InputError, match="holds no file to read"):
        find_sources([f"{spelled}/out"], CorpusSettings(), Path("docs/out"))


def test_remote_addresses_are_read_by_fsspec() -> None:
    files = fsspec.filesystem("memory")
    files.pipe("/remote/texts/a.txt", b"Some remote text.\n")
    files.pipe("/remote/texts/b.txt", b"More.\n")
    try:
        found = find_sources(["memory://remote/texts"], CorpusSettings())
        assert [(source.name, source.size) for source in found.sources] == [
            ("texts/a.txt", 18),
            ("texts/b.txt", 6),
        ]
        with SourceStream(found.sources[0], CorpusSettings()) as opened:  # type: ignore[arg-type]
            assert list(opened.lines(100)) == ["Some remote text."]
    finally:
        files.rm("/remote", recursive=True)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("nothing/here", "nothing/here does not exist"),
        ("nosuch://place/x", "nosuch://place/x is no address"),
        ("memory://empty/x", "memory://empty/x does not exist"),
    ],
)
def test_a_source_that_is_not_there_is_named(source: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        find_sources([source], CorpusSettings())


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{tmp_path} holds no file"):
        find_sources([str(tmp_path)], CorpusSettings())


def test_no_source_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="No source was given"):
        find_sources([], CorpusSettings())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_byte_order_marks_tell_the_encoding(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_bytes("Grüße, 世界\nzweite\r\ndritte".encode(encoding))
    assert lines(tmp_path / "a.txt") == ["Grüße, 世界", "zweite", "dritte"]


def test_a_wrong_byte_is_reported_with_its_place_and_the_two_ways_on(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    good = "é" * 700_000  # beyond the first piece read, and no whole number of characters a piece
    path.write_bytes(b"x\n" + good.encode() + "\ncaf\xe9!".encode("latin-1"))
    at = 2 + 2 * len(good) + 4
    with pytest.raises(
        InputError, match=rf"a\.txt: expected utf-8 text, found 0xe9 at byte {at:,}, in line 3 "
    ) as caught:
        lines(path)
    assert str(caught.value).endswith("Save it as UTF-8, or give its encoding ('latin-1', for one).")
    assert "".join(lines(path, encoding_errors="replace")).endswith("caf\ufffd!")
    assert "".join(lines(path, encoding="latin-1")).endswith("café!")


@pytest.mark.parametrize("name", ["utf-9", "base64", "rot13", "undefined", "a\0b"])
def test_what_is_no_encoding_of_text_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(InputError, match="no encoding called"):
        lines(tmp_path / "a.txt", encoding=name)


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("zst", zstandard.compress)])
def test_a_cut_archive_is_reported_with_its_place(tmp_path: Path, ending: str, pack) -> None:  # type: ignore[no-untyped-def]
    path, packed = tmp_path / f"a.txt.{ending}", pack(TEXT.encode())
    path.write_bytes(packed)
    assert "\n".join(lines(path)) + "\n" == TEXT
    for kept in (len(packed) - 1, len(packed) // 2):
        path.write_bytes(packed[:kept])
        with pytest.raises(
            InputError, match=rf"a\.txt\.{ending}: the \w+ archive is cut.*byte {kept:,} of {kept:,}"
        ):
            lines(path)


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_file_that_is_no_archive_is_reported(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"a.{ending}").write_bytes(b"this is plain text")
    with pytest.raises(InputError, match="archive is cut or damaged"):
        lines(tmp_path / f"a.{ending}")


def test_the_hash_is_of_the_bytes_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(TEXT.encode()))
    with stream(path) as opened:
        assert sum(1 for _ in opened.lines(1000)) == 3000
        assert opened.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert opened.position == path.stat().st_size


def test_binary_is_told_from_utf16(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x7fELF\x00\x00")
    (tmp_path / "b").write_bytes("text".encode("utf-16"))
    assert stream(tmp_path / "a").looks_binary
    assert not stream(tmp_path / "b").looks_binary


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_an_encoding_that_writes_nul_bytes_needs_no_mark_when_it_is_named(
    tmp_path: Path, encoding: str
) -> None:
    (tmp_path / "a.txt").write_bytes("été\nhiver\n".encode(encoding))
    assert stream(tmp_path / "a.txt").looks_binary
    assert not stream(tmp_path / "a.txt", encoding=encoding).looks_binary
    assert lines(tmp_path / "a.txt", encoding=encoding) == ["été", "hiver"]


@pytest.mark.parametrize(
    ("encoding", "holds"), [("utf-16", "utf-8"), ("utf-16", "utf-16-le"), ("UTF32", "utf-32-le")]
)
def test_an_encoding_that_asks_for_a_mark_is_refused_without_one(
    tmp_path: Path, encoding: str, holds: str
) -> None:
    (tmp_path / "a.txt").write_bytes("été\nhiver\n".encode(holds))
    with pytest.raises(EncodingError, match=f"found no byte-order mark.*'{holds}'"):
        lines(tmp_path / "a.txt", encoding=encoding)


def link_to_folder(path: Path) -> None:
    path.symlink_to(path.parent)  # which leads in circles


def broken_link(path: Path) -> None:
    path.symlink_to("gone")


def pipe(path: Path) -> None:
    os.mkfifo(path)  # opening it would wait for a writer


@pytest.mark.parametrize("make", [link_to_folder, broken_link, pipe])
def test_what_is_no_file_in_a_folder_is_named_and_can_be_left_out(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("text")
    (folder / "linked.txt").symlink_to("a.txt")  # a link to a file is one
    make(folder / "odd")
    with pytest.raises(InputError, match=r"texts/odd is no file but a link .*--exclude"):
        find_sources([str(folder)], CorpusSettings())
    found = find_sources([str(folder)], CorpusSettings(exclude=("odd",)))
    assert [source.name for source in found.sources] == ["texts/a.txt", "texts/linked.txt"]


def test_a_folder_that_cannot_be_read_is_named_and_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.txt", "inside/secret/b.txt", "inside/.secret/c.txt"):
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_text("text")
    listed = LocalFileSystem.ls

    def ls(self: LocalFileSystem, path: str, **options: bool) -> list[dict[str, object]]:
        if path.endswith("secret"):  # root could read any folder
            raise PermissionError(13, "Permission denied", path)
        return listed(self, path, **options)

    monkeypatch.setattr(LocalFileSystem, "ls", ls)
    with pytest.raises(InputError, match=r"texts/inside/secret cannot be read: .*Permission.*--exclude"):
        find_sources([str(tmp_path / "texts")], CorpusSettings())
    found = find_sources([str(tmp_path / "texts")], CorpusSettings(exclude=("secret",)))
    assert [source.name for source in found.sources] == ["texts/a.txt"]


def test_a_pipe_is_not_said_to_be_missing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is neither a file nor a folder"):
        find_sources([str(tmp_path / "pipe")], CorpusSettings())


def test_a_file_whose_server_does_not_say_its_size_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe("/unknown.txt", b"Some text.\n")
    monkeypatch.setattr(MemoryFileSystem, "size", lambda self, path: None)
    (file,) = find_sources(["memory://unknown.txt"], CorpusSettings()).sources
    assert isinstance(file, SourceFile)
    assert file.size == 0
    with SourceStream(file, CorpusSettings()) as opened:
        assert list(opened.lines(100)) == ["Some text."]


def test_a_package_named_twice_is_read_once() -> None:
    found = find_sources(["pydocs:tokenizers,Tokenizers"], CorpusSettings())
    assert [source.name for source in found.sources] == ["tokenizers"]


@pytest.mark.parametrize("source", ["", " "])
def test_a_source_that_is_empty_is_not_the_folder_one_stands_in(source: str) -> None:
    with pytest.raises(InputError, match="A SOURCE is empty"):
        find_sources([source], CorpusSettings())

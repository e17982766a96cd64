"""An index follows its sources, embeds nothing twice, and refuses what would spoil it."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from index_samples import SETTINGS, WordEmbedder, content, sentences, write_files

pytest.importorskip("lancedb")

from bertsmith.errors import InputError, ResourceError
from bertsmith.inference.index import build as index_build
from bertsmith.inference.index import passage_table
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.manifest import read_index_manifest
from bertsmith.inference.index.writer import writing
from bertsmith.inference.lock import sole_writer
from bertsmith.text.retrieval import documents
from bertsmith.text.retrieval.documents import DocumentSettings
from bertsmith.text.retrieval.passages import PassageSettings

TEXTS = {"a.md": "# Cats\n\n" + sentences(1, 8), "b.txt": sentences(2, 5), "deep/c.txt": sentences(3, 1)}


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write_files(tmp_path / "docs", TEXTS)


def build(docs: Path, embedder: WordEmbedder | None = None, **settings: object) -> Index:
    out = docs.parent / "index"
    return Index.build([docs], out, embedder=embedder or WordEmbedder(), passages=SETTINGS, **settings)  # type: ignore[arg-type]


def test_every_row_is_a_piece_of_its_source_with_its_line_and_vector(docs: Path) -> None:
    index, embedder = build(docs), WordEmbedder()
    rows = [
        row
        for batch in index._committed.table.scan(index._committed.table.table.schema.names)
        for row in batch.to_pylist()
    ]
    assert {row["document_id"] for row in rows} == {f"docs/{name}" for name in TEXTS}
    assert len(rows) > len(TEXTS)
    for row in rows:
        text = TEXTS[row["source"].removeprefix("docs/")] + "\n"
        assert text[row["start"] : row["end"]] == row["text"]
        assert row["line"] == text.count("\n", 0, row["start"]) + 1
        read = f"Cats\n{row['text']}" if row["title"] else row["text"]
        assert row["title"] == ("Cats" if row["source"] == "docs/a.md" else "")
        np.testing.assert_allclose(row["vector"], embedder.queries([read])[0], atol=1e-6)
    assert index.verify() == index.info.rows == len(rows)
    assert (index.info.documents, index.info.complete, index.info.sources) == (3, True, (str(docs),))


def test_an_unchanged_folder_embeds_nothing_and_writes_nothing(docs: Path) -> None:
    version = build(docs).info.version
    embedder = WordEmbedder()
    index = build(docs, embedder)
    assert embedder.embedded == 0
    assert index.info.version == version
    assert index.changes is not None
    assert (index.changes.unchanged, index.changes.passages) == (3, 0)


def test_only_what_changed_is_embedded_and_what_vanished_is_removed(docs: Path) -> None:
    build(docs)
    write_files(docs, {"b.txt": "A new bird sings.", "d.txt": "An old dog sleeps."})
    (docs / "deep" / "c.txt").unlink()
    embedder = WordEmbedder()
    index = build(docs, embedder)
    assert embedder.embedded == 2
    assert index.changes is not None
    found = index.changes
    assert (found.new, found.changed, found.removed, found.unchanged, found.passages) == (1, 1, 1, 1, 2)
    fresh = Index.build([docs], docs.parent / "fresh", embedder=WordEmbedder(), passages=SETTINGS)
    assert content(index) == content(fresh)


def test_a_document_that_was_moved_within_a_file_is_not_lost(docs: Path) -> None:
    """Two rows of a table swap their texts: both change, under ids that stay."""
    path = docs.parent / "rows.jsonl"
    path.write_text('{"id": "1", "text": "red cat"}\n{"id": "2", "text": "blue dog"}\n')
    Index.build([path], docs.parent / "rows", embedder=WordEmbedder())
    path.write_text('{"id": "1", "text": "blue dog"}\n{"id": "2", "text": "red cat"}\n')
    index = Index.build([path], docs.parent / "rows", embedder=WordEmbedder())
    assert {row[1]: row[7] for row in content(index).values()} == {"1": "blue dog", "2": "red cat"}


def test_what_add_put_in_stays_until_it_is_removed(docs: Path) -> None:
    index = build(docs)
    extra = write_files(docs.parent / "more", {"e.txt": "A green bird."})
    index.add([extra / "e.txt"])
    index = build(docs)
    assert index.info.documents == 4
    (extra / "e.txt").write_text("A red bird.")
    assert index.add([extra / "e.txt"]).changed == 1
    assert [hit.text for hit in index.search("red bird", k=1)] == ["A red bird."]
    assert index.remove([f"{extra}/e.txt"]) == 1
    assert index.info.documents == 3


def test_what_add_named_stays_though_a_build_had_put_it_there(docs: Path) -> None:
    other = write_files(docs.parent / "other", {"e.txt": "A green bird.", "f.txt": "A red bird."})
    out, settings = docs.parent / "index", {"embedder": WordEmbedder(), "passages": SETTINGS}
    index = Index.build([docs, other], out, **settings)  # type: ignore[arg-type]
    embedder = WordEmbedder()
    assert Index.open(out, embedder).add([other]).unchanged == 2
    assert embedder.embedded == 0
    assert Index.build([docs], out, **settings).info.documents == 5  # type: ignore[arg-type]
    (other / "e.txt").write_text("An old bird.")
    Index.build([docs, other], out, **settings)  # type: ignore[arg-type]
    index = Index.build([docs], out, **settings)  # type: ignore[arg-type]
    assert index.info.documents == 5, "nor does a build that embeds it take it over"
    assert index.remove(["other/"]) == 2


def test_a_document_in_parts_is_one_document(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LONGEST", 100)
    (docs / "big.txt").write_text(sentences(4, 12))
    index = build(docs)
    assert len([id for id in (row[1] for row in content(index).values()) if "#part" in str(id)]) > 2
    found = index.changes
    assert found is not None and (found.new, index.info.documents) == (4, 4)
    (docs / "big.txt").write_text(sentences(4, 12)[:-4] + ".")
    found = build(docs).changes
    assert found is not None
    assert (found.new, found.changed, found.removed, found.unchanged) == (0, 1, 0, 3)
    (docs / "big.txt").write_text("An old bird.")
    index = Index.open(docs.parent / "index", WordEmbedder())
    assert index.add([docs / "big.txt"]).new == 1, "under the path that was named"
    found = build(docs).changes
    assert found is not None
    assert (found.new, found.changed, found.removed, found.unchanged) == (0, 1, 0, 3)
    assert {row[1] for row in content(build(docs)).values() if str(row[1]).startswith("docs/big")} == {
        "docs/big.txt"
    }
    (docs / "big.txt").unlink()
    found = build(docs).changes
    assert found is not None and found.removed == 1


def test_an_added_document_that_became_shorter_leaves_no_parts(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "LONGEST", 100)
    big = write_files(docs.parent / "more", {"big.txt": sentences(4, 12)}) / "big.txt"
    index = build(docs)
    index.add([big])
    big.write_text("An old bird.")
    assert index.add([big]).changed == 1
    assert [row[1] for row in content(index).values() if "big" in str(row[1])] == [str(big)]


def test_documents_are_removed_by_id_and_by_folder_or_not_at_all(docs: Path) -> None:
    index = build(docs)
    with pytest.raises(
        InputError, match=r"holds no document 'docs/b.tx'. Did you mean 'docs/b.txt'\? Nothing"
    ):
        index.remove(["docs/a.md", "docs/b.tx"])
    assert index.info.documents == 3
    assert index.remove(["docs/deep/", "docs/a.md"]) == 2
    assert {row[1] for row in content(index).values()} == {"docs/b.txt"}
    assert index.remove(["docs/b.txt"]) == 1
    assert index.info.rows == 0 and index.search("cat") == []


def test_metadata_become_columns_of_the_kind_that_all_values_have(docs: Path) -> None:
    path = docs.parent / "rows.csv"
    path.write_text("id,text,year,price,zip,start\n1,red cat,2015,1.5,007,x\n2,blue dog,,2,12,y\n")
    index = Index.build([path], docs.parent / "rows", embedder=WordEmbedder())
    assert index.info.metadata == {
        "year": "whole numbers",
        "price": "numbers",
        "zip": "text",
        "start_": "text",
    }
    (hit,) = index.search("cat", where="year > 2000 AND price < 2 AND zip = '007'")
    assert (hit.document_id, hit.metadata) == ("1", {"year": 2015, "price": 1.5, "zip": "007", "start_": "x"})
    more = docs.parent / "more.jsonl"
    more.write_text('{"id": "3", "text": "old bird", "year": 2020, "good": true}\n')
    index.add([more])
    assert index.info.metadata["good"] == "yes or no"
    assert [hit.document_id for hit in index.search("bird", where="good")] == ["3"]
    more.write_text('{"id": "4", "text": "old bird", "year": "unknown"}\n')
    with pytest.raises(
        InputError, match=r"more\.jsonl, line 1: the column 'year' of this index holds whole nu"
    ):
        index.add([more])
    assert index.info.documents == 3


def test_two_documents_of_one_id_are_refused_before_anything_is_written(docs: Path) -> None:
    index = build(docs)
    version = index.info.version
    path = docs.parent / "rows.jsonl"
    path.write_text('{"id": "1", "text": "red"}\n{"id": "2", "text": "blue"}\n{"id": "1", "text": "green"}\n')
    with pytest.raises(InputError, match=r"the id '1': rows\.jsonl, line 1 and rows\.jsonl, line 3"):
        index.add([path])
    with pytest.raises(InputError, match=r"the id 'docs/b.txt': .*docs/b.txt and .*other/docs/b.txt"):
        index.add([docs, write_files(docs.parent / "other" / "docs", {"b.txt": "red"})])
    assert index.info.version == version


def test_sources_without_a_document_are_refused(docs: Path) -> None:
    empty = docs.parent / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="empty holds no file to read"):
        build(empty)
    (empty / "a.bin").write_bytes(b"\0\0")
    with pytest.raises(InputError, match=r"No document was found in .*empty. Left out: 1 binary file"):
        build(empty)
    assert not (docs.parent / "index").exists(), "an index of nothing isn't left behind"


@pytest.mark.parametrize("what", ["nothing", "a file", "a folder"])
def test_what_is_no_index_is_refused_and_left_alone(docs: Path, what: str) -> None:
    place = docs.parent / "place"
    if what == "a file":
        place.write_text("mine")
    elif what == "a folder":
        write_files(place, {"mine.txt": "mine"})
        with pytest.raises(InputError, match="exists and is no index"):
            Index.build([docs], place, embedder=WordEmbedder())
        assert [path.name for path in place.iterdir()] == ["mine.txt"]
    with pytest.raises(InputError, match=r"does not exist|is no index"):
        Index.open(place)
    with pytest.raises(InputError), writing(place):
        pass


def test_a_model_of_another_dimension_is_refused(docs: Path) -> None:
    build(docs)
    with pytest.raises(InputError, match=r"holds vectors of 16 dimensions from WordEmbedder, but .* makes 8"):
        Index.open(docs.parent / "index", embedder=WordEmbedder(8)).search("cat")
    with pytest.raises(InputError, match="16 dimensions"):
        build(docs, WordEmbedder(8))


def test_other_passages_are_refused(docs: Path) -> None:
    build(docs)
    with pytest.raises(InputError, match="was built with other passages"):
        Index.build(
            [docs],
            docs.parent / "index",
            embedder=WordEmbedder(),
            passages=PassageSettings(tokens=10, overlap=0),
        )
    with pytest.raises(InputError, match="Passages of 200 tokens are longer than the 62 that"):
        Index.build([docs], docs.parent / "other", embedder=WordEmbedder(), passages=PassageSettings())


def test_a_new_index_needs_a_model(docs: Path) -> None:
    with pytest.raises(InputError, match="A new index needs a model"):
        Index.build([docs], docs.parent / "index")


@pytest.mark.parametrize("harm", ["cut", "missing", "no table", "no json", "no version", "longer"])
def test_a_damaged_index_says_so_and_loses_nothing_more(docs: Path, harm: str) -> None:
    index = build(docs)
    table = index.path / "passages.lance"
    data = max((table / "data").iterdir(), key=lambda path: path.stat().st_size)
    if harm == "cut":
        os.truncate(data, data.stat().st_size // 2)
    elif harm == "missing":
        data.unlink()
    elif harm == "no table":
        table.rename(docs.parent / "elsewhere")
    elif harm == "no version":
        for path in (table / "_versions").glob("*.manifest"):
            path.unlink()
    elif harm == "longer":
        with min((table / "_versions").glob("*.manifest")).open("ab") as latest:
            latest.write(b"\n")
    else:
        (index.path / "index.json").write_text('{"format_version": 1')
    with pytest.raises(InputError, match=r"damaged|not valid JSON"):
        Index.open(index.path, embedder=WordEmbedder()).search("cat", mode="vector")
    with pytest.raises(InputError, match=r"damaged|not valid JSON"):
        build(docs)


def test_a_second_writer_is_told_who_the_first_one_is(docs: Path) -> None:
    index = build(docs)
    with sole_writer(index.path):
        with pytest.raises(InputError, match=f"is being written to by process {os.getpid()}"):
            index.remove(["docs/b.txt"])
        assert index.search("cat"), "readers need no lock"
    assert index.remove(["docs/b.txt"]) == 1


def test_an_index_that_may_not_be_written_to_can_be_searched(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build(docs)
    opened = Path.open

    def refused(path: Path, mode: str = "r", *arguments: object, **named: object):  # type: ignore[no-untyped-def]
        if path.name == ".lock":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, mode, *arguments, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(
        ResourceError, match=r"can't be written to: Permission denied. It can still be searched"
    ):
        index.remove(["docs/b.txt"])
    assert Index.open(index.path, embedder=WordEmbedder()).search("cat")


def test_a_reader_sees_what_is_committed_and_never_half_of_it(docs: Path) -> None:
    build(docs)
    reader = Index.open(docs.parent / "index", embedder=WordEmbedder())
    before = content(reader)
    with writing(docs.parent / "index") as writer:
        writer.remove({"docs/a.md"})
        reader.search("cat")
        assert content(reader) == before
        writer.commit()
    reader.search("cat")
    assert {row[1] for row in content(reader).values()} == {"docs/b.txt", "docs/deep/c.txt"}


def test_what_was_not_committed_is_undone_by_the_next_writer(docs: Path) -> None:
    index = build(docs)
    before = content(index)
    with writing(index.path) as writer:
        writer.remove({"docs/a.md"})
    with writing(index.path) as writer:
        assert writer.known.keys() == {f"docs/{name}" for name in TEXTS}
    assert content(build(docs)) == before


def test_a_batch_is_committed_as_soon_as_it_is_written(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_build, "PASSAGES_AT_A_TIME", 1)

    class Failing(WordEmbedder):
        def documents(self, texts):  # type: ignore[no-untyped-def]
            if self.embedded > 4:
                raise KeyboardInterrupt
            return super().documents(texts)

    with pytest.raises(KeyboardInterrupt):
        build(docs, Failing())
    kept = read_index_manifest(docs.parent / "index")
    assert 0 < kept.documents < 3 and not kept.complete
    embedder = WordEmbedder()
    index = build(docs, embedder)
    assert embedder.embedded == index.info.rows - kept.rows
    assert content(index) == content(
        Index.build([docs], docs.parent / "f", embedder=WordEmbedder(), passages=SETTINGS)
    )


def test_a_full_disk_is_a_sentence_and_keeps_what_was_committed(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build(docs)
    before = content(index)
    real = passage_table.PassageTable.add

    def full(self, rows, vectors):  # type: ignore[no-untyped-def]
        real(self, rows[:1], vectors[:1])
        with passage_table.index_errors(self.folder):
            raise RuntimeError(
                "lance error: LanceError(IO): No space left on device (os error 28), /a/b.rs:1"
            )

    monkeypatch.setattr(passage_table.PassageTable, "add", full)
    write_files(docs, {"b.txt": "An old bird."})
    with pytest.raises(ResourceError, match=r"The disk is full: .* All that was committed stays"):
        build(docs)
    monkeypatch.undo()
    write_files(docs, {"b.txt": TEXTS["b.txt"]})
    assert content(build(docs)) == before


def test_progress_counts_bytes_then_documents(docs: Path) -> None:
    seen: list[tuple[int, int | None, str]] = []
    build(docs, progress=lambda *step: seen.append(step))
    size = sum(path.stat().st_size for path in docs.rglob("*") if path.is_file())
    assert seen[2] == (size, size, "bytes")
    assert seen[-1] == (3, 3, "documents")


def test_columns_are_named_for_tables(docs: Path) -> None:
    path = docs.parent / "rows.tsv"
    path.write_text("nr\thead\tbody text\n1\tCats\tred cat\n")
    settings = DocumentSettings(id="nr", text="body text", title="head")
    index = Index.build([path], docs.parent / "rows", embedder=WordEmbedder(), documents=settings)
    (hit,) = index.search("cat")
    assert (hit.document_id, hit.title, hit.text, hit.place) == ("1", "Cats", "red cat", "1")
    manifest = json.loads((docs.parent / "rows" / "index.json").read_text())
    assert manifest["model"] == {
        "name": "WordEmbedder",
        "sha256": "",
        "dimension": 16,
        "tokenizer": WordEmbedder().tokenizer.sha256,
        "pooling": "",
        "max_length": 64,
        "long_texts": "",
        "query_prefix": "",
        "document_prefix": "",
    }

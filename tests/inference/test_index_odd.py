"""An index of what is long, oddly named, or changed at an awkward moment."""

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from index_samples import SETTINGS, WordEmbedder, sentences, write_files

pytest.importorskip("lancedb")

from bertsmith.errors import InputError
from bertsmith.inference.index import passage_table
from bertsmith.inference.index.document_shards import cut_and_embed
from bertsmith.inference.index.index import Index
from bertsmith.text.retrieval.documents import Document


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write_files(tmp_path / "docs", {"a.txt": sentences(1, 3), "b.txt": sentences(2, 3)})


def build(docs: Path) -> Index:
    return Index.build([docs], docs.parent / "index", embedder=WordEmbedder(), passages=SETTINGS)


def test_a_reader_is_not_misled_by_a_writer_that_cleans_up_as_it_opens(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build(docs)
    monkeypatch.setattr(passage_table, "OLD_VERSIONS_STAY", timedelta(milliseconds=1))
    real, before = passage_table.PassageTable.open, index.info.version

    def after_a_commit(folder: Path, version: int | None = None) -> passage_table.PassageTable:
        monkeypatch.setattr(passage_table.PassageTable, "open", real)
        build(write_files(docs, {"b.txt": sentences(9, 4)}))
        with pytest.raises(InputError, match="damaged"):
            real(folder, before)
        return real(folder, version)

    monkeypatch.setattr(passage_table.PassageTable, "open", after_a_commit)
    opened = Index.open(index.path, embedder=WordEmbedder())
    assert opened.info.version > before
    assert opened.search("cat")


def test_a_document_is_hashed_as_often_however_many_passages_it_has(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed, sha256 = [0], Document.sha256.fget  # type: ignore[attr-defined]

    def counted(document: Document) -> str:
        hashed[0] += 1
        return str(sha256(document))

    monkeypatch.setattr(Document, "sha256", property(counted))
    write_files(docs, {"long.txt": sentences(5, 100)})
    index = Index.build([docs / "long.txt"], docs.parent / "f", embedder=WordEmbedder(), passages=SETTINGS)
    assert index.info.rows > 20
    assert hashed[0] <= 3


def test_a_document_whose_id_looks_like_a_folder_is_removed_alone(docs: Path) -> None:
    path = docs / "pages.jsonl"
    ids = ["site/", "site/a", "site/b/", "site/b/c"]
    path.write_text("".join(json.dumps({"id": id, "text": "red cat"}) + "\n" for id in ids))
    index = Index.build([path], docs.parent / "f", embedder=WordEmbedder())
    assert index.remove(["site/"]) == 1
    assert index.remove(["site/"]) == 3, "now it can only mean the folder"


def test_a_long_title_leaves_room_for_the_passage() -> None:
    """62 tokens fit beside the special ones, 12 are the passage's."""
    read = list[str]()

    class Reader(WordEmbedder):
        def documents(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
            read.extend(texts)
            return super().documents(texts)

    titles = ["red " * 100, "blue " * 50, "green"]
    cut_and_embed(Reader(), SETTINGS, [(title.strip(), sentences(1, 6)) for title in titles])
    tokens = [len(ids) for ids in Reader().tokenizer.encode_batch(read)]
    assert 62 - 12 < max(tokens) <= 62
    assert {text.count("red red") > 0 for text in read} == {True, False}
    assert [text.count("blue") >= 50 for text in read].count(True) == len(read) / 3

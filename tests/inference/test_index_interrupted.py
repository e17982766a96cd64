"""What was interrupted stays noted until what was begun is done, whatever else is done meanwhile."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from index_samples import SETTINGS, WordEmbedder, sentences, write_files

pytest.importorskip("lancedb")

from bertsmith.inference.index import build as index_build
from bertsmith.inference.index.index import Index


class Dying(WordEmbedder):
    """Embeds two documents."""

    def documents(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        if self.embedded >= 2:
            raise KeyboardInterrupt
        return super().documents(texts)


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four documents of a passage, each a commit."""
    monkeypatch.setattr(index_build, "PASSAGES_AT_A_TIME", 1)
    return write_files(tmp_path / "docs", {f"{number}.txt": sentences(number, 1) for number in range(4)})


def build(docs: Path, embedder: WordEmbedder) -> Index:
    return Index.build([docs], docs.parent / "index", embedder=embedder, passages=SETTINGS)


def test_neither_add_nor_remove_completes_an_interrupted_build(docs: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(docs, Dying())
    index = Index.open(docs.parent / "index", embedder=WordEmbedder())
    assert (index.info.complete, index.info.documents) == (False, 2)
    with pytest.warns(
        UserWarning, match="Repeat the same `bertsmith index build`: it continues where it stopped"
    ):
        assert {hit.document_id for hit in index.search("cat dog bird")} == {"docs/0.txt", "docs/1.txt"}
    assert index.remove(["docs/0.txt"]) == 1
    assert (index.info.complete, index.info.documents) == (False, 1)
    assert index.add([write_files(docs.parent / "more", {"e.txt": "A red cat."})]).new == 1
    assert (index.info.complete, index.info.documents) == (False, 2)
    index = build(docs, WordEmbedder())
    assert (index.info.complete, index.info.documents) == (True, 5)


def test_an_interrupted_add_is_completed_by_the_next(docs: Path) -> None:
    index = build(write_files(docs.parent / "first", {"a.txt": "A red cat."}), WordEmbedder())
    with pytest.raises(KeyboardInterrupt):
        Index.open(index.path, embedder=Dying()).add([docs])
    assert (index.info.complete, index.info.documents) == (False, 3)
    assert index.remove(["docs/0.txt"]) == 1
    assert (index.info.complete, index.info.documents) == (False, 2)
    assert index.add([docs]).new == 3
    assert (index.info.complete, index.info.documents) == (True, 5)


@pytest.mark.slow
def test_an_interrupted_add_is_completed_by_no_other_add_and_no_build(docs: Path) -> None:
    first = write_files(docs.parent / "first", {"a.txt": "A red cat."})
    build(first, WordEmbedder())
    with pytest.raises(KeyboardInterrupt):
        Index.open(docs.parent / "index", embedder=Dying()).add([docs])
    index = Index.open(docs.parent / "index", embedder=WordEmbedder())
    index.add([write_files(docs.parent / "other", {"b.txt": "A blue dog."})])
    assert (index.info.complete, index.info.documents, index.info.to_add) == (False, 4, (str(docs),))
    with pytest.warns(
        UserWarning, match=f"Repeat the same `bertsmith index add` of {docs}: it continues where it stopped"
    ):
        assert len(index.search("cat dog bird", per_document=True)) == 4
    assert build(first, WordEmbedder()).info.complete is False
    index.add([docs])
    assert (index.info.complete, index.info.documents, index.info.to_add) == (True, 6, ())

"""An index of what is long, oddly named, or changed at an awkward moment."""

import json
import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from index_samples import SETTINGS, WordEmbedder, sentences, write_files
from tokenizers import pre_tokenizers

pytest.importorskip("lancedb")

from bertsmith.errors import InputError
from bertsmith.inference.index import passage_table
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.text_embedder import cut_and_embed, tokens_for_text
from bertsmith.text.retrieval.documents import SearchDocument
from bertsmith.text.retrieval.passages import PassageSettings
from bertsmith.text.tokens.tokenizer import Tokenizer


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


def test_a_reader_sees_an_index_that_was_removed_and_built_again(docs: Path) -> None:
    reader = build(docs)
    version = reader.info.version
    shutil.rmtree(reader.path)
    again = build(write_files(docs, {"b.txt": "A zebra sings."}))
    assert again.info.version == version, "the number alone doesn't tell"
    assert [hit.document_id for hit in reader.search("zebra", mode="text")] == ["docs/b.txt"]
    assert reader.verify() == again.info.rows


def test_an_index_in_its_own_source_is_no_document_of_it(docs: Path) -> None:
    out = docs / "deep" / "index"
    for _ in range(2):
        index = Index.build([docs], out, embedder=WordEmbedder(), passages=SETTINGS)
        assert index.changes is not None and index.info.documents == 2
    assert (index.changes.new, index.changes.unchanged) == (0, 2)
    assert index.add([docs]).new == 0
    with pytest.raises(InputError, match="holds no file to read"):
        index.add([out])


def test_a_document_is_hashed_as_often_however_many_passages_it_has(
    docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed, sha256 = [0], SearchDocument.sha256.fget  # type: ignore[attr-defined]

    def counted(document: SearchDocument) -> str:
        hashed[0] += 1
        return str(sha256(document))

    monkeypatch.setattr(SearchDocument, "sha256", property(counted))
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


class Reader(WordEmbedder):
    """Notes what it reads: 62 tokens beside the special ones."""

    def __init__(self) -> None:
        super().__init__()
        self.read = list[str]()

    def documents(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.read.extend(texts)
        return super().documents(texts)

    def tokens(self) -> list[int]:
        return [len(ids) for ids in self.tokenizer.encode_batch(self.read)]


def test_a_title_is_left_out_where_the_passage_fills_the_model() -> None:
    reader, text = Reader(), " ".join(["cat"] * 50 + ["dog"] * 12)
    cut_and_embed(reader, PassageSettings(tokens=62, overlap=12), [("red " * 12, text)])
    assert reader.read == [text]


def test_usual_passages_leave_room_for_a_title_in_a_short_model() -> None:
    reader, title = Reader(), ("red " * 12).strip()
    settings = PassageSettings().within(62)
    cut_and_embed(reader, settings, [(title, " ".join(["cat"] * 200))])
    assert all(text.startswith(title) for text in reader.read)
    assert max(reader.tokens()) == settings.tokens + 12 <= 62
    assert PassageSettings().within(254) == PassageSettings(), "MiniLM's"


def test_the_line_end_behind_a_title_takes_a_token_of_the_title_and_not_of_the_passage(
    tmp_path: Path,
) -> None:
    """It is one in a byte-level vocabulary, where the last token of a full passage wasn't read."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: id for id, piece in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    reader = Reader()
    reader.tokenizer = Tokenizer.load(tmp_path)
    cut_and_embed(reader, SETTINGS, [("t" * 100, "cat dog cat")])
    assert reader.tokens() == [12 + 50 - 1]
    cut_and_embed(reader, SETTINGS, [("t" * 100, "cats dog cat")])
    assert reader.tokens()[1:] == [62] and reader.read[1].endswith("\ncats dog cat")


def test_a_long_title_leaves_room_for_the_passage() -> None:
    """12 tokens are the passage's."""
    reader = Reader()
    titles = ["red " * 100, "blue " * 50, "green"]
    cut_and_embed(reader, SETTINGS, [(title.strip(), sentences(1, 6)) for title in titles])
    read, tokens = reader.read, reader.tokens()
    assert 62 - 12 < max(tokens) <= 62
    assert {text.count("red red") > 0 for text in read} == {True, False}
    assert [text.count("blue") >= 50 for text in read].count(True) == len(read) / 3


def test_a_prefix_takes_its_part_of_the_room() -> None:
    reader = Reader()
    reader.prefixes = {"document": "red " * 20}  # type: ignore[attr-defined]
    assert tokens_for_text(reader) == 62 - 20
    cut_and_embed(reader, SETTINGS, [("blue " * 50, sentences(1, 6))])
    assert 42 - 12 < max(reader.tokens()) <= 42


def test_an_index_in_the_home_folder_is_there_as_a_whole(
    docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LanceDB alone took ~ for it: index.json came into a folder called ~."""
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Index.build([docs], "~/index", embedder=WordEmbedder(), passages=SETTINGS)
    assert Index.open("~/index", embedder=WordEmbedder()).path == tmp_path / "home" / "index"
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize(
    "changes",
    [
        *({"version": version} for version in (-1, 0, 2**64)),
        *(
            {"metadata": {name: "text"}}
            for name in ("nope", "x`y", "a.b", "text", "vector", "_distance", "*", "")
        ),
        {"metadata": {"year": "text"}},
        {"rows": -1},
        {"approximate": {"rows": 9, "probes": -5, "refine": 1, "recall": 1.0, "queries": 1}},
        {"approximate": {"rows": 9, "probes": 10**30, "refine": 1, "recall": 1.0, "queries": 1}},
        {"approximate": {"rows": 9, "probes": 1, "refine": 1, "recall": float("nan"), "queries": 1}},
    ],
    ids=str,
)
def test_an_index_json_that_was_altered_is_refused_on_opening(
    docs: Path, changes: dict[str, object], tmp_path: Path
) -> None:
    (docs / "rows.jsonl").write_text('{"id": "r1", "text": "old cat runs", "year": 2001}\n')
    path = build(docs).path / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=r"index\.json.* It was altered|is damaged: index\.json says"):
        Index.open(path.parent, embedder=WordEmbedder())

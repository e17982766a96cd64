"""The token store: what goes in comes out; what was cut, altered or made for another vocabulary is found."""

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from bertsmith.data import tokenizing
from bertsmith.data.store import TokenStore
from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.errors import InputError, ResourceError, StoreError
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus.corpus import Corpus, CorpusDocument
from bertsmith.text.corpus.manifest import CorpusManifest, Counts, SkippedFiles, Split, SplitEntry
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENIZER = Tokenizer.from_pieces([*SPECIAL, "a", "b", "c", "##a", "##b", "."], lowercase=True)
TEXT = "A b c. Ab ba.\n\nC.\n\nb b b. aab c. Abba. c\n\nabc abc."


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    (tmp_path / "text.txt").write_text(TEXT)
    choice = CorpusSettings(format="blank-lines", heldout=0.3, near_duplicates=False)
    return build_corpus([str(tmp_path / "text.txt")], tmp_path / "corpus", settings=choice, workers=1)


@pytest.fixture
def folder(tmp_path: Path, corpus: Corpus) -> Path:
    tokenize_corpus(corpus, TOKENIZER, tmp_path / "store")
    return tmp_path / "store"


class Held(Corpus):
    """A corpus in memory, with documents that building would never let through."""

    def __init__(self, path: Path, documents: list[list[str]]) -> None:
        path.mkdir(parents=True)
        (path / "manifest.json").write_text("{}")
        self.path, self._held = path, documents
        sentences = [sentence for document in documents for sentence in document]
        counts = Counts(
            documents=len(documents),
            sentences=len(sentences),
            bytes=sum(len(s.encode(errors="ignore")) for s in sentences),
        )
        self.manifest = CorpusManifest(
            created_by="test",
            licence="",
            settings=CorpusSettings(),
            splits={
                "train": SplitEntry(counts=counts, shards=()),
                "heldout": SplitEntry(counts=Counts(), shards=()),
            },
            skipped=SkippedFiles(),
            sources=(),
        )

    def documents(self, split: Split) -> Iterator[CorpusDocument]:
        held = self._held if split == "train" else []
        return (CorpusDocument(str(number), "held", sentences) for number, sentences in enumerate(held))


def texts_in(store: TokenStore) -> list[list[list[int]]]:
    """Documents of sentences of ids, read back by the offsets."""
    sentences = [
        store.tokens[start:end].tolist()
        for start, end in zip(store.sentence_starts[:-1], store.sentence_starts[1:], strict=True)
    ]
    return [
        sentences[start:end]
        for start, end in zip(store.document_starts[:-1], store.document_starts[1:], strict=True)
    ]


SENTENCE = st.one_of(
    st.text("abcABC. ☃\x00\t", max_size=12),
    st.sampled_from(["", " ", "\x00", "\u200b", "\ufffd", "a" * 101]),  # the first five have no token
)


@given(documents=st.lists(st.lists(SENTENCE, max_size=5), max_size=12), at_once=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_any_documents_come_back_without_what_is_empty(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[str]], at_once: int
) -> None:
    folder = tmp_path_factory.mktemp("property")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizing, "DOCUMENTS_AT_ONCE", at_once)
        tokenize_corpus(Held(folder / "corpus", documents), TOKENIZER, folder / "store")
    store = TokenStore.open(folder / "store" / "train", TOKENIZER)
    encoded = [[TOKENIZER.encode(text).ids for text in document] for document in documents]
    expected = [filled for document in encoded if (filled := [ids for ids in document if ids])]
    assert texts_in(store) == expected
    assert len(store) == len(expected)
    store.verify()
    empty = TokenStore.open(folder / "store" / "heldout")
    assert (len(empty), len(empty.tokens), empty.sentence_starts.tolist()) == (0, 0, [0])
    empty.verify()


def test_long_documents_are_tokenized_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or memory would grow with the length of documents, up to 512 parts of novels."""
    monkeypatch.setattr(tokenizing, "DOCUMENTS_AT_ONCE", 8)
    documents = [*[["a " * 6000, "b"]] * 7, *[["a b"]] * 20]
    read = list[int]()
    tokenize_corpus(
        Held(tmp_path / "corpus", documents),
        TOKENIZER,
        tmp_path / "store",
        progress=lambda done, *_: read.append(done),
    )
    assert read == [3, 6, 14, 22, 27]  # of 32,000 characters, or of eight documents
    assert len(TokenStore.open(tmp_path / "store" / "train")) == len(documents)


def test_both_splits_hold_the_documents_of_the_corpus(corpus: Corpus, folder: Path) -> None:
    for split in ("train", "heldout"):
        store = TokenStore.open(folder / split, TOKENIZER)
        expected = [
            [TOKENIZER.encode(text).ids for text in document.sentences]
            for document in corpus.documents(split)
        ]
        assert texts_in(store) == expected != []
        assert store.vocab_size == TOKENIZER.vocab_size
        assert store.tokenizer_sha256 == TOKENIZER.sha256


def test_sentences_of_a_byte_level_store_are_those_of_running_text(tmp_path: Path) -> None:
    """Ġ begins a word, unless it begins a document."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: id for id, piece in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = Tokenizer.load(tmp_path)
    documents = [["It is.", "The end.", "No."], ["Then."]]
    tokenize_corpus(Held(tmp_path / "corpus", documents), tokenizer, tmp_path / "store")
    found = texts_in(TokenStore.open(tmp_path / "store" / "train"))
    for sentences, document in zip(found, documents, strict=True):
        assert len(sentences) == len(document)
        assert [id for ids in sentences for id in ids] == tokenizer.encode(" ".join(document)).ids


def test_the_files_are_bare_little_endian_arrays(folder: Path) -> None:
    store = TokenStore.open(folder / "train")
    assert np.fromfile(folder / "train" / "tokens.bin", "<u2").tolist() == store.tokens.tolist()
    assert np.fromfile(folder / "train" / "sentences.bin", "<i8").tolist() == store.sentence_starts.tolist()
    assert np.fromfile(folder / "train" / "documents.bin", "<i8").tolist() == store.document_starts.tolist()
    assert store.sentence_starts[-1] == len(store.tokens)
    assert store.document_starts[-1] == len(store.sentence_starts) - 1


def test_more_than_65536_pieces_take_four_bytes_a_token(tmp_path: Path, corpus: Corpus) -> None:
    pieces = [*SPECIAL, *(f"[unused{n}]" for n in range(65_531)), "a", "b", "c", "."]
    for vocabulary, dtype in ((pieces[:65_536], "<u2"), (pieces, "<u4")):
        out = tmp_path / dtype[1:]
        tokenize_corpus(corpus, Tokenizer.from_pieces(vocabulary, lowercase=True), out)
        assert TokenStore.open(out / "train").tokens.dtype == dtype
    tokens = TokenStore.open(tmp_path / "u4" / "train").tokens
    assert tokens.max() == 65_539


def test_nothing_can_be_written_through_the_arrays(folder: Path) -> None:
    store = TokenStore.open(folder / "train")
    for array in (store.tokens, store.sentence_starts, store.document_starts):
        assert type(array) is np.ndarray  # of a memmap's class each slice is slow
        assert isinstance(array.base, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_another_process_gets_the_path_not_the_tokens(folder: Path) -> None:
    store = TokenStore.open(folder / "train")
    sent = pickle.dumps(store)
    assert len(sent) < 500
    assert texts_in(pickle.loads(sent)) == texts_in(store)


@pytest.mark.parametrize("name", ["tokens.bin", "sentences.bin", "documents.bin"])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_byte_less_or_more_is_seen_on_opening(folder: Path, name: str, change: int) -> None:
    path = folder / "train" / name
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size + change)
    with pytest.raises(StoreError) as caught:
        TokenStore.open(folder / "train")
    assert f"{path}: expected {size:,} bytes, found {size + change:,} bytes" in str(caught.value)
    assert "bertsmith corpus tokenize" in str(caught.value)
    path.unlink()
    with pytest.raises(StoreError, match="found no such file"):
        TokenStore.open(folder / "train")


@pytest.mark.parametrize("name", ["tokens.bin", "sentences.bin", "documents.bin"])
def test_one_flipped_bit_is_seen_by_verify(folder: Path, name: str) -> None:
    path = folder / "train" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    store = TokenStore.open(folder / "train")
    with pytest.raises(StoreError, match=rf"{name} was altered: expected SHA-256 \w{{64}}, found \w{{64}}"):
        store.verify()
    TokenStore.open(folder / "heldout").verify()


def test_another_tokenizer_of_the_same_size_is_refused(folder: Path) -> None:
    other = Tokenizer.from_pieces([*SPECIAL, "b", "a", "c", "##a", "##b", "."], lowercase=True)
    with pytest.raises(
        StoreError, match=r"was made with another tokenizer: expected SHA-256 \w+ \(11 pieces\)"
    ):
        TokenStore.open(folder / "train", other)


def test_a_manifest_that_is_missing_cut_or_incomplete(folder: Path) -> None:
    path = folder / "manifest.json"
    whole = path.read_text()
    path.write_text(whole[:-20])
    with pytest.raises(StoreError, match=r"is not valid JSON.*corpus tokenize"):
        TokenStore.open(folder / "train")
    content = json.loads(whole)
    del content["splits"]["train"]["files"]["tokens.bin"]
    path.write_text(json.dumps(content))
    with pytest.raises(StoreError, match=r"not the manifest of a token store.*splits.train.files"):
        TokenStore.open(folder / "train")
    content = json.loads(whole)
    content["splits"]["train"]["tokens"] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(StoreError, match=r"does not hold the .* values of its manifest"):
        TokenStore.open(folder / "train")
    content["format_version"] = 2
    path.write_text(json.dumps(content))
    with pytest.raises(StoreError, match="of this version: format_version"):
        TokenStore.open(folder / "train")
    path.unlink()
    with pytest.raises(StoreError, match=r"it has no manifest\.json"):
        TokenStore.open(folder / "train")


def test_the_folder_of_the_whole_store_is_not_a_split(folder: Path) -> None:
    with pytest.raises(StoreError, match=r"expected .*store/train or .*store/heldout"):
        TokenStore.open(folder)


def test_the_same_corpus_gives_the_same_files(corpus: Corpus, folder: Path, tmp_path: Path) -> None:
    tokenize_corpus(corpus, TOKENIZER, tmp_path / "again")
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert len(files) == 7
    for name in files:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_nothing_half_written_is_left(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="already exists"):
        tokenize_corpus(corpus, TOKENIZER, corpus.path)
    before = sorted(tmp_path.iterdir())

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize_corpus(corpus, TOKENIZER, tmp_path / "store", progress=fail)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))  # type: ignore[attr-defined]
    with pytest.raises(ResourceError, match="The token store needs about"):
        tokenize_corpus(corpus, TOKENIZER, tmp_path / "store")
    assert sorted(tmp_path.iterdir()) == before


MEASURE = """
import sys
from pathlib import Path
from bertsmith.data.store import TokenStore
from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.tokens.tokenizer import Tokenizer

tokenizer = Tokenizer.load(sys.argv[2])
tokenize_corpus(Corpus.open(sys.argv[1]), tokenizer, sys.argv[3])
peak = 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
print(len(TokenStore.open(Path(sys.argv[3]) / "train").tokens), peak)
"""


def large_corpus(folder: Path, megabytes: int) -> Path:
    random = np.random.default_rng(0)
    words = np.array(["abba", "cab", "b", "ac", "bab.", "c"])
    documents = [" ".join(random.choice(words, 250)) for _ in range(megabytes * 1_000)]
    folder.mkdir()
    (folder / "text.txt").write_text("\n\n".join(documents))
    choice = CorpusSettings(format="blank-lines", near_duplicates=False)
    build_corpus([str(folder / "text.txt")], folder / "corpus", settings=choice, workers=1)
    return folder / "corpus"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from Linux's /proc")
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path / "tokenizer")
    peaks, counts = [], []
    for megabytes in (5, 40):
        source = large_corpus(tmp_path / str(megabytes), megabytes)
        out = tmp_path / f"store{megabytes}"
        run = [sys.executable, "-c", MEASURE, str(source), str(tmp_path / "tokenizer"), str(out)]
        printed = subprocess.run(run, capture_output=True, text=True, check=True, timeout=200).stdout
        count, peak = map(int, printed.split())
        counts.append(count)
        peaks.append(peak)
    assert counts[1] > 7 * counts[0]
    assert peaks[1] - peaks[0] < 40e6  # 40 MB of text are 50 MB of tokens
    assert peaks[1] < 500e6


def test_a_split_that_is_not_asked_for_is_empty(corpus: Corpus, folder: Path, tmp_path: Path) -> None:
    tokenize_corpus(corpus, TOKENIZER, tmp_path / "part", splits=["heldout"])
    assert len(TokenStore.open(tmp_path / "part" / "train", TOKENIZER)) == 0
    whole = TokenStore.open(folder / "heldout", TOKENIZER)
    part = TokenStore.open(tmp_path / "part" / "heldout", TOKENIZER)
    assert len(part) == len(whole) > 0
    np.testing.assert_array_equal(part.tokens, whole.tokens)

"""Tokenizes a corpus into a token store, a few documents at a time.

T   tokens      S   sentences      D   documents
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

import bertsmith
from bertsmith.argument_checks import (
    any_of,
    check_arguments,
    check_function,
    check_path,
    instance_of,
    list_of,
    one_of,
    optional,
)
from bertsmith.data.store import (
    DOCUMENTS,
    OFFSETS,
    SENTENCES,
    SPLITS,
    TOKENS,
    StoredFile,
    StoredSplit,
    StoreManifest,
    TokenType,
)
from bertsmith.files import atomic_folder, require_free_space, sha256, write_json
from bertsmith.progress import Progress
from bertsmith.text.corpus.corpus import Corpus, CorpusDocument, open_corpus
from bertsmith.text.corpus.manifest import Counts, Split
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.word_cache import WordCache
from bertsmith.text.workers import Engine, map_in_order, map_in_order_by_ray, require_engine

IdsAndLengths = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]  # what WordCache.encode returns

DOCUMENTS_AT_ONCE = 512
DOCUMENTS_PER_TASK = 4096  # of a cluster, where each task begins with an empty cache of words
#: A batch ends earlier at so many characters times its documents: 512 parts of novels can have hundreds of
#: megabytes.
CHARACTERS_PER_DOCUMENT = 4_000
#: English has about 4.5 bytes per token; a language that the vocabulary fits badly has fewer.
BYTES_PER_TOKEN = 3


@check_arguments(
    corpus=any_of(instance_of(Corpus), check_path),
    tokenizer=instance_of(Tokenizer),
    out=check_path,
    splits=list_of(one_of(*SPLITS)),
    progress=optional(check_function),
)
def tokenize_corpus(
    corpus: Corpus | Path | str,
    tokenizer: Tokenizer,
    out: Path | str,
    *,
    splits: Sequence[Split] = SPLITS,
    engine: Engine = "local",
    progress: Progress | None = None,
) -> None:
    """Writes the token store of both splits, whole or not at all, with some megabytes of text in memory.

    `corpus` may be a path. A split that isn't among `splits` is empty in the store. With `engine` "ray" a
    cluster tokenizes, and this process reads and writes. Sentences without a token (of nothing but control
    characters) are dropped, and so are documents without a sentence. Raises InputError if `out` exists,
    ResourceError if there is too little disk space.
    """
    require_engine(engine)
    corpus, out = open_corpus(corpus), Path(out)
    dtype: TokenType = "<u2" if tokenizer.vocab_size <= 2**16 else "<u4"
    counts = {split: corpus.manifest.splits[split].counts for split in splits}
    needed = 0
    for count in counts.values():
        tokens = count.bytes // BYTES_PER_TOKEN
        needed += tokens * np.dtype(dtype).itemsize + 8 * (count.sentences + count.documents)
    require_free_space(out, needed, "The token store")
    documents = {split: corpus.documents(split) for split in splits}
    with atomic_folder(out) as folder:
        manifest = StoreManifest(
            created_by=f"bertsmith {bertsmith.__version__}",
            dtype=dtype,
            vocab_size=tokenizer.vocab_size,
            tokenizer_sha256=tokenizer.sha256,
            corpus_sha256=sha256(corpus.path / "manifest.json"),
            checked_against=tuple(sorted(corpus.manifest.checked_against)),
            splits={
                split: _write_split(
                    documents.get(split, iter(())),
                    counts.get(split, Counts()).documents,
                    tokenizer,
                    folder / split,
                    dtype,
                    engine,
                    progress,
                )
                for split in SPLITS
            },
        )
        write_json(folder / "manifest.json", manifest.model_dump(mode="json"))


def _write_split(
    stream: Iterator[CorpusDocument],
    total: int,
    tokenizer: Tokenizer,
    folder: Path,
    dtype: TokenType,
    engine: Engine,
    progress: Progress | None,
) -> StoredSplit:
    folder.mkdir()
    with (
        ArrayFile(folder / TOKENS, dtype) as tokens,
        ArrayFile(folder / SENTENCES, OFFSETS) as sentences,
        ArrayFile(folder / DOCUMENTS, OFFSETS) as documents,
    ):
        sentences.append(np.zeros(1))
        documents.append(np.zeros(1))
        documents_read = 0
        for (ids, lengths), counts in _encode_documents(stream, tokenizer, engine):
            tokens_each, sentences_each = _drop_empty(counts, lengths)
            documents.append(np.cumsum(sentences_each) + sentences.length - 1)
            sentences.append(np.cumsum(tokens_each) + tokens.length)
            tokens.append(ids)
            documents_read += len(counts)
            if progress is not None:
                progress(documents_read, total, f"{folder.name} documents")
    return StoredSplit(
        documents=documents.length - 1,
        sentences=sentences.length - 1,
        tokens=tokens.length,
        files={array.path.name: array.entry() for array in (tokens, sentences, documents)},
    )


def _encode_documents(
    stream: Iterator[CorpusDocument], tokenizer: Tokenizer, engine: Engine
) -> Iterator[tuple[IdsAndLengths, list[int]]]:
    """For each batch of documents: ids and lengths of all sentences, and each document's number of them."""
    encode = WordCache(tokenizer).encode
    size = DOCUMENTS_PER_TASK if engine == "ray" else DOCUMENTS_AT_ONCE
    counts = deque[list[int]]()  # of batches that were read and aren't encoded yet
    # In a byte-level vocabulary words begin with a blank, except the first word of a text.
    blank = tokenizer.blank_before_words

    def batches() -> Iterator[tuple[list[str]]]:
        for batch in iter(lambda: _take_batch(stream, size), []):
            counts.append([len(document.sentences) for document in batch])
            texts = list[str]()
            for document in batch:
                texts += [blank + text if index else text for index, text in enumerate(document.sentences)]
            yield (texts,)

    encoded = (
        map_in_order_by_ray(encode, batches())
        if engine == "ray"
        else map_in_order(encode, batches(), workers=1)
    )
    return ((ids, counts.popleft()) for ids in encoded)


def _take_batch(stream: Iterator[CorpusDocument], most: int) -> list[CorpusDocument]:
    """The next documents, at most `most`, and fewer if they are long."""
    batch, room = list[CorpusDocument](), most * CHARACTERS_PER_DOCUMENT
    for document in islice(stream, most):
        batch.append(document)
        room -= sum(map(len, document.sentences))
        if room <= 0:
            break
    return batch


def _drop_empty(
    counts: list[int], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The tokens of each sentence that has any, and the number of such sentences of each document with any.

    `counts` has the number of sentences of each document, `lengths` the number of tokens of each sentence.
    """
    first = np.cumsum([0, *counts])  # (documents + 1,)
    filled_before = np.concatenate([[0], np.cumsum(lengths > 0)])  # (sentences + 1,)
    sentences = np.diff(filled_before[first])
    return lengths[lengths > 0], sentences[sentences > 0]


class ArrayFile:
    """A file to which arrays of one type are appended; it is hashed as it is written, not read again."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.length = 0

    def __enter__(self) -> "ArrayFile":
        self._file = self.path.open("wb")
        self._hash = hashlib.sha256()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, values: npt.NDArray[np.generic]) -> None:
        """Appends values, converted to the file's type."""
        content = values.astype(self.dtype).tobytes()
        self._file.write(content)
        self._hash.update(content)
        self.length += len(values)

    def entry(self) -> StoredFile:
        """The manifest's entry: the size and hash of the file."""
        return StoredFile(size=self.length * self.dtype.itemsize, sha256=self._hash.hexdigest())

"""Small token stores written through the real format, in which every token says where it stands."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertsmith.data.batch import Sequences
from bertsmith.data.store import (
    DOCUMENTS,
    OFFSETS,
    SENTENCES,
    SPLITS,
    TOKENS,
    StoredSplit,
    StoreManifest,
    TokenStore,
)
from bertsmith.data.tokenizing import ArrayFile
from bertsmith.files import write_json
from bertsmith.text.tokens.tokenizer import Tokenizer

Lengths = Sequence[Sequence[int]]  # tokens of each sentence of each document

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
FIRST_ID = len(SPECIAL)  # of the token at place 0 of a numbered store


def words(count: int, continuing: int = 0) -> Tokenizer:
    """`count` one-piece words after the special tokens, then `continuing` pieces that continue a word."""
    pieces = [*SPECIAL, *(f"w{n}" for n in range(count)), *(f"##c{n}" for n in range(continuing))]
    return Tokenizer.from_pieces(pieces, lowercase=True)


def random_lengths(
    documents: int, seed: int, sentences: tuple[int, int] = (1, 12), tokens: tuple[int, int] = (1, 30)
) -> list[list[int]]:
    """Documents of so many sentences of so many tokens, both bounds included."""
    random = np.random.default_rng(seed)
    counts = random.integers(sentences[0], sentences[1] + 1, documents)
    return [random.integers(tokens[0], tokens[1] + 1, count).tolist() for count in counts]


def numbered_store(folder: Path, lengths: Lengths, tokenizer: Tokenizer | None = None) -> TokenStore:
    """The training split of a store whose token at place t has the id FIRST_ID + t."""
    flat = [length for document in lengths for length in document]
    arrays = {
        TOKENS: (np.arange(sum(flat)) + FIRST_ID, "<u4"),
        SENTENCES: (np.cumsum([0, *flat]), OFFSETS),
        DOCUMENTS: (np.cumsum([0, *map(len, lengths)]), OFFSETS),
    }
    splits = {}
    for split in SPLITS:
        (folder / split).mkdir(parents=True)
        files = {}
        for name, (values, dtype) in arrays.items():
            with ArrayFile(folder / split / name, dtype) as file:
                file.append(values)
            files[name] = file.entry()
        splits[split] = StoredSplit(
            documents=len(lengths), sentences=len(flat), tokens=sum(flat), files=files
        )
    manifest = StoreManifest(
        created_by="test",
        dtype="<u4",
        vocab_size=tokenizer.vocab_size if tokenizer else sum(flat) + FIRST_ID,
        tokenizer_sha256=tokenizer.sha256 if tokenizer else "none",
        corpus_sha256="none",
        splits=splits,
    )
    write_json(folder / "manifest.json", manifest.model_dump(mode="json"))
    return TokenStore.open(folder / "train", tokenizer)


def random_sequences(lengths: Sequence[int], tokenizer: Tokenizer, seed: int) -> Sequences:
    """[CLS] words [SEP] of the given lengths, special tokens included, under random keys."""
    random = np.random.default_rng(seed)
    sizes = np.array(lengths, np.int64)
    token_ids = random.integers(FIRST_ID, tokenizer.vocab_size, sizes.sum())
    ends = np.cumsum(sizes)
    token_ids[ends - sizes], token_ids[ends - 1] = tokenizer.cls_id, tokenizer.sep_id
    keys = random.integers(0, 2**64, len(sizes), np.uint64)
    return Sequences(token_ids, np.zeros_like(token_ids), sizes, keys, np.zeros(len(sizes), np.int64))

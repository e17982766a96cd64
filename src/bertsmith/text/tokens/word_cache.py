"""Tokenizes large amounts of text by looking words up in a cache.

BERT's rules never look past a blank, and running text has twenty times fewer distinct words than words: each
distinct word is tokenized once.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from tokenizers import normalizers, pre_tokenizers

from bertsmith.text.tokens.long_texts import ASCII_PUNCTUATION
from bertsmith.text.tokens.tokenizer import Tokenizer, replace_surrogates

if TYPE_CHECKING:
    import pyarrow as pa

#: BERT's rules for ASCII: runs of letters and digits are words, and so is any other character by itself.
ASCII_WORD = re.compile(rf"[0-9A-Za-z]+|{ASCII_PUNCTUATION}")
PRINTABLE_ASCII = re.compile(r"[!-~]*")
#: Distinct runs of non-blank characters in the cache, about 150 bytes each. A full cache is emptied; the
#: frequent runs are soon back.
MAX_RUNS = 1_000_000
#: Characters of the longest run or word in the cache: longer ones, such as base64 or a Chinese page, hardly
#: occur twice, and would fill the memory with their text.
_LONGEST = 100


class WordCache:
    """Returns the ids that `tokenizer.encode_batch` returns, and caches those of each word.

    For tokenizers whose rules look past blanks (byte-level ones) it caches nothing and calls `encode_batch`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._cache = _TokenIdCache(tokenizer) if tokenizer.splits_at_blanks else None

    def encode(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """The ids of all texts, one after the other (N,), and the number of ids of each text
        (len(texts),).
        """
        if self._cache is None:
            packed = [_pack(ids) for ids in self._tokenizer.encode_batch(texts)]
        else:
            # Only at U+0020: the tokenizer's own rules treat other white space.
            packed = [b"".join(map(self._cache.__getitem__, text.split(" "))) for text in texts]
            self._cache.limit()
        lengths = np.fromiter(map(len, packed), np.int64, len(packed)) // np.dtype(np.uint32).itemsize
        return np.frombuffer(b"".join(packed), np.uint32), lengths


class _TokenIdCache(dict[str, bytes]):
    """Run of non-blank characters → its ids as packed uint32, computed on the first lookup.

    The ids are bytes, because a million lists would keep the garbage collector busy.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._split = BertWords(tokenizer.backend.normalizer)
        self._model = tokenizer.backend.model
        self._ids_of_word: dict[str, bytes] = {}

    def __missing__(self, run: str) -> bytes:
        ids = b"".join(map(self._encode_word, self._split(replace_surrogates(run))))
        if len(run) <= _LONGEST:
            self[run] = ids
        return ids

    def _encode_word(self, word: str) -> bytes:
        ids = self._ids_of_word.get(word)
        if ids is None:
            ids = _pack([piece.id for piece in self._model.tokenize(word)])
            if len(word) <= _LONGEST:
                self._ids_of_word[word] = ids
        return ids

    def limit(self) -> None:
        """Empties a full cache. It is called between batches, so that one batch may exceed the limit."""
        if max(len(self), len(self._ids_of_word)) > MAX_RUNS:
            self.clear()
            self._ids_of_word.clear()


def _pack(ids: Sequence[int]) -> bytes:
    return np.array(ids, np.uint32).tobytes()


class BertWords:
    """Splits one run of non-blank characters ("Don't") into words ("don", "'", "t").

    The result is that of the library's normalizer and pre-tokenizer, which never look past a blank. ASCII,
    the bulk of most corpora, is split here, because a call of the library takes five times as long.
    """

    def __init__(self, normalizer: normalizers.BertNormalizer) -> None:
        self._normalizer = normalizer
        self._lowercase: bool = normalizer.lowercase
        self._pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def __call__(self, run: str) -> list[str]:
        if PRINTABLE_ASCII.fullmatch(run):
            return ASCII_WORD.findall(run.lower() if self._lowercase else run)
        return self._split_by_library(run)

    def split_column(self, runs: "pa.Array") -> tuple["pa.Array", "pa.Array"]:
        """The words of a column of non-empty runs, and for each word the index of its run.

        The words are not in the order of the runs. This is five times as fast as run by run.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        is_ascii = pc.match_substring_regex(runs, f"^{PRINTABLE_ASCII.pattern}$")
        ascii_runs = runs.filter(is_ascii)
        spaced_runs = pc.replace_substring_regex(
            pc.ascii_lower(ascii_runs) if self._lowercase else ascii_runs, ASCII_PUNCTUATION, r" \0 "
        )
        words = pc.ascii_split_whitespace(pc.ascii_trim_whitespace(spaced_runs))
        is_other = pc.invert(is_ascii)
        other_words = pa.array(map(self._split_by_library, runs.filter(is_other).to_pylist()), words.type)
        parts = [(is_ascii, words), (is_other, other_words)]
        return (
            pa.concat_arrays([lists.flatten() for _, lists in parts]),
            pa.concat_arrays(
                [pc.indices_nonzero(is_part).take(pc.list_parent_indices(lists)) for is_part, lists in parts]
            ),
        )

    def _split_by_library(self, run: str) -> list[str]:
        normalised = self._normalizer.normalize_str(run)
        return [word for word, _ in self._pre_tokenizer.pre_tokenize_str(normalised)]

"""Tokenising much text by looking words up.

BERT's rules never look past a blank, and running text has twenty times fewer distinct words than words: each
distinct word is tokenised once.
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

#: In ASCII the rules come to this: letters and digits hold together, any other character is a word.
ASCII_WORD = re.compile(rf"[0-9A-Za-z]+|{ASCII_PUNCTUATION}")
PRINTABLE_ASCII = re.compile(r"[!-~]*")
#: Distinct runs of non-blank characters, about 150 bytes each. A full memory starts again; those that
#: are frequent are soon back.
MAX_RUNS = 1_000_000
#: Characters of a run or a word that is remembered: longer ones, such as base64 or a Chinese page, hardly
#: come twice, and would fill the memory with their text.
_LONGEST = 100


class WordCache:
    """Gives the ids that `tokenizer.encode_batch` gives, remembering those of each word.

    For tokenizers whose rules do look past blanks (byte-level ones) it remembers nothing and only asks.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._memory = _TokenIdCache(tokenizer) if tokenizer.splits_at_blanks else None

    def encode(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """The ids of all texts one after the other, (N,), and each text's number of them, (len(texts),)."""
        if self._memory is None:
            packed = [_pack(ids) for ids in self._tokenizer.encode_batch(texts)]
        else:
            # Only U+0020: what other white space does is for the tokenizer's own rules to say.
            packed = [b"".join(map(self._memory.__getitem__, text.split(" "))) for text in texts]
            self._memory.limit()
        lengths = np.fromiter(map(len, packed), np.int64, len(packed)) // np.dtype(np.uint32).itemsize
        return np.frombuffer(b"".join(packed), np.uint32), lengths


class _TokenIdCache(dict[str, bytes]):
    """Run of non-blank characters → its ids, worked out when first asked for.

    The ids are packed: a million lists would keep the garbage collector busy.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._split = BertWords(tokenizer.backend.normalizer)
        self._model = tokenizer.backend.model
        self._words: dict[str, bytes] = {}

    def __missing__(self, run: str) -> bytes:
        ids = b"".join(map(self._word, self._split(replace_surrogates(run))))
        if len(run) <= _LONGEST:
            self[run] = ids
        return ids

    def _word(self, word: str) -> bytes:
        ids = self._words.get(word)
        if ids is None:
            ids = _pack([piece.id for piece in self._model.tokenize(word)])
            if len(word) <= _LONGEST:
                self._words[word] = ids
        return ids

    def limit(self) -> None:
        """Called between batches, so that the ceiling may be passed by one batch."""
        if max(len(self), len(self._words)) > MAX_RUNS:
            self.clear()
            self._words.clear()


def _pack(ids: Sequence[int]) -> bytes:
    return np.array(ids, np.uint32).tobytes()


class BertWords:
    """Splits one run of non-blank characters ("Don't") into words ("don", "'", "t").

    The same as the library's normaliser and pre-tokenizer, which never look past a blank; ASCII, most of
    most corpora, is split here, because calling the library takes five times as long.
    """

    def __init__(self, normalizer: normalizers.BertNormalizer) -> None:
        self._normalizer = normalizer
        self._lowercase: bool = normalizer.lowercase
        self._pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def __call__(self, run: str) -> list[str]:
        if PRINTABLE_ASCII.fullmatch(run):
            return ASCII_WORD.findall(run.lower() if self._lowercase else run)
        return self._by_library(run)

    def of_column(self, runs: "pa.Array") -> tuple["pa.Array", "pa.Array"]:
        """The words of a column of runs, none of them empty, and the index of the run that each is from.

        The order of the words is not that of the runs. Five times as fast as run by run.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        plain = pc.match_substring_regex(runs, f"^{PRINTABLE_ASCII.pattern}$")
        ascii_runs = runs.filter(plain)
        spaced = pc.replace_substring_regex(
            pc.ascii_lower(ascii_runs) if self._lowercase else ascii_runs, ASCII_PUNCTUATION, r" \0 "
        )
        words = pc.ascii_split_whitespace(pc.ascii_trim_whitespace(spaced))
        others = pc.invert(plain)
        other_words = pa.array(map(self._by_library, runs.filter(others).to_pylist()), words.type)
        parts = [(plain, words), (others, other_words)]
        return (
            pa.concat_arrays([lists.flatten() for _, lists in parts]),
            pa.concat_arrays(
                [pc.indices_nonzero(which).take(pc.list_parent_indices(lists)) for which, lists in parts]
            ),
        )

    def _by_library(self, run: str) -> list[str]:
        normalised = self._normalizer.normalize_str(run)
        return [word for word, _ in self._pre_tokenizer.pre_tokenize_str(normalised)]

"""Tokenising much text by looking words up.

BERT's rules never look past a blank, and running text has twenty times fewer distinct words than words: each
distinct word is tokenised once.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bertsmith.text.tokens.bert_words import BertWords
from bertsmith.text.tokens.tokenizer import Tokenizer, without_surrogates

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
        self._memory = _Memory(tokenizer) if tokenizer.splits_at_blanks else None

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


class _Memory(dict[str, bytes]):
    """Run of non-blank characters → its ids, worked out when first asked for.

    The ids are packed: a million lists would keep the garbage collector busy.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._split = BertWords(tokenizer.backend.normalizer)
        self._model = tokenizer.backend.model
        self._words: dict[str, bytes] = {}

    def __missing__(self, run: str) -> bytes:
        ids = b"".join(map(self._word, self._split(without_surrogates(run))))
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

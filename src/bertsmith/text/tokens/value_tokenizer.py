"""What tokenizers have in common whose tokens carry numbers: models that read them read no running text.

n tokens of a row, P values of a token.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from bertsmith.arrays import Float32s, Int32s
from bertsmith.errors import InputError
from bertsmith.text.tokens.long_texts import Pieces, WordPieces
from bertsmith.text.tokens.tokenizer import Encoding, Tokenizer


@dataclass(frozen=True)
class ValuePieces:
    """A row as pieces: ids (n,), and the values (n, P) beside them."""

    ids: Sequence[int]
    offsets: Int32s
    values: Float32s


class ValueTokenizer(Tokenizer):
    """Reads rows whose tokens have values. The vocabulary's last P pieces stand for the values' places: their
    embeddings are the linear layer that reads them, and the one that predicts them (see
    bertsmith.model.layers.embeddings).
    """

    @property
    def reads(self) -> str:
        """What it reads, for messages: images, series."""
        raise NotImplementedError

    @property
    def scaling(self) -> str:
        """As JSON, what beside the vocabulary decides which values a row has."""
        raise NotImplementedError

    @cached_property
    def sha256(self) -> str:
        """Of the vocabulary and the scaling: that of another data set's rows would give other values."""
        return hashlib.sha256((self._json + self.scaling).encode()).hexdigest()

    def encode_pieces(self, texts: Sequence[str], enough: int | None = None) -> Sequence[Pieces]:
        """The tokens of each row, at most `enough`. Raises InputError for what is no such row."""
        return [self.pieces_of_row(text, enough) for text in texts]

    def pieces_of_row(self, text: str, enough: int | None) -> ValuePieces:
        """Of one row."""
        raise NotImplementedError

    def encode(self, text: str, *, read_special_tokens: bool = False) -> Encoding:
        raise self._only_rows()

    def encode_batch(self, texts: Sequence[str], enough: int | None = None) -> list[Sequence[int]]:
        raise self._only_rows()

    def encode_words(self, words: Sequence[str]) -> WordPieces:
        raise self._only_rows()

    def _only_rows(self) -> InputError:
        return InputError(
            f"This model reads {self.reads}, not text: classification and regression take it, other tasks "
            "and commands don't."
        )


def require_text(tokenizer: Tokenizer, what: str) -> None:
    """Raises InputError where `what` is for text, and the model reads values."""
    if isinstance(tokenizer, ValueTokenizer):
        raise InputError(
            f"{what} is for models of text and symbols; this one reads {tokenizer.reads}. Use predict."
        )

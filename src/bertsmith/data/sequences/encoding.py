"""Encodes rows like those of a store, such as labelled ones, as JSON lines for fine-tuning and prediction.

Every symbol is a word of `text`; columns that aren't part of the sequence, such as labels, are copied. For
tagging there is `words` in the place of `text`, beside the file's own `tags`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from bertsmith.argument_checks import (
    check_arguments,
    check_flag,
    check_function,
    check_path,
    check_text,
    optional,
)
from bertsmith.data.sequences.codec import Codec, read_codec
from bertsmith.data.sequences.records import RowFile, stream_records
from bertsmith.errors import InputError
from bertsmith.files import require_output, write_jsonl
from bertsmith.progress import Progress
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import PatchTokenizer, load_tokenizer, parse_spelled_number

TEXT, WORDS, TAGS = "text", "words", "tags"
_EXAMPLES = 3  # of unknown symbols


@dataclass
class EncodedSequences:
    """How many rows were written, their symbols, and how many of these are unknown to the store's vocabulary.

    The model reads an unknown symbol as [UNK]; `unknown_examples` are the first of them. Series and images
    have no symbols.
    """

    rows: int = 0
    symbols: int = 0
    unknown: int = 0
    unknown_examples: list[str] = field(default_factory=list)

    def count(self, symbols: Sequence[str], is_known: Callable[[str], bool]) -> None:
        """Adds the symbols of a row to the counts."""
        self.symbols += len(symbols)
        for symbol in symbols:
            if not is_known(symbol):
                self.unknown += 1
                if len(self.unknown_examples) < _EXAMPLES and symbol not in self.unknown_examples:
                    self.unknown_examples.append(symbol)


@check_arguments(
    path=check_path,
    like=check_path,
    out=check_path,
    header=check_flag,
    format=optional(check_text),
    encoding=check_text,
    progress=optional(check_function),
)
def encode_sequences(
    path: Path | str,
    like: Path | str,
    out: Path | str,
    *,
    header: bool = True,
    format: str | None = None,
    encoding: str = "utf-8",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EncodedSequences:
    """Writes the rows of `path` to `out`, encoded as the rows of the store `like`.

    `header`, `format` and `encoding` are those of SequenceSettings. Raises InputError, which names the row,
    for one that can't be read, and StoreError for a folder that is no store of sequences.
    """
    codec = read_codec(like)
    tokenizer = load_tokenizer(Path(like) / "tokenizer")
    require_output(out, overwrite, [path, like])
    result = EncodedSequences()
    result.rows = write_jsonl(
        _encode_rows(RowFile(path, header, format, encoding), codec, tokenizer, result, progress), out
    )
    return result


def _encode_rows(
    file: RowFile, codec: Codec, tokenizer: Tokenizer, result: EncodedSequences, progress: Progress | None
) -> Iterator[dict[str, Any]]:
    vocabulary, scales = frozenset(tokenizer.pieces), {scale.piece: scale for scale in codec.scales.columns}
    for number, row in enumerate(stream_records(file, padded=codec.kind == "symbols"), start=1):
        copied = {
            name: _as_json(value) for name, value in row.values.items() if name not in codec.input_columns
        }
        for column in (TEXT, WORDS) if TAGS in copied else (TEXT,):
            if column in copied:
                raise InputError(
                    f"{row.where}: the column {column} is no part of the sequence, and its name is needed "
                    "for it. Rename it."
                )
        if codec.has_patches:
            if isinstance(tokenizer, PatchTokenizer):
                tokenizer.shape.require_row(codec.read_numbers(row).shape, row.where)
            yield {TEXT: codec.format_row(row), **copied}
        else:
            symbols = codec.read_symbols(row)
            result.count(
                symbols,
                lambda symbol: symbol in vocabulary or parse_spelled_number(symbol, scales) is not None,
            )
            if TAGS not in copied or codec.kind != "symbols":
                yield {TEXT: " ".join(symbols), **copied}
            elif isinstance(copied[TAGS], list) and len(copied[TAGS]) == len(symbols):
                yield {WORDS: symbols, **copied}
            else:
                raise InputError(f"{row.where}: expected {len(symbols):,} tags in a list, one an item.")
        if progress is not None and not number % 1000:
            progress(number, None, "rows")


def _as_json(value: Any) -> Any:
    """A cell as a JSON value: a number that isn't finite becomes null, a date its text, bytes hexadecimal."""
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _as_json(item) for name, item in value.items()}
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)

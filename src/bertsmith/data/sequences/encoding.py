"""Labelled rows of the same kind as a store's → JSON lines that fine-tuning and prediction read.

Every symbol is a word of `text`; columns that aren't part of the sequence, such as labels, are kept. For
tagging there is `words` too, beside the file's own `tags`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from bertsmith.data.sequences.codec import Codec, read_codec
from bertsmith.data.sequences.records import RowFile, stream_records
from bertsmith.door import door, flag, function, optional, place, text
from bertsmith.errors import InputError
from bertsmith.files import require_output
from bertsmith.progress import Progress
from bertsmith.text.files.jsonl import write_jsonl
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import PatchTokenizer, load_tokenizer, parse_spelled_number

TEXT, WORDS, TAGS = "text", "words", "tags"
_SHOWN = 3  # symbols that aren't known, as examples


@dataclass
class EncodedSequences:
    """How many rows were written, how many symbols they have, and how many of these the store's vocabulary
    hasn't, so that the model reads [UNK]; `such_as` are the first of them. Series and images have no symbols.
    """

    rows: int = 0
    symbols: int = 0
    unknown: int = 0
    such_as: list[str] = field(default_factory=list)

    def count(self, symbols: Sequence[str], is_known: Callable[[str], bool]) -> None:
        """Adds those of a row."""
        self.symbols += len(symbols)
        for symbol in symbols:
            if not is_known(symbol):
                self.unknown += 1
                if len(self.such_as) < _SHOWN and symbol not in self.such_as:
                    self.such_as.append(symbol)


@door(
    path=place,
    like=place,
    out=place,
    header=flag,
    format=optional(text),
    encoding=text,
    progress=optional(function),
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
    """Writes the rows of `path` as the store `like` has its own. `header`, `format` and `encoding` say how
    they are read, as SequenceSettings does.

    Raises InputError naming the row that can't be read, and StoreError for a folder that is no such store.
    """
    codec = read_codec(like)
    tokenizer = load_tokenizer(Path(like) / "tokenizer")
    require_output(out, overwrite, [path, like])
    found = EncodedSequences()
    found.rows = write_jsonl(
        _encode_rows(RowFile(path, header, format, encoding), codec, tokenizer, found, progress), out
    )
    return found


def _encode_rows(
    file: RowFile, codec: Codec, tokenizer: Tokenizer, found: EncodedSequences, progress: Progress | None
) -> Iterator[dict[str, Any]]:
    pieces, scales = frozenset(tokenizer.pieces), {scale.piece: scale for scale in codec.scales.columns}
    for number, row in enumerate(stream_records(file, padded=codec.kind == "symbols"), start=1):
        kept = {name: _as_json(value) for name, value in row.values.items() if name not in codec.reads}
        for needed in (TEXT, WORDS) if TAGS in kept else (TEXT,):
            if needed in kept:
                raise InputError(
                    f"{row.where}: the column {needed} is no part of the sequence, and its name is needed "
                    "for it. Rename it."
                )
        if codec.of_patches:
            if isinstance(tokenizer, PatchTokenizer):
                tokenizer.shape.require_row(codec.numbers(row).shape, row.where)
            yield {TEXT: codec.text(row), **kept}
        else:
            symbols = codec.symbols(row)
            found.count(
                symbols, lambda each: each in pieces or parse_spelled_number(each, scales) is not None
            )
            if TAGS not in kept or codec.kind != "symbols":
                yield {TEXT: " ".join(symbols), **kept}
            elif isinstance(kept[TAGS], list) and len(kept[TAGS]) == len(symbols):
                yield {WORDS: symbols, **kept}
            else:
                raise InputError(f"{row.where}: expected {len(symbols):,} tags in a list, one an item.")
        if progress is not None and not number % 1000:
            progress(number, None, "rows")


def _as_json(value: Any) -> Any:
    """A cell as JSON can hold it: what is no finite number is null, and dates are their text."""
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _as_json(each) for name, each in value.items()}
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)

"""Labelled rows of the same kind as a store's → JSON lines that fine-tuning and prediction read.

Every symbol is a word of `text`; columns that aren't part of the sequence, such as labels, are kept. For
tagging there is `words` too, beside the file's own `tags`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertsmith.data.sequences.codec import Codec, read_codec
from bertsmith.data.sequences.records import stream_records
from bertsmith.door import door, function, optional, place
from bertsmith.errors import InputError
from bertsmith.output_file import require_output
from bertsmith.progress import Progress
from bertsmith.text.files.jsonl import write_jsonl

TEXT, WORDS, TAGS = "text", "words", "tags"


@door(path=place, like=place, out=place, progress=optional(function))
def encode_sequences(
    path: Path | str,
    like: Path | str,
    out: Path | str,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> int:
    """Writes the rows of `path` as the store `like` has its own; returns how many.

    Raises InputError naming the row that can't be read, and StoreError for a folder that is no such store.
    """
    codec = read_codec(like)
    require_output(out, overwrite, [path, like])
    return write_jsonl(_rows(Path(path), codec, progress), out)


def _rows(path: Path, codec: Codec, progress: Progress | None) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(stream_records(path), start=1):
        kept = {name: value for name, value in row.values.items() if name not in codec.reads}
        if TEXT in kept:
            raise InputError(
                f"{row.where}: the column {TEXT} is no part of the sequence, and its name is needed for it. "
                "Rename it."
            )
        if TAGS in kept and codec.kind == "symbols":
            symbols = codec.symbols(row)
            if not isinstance(kept[TAGS], list) or len(kept[TAGS]) != len(symbols):
                raise InputError(f"{row.where}: expected {len(symbols):,} tags in a list, one an item.")
            yield {WORDS: symbols, **kept}
        else:
            yield {TEXT: codec.text(row), **kept}
        if progress is not None and not number % 1000:
            progress(number, None, "rows")

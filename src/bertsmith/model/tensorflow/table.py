"""A table of keys and values in LevelDB's format, as TensorFlow's .index file is one.

    block ... block   meta index   index   footer

A block is a row of entries, each giving the key by what it shares with the one before; behind it stand a byte
that says how it is packed, and a checksum. The index block holds a handle (offset, size) for each block. The
footer, 48 bytes, holds the handles of both indexes and a magic number (LevelDB's doc/table_format.md).

Nothing is believed: every offset, size and checksum is checked, and blocks and keys must ascend over the
whole table, so that nothing can be given twice. Blocks unpack to more than they take, and a thousand entries
of a few bytes can share a key of a million letters: what comes out is bounded too.
"""

from collections.abc import Iterator
from pathlib import Path

from bertsmith.errors import ModelError
from bertsmith.model.tensorflow.crc32c import crc32c, unmasked
from bertsmith.model.tensorflow.snappy import SnappyError, uncompressed

MAX_TABLE_BYTES = 64 << 20  # of the file, and of its keys and values; BERT-large with its slots: 0.1 MB
_FOOTER = 48
_MAGIC = 0xDB4775248B80FB57
_TRAILER = 5  # how a block is packed, and its checksum
_PLAIN, _SNAPPY = 0, 1


class Damaged(ValueError):
    """What is not as the format has it; the message says what."""


def read_table(path: Path) -> dict[bytes, bytes]:
    """Every key with its value, in order. Raises ModelError for a file that is cut, altered or no table."""
    size = path.stat().st_size
    if size > MAX_TABLE_BYTES:
        raise ModelError(
            f"{path} has {size:,} bytes; the index of a checkpoint has at most {MAX_TABLE_BYTES:,}."
        )
    try:
        return dict(_entries_of_table(path.read_bytes()))
    except (Damaged, SnappyError) as error:
        raise ModelError(
            f"{path} can't be read as the index of a TensorFlow checkpoint: {error}. It may have been cut or "
            "altered."
        ) from error


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and the place behind it. Raises Damaged."""
    value = 0
    for place in range(10):
        if at + place >= len(data):
            raise Damaged("a number was cut")
        value |= (data[at + place] & 127) << (7 * place)
        if data[at + place] < 128:
            return value, at + place + 1
    raise Damaged("a number has more than ten bytes")


def _entries_of_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(data) < _FOOTER or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise Damaged("it doesn't end as one does")
    footer = data[-_FOOTER:]
    _, at = _handle(footer, 0)
    index, _ = _handle(footer, at)
    last: bytes | None = None
    room, reached = MAX_TABLE_BYTES, 0
    for _, value in _entries(_block(data, index)):
        handle, _ = _handle(value, 0)
        if handle[0] < reached:  # one large block without entries could be checked a million times
            raise Damaged("its blocks don't ascend")
        reached = sum(handle)
        for key, found in _entries(_block(data, handle)):
            if last is not None and key <= last:
                raise Damaged("its keys don't ascend")
            room -= len(key) + len(found)
            if room < 0:
                raise Damaged(f"its keys and values have more than {MAX_TABLE_BYTES:,} bytes")
            last = key
            yield key, found


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return (offset, size), at


def _block(data: bytes, handle: tuple[int, int]) -> bytes:
    """The content of a block, checked and unpacked."""
    offset, size = handle
    end = offset + size
    if end + _TRAILER > len(data) - _FOOTER:
        raise Damaged("a block lies outside of it")
    if unmasked(int.from_bytes(data[end + 1 : end + _TRAILER], "little")) != crc32c(data[offset : end + 1]):
        raise Damaged(f"the checksum of the block at byte {offset:,} is wrong")
    if data[end] == _SNAPPY:
        return uncompressed(data[offset:end], MAX_TABLE_BYTES)
    if data[end] != _PLAIN:
        raise Damaged(f"a block is packed in an unknown way ({data[end]})")
    return data[offset:end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values; the places for a binary search behind them aren't needed."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if len(block) < 4 or end < 0:
        raise Damaged("a block is shorter than it says")
    key, at = b"", 0
    while at < end:
        shared, at = varint(block, at)
        own, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + own + length > end:
            raise Damaged("an entry reaches out of its block")
        key = key[:shared] + block[at : at + own]
        at += own + length
        yield key, block[at - length : at]

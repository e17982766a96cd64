"""TensorFlow's checkpoints written and read by plain code of the tests' own, which shares nothing with ours.

The writer can be told to lie: an entry's fields are replaced, a block is packed, a handle leads elsewhere.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
TYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}
Arrays = Mapping[str, np.ndarray]


def plain_crc32c(data: bytes) -> int:
    """Bit by bit."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = plain_crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def read_varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return read_varint(number << 3) + read_varint(value)
    return read_varint(number << 3 | 2) + read_varint(len(value)) + value


def entry(array: np.ndarray, shard: int, offset: int, /, **lies: Any) -> bytes:
    """A BundleEntryProto; fields that are 0 are left out, as protocol buffers do."""
    said = {
        "type": TYPES[array.dtype.name],
        "shape": array.shape,
        "shard": shard,
        "offset": offset,
        "size": array.nbytes,
        "crc": masked(array.tobytes()),
    } | lies
    shape = b"".join(field(2, field(1, size)) for size in said["shape"])
    numbers = ((1, "type"), (3, "shard"), (4, "offset"), (5, "size"))
    parts = [field(number, said[name]) for number, name in numbers if said[name]]
    parts.insert(1, field(2, shape))
    return b"".join(parts) + read_varint(6 << 3 | 5) + struct.pack("<I", said["crc"]) + said.get("more", b"")


def block(entries: Sequence[tuple[bytes, bytes]], packed: bool = False) -> bytes:
    """With its trailer. Every fourth key is whole; `packed`: as Snappy, of literals alone."""
    content, restarts, last = b"", [], b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % 4 == 0:
            restarts.append(len(content))
        else:
            shared = next((n for n, (a, b) in enumerate(zip(key, last)) if a != b), min(len(key), len(last)))
        content += (
            read_varint(shared)
            + read_varint(len(key) - shared)
            + read_varint(len(value))
            + key[shared:]
            + value
        )
        last = key
    content += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    if packed:
        pieces = [content[at : at + 60] for at in range(0, len(content), 60)]
        content = read_varint(len(content)) + b"".join(
            bytes([(len(each) - 1) << 2]) + each for each in pieces
        )
    content += bytes([packed])
    return content + struct.pack("<I", masked(content))


def table(entries: Sequence[tuple[bytes, bytes]], of_a_block: int = 7, packed: bool = False) -> bytes:
    content, handles = b"", []
    for start in range(0, len(entries), of_a_block):
        some = entries[start : start + of_a_block]
        made = block(some, packed)
        handles.append((some[-1][0], read_varint(len(content)) + read_varint(len(made) - 5)))
        content += made
    meta, index = block([]), block(handles, packed)
    ends = read_varint(len(content)) + read_varint(len(meta) - 5)
    ends += read_varint(len(content) + len(meta)) + read_varint(len(index) - 5)
    return content + meta + index + ends.ljust(40, b"\0") + MAGIC


def header(shards: int, order: int = 0) -> bytes:
    return field(1, shards) + (field(2, order) if order else b"") + field(3, field(1, 1))


def write_bundle(
    prefix: Path,
    arrays: Arrays,
    shards: int = 1,
    lies: Mapping[str, Mapping[str, Any]] | None = None,
    packed: bool = False,
) -> None:
    """PREFIX.index and its data files, tensors dealt out in turn; `lies` are of entries, by name."""
    data, entries = [b""] * shards, [(b"", header(shards))]
    for number, name in enumerate(sorted(arrays)):
        shard = number % shards
        said = entry(arrays[name], shard, len(data[shard]), **(lies or {}).get(name, {}))
        entries.append((name.encode(), said))
        data[shard] += arrays[name].tobytes()
    prefix.with_name(prefix.name + ".index").write_bytes(table(entries, packed=packed))
    for number, content in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{shards:05d}").write_bytes(content)


def read_plainly(prefix: Path) -> dict[str, np.ndarray]:
    """An honest bundle of one float32 data file without packed blocks, with nothing checked but checksums."""
    index = prefix.with_name(prefix.name + ".index").read_bytes()
    data = prefix.with_name(prefix.name + ".data-00000-of-00001").read_bytes()
    found = {}

    def number(content: bytes, at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            value |= (content[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if content[at - 1] < 128:
                return value, at

    def entries(at: int, size: int) -> list[tuple[bytes, bytes]]:
        content = index[at : at + size]
        assert struct.unpack("<I", index[at + size + 1 : at + size + 5])[0] == masked(
            index[at : at + size + 1]
        )
        end = size - 4 - 4 * struct.unpack("<I", content[-4:])[0]
        listed, key, at = [], b"", 0
        while at < end:
            (shared, at), own, length = number(content, at), 0, 0
            own, at = number(content, at)
            length, at = number(content, at)
            key = key[:shared] + content[at : at + own]
            listed.append((key, content[at + own : at + own + length]))
            at += own + length
        return listed

    _, at = number(index[-48:], 0)
    _, at = number(index[-48:], at)
    start, at = number(index[-48:], at)
    size, _ = number(index[-48:], at)
    for _, handle in entries(start, size):
        begins, at = number(handle, 0)
        for key, message in entries(begins, number(handle, at)[0]):
            if key:
                found[key.decode()] = _tensor(message, data, number)
    return found


def _tensor(message: bytes, data: bytes, number: Any) -> np.ndarray:
    said: dict[int, int] = {}
    shape, at = [], 0
    while at < len(message):
        tag, at = number(message, at)
        if tag & 7 == 2:
            length, at = number(message, at)
            inner, end = at, at + length
            while inner < end:  # dim { size: n } is 18, length, 8, n
                size, _ = number(message, inner + 3)
                shape.append(size)
                inner += 2 + message[inner + 1]
            at = end
        elif tag & 7 == 5:
            said[tag >> 3] = struct.unpack("<I", message[at : at + 4])[0]
            at += 4
        else:
            said[tag >> 3], at = number(message, at)
    piece = data[said.get(4, 0) : said.get(4, 0) + said[5]]
    assert said[6] == masked(piece)
    kind = {number: name for name, number in TYPES.items()}[said[1]]
    return np.frombuffer(piece, kind).reshape(shape)

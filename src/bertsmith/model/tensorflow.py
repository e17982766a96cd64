"""Reads TensorFlow's checkpoints of several files, PREFIX.index with PREFIX.data-00000-of-00001 and so on,
and translates the names of tensors in Google's checkpoints (github.com/google-research/bert) to Hugging
Face's.

The index is a table in LevelDB's format, whose blocks may be compressed by Snappy. Its key "" holds a
BundleHeaderProto; its other keys are names of tensors, each with a BundleEntryProto: type, shape, shard,
offset, size and a checksum, CRC-32C (TensorFlow's tensor_bundle.proto). A data file has the tensors' bytes,
little-endian.

Only the requested tensors are read. A size that doesn't follow from shape and type, an offset outside the
file, and a wrong checksum are each an error that names the tensor.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertsmith.errors import ModelError
from bertsmith.model.untrusted import plain_file

UInt32s = npt.NDArray[np.uint32]
_POLYNOMIAL = 0x82F63B78  # reversed, as usual
_BYTES_A_STEP = 8
_ONES = np.uint32(0xFFFFFFFF)
_MOST_LANES = 1 << 14
_MASK_DELTA = 0xA282EAD8
MAX_TABLE_BYTES = 64 << 20  # of the file, and of its keys and values; BERT-large with its slots: 0.1 MB
_FOOTER = 48
_MAGIC = 0xDB4775248B80FB57
_TRAILER = 5  # bytes after a block: its compression, and its checksum
_PLAIN, _SNAPPY = 0, 1
INDEX = ".index"
_OBJECTS = b"_CHECKPOINTABLE_OBJECT_GRAPH"
_MOST_SHARDS = 10_000
_MOST_DIMENSIONS = 16
_MOST_VALUES = 1 << 40
# Of DataType in types.proto those that weights have, and the counter of steps.
_TYPES = {1: "float32", 2: "float64", 3: "int32", 9: "int64", 14: "bfloat16", 19: "float16"}
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
# The output layers of Google's fine-tuning scripts -> the heads of transformers.
_HEADS = {
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
}
_LEAVES = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")  # a tensor without a leaf
_LAYER = re.compile(r"\blayer_(\d+)\b")
# The optimiser's state beside each weight, and its counters of steps.
_OPTIMIZER_STATE = re.compile(r"(^|/)(adam_[mv]|Adam(_\d+)?|lamb_[mv]|Momentum|ExponentialMovingAverage)$")
_COUNTERS = re.compile(r"^(global_step|(.*/)?beta[12]_power|save_counter(/.*)?|good_steps|loss_scale)$")


def crc32c(data: bytes | memoryview) -> int:
    """The CRC-32C of the bytes: 0xE3069283 for b"123456789"."""
    values = np.frombuffer(data, np.uint8)
    # Leading zero bytes leave a register of zero unchanged, so all lanes are padded to the same length.
    lanes = 1 << max(0, min(_MOST_LANES.bit_length() - 1, (len(values) // 64).bit_length() - 1))
    steps = -(-len(values) // (lanes * _BYTES_A_STEP))
    padded = np.zeros(lanes * steps * _BYTES_A_STEP, np.uint8)
    padded[len(padded) - len(values) :] = values
    registers, length = _compute_registers(padded.reshape(lanes, -1)), steps * _BYTES_A_STEP
    while len(registers) > 1:  # joins the registers of neighbouring lanes, in order
        registers, length = _append_zero_bytes(registers[0::2], length) ^ registers[1::2], 2 * length
    return int(registers[0] ^ _append_zero_bytes(np.array([_ONES]), len(values))[0] ^ _ONES)


def unmask_checksum(masked: int) -> int:
    """The CRC of a stored checksum, which is rotated and shifted (LevelDB's crc32c.h)."""
    turned = (masked - _MASK_DELTA) & 0xFFFFFFFF
    return ((turned >> 17) | (turned << 15)) & 0xFFFFFFFF


def _compute_registers(lanes: npt.NDArray[np.uint8]) -> UInt32s:
    """The registers (L,) of lanes (L, bytes), each of which starts at zero."""
    tables = _make_tables()
    words = lanes.view("<u4").T  # (bytes / 4, L)
    register = np.zeros(len(lanes), np.uint32)
    for low, high in zip(words[0::2], words[1::2], strict=True):
        first = register ^ low
        register = tables[7][first & 255] ^ tables[6][(first >> 8) & 255]
        register ^= tables[5][(first >> 16) & 255] ^ tables[4][first >> 24]
        register ^= tables[3][high & 255] ^ tables[2][(high >> 8) & 255]
        register ^= tables[1][(high >> 16) & 255] ^ tables[0][high >> 24]
    return register


def _append_zero_bytes(registers: UInt32s, count: int) -> UInt32s:
    """The registers after `count` more zero bytes."""
    power = 0
    while count:
        if count & 1:
            registers = _apply_map(_zero_bytes(power), registers)
        count, power = count >> 1, power + 1
    return registers


@cache
def _zero_bytes(power: int) -> UInt32s:
    """The linear map of 2 ** power zero bytes: the image (32,) of each bit of a register."""
    if power:
        half = _zero_bytes(power - 1)
        return _apply_map(half, half)
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    moved: UInt32s = _make_tables()[0][bits & 255] ^ (bits >> np.uint32(8))
    return moved


def _apply_map(images: UInt32s, registers: UInt32s) -> UInt32s:
    """Applies a linear map, given by the image of each bit, to each register."""
    result = np.zeros_like(registers)
    for bit, image in enumerate(images):
        result ^= np.where((registers >> np.uint32(bit)) & np.uint32(1), image, np.uint32(0))
    return result


@cache
def _make_tables() -> UInt32s:
    """The tables (8, 256) for slicing by eight: table n has the register after a byte and n zero bytes."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & np.uint32(1), np.uint32(_POLYNOMIAL), np.uint32(0))
    tables = [table]
    for _ in range(_BYTES_A_STEP - 1):
        tables.append(table[tables[-1] & 255] ^ (tables[-1] >> np.uint32(8)))
    return np.stack(tables)


class SnappyError(ValueError):
    """Invalid Snappy data; the message says why."""


def decompress_snappy(packed: bytes, limit: int) -> bytes:
    """Decompresses Snappy data. Raises SnappyError for invalid data, and for more than `limit` bytes."""
    expected, at = _read_length(packed)
    if expected > limit:
        raise SnappyError(f"it claims to hold {expected:,} bytes, {limit:,} being the most")
    output = bytearray()
    while at < len(packed):
        at = _copy_literal(packed, at, output) if packed[at] & 3 == 0 else _repeat_bytes(packed, at, output)
        if len(output) > expected:
            raise SnappyError("it holds more than it claims")
    if len(output) != expected:
        raise SnappyError("it was cut")
    return bytes(output)


def _read_length(packed: bytes) -> tuple[int, int]:
    value = 0
    for at, byte in enumerate(packed[:5]):
        value |= (byte & 127) << (7 * at)
        if byte < 128:
            return value, at + 1
    raise SnappyError("it doesn't begin with a length")


def _copy_literal(packed: bytes, at: int, output: bytearray) -> int:
    """Appends a literal to the output and returns the offset after it. The literal's length less one is in
    the tag, or in the one to four bytes after it.
    """
    length, at = packed[at] >> 2, at + 1
    if length >= 60:
        size = length - 59
        length, at = int.from_bytes(packed[at : at + size], "little"), at + size
    piece = packed[at : at + length + 1]
    if len(piece) != length + 1:
        raise SnappyError("it was cut")
    output += piece
    return at + length + 1


def _repeat_bytes(packed: bytes, at: int, output: bytearray) -> int:
    """Appends a copy of earlier bytes of the output and returns the offset after the tag. The copy may
    overlap itself.
    """
    tag, kind = packed[at], packed[at] & 3
    size = (0, 1, 2, 4)[kind]
    offset = int.from_bytes(packed[at + 1 : at + 1 + size], "little")
    length = (tag >> 2) + 1
    if kind == 1:
        length, offset = ((tag >> 2) & 7) + 4, offset | (tag >> 5) << 8
    if not 0 < offset <= len(output) or len(packed) < at + 1 + size:
        raise SnappyError("it repeats what isn't there")
    for _ in range(length):
        output.append(output[-offset])
    return at + 1 + size


class BundleFormatError(ValueError):
    """Data that breaks the format; the message says how."""


def read_table(path: Path) -> dict[bytes, bytes]:
    """The values of a table by key, in order. Raises ModelError for a truncated or altered file, and for one
    that is no table.
    """
    size = path.stat().st_size
    if size > MAX_TABLE_BYTES:
        raise ModelError(
            f"{path} has {size:,} bytes; the index of a checkpoint has at most {MAX_TABLE_BYTES:,}."
        )
    try:
        return dict(_read_table_entries(path.read_bytes()))
    except (BundleFormatError, SnappyError) as error:
        raise ModelError(
            f"{path} can't be read as the index of a TensorFlow checkpoint: {error}. It may have been cut or "
            "altered."
        ) from error


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Reads a varint, with seven bits a byte, the lowest first. Returns it and the offset after it. Raises
    BundleFormatError.
    """
    value = 0
    for index in range(10):
        if at + index >= len(data):
            raise BundleFormatError("a number was cut")
        value |= (data[at + index] & 127) << (7 * index)
        if data[at + index] < 128:
            return value, at + index + 1
    raise BundleFormatError("a number has more than ten bytes")


def _read_table_entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if len(data) < _FOOTER or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise BundleFormatError("it doesn't end as one does")
    footer = data[-_FOOTER:]
    _, at = _read_handle(footer, 0)
    index, _ = _read_handle(footer, at)
    last: bytes | None = None
    room, reached = MAX_TABLE_BYTES, 0
    for _, value in _read_entries(_read_block(data, index)):
        handle, _ = _read_handle(value, 0)
        if handle[0] < reached:  # otherwise one large block could be checked a million times
            raise BundleFormatError("its blocks don't ascend")
        reached = sum(handle)
        for key, entry in _read_entries(_read_block(data, handle)):
            if last is not None and key <= last:
                raise BundleFormatError("its keys don't ascend")
            room -= len(key) + len(entry)
            if room < 0:
                raise BundleFormatError(f"its keys and values have more than {MAX_TABLE_BYTES:,} bytes")
            last = key
            yield key, entry


def _read_handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return (offset, size), at


def _read_block(data: bytes, handle: tuple[int, int]) -> bytes:
    """The content of a block, checked and decompressed."""
    offset, size = handle
    end = offset + size
    if end + _TRAILER > len(data) - _FOOTER:
        raise BundleFormatError("a block lies outside of it")
    if unmask_checksum(int.from_bytes(data[end + 1 : end + _TRAILER], "little")) != crc32c(
        data[offset : end + 1]
    ):
        raise BundleFormatError(f"the checksum of the block at byte {offset:,} is wrong")
    if data[end] == _SNAPPY:
        return decompress_snappy(data[offset:end], MAX_TABLE_BYTES)
    if data[end] != _PLAIN:
        raise BundleFormatError(f"a block is packed in an unknown way ({data[end]})")
    return data[offset:end]


def _read_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block. The offsets after them, for a binary search, aren't needed."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if len(block) < 4 or end < 0:
        raise BundleFormatError("a block is shorter than it says")
    key, at = b"", 0
    while at < end:
        shared, at = read_varint(block, at)
        own, at = read_varint(block, at)
        length, at = read_varint(block, at)
        if shared > len(key) or at + own + length > end:
            raise BundleFormatError("an entry reaches out of its block")
        key = key[:shared] + block[at : at + own]
        at += own + length
        yield key, block[at - length : at]


class _BundleEntry(NamedTuple):
    """Type, shape and location of a tensor. `type` is a number of TensorFlow's DataType."""

    type: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    is_sliced: bool


def read_bundle(index: Path, is_read: Callable[[str], bool]) -> dict[str, Tensor]:
    """The tensors for whose names `is_read` is true, by name, on the CPU.

    `index` is the file PREFIX.index, which has its data files beside it. Raises ModelError for truncated and
    altered files, for tensors larger than the files, for variables that were saved in slices, and for types
    that weights don't have.
    """
    table = read_table(index)
    shards = _shard_files(index, table.pop(b"", None))
    if _OBJECTS in table:
        raise ModelError(
            f"{index} is a checkpoint of TensorFlow 2's objects, whose tensors are named by places in a "
            "program and not by what they are. Take the model's original checkpoint of TensorFlow 1, or "
            "convert it where TensorFlow is installed, with transformers 4."
        )
    tensors = {}
    budget = sum(path.stat().st_size for path in shards)
    for key, value in table.items():
        name = key.decode("utf-8", "replace")
        if not is_read(name):
            continue
        where = f"{index}, tensor {name!r}"
        entry = _parse_entry(value, where)
        _check_entry(entry, shards, where)
        budget -= entry.size
        if budget < 0:
            raise ModelError(f"{index} claims tensors that are larger than its files; it was refused.")
        tensors[name] = _read_tensor(entry, shards[entry.shard], where)
    return tensors


def _shard_files(index: Path, header: bytes | None) -> list[Path]:
    if header is None:
        raise ModelError(f"{index} has no header: it is not the index of a TensorFlow checkpoint.")
    fields: dict[int, int] = {}
    try:
        fields = {number: value for number, value in _read_fields(header) if isinstance(value, int)}
    except BundleFormatError as error:
        raise ModelError(f"{index}: the header can't be read ({error}). It may have been altered.") from error
    count = fields.get(1, 0)
    if not 0 < count <= _MOST_SHARDS or fields.get(2, 0) != 0:
        raise ModelError(
            f"{index}: expected 1 to {_MOST_SHARDS:,} data files in little-endian order, found {count:,} in "
            f"order {fields.get(2, 0)}."
        )
    prefix = index.name.removesuffix(INDEX)
    return [plain_file(index.parent, f"{prefix}.data-{n:05d}-of-{count:05d}") for n in range(count)]


def _parse_entry(message: bytes, where: str) -> _BundleEntry:
    """Parses a BundleEntryProto of TensorFlow's tensor_bundle.proto."""
    numbers: dict[int, int] = {}
    shape: tuple[int, ...] = ()
    try:
        for number, value in _read_fields(message):
            if isinstance(value, int):
                numbers[number] = value
            elif number == 2:
                shape = _parse_shape(value)
        is_sliced = any(number == 7 for number, _ in _read_fields(message))
    except BundleFormatError as error:
        raise ModelError(f"{where}: its entry can't be read ({error}). It may have been altered.") from error
    shard, offset, size, checksum = (numbers.get(field, 0) for field in (3, 4, 5, 6))
    return _BundleEntry(numbers.get(1, 0), shape, shard, offset, size, checksum, is_sliced)


def _parse_shape(message: bytes) -> tuple[int, ...]:
    """Parses a TensorShapeProto, in which each dimension is a message with its size."""
    sizes = []
    for number, value in _read_fields(message):
        if number == 3 and value:
            raise BundleFormatError("a shape without a number of dimensions")
        if number == 2 and isinstance(value, bytes):
            sizes.append(
                next((size for n, size in _read_fields(value) if n == 1 and isinstance(size, int)), 0)
            )
    if len(sizes) > _MOST_DIMENSIONS or prod(max(size, 1) for size in sizes) >= _MOST_VALUES:
        raise BundleFormatError("a shape that no tensor has")
    return tuple(sizes)


def _read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The numbers and values of a protocol buffer's fields: numbers as int, messages and texts as bytes."""
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = read_varint(message, at)
            yield number, value
            continue
        if kind == _LENGTH:
            size, at = read_varint(message, at)
        elif kind in (_FOUR_BYTES, _EIGHT_BYTES):
            size = 4 if kind == _FOUR_BYTES else 8
        else:
            raise BundleFormatError(f"a field of the unknown kind {kind}")
        if at + size > len(message):
            raise BundleFormatError("a field was cut")
        piece, at = message[at : at + size], at + size
        yield number, piece if kind == _LENGTH else int.from_bytes(piece, "little")


def _check_entry(entry: _BundleEntry, shards: list[Path], where: str) -> None:
    if entry.is_sliced:
        raise ModelError(
            f"{where} was saved in slices of several machines, which Bertsmith doesn't join. Save the "
            "checkpoint again without partitioned variables."
        )
    if entry.type not in _TYPES:
        known = ", ".join(_TYPES.values())
        raise ModelError(f"{where} is of the type {entry.type} of TensorFlow; weights are {known}.")
    item = 2 if _TYPES[entry.type] == "bfloat16" else np.dtype(_TYPES[entry.type]).itemsize
    expected = prod(entry.shape) * item
    if entry.size != expected:
        raise ModelError(
            f"{where}: expected {expected:,} bytes for the shape {entry.shape} of {_TYPES[entry.type]}, "
            f"found {entry.size:,}."
        )
    if entry.shard >= len(shards):
        raise ModelError(f"{where} is in data file {entry.shard}, but there are {len(shards)} from 0.")
    size = shards[entry.shard].stat().st_size
    if entry.offset + entry.size > size:
        raise ModelError(
            f"{where}: expected bytes {entry.offset:,} to {entry.offset + entry.size:,} of "
            f"{shards[entry.shard].name}, which has {size:,}. It may have been cut."
        )


def _read_tensor(entry: _BundleEntry, path: Path, where: str) -> Tensor:
    with path.open("rb") as file:
        file.seek(entry.offset)
        data = bytearray(entry.size)
        file.readinto(data)
    if crc32c(memoryview(data)) != unmask_checksum(entry.checksum):
        raise ModelError(
            f"{where}: its bytes in {path.name} don't have their checksum. The file was altered."
        )
    dtype = getattr(torch, _TYPES[entry.type])
    if not data:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(entry.shape)


def is_weight(name: str) -> bool:
    """Whether a tensor belongs to the model, and not to the optimiser's state or its counters of steps."""
    return not (_OPTIMIZER_STATE.search(name) or _COUNTERS.match(name))


def to_hugging_face_names(tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """The tensors under Hugging Face's names, with kernels transposed.

    Raises ModelError that names a tensor which Google's BERT doesn't have.
    """
    renamed = {}
    for name, tensor in tensors.items():
        theirs = hugging_face_name(name)
        if theirs is None:
            raise ModelError(
                f"{where} holds the tensor {name!r}, which is none of a BERT of Google's. Bertsmith imports "
                "BERT with Google's names: bert/embeddings/…, bert/encoder/…, bert/pooler/…, cls/…."
            )
        is_kernel = name.endswith("/kernel") and tensor.dim() == 2
        renamed[theirs] = tensor.t().contiguous() if is_kernel else tensor
    return renamed


def hugging_face_name(name: str) -> str | None:
    """Hugging Face's name of a tensor of Google's BERT; None for a tensor that it doesn't have."""
    if name in _HEADS:
        return _HEADS[name]
    if name.partition("/")[0] not in ("bert", "cls"):
        return None
    module, _, leaf = name.rpartition("/")
    if leaf in _TABLES:
        module, leaf = name, "weight"
    elif leaf in _LEAVES:
        leaf = _LEAVES[leaf]
    else:
        return None
    return ".".join([*_LAYER.sub(r"layer/\1", module).split("/"), leaf])

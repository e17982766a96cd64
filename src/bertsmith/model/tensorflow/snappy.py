"""Snappy's block format (Google's format_description.txt), as old TensorFlow packed the blocks of a table."""


class SnappyError(ValueError):
    """What is not valid Snappy; the message says why."""


def uncompressed(packed: bytes, limit: int) -> bytes:
    """The bytes that were packed. Raises SnappyError for anything else, and for more than `limit` of them."""
    expected, at = _length(packed)
    if expected > limit:
        raise SnappyError(f"it claims to hold {expected:,} bytes, {limit:,} being the most")
    found = bytearray()
    while at < len(packed):
        at = _literal(packed, at, found) if packed[at] & 3 == 0 else _copy(packed, at, found)
        if len(found) > expected:
            raise SnappyError("it holds more than it claims")
    if len(found) != expected:
        raise SnappyError("it was cut")
    return bytes(found)


def _length(packed: bytes) -> tuple[int, int]:
    value = 0
    for at, byte in enumerate(packed[:5]):
        value |= (byte & 127) << (7 * at)
        if byte < 128:
            return value, at + 1
    raise SnappyError("it doesn't begin with a length")


def _literal(packed: bytes, at: int, found: bytearray) -> int:
    """Bytes as they are: their number less one in the tag, or in the one to four bytes behind it."""
    length, at = packed[at] >> 2, at + 1
    if length >= 60:
        size = length - 59
        length, at = int.from_bytes(packed[at : at + size], "little"), at + size
    piece = packed[at : at + length + 1]
    if len(piece) != length + 1:
        raise SnappyError("it was cut")
    found += piece
    return at + length + 1


def _copy(packed: bytes, at: int, found: bytearray) -> int:
    """Bytes that stand further up, which the copy itself may reach into."""
    tag, kind = packed[at], packed[at] & 3
    size = (0, 1, 2, 4)[kind]
    offset = int.from_bytes(packed[at + 1 : at + 1 + size], "little")
    length = (tag >> 2) + 1
    if kind == 1:
        length, offset = ((tag >> 2) & 7) + 4, offset | (tag >> 5) << 8
    if not 0 < offset <= len(found) or len(packed) < at + 1 + size:
        raise SnappyError("it repeats what isn't there")
    for _ in range(length):
        found.append(found[-offset])
    return at + 1 + size

"""CRC-32C (Castagnoli), the checksum of TensorFlow's files, with NumPy alone at some hundred MB a second.

A CRC's register is linear over GF(2): the register of two pieces, one behind the other, is that of the first
moved on over as many zero bytes as the second has, XOR that of the second. So the bytes are laid out in
lanes, all lanes are stepped together, and their registers are then joined in pairs.

L lanes, a power of two.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

UInt32s = npt.NDArray[np.uint32]
_POLYNOMIAL = 0x82F63B78  # reversed, as usual
_BYTES_A_STEP = 8
_ONES = np.uint32(0xFFFFFFFF)
_MOST_LANES = 1 << 14
_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes | memoryview) -> int:
    """The checksum of the bytes: 0xE3069283 for b"123456789"."""
    found = np.frombuffer(data, np.uint8)
    # Zeros in front leave a register of zeros as it is: every lane can have the same length.
    lanes = 1 << max(0, min(_MOST_LANES.bit_length() - 1, (len(found) // 64).bit_length() - 1))
    steps = -(-len(found) // (lanes * _BYTES_A_STEP))
    padded = np.zeros(lanes * steps * _BYTES_A_STEP, np.uint8)
    padded[len(padded) - len(found) :] = found
    register = _joined(_registers(padded.reshape(lanes, -1)), steps * _BYTES_A_STEP)
    return int(register ^ _moved(np.array([_ONES]), len(found))[0] ^ _ONES)


def unmasked(masked: int) -> int:
    """The checksum as TensorFlow stores it, turned and shifted, back as it is (LevelDB's crc32c.h)."""
    turned = (masked - _MASK_DELTA) & 0xFFFFFFFF
    return ((turned >> 17) | (turned << 15)) & 0xFFFFFFFF


def _registers(lanes: npt.NDArray[np.uint8]) -> UInt32s:
    """(L, bytes) -> (L,) the register of each lane, which began as zero."""
    tables = _tables()
    words = lanes.view("<u4").T  # (bytes / 4, L)
    register = np.zeros(len(lanes), np.uint32)
    for low, high in zip(words[0::2], words[1::2], strict=True):
        first = register ^ low
        register = tables[7][first & 255] ^ tables[6][(first >> 8) & 255]
        register ^= tables[5][(first >> 16) & 255] ^ tables[4][first >> 24]
        register ^= tables[3][high & 255] ^ tables[2][(high >> 8) & 255]
        register ^= tables[1][(high >> 16) & 255] ^ tables[0][high >> 24]
    return register


def _joined(registers: UInt32s, length: int) -> np.uint32:
    """(L,) registers of pieces of so many bytes, in their order -> the register of all of them."""
    while len(registers) > 1:
        registers, length = _moved(registers[0::2], length) ^ registers[1::2], 2 * length
    return np.uint32(registers[0])


def _moved(registers: UInt32s, count: int) -> UInt32s:
    """The registers after so many zero bytes more."""
    power = 0
    while count:
        if count & 1:
            registers = _applied(_zero_bytes(power), registers)
        count, power = count >> 1, power + 1
    return registers


@cache
def _zero_bytes(power: int) -> UInt32s:
    """(32,) what 2 ** power zero bytes make of each bit of a register."""
    if power:
        half = _zero_bytes(power - 1)
        return _applied(half, half)
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    moved: UInt32s = _tables()[0][bits & 255] ^ (bits >> np.uint32(8))
    return moved


def _applied(images: UInt32s, registers: UInt32s) -> UInt32s:
    """A linear map, given by what it makes of each bit, applied to each register."""
    result = np.zeros_like(registers)
    for bit, image in enumerate(images):
        result ^= np.where((registers >> np.uint32(bit)) & np.uint32(1), image, np.uint32(0))
    return result


@cache
def _tables() -> UInt32s:
    """(8, 256) of slicing by eight: table n is what a byte makes of a register that n zero bytes follow."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & np.uint32(1), np.uint32(_POLYNOMIAL), np.uint32(0))
    tables = [table]
    for _ in range(_BYTES_A_STEP - 1):
        tables.append(table[tables[-1] & 255] ^ (tables[-1] >> np.uint32(8)))
    return np.stack(tables)

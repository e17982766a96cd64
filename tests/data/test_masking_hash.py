"""The hash that masks are drawn from: SplitMix64, whose bits look like fair and independent coins."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bertsmith.data.masking import _draw_bits

COUNT = 1 << 17
SIGMAS = 4.5  # of 64 bits x some tests at fixed seeds; by chance one in 150,000 is beyond
RANDOM = np.random.default_rng(1).integers(0, 2**64, COUNT, np.uint64)
KEYS = {
    "random keys": RANDOM,
    "consecutive keys": np.arange(COUNT, dtype=np.uint64),
    "keys in the high bits": np.arange(COUNT, dtype=np.uint64) << np.uint64(47),
}
each_kind = pytest.mark.parametrize("keys", KEYS.values(), ids=list(KEYS))


def draws(keys: npt.NDArray[np.uint64], place: int = 0) -> npt.NDArray[np.uint64]:
    """What the masker hashes for the token at `place` of the sequences of these keys."""
    tensor = torch.from_numpy(keys.view(np.int64))
    hashed: npt.NDArray[np.int64] = _draw_bits(tensor, torch.full_like(tensor, place)).numpy()
    return hashed.view(np.uint64)


def bits(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """(values, 64)"""
    return np.unpackbits(values.view(np.uint8).reshape(-1, 8), axis=1)


def worst(coins: npt.NDArray[np.uint8]) -> float:
    """The furthest of all columns from half ones, in standard deviations."""
    return float(np.abs(coins.mean(0) - 0.5).max() * 2 * np.sqrt(len(coins)))


def test_draws_are_splitmix64s_published_sequence() -> None:
    """Seed 1234567, the first five outputs (Rosetta Code; Vigna's splitmix64.c gives the same)."""
    key = np.array([1234567], np.uint64)
    assert [int(draws(key, place)[0]) for place in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_draws_are_splitmix64_in_unbounded_integers() -> None:
    """Torch's signed products wrap as unsigned ones do, for keys on both sides of 2^63."""
    edges = [0, 1, 2**63 - 1, 2**63, 2**64 - 1, *RANDOM[:200].tolist()]
    for place in (0, 1, 511):
        found = draws(np.array(edges, np.uint64), place).tolist()
        assert found == [splitmix64(key, place) for key in edges]


def splitmix64(seed: int, place: int) -> int:
    value = (seed + (place + 1) * 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


@each_kind
def test_every_bit_is_a_fair_coin(keys: npt.NDArray[np.uint64]) -> None:
    assert worst(bits(draws(keys))) < SIGMAS


@each_kind
@pytest.mark.parametrize("distance", [1, 2, 64])
def test_bits_of_neighbouring_places_are_independent(keys: npt.NDArray[np.uint64], distance: int) -> None:
    assert worst(bits(draws(keys) ^ draws(keys, distance))) < SIGMAS


@each_kind
def test_bits_of_neighbouring_keys_are_independent(keys: npt.NDArray[np.uint64]) -> None:
    hashed = draws(keys)
    assert worst(bits(hashed[1:] ^ hashed[:-1])) < SIGMAS


@each_kind
def test_scores_of_neighbours_are_uncorrelated(keys: npt.NDArray[np.uint64]) -> None:
    """Of whole numbers, not single bits: over keys, and over places."""
    hashed, beside = draws(keys).astype(float), draws(keys, 1).astype(float)
    for left, right in ((hashed[1:], hashed[:-1]), (hashed, beside)):
        assert abs(np.corrcoef(left, right)[0, 1]) < SIGMAS / np.sqrt(len(left))


@pytest.mark.parametrize("bit", [0, 1, 31, 32, 62, 63])
def test_one_bit_of_the_key_turns_half_of_the_draw(bit: int) -> None:
    turned = draws(RANDOM) ^ draws(RANDOM ^ np.uint64(1 << bit))
    assert worst(bits(turned)) < SIGMAS

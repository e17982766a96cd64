"""Smaller vectors: what a round trip keeps, and what it is said to cost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bertsmith.errors import InputError
from bertsmith.inference.embedding.vectors import (
    Int8Ranges,
    Vectors,
    cut,
    from_bits,
    loss,
    normalised,
    to_bits,
)

VALUES = st.floats(-2, 2, width=32)
SOME = arrays.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 20)), elements=VALUES)


def random_vectors(count: int, width: int, seed: int = 0) -> Vectors:
    return normalised(np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32))


@given(SOME)
def test_normalised_vectors_have_length_1_and_zeros_stay_zeros(vectors: Vectors) -> None:
    lengths = np.linalg.norm(normalised(vectors), axis=1)
    expected = np.where(np.linalg.norm(vectors, axis=1) > 1e-12, 1, lengths)
    np.testing.assert_allclose(lengths, expected, atol=1e-5)
    assert not normalised(np.zeros((2, 3), np.float32)).any()


def test_a_cut_vector_is_its_beginning_at_length_1() -> None:
    found = cut(np.array([[3, 4, 12]], np.float32), 2)
    np.testing.assert_allclose(found, [[0.6, 0.8]], atol=1e-7)


@settings(max_examples=50)
@given(SOME)
def test_int8_is_right_to_half_a_step_of_each_dimension(vectors: Vectors) -> None:
    ranges = Int8Ranges.of(vectors)
    codes = ranges.encode(vectors)
    assert codes.dtype == np.int8
    half = (ranges.highest - ranges.lowest) / 255 / 2
    assert (np.abs(ranges.decode(codes) - vectors) <= half + 1e-5).all()


def test_the_ends_of_a_range_are_the_ends_of_int8_and_what_lies_outside_becomes_them() -> None:
    ranges = Int8Ranges(np.array([-1, 0], np.float32), np.array([1, 0], np.float32))
    codes = ranges.encode(np.array([[-1, 0], [1, 0], [-9, -1], [9, 1]], np.float32))
    assert codes[:, 0].tolist() == [-128, 127, -128, 127]
    np.testing.assert_allclose(ranges.decode(codes)[:2], [[-1, 0], [1, 0]], atol=1e-6)


def test_bits_are_those_of_sentence_transformers_and_come_back_as_signs() -> None:
    vectors = np.array([[0.5, -0.1, 0.0, 2, -3, 1, 1, -1, 0.1]], np.float32)
    bits = to_bits(vectors)
    assert bits.tolist() == [[0b10010110, 0b10000000]]
    np.testing.assert_allclose(from_bits(bits, 9) * 3, [[1, -1, -1, 1, -1, 1, 1, -1, 1]], atol=1e-6)


@settings(max_examples=50)
@given(SOME)
def test_signs_survive_the_bits(vectors: Vectors) -> None:
    found = from_bits(to_bits(vectors), vectors.shape[1])
    assert ((found > 0) == (vectors > 0)).all()
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def test_the_loss_is_what_loops_over_pairs_and_neighbours_say() -> None:
    whole = random_vectors(60, 24)
    small = normalised(from_bits(to_bits(whole), 24))
    found = loss(whole, small, k=5)
    errors, kept = [], []
    for a in range(60):
        others = [b for b in range(60) if b != a]
        errors += [abs(whole[a] @ whole[b] - small[a] @ small[b]) for b in others]
        nearest = [sorted(others, key=lambda b: -(v[a] @ v[b]))[:5] for v in (whole, small)]
        kept.append(len({*nearest[0]} & {*nearest[1]}) / 5)
    assert found.cosine_error == pytest.approx(np.mean(errors), abs=1e-5)
    # signs have few distinct cosines: which of equal neighbours counts as nearest is open
    assert found.neighbours_kept == pytest.approx(np.mean(kept), abs=0.1)
    assert found.cosine == pytest.approx((whole * small).sum(1).mean(), abs=1e-5)
    assert (found.k, found.vectors) == (5, 60)


@pytest.mark.parametrize("rows", [3, 8, 11])
def test_of_few_vectors_not_all_are_neighbours(rows: int) -> None:
    whole = random_vectors(rows, 8)
    found = loss(whole, -whole[::-1])  # nothing of the vectors is left
    assert found.k == 1 and found.neighbours_kept < 1
    assert np.isnan(loss(whole[:2], whole[:2]).neighbours_kept)


def test_int8_costs_little_and_bits_cost_more() -> None:
    vectors = random_vectors(300, 64)
    ranges = Int8Ranges.of(vectors)
    int8 = loss(vectors, ranges.decode(ranges.encode(vectors)))
    binary = loss(vectors, from_bits(to_bits(vectors), 64))
    fewer = loss(vectors, cut(vectors, 16))
    assert int8.cosine > 0.9999 > 0.85 > binary.cosine > 0.75
    assert int8.neighbours_kept > 0.95 > binary.neighbours_kept > 0.2
    assert np.isnan(fewer.cosine)
    assert loss(vectors, vectors).neighbours_kept == 1


@pytest.mark.parametrize(
    ("act", "complaint"),
    [
        (lambda v: cut(v, 9), "dimensions must be 1 to 8, what the vectors have; found 9"),
        (lambda v: cut(v, 0), "dimensions must be 1 to 8"),
        (lambda v: Int8Ranges.of(v[:0]), "at least one vector"),
        (lambda v: Int8Ranges.of(v).encode(v[:, :3]), "expected vectors of 8 dimensions, found 3"),
        (lambda v: from_bits(to_bits(v), 9), "vectors of 9 dimensions have 2 bytes, found 1"),
        (
            lambda v: loss(v, v[:1]),
            "as many vectors of one kind as of the other, at least two; found 3 and 1",
        ),
    ],
)
def test_what_does_not_fit_is_refused(act: object, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        act(random_vectors(3, 8))  # type: ignore[operator]

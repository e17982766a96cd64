"""Batches in which some examples must not meet, or must: on random data, against the rule itself."""

import time
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.tasks.examples.query_documents import apart, together


def drawn(seed: int, most: int) -> tuple[np.random.Generator, int, np.ndarray]:
    draw = np.random.default_rng(seed)
    examples = int(draw.integers(2, most))
    return draw, examples, draw.permutation(examples)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 8))
def test_no_two_examples_of_a_batch_share_a_text_and_none_comes_twice(seed: int, batch_size: int) -> None:
    draw, examples, order = drawn(seed, 40)
    texts = [(int(draw.integers(0, 9)), 100 + int(draw.integers(0, 9))) for _ in range(examples)]
    batches = apart(texts, order, batch_size)
    for batch in batches:
        every = [text for example in batch.tolist() for text in texts[example]]
        assert len(every) == len(set(every))
        assert len(batch) <= batch_size
    shown = Counter(example for batch in batches for example in batch.tolist())
    assert max(shown.values()) == 1
    assert all(len(batch) > 1 for batch in batches) or all(len(batch) == 1 for batch in batches)


def test_without_shared_texts_batches_are_the_order_cut_up() -> None:
    order = np.random.default_rng(1).permutation(10)
    batches = apart([(n, 100 + n) for n in range(10)], order, 4)
    assert [batch.tolist() for batch in batches] == [
        order[:4].tolist(),
        order[4:8].tolist(),
        order[8:].tolist(),
    ]


def test_rows_of_one_query_spread_over_batches_and_the_lone_rest_is_left_out() -> None:
    """Examples 0, 1 and 2 ask the same."""
    texts = [(1, 10), (1, 11), (1, 12), (2, 13)]
    assert [batch.tolist() for batch in apart(texts, np.arange(4), 2)] == [[0, 3]]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_groups_stay_whole_and_every_example_comes_once(seed: int, batch_size: int) -> None:
    draw, examples, order = drawn(seed, 40)
    groups = draw.integers(0, 10, examples)
    batches = together(groups, order, batch_size)
    assert sorted(example for batch in batches for example in batch.tolist()) == list(range(examples))
    homes = [{number for number, b in enumerate(batches) if group in groups[b]} for group in set(groups)]
    assert all(len(home) == 1 for home in homes)
    largest = max(Counter(groups.tolist()).values())
    assert all(len(batch) < batch_size + largest for batch in batches)


def test_time_grows_with_the_examples_not_with_their_square() -> None:
    order = np.random.default_rng(1).permutation(100_000)
    began = time.process_time()
    batches = together(np.arange(len(order)), order, 1)
    assert time.process_time() - began < 2
    assert [batch.tolist() for batch in batches[:3]] == [[number] for number in order[:3].tolist()]

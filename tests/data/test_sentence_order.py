"""Pairs in or out of their order: what must hold for every text (Lan et al. 2020, section 3.1)."""

from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import FIRST_ID, Lengths, numbered_store, random_lengths, words

from bertsmith.data.pairs import make_sentence_order_pairs
from bertsmith.data.stream import Cursor, PretrainingStream
from bertsmith.errors import StoreError

documents = st.lists(st.lists(st.integers(1, 25), min_size=1, max_size=8), min_size=1, max_size=6)
examples = settings(max_examples=60, deadline=None)


@examples
@given(
    lengths=documents,
    max_tokens=st.integers(3, 40),
    short=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 99),
)
def test_segments_follow_each_other_in_one_document_and_the_label_says_in_which_order(
    tmp_path_factory: pytest.TempPathFactory, lengths: Lengths, max_tokens: int, short: float, seed: int
) -> None:
    store = numbered_store(tmp_path_factory.mktemp("stores") / "store", lengths)
    ends = list(accumulate(map(sum, lengths)))
    pairs = make_sentence_order_pairs(
        store, np.arange(len(lengths)), max_tokens, short, np.random.default_rng(seed)
    )
    sentences = set(accumulate((n for document in lengths for n in document), initial=0))
    used: list[int] = []
    for row in range(len(pairs)):
        first = (int(pairs.first_start[row]), int(pairs.first_end[row]))
        second = (int(pairs.second_start[row]), int(pairs.second_end[row]))
        early, late = (second, first) if pairs.is_random[row] else (first, second)
        assert early[0] < early[1] == late[0] < late[1]
        assert np.searchsorted(ends, early[0], "right") == np.searchsorted(ends, late[1] - 1, "right")
        assert {early[0], late[1]} <= sentences
        lone = not any(early[0] < place < late[1] for place in sentences)
        assert early[1] in sentences or lone
        used += range(early[0], late[1])
    assert used == sorted(used) and len(set(used)) == len(used)
    left_out = set(range(ends[-1])) - set(used)
    alone = {place for place in sentences if place + 1 in sentences}  # sentences of a single token
    assert left_out <= alone


def test_half_of_the_pairs_are_swapped_and_cuts_are_anywhere(tmp_path: Path) -> None:
    store = numbered_store(tmp_path / "store", [[5] * 4] * 4000)
    pairs = make_sentence_order_pairs(store, np.arange(4000), 20, 0.0, np.random.default_rng(1))
    assert len(pairs) == 4000
    assert pairs.is_random.mean() == pytest.approx(0.5, abs=0.03)
    early = np.where(
        pairs.is_random == 1, pairs.second_end - pairs.second_start, pairs.first_end - pairs.first_start
    )
    for sentences in (1, 2, 3):
        assert (early == 5 * sentences).mean() == pytest.approx(1 / 3, abs=0.03)


def test_the_stream_lays_swapped_segments_out_as_a_pair_with_its_label(tmp_path: Path) -> None:
    lengths = random_lengths(60, 3, sentences=(2, 6))
    tokenizer = words(sum(map(sum, lengths)))
    store = numbered_store(tmp_path / "store", lengths, tokenizer)
    stream = PretrainingStream(store, tokenizer, 1, True, 32, 256, sentence_order=True)
    labels = []
    for batch in stream.batches(Cursor(), last_epoch=0):
        sequences, start = batch.sequences, 0
        for length, label in zip(sequences.lengths.tolist(), sequences.labels.tolist(), strict=True):
            ids = sequences.token_ids[start : start + length]
            segments = sequences.segment_ids[start : start + length]
            assert length <= 32 and ids[0] == tokenizer.cls_id and ids[-1] == tokenizer.sep_id
            text = ids >= FIRST_ID
            first, second = ids[text & (segments == 0)], ids[text & (segments == 1)]
            assert (first[-1] > second[0]) == label
            assert len(first) and len(second)
            labels.append(label)
            start += length
    assert 0.3 < np.mean(labels) < 0.7


def test_text_without_neighbouring_sentences_is_refused_by_its_objective(tmp_path: Path) -> None:
    tokenizer = words(400)
    store = numbered_store(tmp_path / "store", [[4]] * 50, tokenizer)
    with pytest.raises(StoreError, match=r"Sentence-order prediction needs.*objective=masked-language"):
        PretrainingStream(store, tokenizer, 1, True, 32, 256, sentence_order=True)

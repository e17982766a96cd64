"""Masks: how many, where, by what they are replaced; a function of (key, place) and of nothing else."""

import random
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from stores import FIRST_ID, random_sequences, words

from bertsmith.data.batch import PackedBatch, Sequences, concatenate
from bertsmith.data.masking import IGNORED, Masker, MaskingRates
from machines import SimulatedAppleGpu

P_VALUE = 1e-3  # of a chi-square test; seeds are fixed
TOKENIZER = words(59)  # 64 pieces with the special ones
SPLIT_WORDS = words(40, continuing=19)
lengths_of_batches = st.lists(st.integers(1, 40), min_size=1, max_size=8)
seeds = st.integers(0, 2**32)
examples = settings(max_examples=60, deadline=None)


class Masked(NamedTuple):
    """Of the whole batch: labels (N,), IGNORED where nothing is predicted; token_ids (N,) after masking."""

    labels: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int64]


def drawn(masker: Masker, sequences: Sequences) -> Masked:
    masked = masker.draw(sequences, PackedBatch.of(sequences))
    positions = masked.positions.numpy()
    assert len(set(positions.tolist())) == len(positions) == len(masked.labels)
    labels = np.full(len(sequences.token_ids), IGNORED)
    labels[positions] = masked.labels.numpy()
    return Masked(labels, masked.token_ids.numpy())


def by_sequence(masked: Masked, sequences: Sequences) -> list[tuple[list[int], list[int]]]:
    ends = np.cumsum(sequences.lengths)[:-1]
    columns = (np.split(values, ends) for values in masked)
    return [(labels.tolist(), ids.tolist()) for labels, ids in zip(*columns, strict=True)]


@examples
@given(lengths=lengths_of_batches, chosen=st.sampled_from([0.01, 0.15, 0.5, 0.99]), seed=seeds)
def test_each_sequence_has_the_rounded_share_masked_and_never_a_special_token(
    lengths: list[int], chosen: float, seed: int
) -> None:
    """At least one where there is one; [UNK] and [PAD] within the text are special too."""
    sequences = random_sequences(lengths, TOKENIZER, seed)
    holes = np.random.default_rng(seed).random(sum(lengths))
    sequences.token_ids[holes < 0.2] = TOKENIZER.unk_id
    sequences.token_ids[holes > 0.9] = TOKENIZER.pad_id
    masker = Masker(TOKENIZER, MaskingRates(mask_rate=chosen))
    masked = drawn(masker, sequences)
    chosen_places = masked.labels != IGNORED
    assert (sequences.token_ids[chosen_places] >= FIRST_ID).all()
    np.testing.assert_array_equal(masked.labels[chosen_places], sequences.token_ids[chosen_places])
    np.testing.assert_array_equal(masked.token_ids[~chosen_places], sequences.token_ids[~chosen_places])
    ends = np.cumsum(sequences.lengths)[:-1]
    found = [int(places.sum()) for places in np.split(chosen_places, ends)]
    words_each = [int((ids >= FIRST_ID).sum()) for ids in np.split(sequences.token_ids, ends)]
    assert found == [min(max(round(chosen * count), 1), count) for count in words_each]
    assert masker.count(sequences) == sum(found)


def test_the_share_goes_to_its_last_while_the_rate_decays() -> None:
    rates = MaskingRates(mask_rate=0.3, random=0.2, final_mask_rate=0.1)
    found = [rates.at(decayed).mask_rate for decayed in (0, 0.25, 0.5, 1)]
    assert found == pytest.approx([0.3, 0.25, 0.2, 0.1])
    assert replace(rates.at(0.7), mask_rate=0.3) == rates
    assert MaskingRates(mask_rate=0.3).at(0.7) == MaskingRates(mask_rate=0.3)


def test_fewer_are_some_of_those_that_more_would_be() -> None:
    """The draw of a token doesn't depend on how many are chosen."""
    sequences = random_sequences([30, 7, 40], TOKENIZER, 1)
    many, few = (drawn(Masker(TOKENIZER, MaskingRates(mask_rate=chosen)), sequences) for chosen in (0.5, 0.2))
    kept = few.labels != IGNORED
    assert 0 < kept.sum() < (many.labels != IGNORED).sum()
    np.testing.assert_array_equal(few.labels[kept], many.labels[kept])
    np.testing.assert_array_equal(few.token_ids[kept], many.token_ids[kept])


@pytest.mark.parametrize(
    "rates",
    [
        MaskingRates(),
        MaskingRates(mask_rate=0.4, masked=0.5, random=0.5),
        MaskingRates(masked=1.0, random=0.0),
        MaskingRates(masked=0.0, random=1.0),
        MaskingRates(masked=0.0, random=0.0),
        MaskingRates(mask_rate=0.99, masked=0.2, random=0.3),
        MaskingRates(whole_words=True),
    ],
    ids=str,
)
def test_what_is_chosen_becomes_mask_random_or_stays_by_the_rates(rates: MaskingRates) -> None:
    """A random id may happen to be [MASK], or what stood there: each with chance 1/V."""
    sequences = random_sequences([42] * 3000, TOKENIZER, 1)
    masked = drawn(Masker(TOKENIZER, rates), sequences)
    chosen = masked.labels != IGNORED
    ids, labels = masked.token_ids[chosen], masked.labels[chosen]
    is_mask, is_same = ids == TOKENIZER.mask_id, ids == labels
    found = np.array([is_mask.sum(), is_same.sum(), (~is_mask & ~is_same).sum()])
    each = rates.random / TOKENIZER.vocab_size
    expected = np.array(
        [rates.masked + each, 1 - rates.masked - rates.random + each, rates.random - 2 * each]
    )
    possible = expected > 1e-12
    assert found[~possible].sum() == 0
    if possible.sum() > 1:
        assert stats.chisquare(found[possible], expected[possible] * len(ids)).pvalue > P_VALUE


def test_random_tokens_are_uniform_over_the_whole_vocabulary() -> None:
    sequences = random_sequences([102] * 1000, TOKENIZER, 2)
    masked = drawn(Masker(TOKENIZER, MaskingRates(mask_rate=0.9, masked=0.0, random=1.0)), sequences)
    found = np.bincount(masked.token_ids[masked.labels != IGNORED], minlength=TOKENIZER.vocab_size)
    assert found.sum() == 90_000 and len(found) == TOKENIZER.vocab_size
    assert stats.chisquare(found).pvalue > P_VALUE


@pytest.mark.parametrize("rates", [MaskingRates(), MaskingRates(whole_words=True)], ids=["pieces", "words"])
def test_every_place_is_chosen_equally_often(rates: MaskingRates) -> None:
    """Six of 40, the first and the last word included; without replacement the spread is 34/39 as wide."""
    sequences = random_sequences([42] * 8000, TOKENIZER, 3)
    chosen = (drawn(Masker(TOKENIZER, rates), sequences).labels != IGNORED).reshape(8000, 42)
    assert chosen[:, [0, 41]].sum() == 0
    found = chosen[:, 1:41].sum(0)
    assert found.sum() == 6 * 8000
    statistic = float(((found - 1200) ** 2 / (1200 * 34 / 39)).sum())
    assert P_VALUE < stats.chi2.sf(statistic, 39) < 1 - P_VALUE  # nor suspiciously even


def test_pairs_of_neighbouring_places_are_chosen_as_often_as_chance_says() -> None:
    """6/40 · 5/39 of any two places: a hash with correlated neighbours would clump or spread the masks."""
    sequences = random_sequences([42] * 8000, TOKENIZER, 4)
    chosen = (drawn(Masker(TOKENIZER, MaskingRates()), sequences).labels != IGNORED).reshape(8000, 42)
    for distance in (1, 2, 3, 8):
        together = int((chosen[:, 1 : 41 - distance] & chosen[:, 1 + distance : 41]).sum())
        places = 8000 * (40 - distance)
        assert abs(together / places - 6 / 40 * 5 / 39) < 4 * np.sqrt(0.0192 / places)


@examples
@given(
    lengths=lengths_of_batches,
    whole_words=st.booleans(),
    order=st.randoms(use_true_random=False),
    seed=seeds,
)
def test_masks_depend_on_key_and_place_only(
    lengths: list[int], whole_words: bool, order: random.Random, seed: int
) -> None:
    """One sequence alone, in a micro-batch or among others in another order: the same masks."""
    sequences = random_sequences(lengths, SPLIT_WORDS, seed)
    masker = Masker(SPLIT_WORDS, MaskingRates(mask_rate=0.3, whole_words=whole_words))
    whole = by_sequence(drawn(masker, sequences), sequences)
    rows = list(range(len(lengths)))
    order.shuffle(rows)
    other = sequences.take(np.array(rows))
    assert by_sequence(drawn(masker, other), other) == [whole[row] for row in rows]
    parts = [sequences.take(np.array([row])) for row in range(len(lengths))]
    assert [by_sequence(drawn(masker, part), part)[0] for part in parts] == whole
    assert sum(masker.count(part) for part in parts) == masker.count(sequences)


@pytest.mark.parametrize("near", [0, 2**63 - 20, 2**64 - 50], ids=["0", "2^63", "2^64"])
def test_neighbouring_keys_give_different_masks_without_overflow(near: int) -> None:
    """Keys are unsigned and torch's integers signed: nothing may break where the sign turns."""
    one = random_sequences([82], TOKENIZER, 5)
    sequences = replace(concatenate([one] * 40), keys=np.arange(40, dtype=np.uint64) + np.uint64(near))
    masks = by_sequence(drawn(Masker(TOKENIZER, MaskingRates()), sequences), sequences)
    assert len({tuple(labels) for labels, _ in masks}) == 40
    assert {sum(label != IGNORED for label in labels) for labels, _ in masks} == {12}
    places = np.array([[label != IGNORED for label in labels] for labels, _ in masks])
    shared = (places.astype(int) @ places.T)[np.triu_indices(40, 1)]  # hypergeometric, mean 12 · 12/80
    assert shared.mean() == pytest.approx(1.8, abs=0.2) and shared.max() <= 9


def test_the_same_key_gives_the_same_masks_again() -> None:
    sequences = random_sequences([30, 20], TOKENIZER, 6)
    masker = Masker(TOKENIZER, MaskingRates())
    first, second = drawn(masker, sequences), drawn(Masker(TOKENIZER, MaskingRates()), sequences)
    assert np.array_equal(first.labels, second.labels) and np.array_equal(first.token_ids, second.token_ids)


def words_of(sequences: Sequences) -> npt.NDArray[np.int64]:
    """(N,) number of each token's word, plainly: a piece continues what is left of it, if that is text."""
    ids, numbers, number = sequences.token_ids.tolist(), [], -1
    starts = set((np.cumsum(sequences.lengths) - sequences.lengths).tolist())
    for place, token in enumerate(ids):
        continues = SPLIT_WORDS.continues_word[token] and place not in starts and ids[place - 1] >= FIRST_ID
        number += not continues
        numbers.append(number)
    return np.array(numbers)


@examples
@given(lengths=lengths_of_batches, chosen=st.sampled_from([0.15, 0.5]), seed=seeds)
def test_words_are_masked_whole_or_not_at_all_and_within_the_share(
    lengths: list[int], chosen: float, seed: int
) -> None:
    sequences = random_sequences(lengths, SPLIT_WORDS, seed)
    masker = Masker(SPLIT_WORDS, MaskingRates(mask_rate=chosen, whole_words=True))
    masked = drawn(masker, sequences)
    places = masked.labels != IGNORED
    assert (sequences.token_ids[places] >= FIRST_ID).all()
    np.testing.assert_array_equal(masked.labels[places], sequences.token_ids[places])
    np.testing.assert_array_equal(masked.token_ids[~places], sequences.token_ids[~places])
    numbers = words_of(sequences)
    room = np.repeat(masker.count_masked(sequences), sequences.lengths)
    for word in np.unique(numbers):
        if (numbers == word).sum() <= room[numbers == word][0]:  # a larger one could never be whole
            assert len(set(places[numbers == word].tolist())) == 1
    found = np.add.reduceat(places, np.cumsum(sequences.lengths) - sequences.lengths, dtype=np.int64)
    assert (found <= masker.count_masked(sequences)).all()
    assert masker.count(sequences) == found.sum()


@pytest.mark.parametrize("before", ["[CLS]", "[UNK]", "[SEP]"])
def test_a_piece_that_continues_nothing_is_a_word_of_its_own(before: str) -> None:
    """As where a text was cut within a word, or what it continues is unknown."""
    ids = np.array([SPLIT_WORDS.token_to_id(token) for token in (before, "##c0", "##c1", "w1")])
    sequences = Sequences(ids, ids * 0, np.array([4]), np.array([5], np.uint64), np.array([0]))
    masker = Masker(SPLIT_WORDS, MaskingRates(mask_rate=0.99, whole_words=True))
    assert drawn(masker, sequences).labels.tolist() == [IGNORED, *ids[1:]]


def test_whole_words_fall_short_of_the_share_only_where_no_word_fits() -> None:
    """A word that would go beyond the share is passed over for a later one: google-research/bert's rule."""
    sequences = random_sequences([130] * 500 + [12] * 500, SPLIT_WORDS, 7)
    masker = Masker(SPLIT_WORDS, MaskingRates(mask_rate=0.3, whole_words=True))
    places, numbers = drawn(masker, sequences).labels != IGNORED, words_of(sequences)
    eligible = (sequences.token_ids >= FIRST_ID) & ~places
    sizes = np.bincount(numbers)[numbers]
    missing = masker.count_masked(sequences)
    sizes[sizes > np.repeat(missing, sequences.lengths)] = 1  # each piece by itself
    ends = np.cumsum(sequences.lengths)
    assert np.bincount(numbers).max() > 4  # longer than what the passes are exact for
    for row, (start, end) in enumerate(zip(ends - sequences.lengths, ends, strict=True)):
        missing[row] -= places[start:end].sum()
        left = sizes[start:end][eligible[start:end]]
        assert len(left) == 0 or missing[row] < left.min()
    assert missing[500:].sum() > 0  # the rule's edge is met


@pytest.mark.parametrize(
    "rates", [MaskingRates(whole_words=True), MaskingRates(spans=True)], ids=["words", "spans"]
)
def test_text_without_blanks_is_masked_piece_by_piece(rates: MaskingRates) -> None:
    """A page is one word of 126 pieces there: none of it was masked, or always its beginning."""
    ids = random_sequences([128] * 400, SPLIT_WORDS, 9)
    within = np.random.default_rng(9).integers(FIRST_ID + 40, SPLIT_WORDS.vocab_size, (400, 128))
    page = np.where(np.arange(128) == 0, SPLIT_WORDS.cls_id, np.where(np.arange(128) == 127, 3, within))
    sequences = replace(ids, token_ids=page.ravel())
    masker = Masker(SPLIT_WORDS, rates)
    masked = drawn(masker, sequences)
    chosen = (masked.labels != IGNORED).reshape(400, 128)
    assert chosen.sum(1).tolist() == [round(0.15 * 126)] * 400 == masker.count_masked(sequences).tolist()
    assert masker.count(sequences) == chosen.sum()
    assert chosen[:, 1:64].sum() == pytest.approx(chosen[:, 64:127].sum(), rel=0.15)


def test_a_long_run_among_short_words_is_masked_as_often_as_they_are() -> None:
    """Japanese with a few words in Latin letters between blanks: these alone were masked, again and again."""
    sequences = random_sequences([102] * 400, SPLIT_WORDS, 10)
    rows = sequences.token_ids.reshape(400, 102)
    rows[:, 21:101] = np.random.default_rng(10).integers(FIRST_ID + 40, SPLIT_WORDS.vocab_size, (400, 80))
    rows[:, 1:21] = np.random.default_rng(11).integers(FIRST_ID, FIRST_ID + 40, (400, 20))
    chosen = (
        drawn(Masker(SPLIT_WORDS, MaskingRates(whole_words=True)), sequences).labels != IGNORED
    ).reshape(400, 102)
    assert chosen[:, 21:101].mean() == pytest.approx(0.15, abs=0.01)
    assert chosen[:, 1:21].mean() == pytest.approx(0.15, abs=0.02)


def test_without_continuing_pieces_whole_words_are_plain_masking() -> None:
    sequences = random_sequences([50, 1, 7, 33] * 20, TOKENIZER, 8)
    plain = drawn(Masker(TOKENIZER, MaskingRates()), sequences)
    whole = drawn(Masker(TOKENIZER, MaskingRates(whole_words=True)), sequences)
    assert np.array_equal(plain.labels, whole.labels) and np.array_equal(plain.token_ids, whole.token_ids)


def test_a_sequence_without_text_has_nothing_masked() -> None:
    ids = np.array([TOKENIZER.cls_id, TOKENIZER.unk_id, TOKENIZER.sep_id, TOKENIZER.cls_id, FIRST_ID])
    one = np.ones(2, np.int64)
    sequences = Sequences(ids, np.zeros(5, np.int64), np.array([3, 2]), one.astype(np.uint64), one)
    for whole_words in (False, True):
        masker = Masker(TOKENIZER, MaskingRates(whole_words=whole_words))
        assert drawn(masker, sequences).labels.tolist() == [IGNORED] * 4 + [FIRST_ID]
        assert masker.count(sequences) == 1


@pytest.mark.parametrize("rates", [{}, {"whole_words": True}, {"spans": True}])
def test_masks_for_apples_gpu_are_those_of_the_processor(rates: dict[str, bool]) -> None:
    """They are drawn on the processor: a GPU without float64 would draw others."""
    tokenizer = words(40, continuing=19)
    sequences = random_sequences([5, 40, 17], tokenizer, 0)
    with SimulatedAppleGpu():
        here, there = (
            Masker(tokenizer, MaskingRates(**rates), device).draw(
                sequences, PackedBatch.of(sequences, device)
            )
            for device in ("cpu", "mps")
        )
        for name in ("token_ids", "positions", "labels", "draws"):
            drawn_there = getattr(there, name)
            assert drawn_there.device.type == "mps"
            assert torch.equal(drawn_there.cpu(), getattr(here, name))

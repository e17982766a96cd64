"""Spans of whole words: which tokens, in what lengths, and what becomes of them (SpanBERT, section 3.1)."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import FIRST_ID, random_sequences, words

from bertsmith.data.batch import PackedBatch, Sequences
from bertsmith.data.masking import Masker, MaskingRates, order_spans

TOKENIZER = words(59)
SPLIT_WORDS = words(40, continuing=19)
SPANS = MaskingRates(spans=True)
examples = settings(max_examples=60, deadline=None)


def geometric() -> npt.NDArray[np.float64]:
    """Of lengths 1 to 10: facebookresearch/SpanBERT, `len_distrib`."""
    shares = 0.2 * 0.8 ** np.arange(10)
    return shares / shares.sum()


@examples
@given(
    kinds=st.lists(st.sampled_from(["word", "piece", "special"]), min_size=1, max_size=60),
    seed=st.integers(0, 2**32),
)
def test_tokens_come_in_the_order_in_which_spans_drawn_one_by_one_cover_them(
    kinds: list[str], seed: int
) -> None:
    """Plainly: words in random order begin spans, which end at ten words or before a special token."""
    draw = np.random.default_rng(seed)
    starts = [n == 0 or kind != "piece" or kinds[n - 1] == "special" for n, kind in enumerate(kinds)]
    special = [kind == "special" for kind in kinds]
    ranks, uniforms = draw.permutation(len(kinds)), draw.random(len(kinds))
    firsts = [n for n, start in enumerate(starts) if start]
    ends = [*firsts[1:], len(kinds)]
    covered: dict[int, int] = {}
    for number in sorted(range(len(firsts)), key=lambda number: ranks[firsts[number]]):
        length = int(np.searchsorted(geometric().cumsum(), uniforms[firsts[number]], side="right")) + 1
        for word in range(number, min(number + length, len(firsts))):
            if special[firsts[word]] and word > number:
                break
            for token in range(firsts[word], ends[word]):
                covered.setdefault(token, firsts[number])
            if special[firsts[number]]:
                break
    found_ranks, found = order_spans(
        torch.from_numpy(ranks), torch.from_numpy(uniforms), torch.tensor(starts), torch.tensor(special)
    )
    wanted = [covered[token] for token in range(len(kinds))]
    assert found.tolist() == wanted
    assert found_ranks.tolist() == ranks[wanted].tolist()


def runs(places: npt.NDArray[np.bool_]) -> list[int]:
    """Lengths of neighbours that are masked."""
    edges = np.flatnonzero(np.diff(places.astype(int), prepend=0, append=0))
    return (edges[1::2] - edges[::2]).tolist()


def masked_places(masker: Masker, sequences: Sequences) -> npt.NDArray[np.bool_]:
    places = np.zeros(len(sequences.token_ids), bool)
    places[masker.draw(sequences, PackedBatch.of(sequences)).positions.numpy()] = True
    return places


@examples
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    chosen=st.sampled_from([0.05, 0.15, 0.5, 0.99]),
    seed=st.integers(0, 2**32),
)
def test_the_share_is_reached_exactly_and_never_by_a_special_token(
    lengths: list[int], chosen: float, seed: int
) -> None:
    """As of single tokens, since the last span is cut off where there is no more room."""
    sequences = random_sequences(lengths, SPLIT_WORDS, seed)
    sequences.token_ids[np.random.default_rng(seed).random(sum(lengths)) < 0.1] = SPLIT_WORDS.unk_id
    masker = Masker(SPLIT_WORDS, MaskingRates(mask_rate=chosen, spans=True))
    places = masked_places(masker, sequences)
    assert (sequences.token_ids[places] >= FIRST_ID).all()
    found = np.add.reduceat(places, np.cumsum(sequences.lengths) - sequences.lengths, dtype=np.int64)
    assert found.tolist() == masker.count_masked(sequences).tolist()
    assert masker.count(sequences) == found.sum()


def test_runs_of_masked_words_are_as_long_as_published() -> None:
    """3.8 words on average (section 3.1), a little less where the last is cut off, more where spans touch."""
    sequences = random_sequences([402] * 500, TOKENIZER, 1)
    rows = masked_places(Masker(TOKENIZER, SPANS), sequences).reshape(500, 402)
    lengths = [length for row in rows for length in runs(row)]
    assert float(geometric() @ np.arange(1, 11)) == pytest.approx(3.8, abs=0.05)
    assert 3.6 < np.mean(lengths) < 5.0
    alone = masked_places(Masker(TOKENIZER, MaskingRates()), sequences).reshape(500, 402)
    assert np.mean([length for row in alone for length in runs(row)]) < 1.3


def test_every_word_of_a_span_becomes_the_same() -> None:
    """Section 3.1: masks, random tokens or the text itself "at the span level"; pieces of a word share it."""
    sequences = random_sequences([202] * 300, SPLIT_WORDS, 2)
    batch = PackedBatch.of(sequences)
    masked = Masker(SPLIT_WORDS, MaskingRates(masked=0.5, random=0.0, spans=True)).draw(sequences, batch)
    is_mask = torch.full_like(batch.token_ids, -1)
    is_mask[masked.positions] = (masked.token_ids[masked.positions] == SPLIT_WORDS.mask_id).long()
    fates, ids = is_mask.numpy(), sequences.token_ids
    both = (fates[1:] >= 0) & (fates[:-1] >= 0)
    continued = both & np.array(SPLIT_WORDS.continues_word)[ids[1:]]
    assert continued.sum() > 1000
    assert (fates[1:][continued] == fates[:-1][continued]).all()
    assert (fates[1:][both] == fates[:-1][both]).mean() > 0.85  # others begin a span of their own
    chosen = fates[fates >= 0]
    assert chosen.mean() == pytest.approx(0.5, abs=0.05)


def test_spans_depend_on_key_and_place_only() -> None:
    """One sequence alone or among others, in any order: the same masks and the same replacements."""
    sequences = random_sequences([30, 7, 45, 1, 60], SPLIT_WORDS, 3)
    masker = Masker(SPLIT_WORDS, SPANS)
    whole = masker.draw(sequences, PackedBatch.of(sequences)).token_ids.numpy()
    pieces = np.split(whole, np.cumsum(sequences.lengths)[:-1])
    for row in (4, 0, 3, 1, 2):
        alone = sequences.take(np.array([row]))
        np.testing.assert_array_equal(
            masker.draw(alone, PackedBatch.of(alone)).token_ids.numpy(), pieces[row]
        )

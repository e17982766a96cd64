"""Draws the masks of masked language modelling (Devlin et al. 2019, section 3.1) on the model's device.

Every draw is a hash of (the sequence's key, the token's position in it): the same for any device, number of
ranks or micro-batches, and nothing needs to be saved to resume. How many tokens of a sequence are masked
follows from its length, so shapes are known on the host and nothing waits for the device.

Spans of whole words (Joshi et al. 2020, SpanBERT, section 3.1): a span may begin at any word; its length in
words is drawn from Geo(0.2), at most 10. Spans are taken in a random order until the sequence's share of
tokens is reached, the last one as far as there is room.

N tokens in the packed batch, B sequences, K masked positions, W words (a special token is a word, which no
span contains).
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertsmith.data.batch import PackedBatch, Sequences, ragged_range, to_device, widest_float
from bertsmith.text.tokens.tokenizer import Tokenizer

_P, _LONGEST = 0.2, 10  # section 3.1: a mean of 3.8 words
IGNORED = -100  # the label of a position that the loss ignores
_PASSES = 4  # fixed: to decide whether another is needed would wait for the device
_LOW_40 = 2**40 - 1


def order_spans(
    draws: Tensor, lengths: Tensor, starts_word: Tensor, special: Tensor
) -> tuple[Tensor, Tensor]:
    """The order in which spans mask tokens, and for each token the first token of the span that masks it.

    `draws` (N,) are random ranks, `lengths` (N,) uniforms in [0, 1), both read at the first token of a word;
    `starts_word` and `special` (N,) are bool. Returns (N,) ranks, equal for all tokens that are masked by the
    same span, and (N,) indices of first tokens.
    """
    rows = torch.arange(len(draws), device=draws.device)
    word = starts_word.long().cumsum(0) - 1  # (N,) the index of each token's word
    first_row = torch.full_like(rows, len(rows) - 1).scatter_reduce_(0, word, rows, "amin")  # of each word
    run = special.long().cumsum(0)[first_row]  # words between the same two special tokens
    # 1 to 10: the truncated geometric distribution
    reached = 1 - (1 - _P) ** torch.arange(1, _LONGEST + 1, dtype=torch.float64, device=draws.device)
    words_long = torch.searchsorted(reached / reached[-1], lengths[first_row], right=True) + 1
    ranks = draws[first_row]
    best, origin = ranks.clone(), first_row.clone()
    for back in range(1, min(_LONGEST, len(first_row))):
        reaches = (words_long[:-back] > back) & (run[:-back] == run[back:]) & ~special[first_row[:-back]]
        earlier = reaches & (ranks[:-back] < best[back:])
        best[back:] = torch.where(earlier, ranks[:-back], best[back:])
        origin[back:] = torch.where(earlier, first_row[:-back], origin[back:])
    return best[word], origin[word]


@dataclass(frozen=True)
class MaskingRates:
    """The shares of tokens chosen, and of these replaced by [MASK] and by a random token, in [0, 1].

    With `whole_words` the tokens of a word are chosen together, with `spans` those of several words. A word
    with more tokens than are chosen of its sequence, such as a page of Japanese, could never be chosen: each
    of its tokens counts as a word. While the learning rate decays, `mask_rate` moves to `final_mask_rate`, if
    given.
    """

    mask_rate: float = 0.15
    masked: float = 0.8
    random: float = 0.1
    whole_words: bool = False
    final_mask_rate: float | None = None
    spans: bool = False

    def at(self, decayed: float) -> "MaskingRates":
        """The rates after the share `decayed` of the decay, in [0, 1]."""
        if self.final_mask_rate is None:
            return self
        return replace(self, mask_rate=self.mask_rate + (self.final_mask_rate - self.mask_rate) * decayed)


@dataclass(frozen=True)
class MaskedTokens:
    """token_ids (N,) with masks applied; positions (K,) to predict; labels (K,) the original ids; draws (K,)
    int64, 64 random bits for each position, see `as_uniforms`.

    With whole words a position that no word filled is unchanged and has the label -100.
    """

    token_ids: Tensor
    positions: Tensor
    labels: Tensor
    draws: Tensor


class Masker:
    """Draws masks for batches of one vocabulary. Its `rates` may be changed between two steps."""

    def __init__(self, tokenizer: Tokenizer, rates: MaskingRates, device: torch.device | str = "cpu") -> None:
        self.rates, device = rates, torch.device(device)
        device = torch.device("cpu") if device.type == "mps" else device  # see `draw`
        self.mask_id = tokenizer.mask_id
        self.vocab_size = tokenizer.vocab_size
        self._special_on_host = np.zeros(tokenizer.vocab_size, bool)
        self._special_on_host[list(tokenizer.special_ids)] = True
        self._special = torch.from_numpy(self._special_on_host).to(device)
        self._continues = torch.from_numpy(np.array(tokenizer.continues_word)).to(device)
        # only in a Unigram vocabulary the token before decides, too
        decides = np.array(tokenizer.next_in_word)
        self._next_in_word = torch.from_numpy(decides).to(device) if decides.any() else None

    def count(self, sequences: Sequences) -> int:
        """How many tokens are predicted in all: the denominator of the loss.

        Only whole words need the device for it.
        """
        if not self.rates.whole_words:
            return int(self.count_masked(sequences).sum())
        batch = PackedBatch.of(sequences, self._special.device)
        return int((self.draw(sequences, batch).labels != IGNORED).sum())

    def count_masked(self, sequences: Sequences) -> npt.NDArray[np.int64]:
        """(B,) how many tokens of each sequence to mask: a share of those not special, rounded, at
        least one.
        """
        starts = np.cumsum(sequences.lengths) - sequences.lengths
        maskable = np.add.reduceat(~self._special_on_host[sequences.token_ids], starts, dtype=np.int64)
        counts = np.maximum(np.rint(self.rates.mask_rate * maskable), 1).astype(np.int64)
        return np.minimum(counts, maskable)

    def draw(self, sequences: Sequences, batch: PackedBatch) -> MaskedTokens:
        """Draws the masks of the sequences; `batch` is the packed batch of the same sequences. For Apple's
        GPU (MPS), which lacks float64, they are drawn on the processor.
        """
        device = batch.token_ids.device
        if device.type == "mps":
            drawn = self.draw(sequences, PackedBatch.of(sequences))
            positions, labels, draws = (
                part.to(device) for part in (drawn.positions, drawn.labels, drawn.draws)
            )
            replaced = drawn.token_ids[drawn.positions].to(device)
            return MaskedTokens(batch.token_ids.scatter(0, positions, replaced), positions, labels, draws)
        counts = self.count_masked(sequences)
        slots = ragged_range(np.cumsum(sequences.lengths) - sequences.lengths, counts)
        keys = to_device(np.repeat(sequences.keys.view(np.int64), sequences.lengths), device)
        draws = _draw_bits(keys, batch.position_ids)
        order, is_taken, fates = self._shuffle_within_sequences(batch, draws, sequences, counts)
        chosen_slots = to_device(slots, device)
        positions = order[chosen_slots]  # (K,)
        labels = batch.token_ids[positions]
        uniform = as_uniforms(fates[positions], _SECOND)
        random_ids = (_mix_bits(draws[positions] ^ _THIRD) & _LOW_40) % self.vocab_size
        original_or_random = torch.where(uniform < self.rates.masked + self.rates.random, random_ids, labels)
        replaced = torch.where(uniform < self.rates.masked, self.mask_id, original_or_random)
        if is_taken is not None:
            is_filled = is_taken[chosen_slots]
            labels, replaced = labels.where(is_filled, IGNORED), replaced.where(is_filled, labels)
        masked = batch.token_ids.scatter(0, positions, replaced)
        return MaskedTokens(masked, positions, labels, draws[positions])

    def _shuffle_within_sequences(
        self, batch: PackedBatch, draws: Tensor, sequences: Sequences, counts: npt.NDArray[np.int64]
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """(N,) token indices: each sequence's in random order, or span after span, with special tokens last.

        With whole words the tokens of the chosen words come first, and the second result (N,) is True for
        these. The third (N,) has the random bits that decide what a token is replaced by: the same for all of
        a span.
        """
        device = draws.device
        special = self._special[batch.token_ids]
        sequence = to_device(np.repeat(np.arange(len(sequences)), sequences.lengths), device)
        scores = (draws >> 24) & _LOW_40
        if not (self.rates.whole_words or self.rates.spans):
            return torch.argsort(sequence << 41 | special.long() << 40 | scores, stable=True), None, draws
        starts_word = ~self._continues[batch.token_ids]
        if self._next_in_word is not None:
            decides = self._next_in_word[batch.token_ids[:-1]]
            starts_word[1:] = (decides < 0) | (starts_word[1:] & (decides == 0))
        starts_word |= special | (batch.position_ids == 0)
        starts_word[1:] |= special[:-1]
        room = to_device(counts, device)
        word, sizes = _number_words(starts_word)
        starts_word |= sizes[word] > room[sequence]
        if self.rates.spans:
            scores, origin = order_spans(scores, as_uniforms(draws, SPAN_LENGTHS), starts_word, special)
            order = torch.argsort(sequence << 41 | special.long() << 40 | scores, stable=True)
            return order, None, draws[origin]
        word, sizes = _number_words(starts_word)
        first_row = torch.full_like(word, len(word)).scatter_reduce_(
            0, word, torch.arange(len(word), device=device), "amin"
        )
        word_scores = scores[first_row[word]]
        order = torch.argsort(sequence << 41 | special.long() << 40 | word_scores, stable=True)
        is_taken = _take_words(word[order], sizes, sequence, batch.first_rows, ~special[order], room)
        taken_first = torch.argsort(sequence << 1 | (~is_taken).long(), stable=True)
        return order[taken_first], is_taken[taken_first], draws


def _number_words(starts_word: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) the index of each token's word, and (N,) the number of tokens of each word, by its index."""
    word = starts_word.long().cumsum(0) - 1
    return word, torch.zeros_like(word).scatter_add_(0, word, torch.ones_like(word))


def _take_words(
    word: Tensor, sizes: Tensor, sequence: Tensor, starts: Tensor, candidates: Tensor, room: Tensor
) -> Tensor:
    """(N,) True for the tokens of the words taken: each in turn, if it fits (as google-research/bert does).

    Tokens are in shuffled order: the index of the token's `word` (N,) and `sequence` (N,), and whether it is
    among the `candidates` (N,). `sizes` (N,) are the tokens of each word by its index, `starts` (B,) the
    sequences' first tokens, `room` (B,) the tokens to take. A pass takes words up to the first that doesn't
    fit, and then rules out all that can no longer fit. `_PASSES` passes are exact for words of as many
    tokens; with longer words one or two tokens of the room may stay unused.
    """
    rows = torch.arange(len(word), device=word.device)
    last_token = torch.zeros_like(word).scatter_reduce_(0, word, rows, "amax")  # by index of the word
    is_taken = torch.zeros_like(candidates)
    for _ in range(_PASSES):
        candidates_so_far = candidates.long().cumsum(0)
        before = candidates_so_far[starts] - candidates[starts].long()  # (B,) of earlier sequences
        fits = candidates & (candidates_so_far[last_token[word]] - before[sequence] <= room[sequence])
        is_taken |= fits
        room = room.scatter_add(0, sequence, -fits.long())
        candidates = candidates & ~fits & (sizes[word] <= room[sequence])
    return is_taken


def _as_signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


_GOLDEN = _as_signed(0x9E3779B97F4A7C15)
_SECOND = _as_signed(0xD1B54A32D192ED03)
_THIRD = _as_signed(0x8CB92BA72F3D8DD7)
SPAN_LENGTHS = _as_signed(0xA0761D6478BD642F)
GENERATED_TOKENS = _as_signed(0xE7037ED1A0B428DB)


def as_uniforms(draws: Tensor, purpose: int) -> Tensor:
    """(N,) random bits → (N,) `widest_float` in [0, 1), or 1 by rounding, independent for each `purpose`."""
    return (_mix_bits(draws ^ purpose) & _LOW_40).to(widest_float(draws.device)) / 2**40


def _draw_bits(keys: Tensor, position_ids: Tensor) -> Tensor:
    """(N,) 64 random bits per token: output number `position` of the SplitMix64 seeded by its key."""
    return _mix_bits(keys + (position_ids + 1) * _GOLDEN)


def _mix_bits(x: Tensor) -> Tensor:
    """SplitMix64's finaliser (Steele et al. 2014) on int64, whose products wrap as unsigned ones do."""
    x = (x ^ _shift_right(x, 30)) * _as_signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _as_signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """x >> bits filled with zeros; torch fills int64 with the sign."""
    shifted: Tensor = (x >> bits) & (2 ** (64 - bits) - 1)
    return shifted

"""Which tokens are masked by spans of whole words (Joshi et al. 2020, SpanBERT, section 3.1).

Each word may begin a span: its length in words is drawn from Geo(0.2), at most 10, and a random number says
which span comes first. Spans are taken in that order until the sequence's share of tokens is reached, the
last one as far as there is room. All of it follows from the draws of the words' first tokens, in a fixed
number of operations: no span is drawn on the host, and shapes are known there.

N tokens in the packed batch, W words (a special token is one, and no span reaches over it). Tables of words
have N rows, of which the last N - W mean nothing: W is known on the device alone, which is not waited for.
"""

import torch
from torch import Tensor

_P, _LONGEST = 0.2, 10  # section 3.1: a mean of 3.8 words


def span_order(draws: Tensor, lengths: Tensor, starts_word: Tensor, special: Tensor) -> tuple[Tensor, Tensor]:
    """In which order tokens are masked, and the first token of the span that masks each.

    `draws` (N,) ranks of random order, `lengths` (N,) uniforms in [0, 1), both read at the first token of a
    word; `starts_word` and `special` (N,) bool. Returns (N,) ranks, the same for all tokens that one span
    covers first, and (N,) rows.
    """
    rows = torch.arange(len(draws), device=draws.device)
    word = starts_word.long().cumsum(0) - 1  # (N,) number of each token's word
    first_row = torch.full_like(rows, len(rows) - 1).scatter_reduce_(0, word, rows, "amin")  # of each word
    run = special.long().cumsum(0)[first_row]  # words between the same two special tokens
    words_long = _lengths(lengths[first_row])
    ranks = draws[first_row]
    best, origin = ranks.clone(), first_row.clone()
    for back in range(1, min(_LONGEST, len(first_row))):
        reaches = (words_long[:-back] > back) & (run[:-back] == run[back:]) & ~special[first_row[:-back]]
        earlier = reaches & (ranks[:-back] < best[back:])
        best[back:] = torch.where(earlier, ranks[:-back], best[back:])
        origin[back:] = torch.where(earlier, first_row[:-back], origin[back:])
    return best[word], origin[word]


def _lengths(uniforms: Tensor) -> Tensor:
    """(N,) in [0, 1) -> 1 to 10: the geometric distribution, cut off there."""
    reached = 1 - (1 - _P) ** torch.arange(1, _LONGEST + 1, dtype=torch.float64, device=uniforms.device)
    return torch.searchsorted(reached / reached[-1], uniforms, right=True) + 1

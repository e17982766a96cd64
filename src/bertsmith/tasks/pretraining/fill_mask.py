"""Predicts the tokens behind [MASK] with a masked language model, for the command line, Python and
reports.
"""

from dataclasses import dataclass

import numpy as np
import torch

from bertsmith.data.batch import PackedBatch
from bertsmith.data.store import TokenStore
from bertsmith.errors import InputError
from bertsmith.tasks.examples.encoding import Window, join_segments
from bertsmith.tasks.forward_passes import evaluating, require_finite
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.unigram import MARK

_WORD_MARKS = "Ġ" + MARK


@dataclass(frozen=True)
class MaskCandidate:
    """A token of the vocabulary and its probability in [0, 1]."""

    token: str
    probability: float


@torch.no_grad()
def fill_mask(
    model: PretrainingModel, tokenizer: Tokenizer, text: str, top: int = 5
) -> list[list[MaskCandidate]]:
    """The `top` candidates for each mask of `text`, in order; each mask is filled while the others stay
    masked.

    Raises InputError if the text has no mask or is longer than the model reads, or if `top` is below 1, and
    NotFinite.
    """
    if top < 1:
        raise InputError(f"Ask for at least one candidate for a mask, not top = {top}.")
    window = masked_window(tokenizer, text, f"The text {text!r}")
    if (length := len(window.token_ids)) > model.config.max_length:
        raise InputError(f"The text has {length} tokens; this model reads at most {model.config.max_length}.")
    device = model.encoder.embeddings.token.weight.device
    batch = PackedBatch.pack(
        window.token_ids.astype(np.int64), window.segment_ids, np.array([length]), device
    )
    masks = torch.from_numpy(window.rows).to(device)
    with evaluating(model):
        logits = require_finite(model.vocabulary_logits(model.encoder(batch)[masks]).float())
    probabilities = logits[:, : tokenizer.vocab_size].softmax(1)  # a model may have rows without a piece
    values, best = probabilities.topk(min(top, tokenizer.vocab_size), dim=1)
    return [
        [
            MaskCandidate(tokenizer.id_to_token(int(i)), float(p))
            for i, p in zip(row, probabilities, strict=True)
        ]
        for row, probabilities in zip(best, values, strict=True)
    ]


def masked_window(tokenizer: Tokenizer, text: str, where: str) -> Window:
    """A text with masks as one sequence, whose rows to read are the masks. Raises InputError for none."""
    ids, segments = join_segments(tokenizer, tokenizer.encode(text, read_special_tokens=True).ids)
    masks = np.flatnonzero(ids == tokenizer.mask_id)
    if not len(masks):
        mask = tokenizer.id_to_token(tokenizer.mask_id)
        raise InputError(f"{where} has no {mask}. Put {mask} where a word is to be guessed.")
    return Window(ids, segments, masks)


def masked_examples(
    store: TokenStore, tokenizer: Tokenizer, count: int, longest: int, seed: int = 0
) -> list[tuple[str, str]]:
    """(text with one word masked, that word) from sentences of a store: the same ones for the same seed.

    Takes sentences of 8 to 24 tokens, and masks a word that is one token of at least four letters. Skips
    texts of more than `longest` tokens, the most that the model reads.
    """
    generator = np.random.default_rng(seed)
    mask = tokenizer.id_to_token(tokenizer.mask_id)
    starts = store.sentence_starts
    examples: list[tuple[str, str]] = []
    for sentence in generator.permutation(min(len(starts) - 1, 100_000))[: 50 * count].tolist():
        ids = store.tokens[starts[sentence] : starts[sentence + 1]].tolist()
        words = _find_single_token_words(ids, tokenizer)
        if 8 <= len(ids) <= 24 and words:
            position = words[int(generator.integers(len(words)))]
            before, after = tokenizer.decode(ids[:position]), tokenizer.decode(ids[position + 1 :])
            text = f"{before} {mask} {after}".strip()
            if len(masked_window(tokenizer, text, "An example").token_ids) <= longest:
                examples.append((text, tokenizer.id_to_token(ids[position]).lstrip(_WORD_MARKS)))
        if len(examples) == count:
            break
    return examples


def _find_single_token_words(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """The positions of words that are one token, of letters only, at least four."""
    begins = [*tokenizer.begins_words(ids).tolist(), True]
    pieces = [tokenizer.id_to_token(i).lstrip(_WORD_MARKS) for i in ids]
    return [
        position
        for position, piece in enumerate(pieces)
        if len(piece) >= 4 and piece.isalpha() and begins[position] and begins[position + 1]
    ]

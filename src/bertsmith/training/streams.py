"""Builds the inputs of a pre-training loop from the run's text: a stream of sequences for each phase's
length, and the masker.
"""

from itertools import islice

import torch

from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, MixedStream, PretrainingStream, divide_batch_size
from bertsmith.errors import CorpusError
from bertsmith.tasks.pretraining.objectives import TaskInputs
from bertsmith.training.inputs import Inputs
from bertsmith.training.recipe import Recipe

_TRIED_BATCHES = 8


def build_task_inputs(
    recipe: Recipe, inputs: Inputs, sentence_order: bool, device: torch.device
) -> TaskInputs:
    """Builds the streams of each phase, those of the held-out and the general text that is measured on, and
    the masker. Raises CorpusError if nothing would be masked.
    """
    data = recipe.data

    def stream(store: TokenStore, length: int, batch_tokens: int, seed: int) -> PretrainingStream:
        return PretrainingStream(
            store, inputs.tokenizer, seed, data.next_sentence, length, batch_tokens,
            data.short_seq_prob, sentence_order,
        )  # fmt: skip

    def mixed(length: int) -> PretrainingStream | MixedStream:
        if inputs.general is None or not data.general_share:
            return stream(inputs.train, length, data.batch_size * length, recipe.seed)
        main, general = divide_batch_size(data.batch_size, data.general_share)
        return MixedStream(
            stream(inputs.train, length, main * length, recipe.seed),
            stream(inputs.general, length, general * length, recipe.seed + 1),  # other masks
        )

    first_length = data.sequence_lengths[0]
    measured, general = inputs.evaluation_text, inputs.general_evaluation_text
    heldout = None if measured is None else stream(measured, first_length, 16 * first_length, 0)
    texts = None
    if general is not None:  # single texts, since general text is measured without pairs
        texts = PretrainingStream(general, inputs.tokenizer, 0, False, first_length, 16 * first_length)
    rates = MaskingRates(**recipe.masking.model_dump())
    masker = Masker(inputs.tokenizer, rates, device)
    streams = list(map(mixed, data.sequence_lengths))
    require_masks(streams[0], Masker(inputs.tokenizer, rates))
    sampled = recipe.loss.sampled_pieces
    return TaskInputs(streams, masker, heldout, recipe.evaluation.tokens, device, sampled, recipe.seed, texts)


def require_masks(stream: PretrainingStream | MixedStream, masker: Masker) -> None:
    """Raises CorpusError if the first batches have no token that could be masked. Such a run would show a
    loss of 0 and learn nothing.
    """
    batches = islice(stream.batches(Cursor()), _TRIED_BATCHES)
    if not any(masker.count(batch.sequences) for batch in batches):
        raise CorpusError(
            f"The first {_TRIED_BATCHES} batches have no token that could be masked, but only special tokens "
            "and unknown words. Take a tokenizer for text like it; `bertsmith tokenizer report` shows what "
            "is unknown."
        )

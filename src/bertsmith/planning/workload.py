"""What a recipe trains on, counted before anything is trained: steps, and the sequences of a step.

With a token store the recipe's own stream is asked for its first batches. Without one a step is taken to be
full: `data.batch_size` sequences of the phase's length.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np

from bertsmith.data.batch import Sequences
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, PretrainingStream
from bertsmith.errors import StoreError
from bertsmith.tasks.pretraining.objectives import OBJECTIVES
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.recipe import Recipe

_SAMPLED_BATCHES, _SAMPLED_TOKENS = 200, 2_000_000  # a second or two of the loader


@dataclass(frozen=True)
class StepAmounts:
    """Of one optimiser step over all GPUs, on average. `squares` is the sum of the squared lengths."""

    sequences: float
    tokens: float
    squares: float
    masked: float

    @property
    def mean_length(self) -> float:
        return self.tokens / self.sequences

    @property
    def masked_share(self) -> float:
        return self.masked / self.tokens


@dataclass(frozen=True)
class PhaseWork:
    """Steps of one phase, and what each of them holds."""

    sequence_length: int
    steps: int
    step: StepAmounts

    @property
    def tokens(self) -> float:
        return self.steps * self.step.tokens


def steps_of_phases(recipe: Recipe, steps: int) -> list[int]:
    """How many of a run's `steps` fall into each phase of length: where the loop itself changes over."""
    phases = range(1, len(recipe.data.sequence_lengths))
    # the loop asks before each step for the phase at its share of the run, which only ever grows
    starts = [
        bisect_left(range(steps), phase, key=lambda step: recipe.phase(step / steps)) for phase in phases
    ]
    bounds = [0, *starts, steps]
    return [end - start for start, end in pairwise(bounds)]


def full_step(recipe: Recipe, phase: int) -> StepAmounts:
    """A step whose every sequence is as long as it may be: what a store of long documents comes near to."""
    length, count = recipe.data.sequence_lengths[phase], recipe.data.batch_size
    special = 2 + recipe.data.next_sentence
    masked = max(round(recipe.masking.mask_rate * (length - special)), 1)
    return StepAmounts(count, count * length, count * length**2, count * masked)


def sampled_step(recipe: Recipe, phase: int, store: TokenStore, tokenizer: Tokenizer) -> StepAmounts:
    """The mean over the first batches that the run itself will make of this phase.

    Raises StoreError where the store has no text for this recipe.
    """
    data = recipe.data
    length = data.sequence_lengths[phase]
    stream = PretrainingStream(
        store, tokenizer, recipe.seed, data.next_sentence, length, data.batch_size * length,
        data.short_seq_prob, OBJECTIVES[recipe.objective].sentence_order,
    )  # fmt: skip
    masker = Masker(tokenizer, MaskingRates(**recipe.masking.model_dump()))
    most = _SAMPLED_BATCHES
    if recipe.steps is not None:
        most = min(most, max(1, steps_of_phases(recipe, recipe.steps)[phase]))
    batches = (batch.sequences for batch in islice(stream.batches(Cursor(phase)), most))
    return _mean(batches, masker)


def _mean(batches: Iterable[Sequences], masker: Masker) -> StepAmounts:
    sums, count = np.zeros(4), 0
    for sequences in batches:
        lengths = sequences.lengths.astype(float)
        sums += (len(lengths), lengths.sum(), (lengths**2).sum(), masker.count(sequences))
        count += 1
        if sums[1] >= _SAMPLED_TOKENS:
            break
    if count == 0:
        raise StoreError("The token store made no batch.")
    return StepAmounts(*(sums / count).tolist())

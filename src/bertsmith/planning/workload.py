"""What a recipe trains on, counted before anything is trained: steps, and the sequences of a step.

With a token store the recipe's own stream, and that of its general text, is asked for its first batches.
Without one a step is taken to be full: `data.batch_size` sequences of the phase's length.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from itertools import islice, pairwise

import numpy as np

from bertsmith.data.batch import Sequences
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.mixed_stream import divided
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, PretrainingStream
from bertsmith.errors import StoreError
from bertsmith.tasks.pretraining.objectives import OBJECTIVES
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.recipe import Recipe

_SAMPLED_BATCHES, _SAMPLED_TOKENS = 200, 2_000_000  # a second or two of the loader


@dataclass(frozen=True)
class StepAmounts:
    """Of one optimiser step over all GPUs, on average. `squares` is the sum of the squared lengths,
    `own_text` what a step takes from the corpus: tokens without special ones, and without general text.
    """

    sequences: float
    tokens: float
    squares: float
    masked: float
    own_text: float = 0.0

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
    own_text = _divided(recipe)[0] * (length - special)
    return StepAmounts(count, count * length, count * length**2, count * masked, own_text)


def sampled_step(
    recipe: Recipe, phase: int, store: TokenStore, tokenizer: Tokenizer, general: TokenStore | None = None
) -> StepAmounts:
    """The mean over the first batches that the run itself will make of this phase. Without a store of its
    general text, that is taken to have sequences like the corpus's.

    Raises StoreError where the store has no text for this recipe.
    """
    main, mixed_in = _divided(recipe)
    own = _sampled(recipe, phase, store, tokenizer, main)
    if not mixed_in:
        return own
    if general is None:
        other = StepAmounts(*(mixed_in / main * each for each in astuple(own)))
    else:
        other = _sampled(recipe, phase, general, tokenizer, mixed_in)
    of_both = (one + another for one, another in zip(astuple(own), astuple(other), strict=True))
    return replace(StepAmounts(*of_both), own_text=own.own_text)


def _divided(recipe: Recipe) -> tuple[int, int]:
    """Full sequences of a step that are of the corpus, and of general text."""
    data = recipe.data
    if recipe.general is None or not data.general_share:
        return data.batch_size, 0
    return divided(data.batch_size, data.general_share)


def _sampled(
    recipe: Recipe, phase: int, store: TokenStore, tokenizer: Tokenizer, batch_size: int
) -> StepAmounts:
    """Of the part of a step that comes from one store."""
    data = recipe.data
    length = data.sequence_lengths[phase]
    stream = PretrainingStream(
        store, tokenizer, recipe.seed, data.next_sentence, length, batch_size * length,
        data.short_seq_prob, OBJECTIVES[recipe.objective].sentence_order,
    )  # fmt: skip
    masker = Masker(tokenizer, MaskingRates(**recipe.masking.model_dump()))
    most = _SAMPLED_BATCHES
    if recipe.steps is not None:
        most = min(most, max(1, steps_of_phases(recipe, recipe.steps)[phase]))
    batches = (batch.sequences for batch in islice(stream.batches(Cursor(phase)), most))
    return _mean(batches, masker, tokenizer)


def _mean(batches: Iterable[Sequences], masker: Masker, tokenizer: Tokenizer) -> StepAmounts:
    sums, count = np.zeros(5), 0
    for sequences in batches:
        lengths = sequences.lengths.astype(float)
        special = np.isin(sequences.token_ids, (tokenizer.cls_id, tokenizer.sep_id)).sum()
        text = len(sequences.token_ids) - special
        sums += (len(lengths), lengths.sum(), (lengths**2).sum(), masker.count(sequences), text)
        count += 1
        if sums[1] >= _SAMPLED_TOKENS:
            break
    if count == 0:
        raise StoreError("The token store made no batch.")
    return StepAmounts(*(sums / count).tolist())

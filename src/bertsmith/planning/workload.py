"""What a recipe trains, and on what, counted before anything is trained: the model, steps, and the sequences
of a step.

Model and data are real where their files are, else assumed, and said to be. With a token store the recipe's
own stream, and that of its general text, is asked for its first batches. Without one a step is taken to be
full: `data.batch_size` sequences of the phase's length.
"""

from bisect import bisect_left
from dataclasses import astuple, dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, PretrainingStream, divided
from bertsmith.errors import StoreError
from bertsmith.model.checkpoint import CONFIG
from bertsmith.model.config import BertConfig
from bertsmith.model.config_json import config_from_hugging_face
from bertsmith.model.locate import is_hub_name, locate_model, locate_tokenizer
from bertsmith.model.meta_init import meta_init
from bertsmith.model.untrusted import plain_file, read_settings
from bertsmith.tasks.pretraining.objectives import PretrainedModel, find_objective
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.replaced_tokens import ReplacedTokenModel
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import load_tokenizer
from bertsmith.training.inputs import require_fit, require_room_for_rows
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


@dataclass(frozen=True)
class PlanInputs:
    """The model as a blueprint, the token store if there is one, and sentences on what had to be assumed."""

    model: PretrainedModel
    store: TokenStore | None
    tokenizer: Tokenizer | None
    notes: tuple[str, ...]
    general: TokenStore | None = None

    @property
    def config(self) -> BertConfig:
        return self.model.config

    @property
    def next_sentence(self) -> bool:
        return isinstance(self.model, PretrainingModel) and self.model.next_sentence is not None

    @property
    def generator(self) -> BertConfig | None:
        """Of replaced-token detection."""
        return self.model.generator.config if isinstance(self.model, ReplacedTokenModel) else None

    @property
    def weights(self) -> int:
        """How many numbers are trained."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def evaluated_tokens(self, recipe: Recipe) -> float:
        """Of one evaluation: what the recipe asks for, or all held-out text of the store."""
        if self.store is None:
            return recipe.evaluation.tokens
        return min(recipe.evaluation.tokens, self.store.manifest.splits["heldout"].tokens)

    def step(self, recipe: Recipe, phase: int) -> StepAmounts:
        """What a step of this phase holds: sampled from the store, or full."""
        if self.store is None or self.tokenizer is None:
            return full_step(recipe, phase)
        return sampled_step(recipe, phase, self.store, self.tokenizer, self.general)


def find_inputs(recipe: Recipe) -> PlanInputs:
    """Opens what is there; nothing has to be.

    Raises RecipeError where the recipe contradicts itself, TokenizerError, StoreError and ModelError for
    files that are there but broken.
    """
    if recipe.corpus is not None:
        require_room_for_rows(recipe.corpus, min(recipe.data.sequence_lengths), "data.sequence_lengths")
    tokenizer, notes = _load_tokenizer(recipe)
    if recipe.init:
        folder = locate_model(recipe.init).folder
        settings = read_settings(plain_file(folder, CONFIG))
        config = config_from_hugging_face(settings, f"the settings of {folder}")
    elif tokenizer is not None:
        config = recipe.model.config(tokenizer.vocab_size, tokenizer.pad_id)
    else:
        usual = BertConfig(model_type=recipe.model.model_type)
        config = recipe.model.config(usual.vocab_size, usual.pad_token_id)
    require_fit(recipe, config, config.vocab_size if tokenizer is None else tokenizer.vocab_size)
    store, more = _open_store(recipe.corpus, tokenizer)
    general = None
    if recipe.general is not None and recipe.data.general_share and store is not None:
        general, lacking = _open_store(recipe.general, tokenizer)
        if lacking:
            more.append(
                f"{recipe.general} holds no token store: its sequences are taken to be like the corpus's."
            )
    objective, choices = find_objective(recipe.objective), recipe.objective_choices()
    model = meta_init(lambda: objective.build(config, choices))
    if recipe.replaced.generator is not None:
        share = recipe.replaced.generator_share
        more.append(f"replaced.generator isn't looked at: a share of {share:g} of the width is assumed.")
    return PlanInputs(model, store, tokenizer, (*notes, *more), general)


def _load_tokenizer(recipe: Recipe) -> tuple[Tokenizer | None, list[str]]:
    path = None
    if recipe.tokenizer:  # a folder that is to be made looks like a name of the hub, which isn't asked
        unmade = is_hub_name(recipe.tokenizer)
        path = Path(recipe.tokenizer) if unmade else locate_tokenizer(recipe.tokenizer)
    if path is None and recipe.init:
        path = locate_model(recipe.init).folder
    if path is None and recipe.corpus and (own := Path(recipe.corpus) / "tokenizer").is_dir():
        path = own  # of `bertsmith sequences build`
    if path is not None and path.exists():
        return load_tokenizer(path), []
    if path is not None:
        missing = f"There is no tokenizer {path} yet"
    else:
        missing = "The recipe names no tokenizer"
    usual = BertConfig(model_type=recipe.model.model_type).vocab_size  # as the family was published
    return None, [f"{missing}: a vocabulary of {usual:,} pieces is assumed. Give tokenizer=FOLDER."]


def _open_store(corpus: str | None, tokenizer: Tokenizer | None) -> tuple[TokenStore | None, list[str]]:
    path = Path(corpus) if corpus else None
    if path is None or tokenizer is None or not (path / "train" / "tokens.bin").exists():
        where = "" if path is None else f" {path} holds none."
        return None, [
            f"Without a token store and its tokenizer every sequence is taken to be full.{where} Natural "
            "text has shorter ones, and a step then more of them. bertsmith corpus tokenize makes a store."
        ]
    return TokenStore.open(path / "train", tokenizer), []


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
    own_text = _split_batch(recipe)[0] * (length - special)
    return StepAmounts(count, count * length, count * length**2, count * masked, own_text)


def sampled_step(
    recipe: Recipe, phase: int, store: TokenStore, tokenizer: Tokenizer, general: TokenStore | None = None
) -> StepAmounts:
    """The mean over the first batches that the run itself will make of this phase. Without a store of its
    general text, that is taken to have sequences like the corpus's.

    Raises StoreError where the store has no text for this recipe.
    """
    main, mixed_in = _split_batch(recipe)
    own = _sample_store(recipe, phase, store, tokenizer, main)
    if not mixed_in:
        return own
    if general is None:
        other = StepAmounts(*(mixed_in / main * each for each in astuple(own)))
    else:
        other = _sample_store(recipe, phase, general, tokenizer, mixed_in)
    of_both = (one + another for one, another in zip(astuple(own), astuple(other), strict=True))
    return replace(StepAmounts(*of_both), own_text=own.own_text)


def _split_batch(recipe: Recipe) -> tuple[int, int]:
    """Full sequences of a step that are of the corpus, and of general text."""
    data = recipe.data
    if recipe.general is None or not data.general_share:
        return data.batch_size, 0
    return divided(data.batch_size, data.general_share)


def _sample_store(
    recipe: Recipe, phase: int, store: TokenStore, tokenizer: Tokenizer, batch_size: int
) -> StepAmounts:
    """Of the part of a step that comes from one store, on average."""
    data = recipe.data
    length = data.sequence_lengths[phase]
    stream = PretrainingStream(
        store, tokenizer, recipe.seed, data.next_sentence, length, batch_size * length,
        data.short_seq_prob, find_objective(recipe.objective).sentence_order,
    )  # fmt: skip
    masker = Masker(tokenizer, MaskingRates(**recipe.masking.model_dump()))
    most = _SAMPLED_BATCHES
    if recipe.steps is not None:
        most = min(most, max(1, steps_of_phases(recipe, recipe.steps)[phase]))
    sums, count = np.zeros(5), 0
    for batch in islice(stream.batches(Cursor(phase)), most):
        sequences = batch.sequences
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

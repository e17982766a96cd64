"""What a recipe trains, and on what, counted before training: the model, the steps, and the content of a
step.

Model and data are read if their files exist; otherwise they are assumed, with a note. With a token store, the
first batches of the recipe's own stream, and of its general text, are sampled. Without one, steps are assumed
to be full: `data.batch_size` sequences of the phase's length.
"""

from bisect import bisect_left
from dataclasses import astuple, dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, PretrainingStream, divide_batch_size
from bertsmith.errors import StoreError
from bertsmith.model.checkpoint import CONFIG
from bertsmith.model.config import BertConfig
from bertsmith.model.config_json import config_from_hugging_face
from bertsmith.model.layers.initialisation import meta_init
from bertsmith.model.locate import is_hub_name, locate_model, locate_tokenizer
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
    """The average content of one optimiser step, over all GPUs. `squares` is the sum of the sequences'
    squared lengths; `own_text` counts the tokens from the corpus, without special tokens and general text.
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
    """The number of steps of one phase, and the average content of each."""

    sequence_length: int
    steps: int
    step: StepAmounts

    @property
    def tokens(self) -> float:
        return self.steps * self.step.tokens


@dataclass(frozen=True)
class PlanInputs:
    """The model on the meta device, the token store if there is one, and notes on what had to be assumed."""

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
        """The generator's config in replaced-token detection; None for other objectives."""
        return self.model.generator.config if isinstance(self.model, ReplacedTokenModel) else None

    @property
    def weights(self) -> int:
        """The number of trained parameters, of the generator too."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def evaluated_tokens(self, recipe: Recipe) -> float:
        """The tokens of one evaluation: of the corpus, and again of general text where there is any, what the
        recipe asks for, or all held-out text if that is less.
        """
        stores = [self.store] if recipe.general is None else [self.store, self.general]
        most = recipe.evaluation.tokens
        return sum(most if store is None else min(most, _count_heldout(store)) for store in stores)

    def step(self, recipe: Recipe, phase: int) -> StepAmounts:
        """The content of a step of this phase: sampled from the store, or full without one."""
        if self.store is None or self.tokenizer is None:
            return assume_full_step(recipe, phase)
        return sample_step(recipe, phase, self.store, self.tokenizer, self.general)


def find_inputs(recipe: Recipe) -> PlanInputs:
    """Reads the files that a recipe names, as far as they exist, and builds its model on the meta device.

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
        default_config = BertConfig(model_type=recipe.model.model_type)
        config = recipe.model.config(default_config.vocab_size, default_config.pad_token_id)
    require_fit(recipe, config, config.vocab_size if tokenizer is None else tokenizer.vocab_size)
    store, store_notes = _open_store(recipe.corpus, tokenizer)
    general = None
    if recipe.general is not None and store is not None:
        general, missing = _open_store(recipe.general, tokenizer)
        if missing and recipe.data.general_share:
            store_notes.append(
                f"{recipe.general} holds no token store: its sequences are taken to be like the corpus's."
            )
    objective, choices = find_objective(recipe.objective), recipe.objective_choices()
    model = meta_init(lambda: objective.build(config, choices))
    if recipe.replaced.generator is not None:
        share = recipe.replaced.generator_share
        store_notes.append(
            f"replaced.generator isn't looked at: a share of {share:g} of the width is assumed."
        )
    return PlanInputs(model, store, tokenizer, (*notes, *store_notes), general)


def _load_tokenizer(recipe: Recipe) -> tuple[Tokenizer | None, list[str]]:
    path = None
    if recipe.tokenizer:  # a missing folder looks like a name on the hub, which isn't queried
        is_not_made_yet = is_hub_name(recipe.tokenizer)
        path = Path(recipe.tokenizer) if is_not_made_yet else locate_tokenizer(recipe.tokenizer)
    if path is None and recipe.init:
        path = locate_model(recipe.init).folder
    if path is None and recipe.corpus and (corpus_tokenizer := Path(recipe.corpus) / "tokenizer").is_dir():
        path = corpus_tokenizer  # of `bertsmith sequences build`
    if path is not None and path.exists():
        return load_tokenizer(path), []
    if path is not None:
        missing = f"There is no tokenizer {path} yet"
    else:
        missing = "The recipe names no tokenizer"
    default_vocabulary = BertConfig(
        model_type=recipe.model.model_type
    ).vocab_size  # that of the family's published model
    return None, [
        f"{missing}: a vocabulary of {default_vocabulary:,} pieces is assumed. Give tokenizer=FOLDER."
    ]


def _open_store(corpus: str | None, tokenizer: Tokenizer | None) -> tuple[TokenStore | None, list[str]]:
    path = Path(corpus) if corpus else None
    if path is None or tokenizer is None or not (path / "train" / "tokens.bin").exists():
        where = "" if path is None else f" {path} holds none."
        return None, [
            f"Without a token store and its tokenizer every sequence is taken to be full.{where} Natural "
            "text has shorter ones, and a step then more of them. bertsmith corpus tokenize makes a store."
        ]
    return TokenStore.open(path / "train", tokenizer), []


def _count_heldout(store: TokenStore) -> int:
    return store.manifest.splits["heldout"].tokens


def divide_steps(recipe: Recipe, steps: int) -> list[int]:
    """Divides a run's `steps` into its phases of sequence length, exactly where the training loop changes."""
    phases = range(1, len(recipe.data.sequence_lengths))
    # The loop computes the phase before each step from its share of the run, so the phase never decreases.
    starts = [
        bisect_left(range(steps), phase, key=lambda step: recipe.phase(step / steps)) for phase in phases
    ]
    bounds = [0, *starts, steps]
    return [end - start for start, end in pairwise(bounds)]


def assume_full_step(recipe: Recipe, phase: int) -> StepAmounts:
    """A step whose sequences all have the phase's full length, as nearly with a store of long documents."""
    length, count = recipe.data.sequence_lengths[phase], recipe.data.batch_size
    special = 2 + recipe.data.next_sentence
    masked = max(round(recipe.masking.mask_rate * (length - special)), 1)
    own_text = _split_batch(recipe)[0] * (length - special)
    return StepAmounts(count, count * length, count * length**2, count * masked, own_text)


def sample_step(
    recipe: Recipe, phase: int, store: TokenStore, tokenizer: Tokenizer, general: TokenStore | None = None
) -> StepAmounts:
    """The mean content of the first batches that the run itself will have in this phase. Without a store of
    general text, that text is assumed to have sequences like the corpus's.

    Raises StoreError if the store has no text for this recipe.
    """
    corpus_sequences, general_sequences = _split_batch(recipe)
    corpus_part = _sample_store(recipe, phase, store, tokenizer, corpus_sequences, recipe.seed)
    if not general_sequences:
        return corpus_part
    if general is None:
        general_part = StepAmounts(
            *(general_sequences / corpus_sequences * amount for amount in astuple(corpus_part))
        )
    else:
        # the seed that the run has for general text
        general_part = _sample_store(recipe, phase, general, tokenizer, general_sequences, recipe.seed + 1)
    sums = (first + second for first, second in zip(astuple(corpus_part), astuple(general_part), strict=True))
    return replace(StepAmounts(*sums), own_text=corpus_part.own_text)


def _split_batch(recipe: Recipe) -> tuple[int, int]:
    """How many of a step's full sequences are from the corpus, and how many from general text."""
    data = recipe.data
    if recipe.general is None or not data.general_share:
        return data.batch_size, 0
    return divide_batch_size(data.batch_size, data.general_share)


def _sample_store(
    recipe: Recipe, phase: int, store: TokenStore, tokenizer: Tokenizer, batch_size: int, seed: int
) -> StepAmounts:
    """The mean content of the part of a step that comes from one store."""
    data = recipe.data
    length = data.sequence_lengths[phase]
    stream = PretrainingStream(
        store, tokenizer, seed, data.next_sentence, length, batch_size * length,
        data.short_seq_prob, find_objective(recipe.objective).sentence_order,
    )  # fmt: skip
    masker = Masker(tokenizer, MaskingRates(**recipe.masking.model_dump()))
    most_batches = _SAMPLED_BATCHES
    if recipe.steps is not None:
        most_batches = min(most_batches, max(1, divide_steps(recipe, recipe.steps)[phase]))
    sums, count = np.zeros(5), 0
    for batch in islice(stream.batches(Cursor(phase)), most_batches):
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

"""What a recipe names, found, opened and checked against each other before anything is trained.

A row of a table is one sequence, and the position of a cell is its column. Of a row that is cut or divided,
cells would be lost, or stand at the positions of others: a length without room for all its cells is refused.
A model that only knows distances between positions is warned of.

Of [UNK] nothing is learned: it is never masked, and every unknown word is the same to the model. Text of
which all is unknown is refused, and where much is, that is told.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import nn

from bertsmith.data.masking import Masker
from bertsmith.data.sequences.codec import read_codec, table_row_length
from bertsmith.data.store import CODEC_FILE, TokenStore
from bertsmith.data.stream import Cursor, MixedStream, PretrainingStream, require_documents
from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.errors import CorpusError, RecipeError, StoreError, TokenizerError
from bertsmith.files import sha256
from bertsmith.machine import Hardware
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig
from bertsmith.model.layers.elementwise import Dropout
from bertsmith.model.locate import locate_model, locate_tokenizer
from bertsmith.model.manifest import stated_manifest
from bertsmith.model.meta_init import meta_init
from bertsmith.model.own_tokenizer import read_own_tokenizer
from bertsmith.tasks.pretraining.objectives import OBJECTIVES, PretrainedModel
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer, load_tokenizer
from bertsmith.training.machine import Machine, Ranks, wait
from bertsmith.training.recipe import Recipe
from bertsmith.training.resources import require_resources

_ROW_LENGTH = "table_row_length"  # in a provenance
_READ_TOKENS = 1_000_000
_TRIED_BATCHES = 8
_MUCH = 0.1  # of the tokens; BERT's vocabularies have far under 0.01 in their own languages


@dataclass(frozen=True)
class Inputs:
    """What a recipe names, found and opened. `measured` is the held-out part, where it can be measured on;
    `general` and `general_measured` are those of the general text, where there is one.
    """

    tokenizer: Tokenizer
    train: TokenStore
    heldout: TokenStore
    measured: TokenStore | None
    model: PretrainedModel
    notes: tuple[str, ...]
    general: TokenStore | None = None
    general_measured: TokenStore | None = None

    @property
    def hashes(self) -> dict[str, str]:
        """Of the tokens by the recipe's names: a run that goes on counts places in them."""
        found = {"corpus": self.train.content_sha256}
        return found if self.general is None else found | {"general": self.general.content_sha256}


def open_inputs(
    recipe: Recipe, out: Path, machine: Machine, hardware: Hardware, console: Console | None
) -> Inputs:
    """What can be refused is refused before the first file is written: the token store comes last."""
    for corpus in filter(None, (recipe.corpus, recipe.general)):
        _require_folder(Path(corpus))
        require_room_for_rows(corpus, recipe.data.sequence_lengths, "data.sequence_lengths")
    init = locate_model(recipe.init).folder if recipe.init else None
    tokenizer = _tokenizer(recipe, init)
    model, notes = _model(recipe, tokenizer, init)
    require_fit(recipe, model.config, tokenizer.vocab_size)
    if recipe.data.batch_size < machine.ranks.count:
        raise RecipeError(
            f"data.batch_size = {recipe.data.batch_size} leaves some of the {machine.ranks.count} ranks "
            "without a sequence. Raise it, or start fewer ranks."
        )
    _check_pieces(recipe, tokenizer, init)
    require_resources(model, recipe, machine, hardware, out)
    train, heldout = open_stores(_corpus(recipe), tokenizer, out / "tokens", machine.ranks, console)
    _check_text(recipe, train)
    unknown = note_on_unknown(train, tokenizer)
    measured, lacking = _measured(heldout, recipe.data.next_sentence)
    places = note_on_places(_corpus(recipe), model.config) if init is None else ()
    found = Inputs(tokenizer, train, heldout, measured, model, (*notes, *unknown, *lacking, *places))
    if recipe.general is None:
        return found
    general = recipe.general, tokenizer, out / "tokens-general", machine.ranks, console
    return _with_general(recipe, found, *open_stores(*general))


def _with_general(recipe: Recipe, found: Inputs, train: TokenStore, heldout: TokenStore) -> Inputs:
    """Raises CorpusError where general text that is to be mixed in, or measured on, isn't there, or where the
    vocabulary knows nothing of it.
    """
    if recipe.data.general_share:
        _check_text(recipe, train)
    if not len(heldout):
        raise CorpusError(
            f"{heldout.path} holds no document, so forgetting can't be measured. Build the corpus of "
            "general text with a larger held-out share."
        )
    notes = (*found.notes, *note_on_unknown(heldout, found.tokenizer))
    return replace(found, general=train, general_measured=heldout, notes=notes)


def _model(
    recipe: Recipe, tokenizer: Tokenizer, init: Path | None
) -> tuple[PretrainedModel, tuple[str, ...]]:
    """A new model, or the one to go on from with sentences on what was added to it or left out."""
    torch.manual_seed(recipe.seed)
    objective = OBJECTIVES[recipe.objective]
    if init is None:
        config = recipe.model.config(tokenizer.vocab_size, tokenizer.pad_id)
        require_fit(recipe, config, tokenizer.vocab_size)
        return objective.build(config, recipe.objective_choices()), ()
    generator = recipe.replaced.generator
    found = None if generator is None else locate_model(generator).folder
    model, notes = objective.load(init, recipe.objective_choices(found))
    apply_dropout(model, recipe.model.dropouts(model.config))
    return model, notes


def _tokenizer(recipe: Recipe, init: Path | None) -> Tokenizer:
    if recipe.tokenizer is not None:
        return load_tokenizer(locate_tokenizer(recipe.tokenizer))
    if init is not None:
        return read_own_tokenizer(init)
    if recipe.corpus is not None and (own := Path(recipe.corpus) / "tokenizer").is_dir():
        return load_tokenizer(own)  # of `bertsmith sequences build`
    raise RecipeError("The run needs a tokenizer: tokenizer=FOLDER (bertsmith tokenizer train makes one).")


def _corpus(recipe: Recipe) -> str:
    if recipe.corpus is None:
        raise RecipeError("The run needs a corpus: corpus=FOLDER (bertsmith corpus build makes one).")
    return recipe.corpus


def _require_folder(path: Path) -> None:
    if not path.is_dir():
        raise CorpusError(
            f"{path} is not a folder. bertsmith corpus build SOURCE --out {path} makes a corpus."
        )


def open_stores(
    corpus: str, tokenizer: Tokenizer, made: Path, ranks: Ranks, console: Console | None
) -> tuple[TokenStore, TokenStore]:
    """Train and held-out part of a corpus's token store: as given, or of a corpus of text, whose tokens are
    written to `made`. Raises CorpusError and StoreError.
    """
    path = Path(corpus)
    _require_folder(path)
    if not (path / "train" / "tokens.bin").exists():
        path = _tokenised(path, tokenizer, made, ranks, console)
    train, heldout = (TokenStore.open(path / split, tokenizer) for split in ("train", "heldout"))
    train.verify()
    heldout.verify()
    return train, heldout


def _tokenised(path: Path, tokenizer: Tokenizer, store: Path, ranks: Ranks, console: Console | None) -> Path:
    """The run's own store, made by the first rank. Raises StoreError when it was made of another corpus."""
    corpus = Corpus.open(path)
    if ranks.is_first and not store.exists():
        if console is not None:
            console.print(f"Tokenising {path} …")
        tokenize_corpus(corpus, tokenizer, store)
    wait()
    if TokenStore.open(store / "train").corpus_sha256 != sha256(path / "manifest.json"):
        raise StoreError(
            f"{store} was made from another corpus than {path} is now. Remove it, or choose another folder."
        )
    return store


def require_fit(recipe: Recipe, config: BertConfig, vocab_size: int) -> None:
    """Raises RecipeError when recipe, model and a tokenizer of so many pieces don't belong together."""
    spare = recipe.init is not None and recipe.tokenizer is None  # rows behind init's own vocabulary
    if vocab_size > config.vocab_size or (vocab_size < config.vocab_size and not spare):
        raise RecipeError(
            f"init has a vocabulary of {config.vocab_size:,} pieces, the tokenizer {vocab_size:,}. "
            "Leave tokenizer= out to use init's own."
        )
    if problem := OBJECTIVES[recipe.objective].problem(config, recipe.objective_choices()):
        raise RecipeError(problem)
    longest = max(recipe.data.sequence_lengths)
    if longest > config.max_length:
        raise RecipeError(
            f"data.sequence_lengths has {longest}, but the model has positions for {config.max_length} "
            "tokens. Shorten it, or raise model.max_position_embeddings."
        )


def _check_pieces(recipe: Recipe, tokenizer: Tokenizer, init: Path | None) -> None:
    """Raises RecipeError where the tokenizer's ids mean other pieces than those init was trained with."""
    if recipe.tokenizer is None or init is None:
        return
    try:
        own = read_own_tokenizer(init)
    except TokenizerError:  # a folder of weights alone: the user knows what belongs to them
        return
    if isinstance(own, ValueTokenizer) and own.pieces == tokenizer.pieces and own.sha256 != tokenizer.sha256:
        raise RecipeError(
            f"tokenizer = {recipe.tokenizer} scales values otherwise than that of init = {recipe.init}. "
            "Leave tokenizer= out to use init's own."
        )
    if own.pieces != tokenizer.pieces:
        raise RecipeError(
            f"tokenizer = {recipe.tokenizer} has as many pieces as that of init = {recipe.init}, but other "
            "ones: every embedding would stand for another piece. Leave tokenizer= out to use init's own."
        )


def _check_text(recipe: Recipe, train: TokenStore) -> None:
    """Raises when the corpus has nothing to train on."""
    if len(train) == 0:
        raise CorpusError(f"{train.path} holds no document. Build the corpus with a smaller held-out share.")
    if recipe.data.next_sentence:
        require_documents(train, OBJECTIVES[recipe.objective].sentence_order)


def _measured(heldout: TokenStore, next_sentence: bool) -> tuple[TokenStore | None, tuple[str, ...]]:
    """The held-out part if a stream of it can be made, else a sentence on why nothing is measured."""
    try:
        if next_sentence:
            require_documents(heldout)
    except StoreError:
        lacking = "pairs need at least two documents, and documents of several sentences"
    else:
        lacking = "" if len(heldout) else "it holds no document"
    if not lacking:
        return heldout, ()
    note = f"nothing is measured on the held-out part, {len(heldout):,} documents: {lacking}"
    return None, (f"{note}. Build the corpus with a larger held-out share",)


def apply_dropout(model: PretrainedModel, config: BertConfig) -> None:
    """Sets a loaded model's dropout rates to the recipe's."""
    rates = {
        name: module.probability
        for name, module in meta_init(lambda: Bert(config)).named_modules()
        if isinstance(module, Dropout)
    }
    for part in (model.encoder, getattr(model, "generator", nn.Module())):
        for name, module in part.named_modules():
            if name in rates and isinstance(module, Dropout):
                module.probability = rates[name]


# -- rows of tables ------------------------------------------------------------------------------------


def require_room_for_rows(store: Path | str, lengths: Sequence[int], setting: str) -> None:
    """Raises RecipeError where the `setting` has a length that a row of the table `store` doesn't fit into.
    Any other folder fits.
    """
    needed = table_row_length(store)
    if needed is not None:
        _require(min(lengths), needed, f"the table {store}", setting)


def note_on_places(store: Path | str, config: BertConfig) -> tuple[str, ...]:
    """A sentence for a store whose places have a meaning of their own, which rotary positions don't tell."""
    of_rows = config.position_embedding == "rotary" and (Path(store) / CODEC_FILE).is_file()
    if not of_rows or not read_codec(store).has_fixed_places:
        return ()
    return (
        f"a place in a row of {store} is a column or a square, and the rotary positions of "
        f"{config.model_type} tell only distances: model.model_type=bert learns more from such rows",
    )


def require_room_for_learned_rows(model: Path, max_length: int) -> None:
    """The same for fine-tuning a model that was pre-trained on a table."""
    needed = learned_row_length(model)
    if needed is not None:
        _require(max_length, needed, f"the table that {model} was pre-trained on", "max_length")


def learned_row_length(model: Path | None) -> int | None:
    """Of the table that a model was pre-trained on, as its bertsmith.json says; None where that says nothing
    of one.
    """
    manifest = None if model is None else stated_manifest(model)
    found = None if manifest is None else manifest.provenance.get(_ROW_LENGTH)
    return found if isinstance(found, int) else None


def rows_provenance(length: int | None) -> dict[str, int]:
    """What a provenance says of it."""
    return {} if length is None else {_ROW_LENGTH: length}


def _require(length: int, needed: int, table: str, setting: str) -> None:
    if length < needed:
        raise RecipeError(
            f"{setting}: {length} tokens, but a row of {table} has {needed}, [CLS] and [SEP] included, and "
            f"it is never cut, for a cell's position is its column. Give {needed} or more."
        )


# -- text that the vocabulary doesn't know -------------------------------------------------------------


def note_on_unknown(store: TokenStore, tokenizer: Tokenizer) -> tuple[str, ...]:
    """A sentence where more than a tenth of the first million tokens is unknown. Raises CorpusError where all
    of them are.
    """
    unknown = store.tokens[:_READ_TOKENS] == tokenizer.unk_id
    share = float(np.mean(unknown)) if len(unknown) else 0.0
    piece = tokenizer.id_to_token(tokenizer.unk_id)
    if share == 1.0:
        raise CorpusError(
            f"{store.path} holds nothing that the vocabulary knows: every token is {piece}, and nothing can "
            "be learned. Take a tokenizer for text like it; `bertsmith tokenizer train` makes one."
        )
    if share <= _MUCH:
        return ()
    return (
        f"{share:.0%} of the tokens in {store.path} are {piece}, of which nothing is learned: "
        "`bertsmith tokenizer report` shows what is unknown, `bertsmith tokenizer train` makes a vocabulary "
        "for the text",
    )


def require_masks(stream: PretrainingStream | MixedStream, masker: Masker) -> None:
    """Raises CorpusError where the first batches have no token that could be masked: such a run would show a
    loss of 0 and learn nothing.
    """
    batches = islice(stream.batches(Cursor()), _TRIED_BATCHES)
    if not any(masker.count(batch.sequences) for batch in batches):
        raise CorpusError(
            f"The first {_TRIED_BATCHES} batches have no token that could be masked, but only special tokens "
            "and unknown words. Take a tokenizer for text like it; `bertsmith tokenizer report` shows what "
            "is unknown."
        )

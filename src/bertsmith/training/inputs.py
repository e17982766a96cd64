"""What a recipe names, found, opened and checked against each other before anything is trained.

A row of a table is one sequence, and the position of a cell is its column. Of a row that is cut or divided,
cells would be lost, or stand at the positions of others: a length without room for all its cells is refused.
A model that only knows distances between positions is warned of.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bertsmith.data.sequences.codec import read_codec, table_row_length
from bertsmith.data.store import CODEC_FILE, TokenStore
from bertsmith.data.stream import require_documents
from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.errors import BertsmithError, CorpusError, RecipeError, StoreError, TokenizerError
from bertsmith.files import sha256
from bertsmith.machine import Hardware
from bertsmith.model.adaptation import apply_dropout
from bertsmith.model.card import (
    checked_against,
    contamination_provenance,
    learned_row_length,
    rows_provenance,
)
from bertsmith.model.config import BertConfig
from bertsmith.model.locate import locate_model, locate_tokenizer
from bertsmith.model.own_tokenizer import read_own_tokenizer
from bertsmith.tasks.pretraining.objectives import (
    VALUES,
    PretrainedModel,
    PretrainingObjective,
    find_objective,
)
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import PatchTokenizer, ValueTokenizer, load_tokenizer
from bertsmith.training.machine import Machine, Ranks, wait
from bertsmith.training.recipe import Recipe
from bertsmith.training.resources import require_resources

_READ_TOKENS = 1_000_000
_MUCH = 0.1  # of the tokens; BERT's vocabularies have far under 0.01 in their own languages


@dataclass(frozen=True)
class Inputs:
    """What a recipe names, found and opened. `measured` is the held-out part, where it can be measured on;
    `init` is the folder of the model to go on from, `general` and `general_measured` are the stores of the
    general text, where there are such.
    """

    tokenizer: Tokenizer
    train: TokenStore
    heldout: TokenStore
    measured: TokenStore | None
    model: PretrainedModel
    notes: tuple[str, ...]
    init: Path | None = None
    general: TokenStore | None = None
    general_measured: TokenStore | None = None

    @property
    def hashes(self) -> dict[str, str]:
        """Of the tokens by the recipe's names: a run that goes on counts places in them."""
        found = {"corpus": self.train.content_sha256}
        return found if self.general is None else found | {"general": self.general.content_sha256}

    def objective(self, recipe: Recipe) -> PretrainingObjective[Any]:
        """What the recipe names; of a store with values their reconstruction. Raises RecipeError for settings
        that are the other kind's.
        """
        if recipe.loss.decoder_layers and not isinstance(self.tokenizer, PatchTokenizer):
            raise RecipeError(
                "loss.decoder_layers is for series and images: leave it out for other sequences."
            )
        if self.train.values is None:
            return find_objective(recipe.objective)
        if recipe.objective != "masked-language" or recipe.data.next_sentence or recipe.general is not None:
            raise RecipeError(
                "Rows of numbers are pre-trained by objective=masked-language, whose masked values are "
                "predicted, with data.next_sentence=false and without general."
            )
        return VALUES

    def provenance(self, recipe: Recipe) -> dict[str, object]:
        """What the trained model's manifest says of recipe and data."""
        return {
            **self._text(recipe),
            "recipe": json.loads(recipe.model_dump_json()),
            "tokenizer_sha256": self.tokenizer.sha256,
            "corpus_sha256": self.train.corpus_sha256,
            **contamination_provenance(self.train.manifest.checked_against, checked_against(self.init)),
            **rows_provenance(table_row_length(self.train.path.parent) or learned_row_length(self.init)),
        }

    def _text(self, recipe: Recipe) -> dict[str, object]:
        """What the corpus says of itself, or else the token store, which knows neither words nor a licence.
        Nothing of rows of numbers.
        """
        try:
            manifest = Corpus.open(recipe.corpus or "").manifest
        except BertsmithError:
            if isinstance(self.tokenizer, ValueTokenizer):
                return {}
            stored = self.train.manifest.splits["train"]
            return {"text": {"documents": stored.documents, "tokens": stored.tokens}}
        counts = manifest.splits["train"].counts
        facts = {"documents": counts.documents, "words": counts.words, "licence": manifest.licence}
        return {"text": facts}


def open_inputs(
    recipe: Recipe, out: Path, machine: Machine, hardware: Hardware, console: Console | None
) -> Inputs:
    """What can be refused is refused before the first file is written: the token store comes last."""
    for corpus in filter(None, (recipe.corpus, recipe.general)):
        _require_folder(Path(corpus))
        require_room_for_rows(corpus, min(recipe.data.sequence_lengths), "data.sequence_lengths")
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
    told = *notes, *unknown, *lacking, *places
    found = Inputs(tokenizer, train, heldout, measured, model, told, init)
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
    objective = find_objective(recipe.objective)
    if init is None:
        config = recipe.model.config(tokenizer.vocab_size, tokenizer.pad_id)
        require_fit(recipe, config, tokenizer.vocab_size)
        return objective.build(config, recipe.objective_choices()), ()
    generator = recipe.replaced.generator
    found = None if generator is None else locate_model(generator).folder
    model, notes = objective.load(init, recipe.objective_choices(found))
    for part in (model.encoder, getattr(model, "generator", None)):
        if part is not None:
            apply_dropout(part, recipe.model.dropouts(model.config))
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
    if problem := find_objective(recipe.objective).problem(config, recipe.objective_choices()):
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
        require_documents(train, find_objective(recipe.objective).sentence_order)


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


def note_on_unknown(store: TokenStore, tokenizer: Tokenizer) -> tuple[str, ...]:
    """A sentence where more than a tenth of the first million tokens is unknown. Raises CorpusError where all
    of them are.
    """
    unknown = store.tokens[:_READ_TOKENS] == tokenizer.unk_id
    share = float(unknown.mean()) if len(unknown) else 0.0
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


# -- rows of tables ------------------------------------------------------------------------------------


def require_room_for_rows(store: Path | str, length: int, setting: str) -> None:
    """Raises RecipeError where the `setting` has this length, and a row of the table `store` doesn't fit into
    it. Any other folder fits.
    """
    needed = table_row_length(store)
    if needed is not None:
        _require(length, needed, f"the table {store}", setting)


def note_on_places(store: Path | str, config: BertConfig) -> tuple[str, ...]:
    """A sentence for a store whose places have a meaning of their own, which rotary positions don't tell."""
    of_rows = config.position_embedding == "rotary" and (Path(store) / CODEC_FILE).is_file()
    if not of_rows or not read_codec(store).has_fixed_positions:
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


def _require(length: int, needed: int, table: str, setting: str) -> None:
    if length < needed:
        raise RecipeError(
            f"{setting}: {length} tokens, but a row of {table} has {needed}, [CLS] and [SEP] included, and "
            f"it is never cut, for a cell's position is its column. Give {needed} or more."
        )

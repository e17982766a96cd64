"""The inputs of pre-training: opens the corpus, tokenizer and model that a recipe names, and checks that they
fit together, before anything is trained.

A row of a table is one sequence, and a cell's position in it is its column. If a row were cut or divided,
cells would be lost or take the positions of others: a sequence length without room for all cells is refused.
A model that knows only distances between positions is warned of.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bertsmith.data.sequences.codec import read_codec, table_row_length
from bertsmith.data.store import CODEC_FILE, TokenStore
from bertsmith.data.stream import divide_batch_size, require_documents
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
from bertsmith.training.machine import Machine, Ranks, wait_for_ranks
from bertsmith.training.recipe import Recipe
from bertsmith.training.resources import require_resources

_SAMPLED_TOKENS = 1_000_000
_MOST_ROUNDED = 0.2  # of the share of general text, by whole sequences
_MOST_UNKNOWN = 0.1  # share of the tokens; BERT's vocabularies have far under 0.01 in their own languages


@dataclass(frozen=True)
class Inputs:
    """What a recipe names, opened.

    train, heldout: the two parts of the corpus's token store.
    evaluation_text: the held-out part again, None where it is too small to be evaluated on.
    notes: sentences to tell the user when the run begins.
    init: the folder of the model to go on from; None for a new model.
    general, general_evaluation_text: training and held-out part of the general text, where there is one.
    """

    tokenizer: Tokenizer
    train: TokenStore
    heldout: TokenStore
    evaluation_text: TokenStore | None
    model: PretrainedModel
    notes: tuple[str, ...]
    init: Path | None = None
    general: TokenStore | None = None
    general_evaluation_text: TokenStore | None = None

    @property
    def hashes(self) -> dict[str, str]:
        """The hash of each token store by the setting that names it. A resumed run checks them, since its
        cursor is a position in these tokens.
        """
        hashes = {"corpus": self.train.content_sha256}
        return hashes if self.general is None else hashes | {"general": self.general.content_sha256}

    def objective(self, recipe: Recipe) -> PretrainingObjective[Any]:
        """The objective that the recipe names; for rows of numbers always the reconstruction of their values.
        Raises RecipeError for settings that don't apply to this kind of data.
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
        """The recipe and the data, as the trained model's manifest records them."""
        return {
            **self._text_facts(recipe),
            "recipe": json.loads(recipe.model_dump_json()),
            "tokenizer_sha256": self.tokenizer.sha256,
            "corpus_sha256": self.train.corpus_sha256,
            **contamination_provenance(self.train.manifest.checked_against, checked_against(self.init)),
            **rows_provenance(table_row_length(self.train.path.parent) or learned_row_length(self.init)),
        }

    def _text_facts(self, recipe: Recipe) -> dict[str, object]:
        """Documents, words and licence by the corpus's manifest; of a token store, which knows neither words
        nor a licence, documents and tokens; of rows of numbers nothing.
        """
        try:
            manifest = Corpus.open(recipe.corpus or "").manifest
        except BertsmithError:
            if isinstance(self.tokenizer, ValueTokenizer):
                return {}
            split = self.train.manifest.splits["train"]
            return {"text": {"documents": split.documents, "tokens": split.tokens}}
        counts = manifest.splits["train"].counts
        facts = {"documents": counts.documents, "words": counts.words, "licence": manifest.licence}
        return {"text": facts}


def open_inputs(
    recipe: Recipe, out: Path, machine: Machine, hardware: Hardware, console: Console | None
) -> Inputs:
    """Opens and checks everything that `recipe` names. `out` is the run's folder, where the tokens of a text
    corpus are written; this happens last, after all other checks.

    Raises RecipeError, CorpusError, TokenizerError, StoreError, ModelError, ResourceError.
    """
    for corpus in filter(None, (recipe.corpus, recipe.general)):
        _require_folder(Path(corpus))
        require_room_for_rows(corpus, min(recipe.data.sequence_lengths), "data.sequence_lengths")
    init = locate_model(recipe.init).folder if recipe.init else None
    tokenizer = _load_tokenizer(recipe, init)
    model, notes = _make_model(recipe, tokenizer, init)
    require_fit(recipe, model.config, tokenizer.vocab_size)
    if recipe.data.batch_size < machine.ranks.count:
        raise RecipeError(
            f"data.batch_size = {recipe.data.batch_size} leaves some of the {machine.ranks.count} ranks "
            "without a sequence. Raise it, or start fewer ranks."
        )
    _check_pieces(recipe, tokenizer, init)
    require_resources(model, recipe, machine, hardware, out)
    train, heldout = open_stores(_require_corpus(recipe), tokenizer, out / "tokens", machine.ranks, console)
    _check_text(recipe, train)
    unknown = note_unknown_tokens(train, tokenizer)
    evaluation_text, missing = _select_evaluation_text(heldout, recipe.data.next_sentence)
    positions = note_fixed_positions(_require_corpus(recipe), model.config) if init is None else ()
    all_notes = *notes, *unknown, *missing, *positions
    inputs = Inputs(tokenizer, train, heldout, evaluation_text, model, all_notes, init)
    if recipe.general is None:
        return inputs
    general = recipe.general, tokenizer, out / "tokens-general", machine.ranks, console
    return _add_general_text(recipe, inputs, *open_stores(*general))


def _add_general_text(recipe: Recipe, inputs: Inputs, train: TokenStore, heldout: TokenStore) -> Inputs:
    """The inputs with the stores of the general text. Raises CorpusError where the part that is to be trained
    or evaluated on is empty, or where the vocabulary knows none of its tokens.
    """
    if recipe.data.general_share:
        _check_text(recipe, train)
    if not len(heldout):
        raise CorpusError(
            f"{heldout.path} holds no document, so forgetting can't be measured. Build the corpus of "
            "general text with a larger held-out share."
        )
    notes = (*inputs.notes, *note_unknown_tokens(heldout, inputs.tokenizer), *_note_general_share(recipe))
    return replace(inputs, general=train, general_evaluation_text=heldout, notes=notes)


def _note_general_share(recipe: Recipe) -> tuple[str, ...]:
    """A sentence when whole sequences make a share of general text that is far from the recipe's."""
    asked, batch_size = recipe.data.general_share, recipe.data.batch_size
    if not asked:
        return ()
    _, general = divide_batch_size(batch_size, asked)
    if abs(general / batch_size - asked) <= _MOST_ROUNDED * asked:
        return ()
    return (
        f"data.general_share = {asked:g} is rounded to whole sequences: {general} of the {batch_size} in a "
        f"batch are general text, {general / batch_size:.3g} of it. A larger data.batch_size comes nearer",
    )


def _make_model(
    recipe: Recipe, tokenizer: Tokenizer, init: Path | None
) -> tuple[PretrainedModel, tuple[str, ...]]:
    """Makes a new model, or loads the one to go on from. Returns it and sentences on what was added to the
    loaded one or left out.
    """
    torch.manual_seed(recipe.seed)
    objective = find_objective(recipe.objective)
    if init is None:
        config = recipe.model.config(tokenizer.vocab_size, tokenizer.pad_id)
        require_fit(recipe, config, tokenizer.vocab_size)
        return objective.build(config, recipe.objective_choices()), ()
    generator = recipe.replaced.generator
    generator_folder = None if generator is None else locate_model(generator).folder
    model, notes = objective.load(init, recipe.objective_choices(generator_folder))
    for encoder in (model.encoder, getattr(model, "generator", None)):
        if encoder is not None:
            apply_dropout(encoder, recipe.model.dropouts(model.config))
    return model, notes


def _load_tokenizer(recipe: Recipe, init: Path | None) -> Tokenizer:
    if recipe.tokenizer is not None:
        return load_tokenizer(locate_tokenizer(recipe.tokenizer))
    if init is not None:
        return read_own_tokenizer(init)
    if recipe.corpus is not None and (own := Path(recipe.corpus) / "tokenizer").is_dir():
        return load_tokenizer(own)  # written by `bertsmith sequences build`
    raise RecipeError("The run needs a tokenizer: tokenizer=FOLDER (bertsmith tokenizer train makes one).")


def _require_corpus(recipe: Recipe) -> str:
    if recipe.corpus is None:
        raise RecipeError("The run needs a corpus: corpus=FOLDER (bertsmith corpus build makes one).")
    return recipe.corpus


def _require_folder(path: Path) -> None:
    if not path.is_dir():
        raise CorpusError(
            f"{path} is not a folder. bertsmith corpus build SOURCE --out {path} makes a corpus."
        )


def open_stores(
    corpus: str, tokenizer: Tokenizer, store_folder: Path, ranks: Ranks, console: Console | None
) -> tuple[TokenStore, TokenStore]:
    """Opens the training and the held-out part of a token store. `corpus` is the folder of such a store, or
    of a corpus of text, whose tokens are written to `store_folder` first. Raises CorpusError and StoreError.
    """
    path = Path(corpus)
    _require_folder(path)
    if not (path / "train" / "tokens.bin").exists():
        path = _tokenize_once(path, tokenizer, store_folder, ranks, console)
    train, heldout = (TokenStore.open(path / split, tokenizer) for split in ("train", "heldout"))
    train.verify()
    heldout.verify()
    return train, heldout


def _tokenize_once(
    path: Path, tokenizer: Tokenizer, store: Path, ranks: Ranks, console: Console | None
) -> Path:
    """Writes the run's own token store, on the first rank and only once; returns its folder `store`. Raises
    StoreError when it was made from another corpus.
    """
    corpus = Corpus.open(path)
    if ranks.is_first and not store.exists():
        if console is not None:
            console.print(f"Tokenising {path} …")
        tokenize_corpus(corpus, tokenizer, store)
    wait_for_ranks()
    if TokenStore.open(store / "train").corpus_sha256 != sha256(path / "manifest.json"):
        raise StoreError(
            f"{store} was made from another corpus than {path} is now. Remove it, or choose another folder."
        )
    return store


def require_fit(recipe: Recipe, config: BertConfig, vocab_size: int) -> None:
    """Raises RecipeError when the recipe, the model's `config` and a tokenizer with `vocab_size` tokens don't
    fit together.
    """
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
    """Raises RecipeError where the tokenizer's ids stand for other tokens than those `init` was trained
    with.
    """
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
    """Raises CorpusError when there is no document to train on, StoreError when pairs can't be made of
    them.
    """
    if len(train) == 0:
        raise CorpusError(f"{train.path} holds no document. Build the corpus with a smaller held-out share.")
    if recipe.data.next_sentence:
        require_documents(train, find_objective(recipe.objective).sentence_order)


def _select_evaluation_text(
    heldout: TokenStore, next_sentence: bool
) -> tuple[TokenStore | None, tuple[str, ...]]:
    """The held-out part, or None and a sentence on why it can't be evaluated on."""
    try:
        if next_sentence:
            require_documents(heldout)
    except StoreError:
        missing = "pairs need at least two documents, and documents of several sentences"
    else:
        missing = "" if len(heldout) else "it holds no document"
    if not missing:
        return heldout, ()
    note = f"nothing is measured on the held-out part, {len(heldout):,} documents: {missing}"
    return None, (f"{note}. Build the corpus with a larger held-out share",)


def note_unknown_tokens(store: TokenStore, tokenizer: Tokenizer) -> tuple[str, ...]:
    """A sentence when more than a tenth of the store's first million tokens are unknown to the tokenizer.
    Raises CorpusError when all of them are.
    """
    unknown = store.tokens[:_SAMPLED_TOKENS] == tokenizer.unk_id
    share = float(unknown.mean()) if len(unknown) else 0.0
    piece = tokenizer.id_to_token(tokenizer.unk_id)
    if share == 1.0:
        raise CorpusError(
            f"{store.path} holds nothing that the vocabulary knows: every token is {piece}, and nothing can "
            "be learned. Take a tokenizer for text like it; `bertsmith tokenizer train` makes one."
        )
    if share <= _MOST_UNKNOWN:
        return ()
    return (
        f"{share:.0%} of the tokens in {store.path} are {piece}, of which nothing is learned: "
        "`bertsmith tokenizer report` shows what is unknown, `bertsmith tokenizer train` makes a vocabulary "
        "for the text",
    )


# -- rows of tables ------------------------------------------------------------------------------------


def require_room_for_rows(store: Path | str, length: int, setting: str) -> None:
    """Raises RecipeError when `store` holds rows of a table that have more tokens than `length`, the value of
    `setting`. Any other folder passes.
    """
    needed = table_row_length(store)
    if needed is not None:
        _require_length(length, needed, f"the table {store}", setting)


def note_fixed_positions(store: Path | str, config: BertConfig) -> tuple[str, ...]:
    """A sentence when `store` holds rows whose positions have a fixed meaning (columns, squares) and the
    model has rotary positions, which tell only distances.
    """
    rotary_rows = config.position_embedding == "rotary" and (Path(store) / CODEC_FILE).is_file()
    if not rotary_rows or not read_codec(store).has_fixed_positions:
        return ()
    return (
        f"a place in a row of {store} is a column or a square, and the rotary positions of "
        f"{config.model_type} tell only distances: model.model_type=bert learns more from such rows",
    )


def require_room_for_learned_rows(model: Path, max_length: int) -> None:
    """Raises RecipeError when `model` was pre-trained on rows of a table that have more tokens than
    `max_length`.
    """
    needed = learned_row_length(model)
    if needed is not None:
        _require_length(max_length, needed, f"the table that {model} was pre-trained on", "max_length")


def _require_length(length: int, needed: int, table: str, setting: str) -> None:
    if length < needed:
        raise RecipeError(
            f"{setting}: {length} tokens, but a row of {table} has {needed}, [CLS] and [SEP] included, and "
            f"it is never cut, for a cell's position is its column. Give {needed} or more."
        )

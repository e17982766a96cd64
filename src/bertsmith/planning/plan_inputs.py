"""What a plan can know of a recipe's model and data: real where the files are, else a stated assumption."""

from dataclasses import dataclass
from pathlib import Path

from bertsmith.data.store import TokenStore
from bertsmith.model.checkpoint import CONFIG
from bertsmith.model.config import BertConfig
from bertsmith.model.config_json import config_from_hugging_face
from bertsmith.model.locate import is_hub_name, locate_model, locate_tokenizer
from bertsmith.model.meta_init import meta_init
from bertsmith.model.untrusted import plain_file, read_settings
from bertsmith.planning.workload import StepAmounts, full_step, sampled_step
from bertsmith.tasks.pretraining.objectives import OBJECTIVES, PretrainedModel
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.replaced_tokens import ReplacedTokenModel
from bertsmith.text.tokens.any_tokenizer import load_tokenizer
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.inputs import require_fit
from bertsmith.training.recipe import Recipe
from bertsmith.training.whole_rows import require_room_for_rows


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
        require_room_for_rows(recipe.corpus, recipe.data.sequence_lengths, "data.sequence_lengths")
    tokenizer, notes = _tokenizer(recipe)
    config = _config(recipe, tokenizer)
    require_fit(recipe, config, config.vocab_size if tokenizer is None else tokenizer.vocab_size)
    store, more = _store(recipe.corpus, tokenizer)
    general = None
    if recipe.general is not None and recipe.data.general_share and store is not None:
        general, lacking = _store(recipe.general, tokenizer)
        if lacking:
            more.append(
                f"{recipe.general} holds no token store: its sequences are taken to be like the corpus's."
            )
    objective, choices = OBJECTIVES[recipe.objective], recipe.objective_choices()
    model = meta_init(lambda: objective.build(config, choices))
    if recipe.replaced.generator is not None:
        share = recipe.replaced.generator_share
        more.append(f"replaced.generator isn't looked at: a share of {share:g} of the width is assumed.")
    return PlanInputs(model, store, tokenizer, (*notes, *more), general)


def _tokenizer(recipe: Recipe) -> tuple[Tokenizer | None, list[str]]:
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
    usual = _usual_vocabulary(recipe)
    return None, [f"{missing}: a vocabulary of {usual:,} pieces is assumed. Give tokenizer=FOLDER."]


def _config(recipe: Recipe, tokenizer: Tokenizer | None) -> BertConfig:
    if recipe.init:
        folder = locate_model(recipe.init).folder
        return config_from_hugging_face(
            read_settings(plain_file(folder, CONFIG)), f"the settings of {folder}"
        )
    if tokenizer is not None:
        return recipe.model.config(tokenizer.vocab_size, tokenizer.pad_id)
    usual = BertConfig(model_type=recipe.model.model_type)
    return recipe.model.config(usual.vocab_size, usual.pad_token_id)


def _usual_vocabulary(recipe: Recipe) -> int:
    """Of the family as it was published."""
    return BertConfig(model_type=recipe.model.model_type).vocab_size


def _store(corpus: str | None, tokenizer: Tokenizer | None) -> tuple[TokenStore | None, list[str]]:
    path = Path(corpus) if corpus else None
    if path is None or tokenizer is None or not (path / "train" / "tokens.bin").exists():
        where = "" if path is None else f" {path} holds none."
        return None, [
            f"Without a token store and its tokenizer every sequence is taken to be full.{where} Natural "
            "text has shorter ones, and a step then more of them. bertsmith corpus tokenize makes a store."
        ]
    return TokenStore.open(path / "train", tokenizer), []

"""The settings of a pre-training run. Defaults are those published for BERT; a recipe gives only what
differs.

A recipe is a TOML file, or the name of one of ours in `bertsmith/recipes/`. On the command line, settings are
changed by their dotted names: `optimizer.learning_rate=3e-4`.
"""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from bertsmith.argument_checks import check_arguments, check_path, check_text, list_of
from bertsmith.errors import ModelError, RecipeError, did_you_mean
from bertsmith.model.config import Activation, BertConfig, make_config, preset
from bertsmith.model.families import find_family
from bertsmith.tasks.pretraining.objective_choices import Objective, ObjectiveChoices
from bertsmith.training.settings import (
    PathText,
    RunSettings,
    Schedule,
    override,
    read_toml,
    require_one_length,
)
from bertsmith.validation import Listed, UserSettings, check

_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


class ModelSettings(UserSettings):
    """A published size of a model family, and settings that differ from it, named as in config.json.

    Settings that aren't given are as published; `bertsmith.model.config` explains each.
    """

    model_type: str = "bert"
    """The family: `bert`, `roberta`, `xlm-roberta`, `camembert`, `distilbert`, `electra`, `albert`,
    `modernbert`, `nomic_bert`, `gte`, `jina_bert`, or that of a package."""
    size: str = "base"
    """A published size: `tiny`, `mini`, `small`, `medium`, `base` or `large` (Turc et al. 2019, Devlin et al.
    2019); for `modernbert` `ettin-17m`, `ettin-32m`, `ettin-68m`, `base` or `large`; for `electra` `small`,
    `base` or `large`."""
    hidden_size: int | None = None
    """Width; decided by the size, like the next four."""
    embedding_size: int | None = None
    """`electra` only: width of the embeddings, if it differs from the layers'."""
    num_hidden_layers: int | None = None
    """Layers."""
    num_attention_heads: int | None = None
    """Heads; they must divide the width."""
    intermediate_size: int | None = None
    """Width of the feed-forward part."""
    hidden_act: Activation | None = None
    """`gelu`, `gelu_new`, `relu` or `silu`; as the family was published, like all that follow."""
    max_position_embeddings: int | None = None
    """The longest sequence; rows of the table of positions, if there is one."""
    initializer_range: float | None = None
    """Standard deviation of the first weights."""
    layer_norm_eps: float | None = None
    """What norms add to the variance."""
    rope_theta: float | None = None
    """Base of the rotary angles, in layers with global attention."""
    local_rope_theta: float | None = None
    """The same in layers with local attention."""
    local_attention: int | None = None
    """Width of the window of local attention, in tokens."""
    global_attn_every_n_layers: int | None = None
    """Every n-th layer, from the first one on, has global attention."""
    hidden_dropout_prob: float | None = None
    """Dropout of hidden states; 0.1 for BERT and its kin, 0 for the others."""
    attention_probs_dropout_prob: float | None = None
    """Dropout of attention weights; none in bfloat16 on a GPU."""

    @field_validator("model_type")
    @classmethod
    def _known_family(cls, name: str) -> str:
        try:
            return find_family(name).model_type
        except ModelError as error:
            raise RecipeError(f"model.model_type: {error}") from error

    @field_validator("size")
    @classmethod
    def _size_of_the_family(cls, name: str, info: ValidationInfo) -> str:
        sizes = find_family(info.data.get("model_type", "bert")).sizes
        if name not in sizes:
            raise ValueError(f"expected {', '.join(map(repr, sizes))}")
        return name

    def config(self, vocab_size: int, pad_token_id: int) -> BertConfig:
        """The model's config for a vocabulary of this size. Raises ModelError for an impossible shape."""
        values = {
            key: value for key, value in self.model_dump().items() if value is not None and key != "size"
        }
        if find_family(self.model_type).positions_after_padding:  # the table's first rows are padding's
            longest = BertConfig(model_type=self.model_type).max_length
            values.setdefault("max_position_embeddings", longest + pad_token_id + 1)
        return preset(self.size, **values, vocab_size=vocab_size, pad_token_id=pad_token_id)

    def dropouts(self, config: BertConfig) -> BertConfig:
        """An existing model's config with this recipe's dropout, which is all that may change with `init`."""
        chosen = {name: getattr(self, name) for name in _DROPOUTS if getattr(self, name) is not None}
        return make_config(config.model_dump() | chosen, "init")


_SIZE_SETTINGS = [
    f"model.{name}"
    for name in (
        "hidden_size",
        "embedding_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
    )
]
_SHAPE_SETTINGS = [f"model.{name}" for name in ModelSettings.model_fields if name not in _DROPOUTS]


class DataSettings(UserSettings):
    """How the corpus is cut into sequences, and these into batches."""

    batch_size: int = Field(256, ge=1)
    """The most tokens of a step, divided by the sequence length of its phase."""
    micro_batch_tokens: int | None = Field(None, ge=8)  # None: what is fastest on the device
    """Tokens computed at a time; 4,096 on a CPU, 32,768 on a GPU."""
    sequence_lengths: Listed[int] = (128, 512)
    """Tokens of a sequence in each phase, special ones included."""
    sequence_shares: Listed[float] = (0.9, 0.1)
    """Each phase's share of the run."""
    next_sentence: bool = True
    """Pairs and next-sentence prediction; `false`: full segments without it."""
    short_seq_prob: float = Field(0.1, ge=0, le=1)
    """Share of documents whose pairs are made short, so that the model meets short texts."""
    general_share: float = Field(0.0, ge=0, lt=1)
    """Share of each batch that is text of `general`, if that is given."""

    @model_validator(mode="after")
    def _phases_fit(self) -> Self:
        if not self.sequence_lengths or len(self.sequence_lengths) != len(self.sequence_shares):
            raise ValueError(
                "sequence_lengths and sequence_shares need the same number of entries, at least one"
            )
        if abs(sum(self.sequence_shares) - 1) > 1e-6 or min(self.sequence_shares) <= 0:
            raise ValueError(
                f"sequence_shares must be positive and sum to 1, not {sum(self.sequence_shares):g}"
            )
        if min(self.sequence_lengths) < 8:
            raise ValueError("a sequence length below 8 leaves no room for text")
        return self

    def phase(self, progress: float) -> int:
        """The index of the phase that a run is in at `progress` in [0, 1]."""
        end = 0.0
        for phase, share in enumerate(self.sequence_shares):
            end += share
            if progress < end - 1e-9:
                return phase
        return len(self.sequence_shares) - 1


class MaskingSettings(UserSettings):
    """Devlin et al. 2019, section 3.1: of the chosen tokens 80 % masked, 10 % random, 10 % kept."""

    mask_rate: float = Field(0.15, gt=0, lt=1)
    """Share of a sequence's tokens to be predicted."""
    masked: float = Field(0.8, ge=0, le=1)
    """Of those, the share replaced by `[MASK]`."""
    random: float = Field(0.1, ge=0, le=1)
    """Of those, the share replaced by a random piece; the rest stays."""
    whole_words: bool = False
    """All pieces of a word together, or none."""
    final_mask_rate: float | None = Field(None, gt=0, lt=1)
    """The share to be predicted at the end: it moves there from `masking.mask_rate`, linearly, while the
    learning rate decays."""
    spans: bool = False
    """Spans of whole words together (Joshi et al. 2020, section 3.1)."""

    @model_validator(mode="after")
    def _rates_fit(self) -> Self:
        if self.masked + self.random > 1 + 1e-9:
            raise ValueError(f"masked + random must be at most 1, not {self.masked + self.random:g}")
        if self.spans and self.whole_words:
            raise ValueError(
                "spans are of whole words already: leave one of masking.spans and masking.whole_words out"
            )
        return self


class LossSettings(UserSettings):
    """Cheaper losses: sampled softmax (Jean et al. 2015, 3.1), a decoder (He et al. 2022, section 3)."""

    sampled_pieces: int = Field(0, ge=0)
    """Pieces of the vocabulary that a masked token is compared with, drawn anew for every step; 0: all."""
    decoder_layers: int = Field(0, ge=0, le=100)
    """For series and images: layers of a decoder that predicts the masked patches, so that the encoder sees
    only the others; 0: the encoder predicts them."""


class ReplacedSettings(UserSettings):
    """ELECTRA's objective (Clark et al. 2020, sections 3.1 and 3.2)."""

    weight: float = Field(50.0, gt=0)
    """With `objective=replaced-tokens`: weight of the discriminator's loss, beside the generator's."""
    generator_share: float = Field(0.25, gt=0, le=1)
    """The generator's share of the discriminator's heads, width and feed-forward width."""
    generator: PathText | None = None
    """A trained generator, to go on with beside `init`."""


class Recipe(RunSettings):
    """All settings of a pre-training run. Exactly one of `steps` and `hours` is given; with `decay_from` it
    is the length of the decay.
    """

    corpus: PathText | None = None
    """A corpus, or a token store."""
    general: PathText | None = None
    """A corpus or token store of text that the model must not forget: measured beside the corpus, and mixed
    in."""
    tokenizer: PathText | None = None
    """A tokenizer's folder or `vocab.txt`; with `init`, the checkpoint's own."""
    init: PathText | None = None
    """The checkpoint to go on from: a folder, `minilm`, or `organisation/name` on the hub."""
    decay_from: PathText | None = None
    """A run, or a checkpoint in its stable phase, to begin the decay from."""
    out: PathText | None = None
    """The run's folder."""
    objective: Objective = "masked-language"
    """What is learned; the others are `sentence-order` and `replaced-tokens`, or your own as `module:Class`.
    """
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    masking: MaskingSettings = MaskingSettings()
    loss: LossSettings = LossSettings()
    replaced: ReplacedSettings = ReplacedSettings()

    @model_validator(mode="after")
    def _one_length_of_run(self) -> Self:
        if (self.steps is None) == (self.hours is None):
            raise ValueError("give the run's length by exactly one of steps and hours")
        if self.schedule_problem:
            raise ValueError(self.schedule_problem)
        return self

    @model_validator(mode="after")
    def _room_for_both_texts(self) -> Self:
        if self.general is not None and self.data.general_share and self.data.batch_size < 2:
            raise ValueError(
                "data.batch_size = 1 has no room for two kinds of text: raise it, or set data.general_share=0"
            )
        return self

    @model_validator(mode="after")
    def _shape_is_that_of_init(self) -> Self:
        """Refuses a shape beside `init`. Only one that differs from the defaults, since a resolved recipe has
        every setting.
        """
        for name, field in ModelSettings.model_fields.items():
            if (
                self.init
                and f"model.{name}" in _SHAPE_SETTINGS
                and getattr(self.model, name) != field.default
            ):
                raise ValueError(_init_conflict(f"model.{name}"))
        return self

    @model_validator(mode="after")
    def _generator_goes_with_init(self) -> Self:
        if self.replaced.generator and not self.init:
            raise ValueError(
                "replaced.generator needs the embeddings of the discriminator it was trained with: give that "
                "discriminator as init, or leave replaced.generator out"
            )
        return self

    @property
    def micro_batch_tokens(self) -> int | None:
        """`data.micro_batch_tokens`, by the name that recipes of all runs have for it."""
        return self.data.micro_batch_tokens

    def objective_choices(self, generator: Path | None = None) -> ObjectiveChoices:
        """The settings of the objective; `generator` is the folder that `replaced.generator` was found in."""
        return ObjectiveChoices(
            self.data.next_sentence,
            self.replaced.generator_share,
            generator,
            self.replaced.weight,
            general=self.general is not None,
        )

    @property
    def schedule(self) -> Schedule:
        """The learning rate over the run; the decay alone where the run begins from another's checkpoint."""
        if self.decay_from is not None:
            return Schedule(self.optimizer.learning_rate, warmup=0.0, decay=1.0)
        return super().schedule

    def phase(self, share_done: float) -> int:
        """The index of the phase at `share_done` in [0, 1], by `data.sequence_shares`."""
        return self.data.phase(share_done)

    def phase_facts(self, phase: int) -> dict[str, int]:
        """The phase's sequence length, which the log records when the phase begins."""
        return {"sequence_length": self.data.sequence_lengths[phase]}


@check_arguments(name=check_path, overrides=list_of(check_text))
def read_recipe(name: str, overrides: list[str]) -> Recipe:
    """Reads a recipe, by file or name, and applies `dotted.key=value` overrides. Raises RecipeError that
    names the wrong key.

    An override of `init` replaces the file's shape of the model, and one of its size or family the file's
    widths and layers. A shape among the overrides is not replaced: beside `init` it is refused.
    """
    require_one_length(overrides)
    values = read_toml(find_recipe(name), name)
    keys = [change.partition("=")[0] for change in overrides]
    replaced_settings = {
        "init": _SHAPE_SETTINGS,
        "model.size": _SIZE_SETTINGS,
        "model.model_type": _SIZE_SETTINGS,
    }
    replaced = {name for key in keys for name in replaced_settings.get(key, ())}
    if isinstance(values.get("model"), dict):
        values["model"] = {
            key: value for key, value in values["model"].items() if f"model.{key}" not in replaced
        }
    for change in overrides:
        override(values, change, Recipe)
    chosen = [key for key in keys if key in _SHAPE_SETTINGS]
    if values.get("init") and chosen:
        raise RecipeError(f"{name}: {_init_conflict(chosen[0])}.")
    return check_recipe(values, name)


def as_recipe(recipe: str | Recipe, overrides: Sequence[str]) -> Recipe:
    """Reads a recipe by file or name with its overrides; a Recipe is returned as it is. Raises RecipeError
    for overrides beside a Recipe.
    """
    if isinstance(recipe, str):
        return read_recipe(recipe, list(overrides))
    if overrides:
        raise RecipeError(
            "Overrides go with a recipe's name or file. With a Recipe, change its own settings instead."
        )
    return recipe


def _init_conflict(key: str) -> str:
    return (
        f"{key} can't be chosen together with init: the shape is that of the checkpoint to go on from, and "
        f"of the section model only {' and '.join(_DROPOUTS)} may differ; leave out {key}, or init"
    )


def check_recipe(values: dict[str, Any], where: str) -> Recipe:
    """Makes a recipe of settings. Raises RecipeError for wrong ones; `where` names their source in it."""
    length = {"steps", "hours"} & {key for key in values if values[key] is not None}
    if len(length) == 2:
        raise RecipeError(f"{where} has both steps and hours; a run's length is one of them.")
    return check(Recipe, values, where)


def list_recipes() -> list[str]:
    """The names of Bertsmith's own recipes, sorted."""
    folder = resources.files("bertsmith").joinpath("recipes")
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def find_recipe(name: str) -> Path:
    """The file of a recipe, given its path or the name of one of ours. Raises RecipeError that lists ours."""
    if Path(name).is_file():
        return Path(name)
    if name in list_recipes():
        return Path(str(resources.files("bertsmith").joinpath("recipes", f"{name}.toml")))
    meant = did_you_mean(name, list_recipes())
    raise RecipeError(
        f"No recipe {name!r}: neither a file nor one of Bertsmith's ({', '.join(list_recipes())}).{meant}"
    )

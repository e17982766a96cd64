"""One record a family of encoders: what it is called, how its files are spelled, which values make it up.

A family is values, never a class: `Bert` computes them all. docs/add-a-family-or-optimiser.md adds one from
outside. A value of `BertConfig` that a record's `spelling` doesn't name can't be written to the family's
config.json, so it must stay as the record has it.

Known are ours, those that a program registers, and those of installed packages. A package names its records
in the entry-point group `bertsmith.families`, by `model_type`. The record is imported when a model of that
family is met. So a folder or a recipe can choose among what its user has installed, and can't say where code
lies.
"""

import reprlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from bertsmith.errors import ModelError, did_you_mean
from bertsmith.model.rotary_json import RotaryKeys


class Size(NamedTuple):
    """A published size of a family: numbers of layers and heads, and widths."""

    layers: int
    width: int
    heads: int
    intermediate: int  # width of the feed-forward part
    embedding: int | None = None  # width of the embeddings, where it isn't the layers'


# Turc et al. 2019 (arXiv 1908.08962, table 1) and Devlin et al. 2019 (section 3): heads are width / 64, the
# feed-forward width is 4 x width throughout.
BERT_SIZES = {
    name: Size(layers, width, width // 64, 4 * width)
    for name, layers, width in (
        ("tiny", 2, 128),
        ("mini", 4, 256),
        ("small", 4, 512),
        ("medium", 8, 512),
        ("base", 12, 768),
        ("large", 24, 1024),
    )
}


class ModuleNames(NamedTuple):
    """One of our modules, and the modules of the file that it is made of, stacked by rows in that order."""

    ours: str
    theirs: tuple[str, ...]


@dataclass(frozen=True)
class HeadNames:
    """How a fine-tuned head of the family is built, and what a file calls its modules.

    `out` is the classifier. Before it come, where they are named, `dense`, `activation` ("" is
    `BertConfig.head_act`) and `norm`; `pooled` heads read the encoder's pooler instead.
    """

    out: str
    pooled: bool = False
    dense: str = ""
    activation: str = ""
    norm: str = ""
    drops_first: bool = False  # dropout before `dense` too


@dataclass(frozen=True)
class Family:
    """All that sets a family apart. `{}` in a name stands for a layer's number, counted from 0."""

    model_type: str  # in config.json
    class_prefix: str  # of its classes in transformers: "Bert" of BertForMaskedLM

    # -- names of tensors -----------------------------------------------------------------------------------
    prefix: str  # stands before the encoder's names wherever the file has a head
    encoder: tuple[ModuleNames, ...]
    layer: tuple[ModuleNames, ...]
    heads: tuple[ModuleNames, ...]  # of pre-training
    tied: Mapping[str, str]  # what a file may hold a second time -> what it must be equal to

    # -- heads ----------------------------------------------------------------------------------------------
    # What follows class_prefix in transformers -> the heads that the class needs.
    classes: Mapping[str, Set[str]]
    sequence_head: HeadNames
    token_head: HeadNames
    span_head: HeadNames | None = None  # None: no class for question answering

    # -- values of BertConfig -------------------------------------------------------------------------------
    published: Mapping[str, Any] = field(default_factory=dict)  # where they aren't BERT's
    # What transformers assumes of a config.json that leaves a key out, where that isn't what was published.
    assumed: Mapping[str, Any] = field(default_factory=dict)
    spelling: Mapping[str, str] = field(default_factory=dict)  # ours -> config.json's
    aliases: Mapping[str, str] = field(default_factory=dict)  # other spellings that are read -> ours
    # Keys of config.json that are no values of ours: the ones that are supported; null always is.
    required: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    harmless: Mapping[str, str] = field(default_factory=dict)  # keys that change no number -> why
    written: Mapping[str, Any] = field(default_factory=dict)  # further keys, the same for all models
    rotary: RotaryKeys | None = None
    # The rows of `layer` by the modules of transformers' class, where a file has others: adapters name these.
    class_layer: tuple[ModuleNames, ...] = ()
    sizes: Mapping[str, Size] = field(default_factory=lambda: BERT_SIZES)
    # Positions of the table start behind the row of padding (RoBERTa).
    positions_after_padding: bool = False
    # Of its authors' own files, which are read and never written: what stands there for `prefix`; and biases
    # of ours that they haven't, and are 0, by the weights that have as many rows.
    authors_prefix: str = ""
    authors_zeros: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_pooler(self) -> bool:
        return any(row.ours == "encoder.pooler" for row in self.encoder)

    @property
    def has_next_sentence(self) -> bool:
        return any(row.ours == "next_sentence" for row in self.heads)

    def config_keys(self) -> dict[str, str]:
        """Keys of a config.json that are read -> values of BertConfig."""
        return {**self.aliases, **{theirs: ours for ours, theirs in self.spelling.items()}}

    def is_free(self, value: str) -> bool:
        """Whether a value of BertConfig may differ from what was published: whether it can be written."""
        return value in self.spelling or (self.rotary is not None and value in self.rotary.values)

    @property
    def adapted_layer(self) -> tuple[ModuleNames, ...]:
        """The rows of a layer by the modules that an adapter names."""
        return self.class_layer or self.layer

    @property
    def shared_heads(self) -> frozenset[str]:
        """First parts of names that a classifier has in common with the masked-language head."""
        fine_tuned = {self.sequence_head.dense, self.sequence_head.norm}
        shared = (name for row in self.heads for name in row.theirs if name in fine_tuned)
        return frozenset(name.partition(".")[0] for name in shared)

    @property
    def fine_tuned_heads(self) -> frozenset[str]:
        """First parts of names that none but heads for fine-tuning have."""
        known = {part for heads in self.classes.values() for part in heads}
        return frozenset(known - {row.ours.partition(".")[0] for row in self.heads} - self.shared_heads)


TOKENS = "encoder.embeddings.token.weight"  # what a decoder is tied to
MASKED_LANGUAGE = frozenset({"masked_language"})
CLASSIFIER = frozenset({"classifier"})


def layer_rows(
    attention: tuple[str, ...], output: str, attention_norm: str, up: tuple[str, ...], down: str, norm: str
) -> tuple[ModuleNames, ...]:
    """The rows of a layer by what its modules are called in a file."""
    layer = "encoder.layers.{}"
    return (
        ModuleNames(f"{layer}.attention.qkv", attention),
        ModuleNames(f"{layer}.attention.output", (output,)),
        ModuleNames(f"{layer}.attention_norm", (attention_norm,)),
        ModuleNames(f"{layer}.feed_forward.up", up),
        ModuleNames(f"{layer}.feed_forward.down", (down,)),
        ModuleNames(f"{layer}.feed_forward_norm", (norm,)),
    )


GROUP = "bertsmith.families"  # of entry points
FAMILIES: dict[str, Family] = {}


def register(family: Family) -> Family:
    """Makes a family known by its `model_type`. Raises ValueError for one that is there already."""
    if FAMILIES.setdefault(family.model_type, family) != family:
        raise ValueError(f"there is a family {family.model_type!r} already")
    return family


def find_family(model_type: object) -> Family:
    """Raises ModelError naming the families there are, or what keeps an installed one from being used."""
    name = model_type if isinstance(model_type, str) else reprlib.repr(model_type)
    if name not in FAMILIES:
        installed = {point.name: point for point in entry_points(group=GROUP)}
        if name not in installed:
            there = list(dict.fromkeys((*FAMILIES, *installed)))
            raise ModelError(
                f"There is no family {reprlib.repr(name)}.{did_you_mean(name, there)} "
                f"There are: {', '.join(there)}. docs/add-a-family-or-optimiser.md tells how to add one."
            )
        origin = f"The family {name!r} ({installed[name].value})"
        try:
            family = installed[name].load()
        except (ImportError, AttributeError) as error:
            raise ModelError(f"{origin} can't be imported: {error}.") from error
        if not isinstance(family, Family) or family.model_type != name:
            raise ModelError(f"{origin} must be a Family whose model_type is {name!r}.")
        register(family)
    return FAMILIES[name]

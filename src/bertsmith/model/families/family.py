"""The record of a family of encoders: its name, the names of tensors and keys in its files, and its values of
BertConfig.

A family is a set of values, never a class: `Bert` computes all families. docs/add-a-family-or-optimiser.md
tells how a package adds one. A value of `BertConfig` that a record's `spelling` doesn't name can't be written
to the family's config.json, so it must be the record's own.

The known families are ours, those that a program registers, and those of installed packages. A package lists
its records in the entry-point group `bertsmith.families`, by `model_type`. A record is imported when a model
of that family is read. So a folder or a recipe can choose among the families that its user has installed, and
can't name code to run.
"""

import reprlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bertsmith.errors import ModelError, did_you_mean
from bertsmith.model.rotary_json import RotaryKeys


class Size(NamedTuple):
    """A published size of a family: its numbers of layers and heads, and its widths."""

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
    """The name of one of our modules, and of the modules in a file whose rows, stacked in that order, make
    it. With `second_half_first` the halves of its rows change places: gte's gate comes second.
    """

    ours: str
    theirs: tuple[str, ...]
    second_half_first: bool = False


@dataclass(frozen=True)
class HeadNames:
    """How a fine-tuned head of the family is built, and the names of its modules in a file.

    `out` is the classifier. `dense`, `activation` ("" means `BertConfig.head_act`) and `norm` come before it,
    where they are named; a `pooled` head reads the encoder's pooler instead.
    """

    out: str
    pooled: bool = False
    dense: str = ""
    activation: str = ""
    norm: str = ""
    drops_first: bool = False  # dropout before `dense` too


@dataclass(frozen=True)
class AuthorsFiles:
    """What the files of a family's authors have in place of transformers' layout.

    `zeros` are biases that they lack -> the weight with as many rows. `code` names the classes of their
    `auto_map`, which is ignored: the record computes what these do. Any other code is refused.
    """

    prefix: str  # of the encoder's names, in files with a head
    model_type: str = ""  # "": the family's
    assumed: Mapping[str, Any] = field(
        default_factory=dict
    )  # with that model_type, where config.json is silent
    zeros: Mapping[str, str] = field(default_factory=dict)
    code: Set[str] = frozenset()


@dataclass(frozen=True)
class Family:
    """What makes up a family. `{}` in a name stands for a layer's number, counted from 0; where layers share
    weights, `{group}` and `{inner}` stand for the group's number and the layer's within it.
    """

    model_type: str  # in config.json, but for `declared`
    class_prefix: str  # of its classes in transformers: "Bert" of BertForMaskedLM

    # -- names of tensors -----------------------------------------------------------------------------------
    prefix: str  # before the encoder's names, in files with a head
    encoder: tuple[ModuleNames, ...]
    layer: tuple[ModuleNames, ...]
    heads: tuple[ModuleNames, ...]  # of pre-training
    tied: Mapping[str, str]  # a tensor that a file may repeat -> the tensor that it must be equal to

    # -- heads ----------------------------------------------------------------------------------------------
    # The end of a class's name in transformers, after class_prefix -> the heads that the class needs.
    classes: Mapping[str, Set[str]]
    sequence_head: HeadNames
    token_head: HeadNames
    span_head: HeadNames | None = None  # None: no class for question answering

    # -- values of BertConfig -------------------------------------------------------------------------------
    published: Mapping[str, Any] = field(default_factory=dict)  # the family's, where they differ from BERT's
    # transformers' defaults for keys that a config.json leaves out, where they differ from the published
    # values.
    assumed: Mapping[str, Any] = field(default_factory=dict)
    spelling: Mapping[str, str] = field(default_factory=dict)  # field of BertConfig -> key of config.json
    aliases: Mapping[str, str] = field(default_factory=dict)  # other keys that are read -> field
    # Keys of config.json without a field of BertConfig -> the supported values. A key that is missing or null
    # always is supported, so with () it must be missing or null.
    required: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    harmless: Mapping[str, str] = field(default_factory=dict)  # keys that change no number -> the reason
    # The entries that tell the family, where its config.json has another family's model_type: transformers
    # would take it for that.
    declared: Mapping[str, Any] = field(default_factory=dict)
    # A key of config.json with names of its own for the values of a field -> these names -> the values.
    renamed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Further keys that are written, for all models; None as null.
    written: Mapping[str, Any] = field(default_factory=dict)
    rotary: RotaryKeys | None = None
    # The rows of `layer` with the modules of transformers' class, where files use other names: adapters name
    # these modules.
    class_layer: tuple[ModuleNames, ...] = ()
    sizes: Mapping[str, Size] = field(default_factory=lambda: BERT_SIZES)
    # The position table starts after the row of padding (RoBERTa).
    positions_after_padding: bool = False
    always_projects: bool = False  # embeddings as wide as the hidden states have a projection too
    sentence_order: bool = False  # the pair head tells whether two segments are in order (ALBERT)
    optional_segments: bool = False  # `type_vocab_size` may be 0 or more, whatever is published
    authors: AuthorsFiles | None = None  # where the authors' own files differ; they are read, never written
    read_as: Mapping[str, str] = field(default_factory=dict)  # another name of a module in files -> the usual
    ignored: frozenset[str] = (
        frozenset()
    )  # first parts of the names of tensors, which transformers ignores too
    refused: Mapping[str, str] = field(default_factory=dict)  # a part of a tensor's name -> what it means

    @property
    def has_pooler(self) -> bool:
        return any(row.ours == "encoder.pooler" for row in self.encoder)

    @property
    def has_next_sentence(self) -> bool:
        return any(row.ours == "next_sentence" for row in self.heads)

    def config_keys(self) -> dict[str, str]:
        """The keys of a config.json that are read -> fields of BertConfig."""
        return {**self.aliases, **{theirs: ours for ours, theirs in self.spelling.items()}}

    def is_free(self, value: str) -> bool:
        """Whether a field of BertConfig may differ from the published value, since it can be written."""
        return value in self.spelling or (self.rotary is not None and value in self.rotary.values)

    @property
    def adapted_layer(self) -> tuple[ModuleNames, ...]:
        """The rows of a layer, with the names of modules that an adapter uses."""
        return self.class_layer or self.layer

    @property
    def shared_heads(self) -> frozenset[str]:
        """The first parts of the names of modules that a classifier shares with the masked-language head."""
        fine_tuned = {self.sequence_head.dense, self.sequence_head.norm}
        shared = (name for row in self.heads for name in row.theirs if name in fine_tuned)
        return frozenset(name.partition(".")[0] for name in shared)

    @property
    def fine_tuned_heads(self) -> frozenset[str]:
        """The first parts of the names of modules that only heads for fine-tuning have."""
        known = {part for heads in self.classes.values() for part in heads}
        return frozenset(known - {row.ours.partition(".")[0] for row in self.heads} - self.shared_heads)


TOKENS = "encoder.embeddings.token.weight"  # decoders are tied to it
MASKED_LANGUAGE = frozenset({"masked_language"})
CLASSIFIER = frozenset({"classifier"})


def layer_rows(
    attention: tuple[str, ...],
    output: str,
    attention_norm: str,
    up: tuple[str, ...],
    down: str,
    norm: str,
    *,
    gate_second: bool = False,
) -> tuple[ModuleNames, ...]:
    """The table rows of a layer, from the names of its modules in a file: `attention` has the queries, keys
    and values, `up` the input of the feed-forward part (with the gate, if it has one), `down` its output.
    `gate_second` says that one tensor has the activated half after the other.
    """
    layer = "encoder.layers.{}"
    return (
        ModuleNames(f"{layer}.attention.qkv", attention),
        ModuleNames(f"{layer}.attention.output", (output,)),
        ModuleNames(f"{layer}.attention_norm", (attention_norm,)),
        ModuleNames(f"{layer}.feed_forward.up", up, gate_second),
        ModuleNames(f"{layer}.feed_forward.down", (down,)),
        ModuleNames(f"{layer}.feed_forward_norm", (norm,)),
    )


GROUP = "bertsmith.families"  # of entry points
FAMILIES: dict[str, Family] = {}


def register(family: Family) -> Family:
    """Registers a family under its `model_type`, and returns it. Raises ValueError where another one has that
    name.
    """
    if FAMILIES.setdefault(family.model_type, family) != family:
        raise ValueError(f"there is a family {family.model_type!r} already")
    return family


def find_family(model_type: object) -> Family:
    """The family of this name, which is imported from an installed package if need be.

    Raises ModelError for an unknown name, with the known ones, and for an installed family that can't be
    imported or isn't a Family of that name.
    """
    name = model_type if isinstance(model_type, str) else reprlib.repr(model_type)
    if name not in FAMILIES:
        from importlib.metadata import entry_points  # here: a tenth of the time to open a model

        installed = {point.name: point for point in entry_points(group=GROUP)}
        if name not in installed:
            known = list(dict.fromkeys((*FAMILIES, *installed)))
            raise ModelError(
                f"There is no family {reprlib.repr(name)}.{did_you_mean(name, known)} "
                f"There are: {', '.join(known)}. docs/add-a-family-or-optimiser.md tells how to add one."
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

"""The shape of an encoder, in the names of Hugging Face's config.json, and the published sizes.

A variant is a set of values of independent settings, never a class. A family's record in
bertsmith.model.families says which values make it up, and what its config.json calls them.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from bertsmith.argument_checks import check_arguments, check_text
from bertsmith.errors import BertsmithError, ModelError
from bertsmith.model.families import BERT_SIZES, Family, find_family
from bertsmith.model.rotary_json import layer_types
from bertsmith.validation import UserSettings, describe_problem

Activation = Literal["gelu", "gelu_new", "relu", "silu"]
LayerType = Literal["full_attention", "sliding_attention"]

PRESETS = {name: (size.layers, size.width) for name, size in BERT_SIZES.items()}  # BERT's layers and width


class BertConfig(UserSettings):
    """Shape and constants of one model. Sizes are counts, probabilities are in [0, 1).

    A setting that isn't given has the value of the published family. `type_vocab_size` 0 means no segment
    embeddings. `max_position_embeddings` is the longest sequence, or the number of rows of the position
    table, of which RoBERTa leaves the first `pad_token_id + 1` unused: see `max_length`.
    """

    refusal: ClassVar[type[BertsmithError]] = ModelError

    model_type: str = "bert"
    vocab_size: int = Field(30522, ge=1, le=2_000_000)
    hidden_size: int = Field(768, ge=1, le=65_536)
    num_hidden_layers: int = Field(12, ge=1, le=1_000)
    num_attention_heads: int = Field(12, ge=1, le=1_024)
    intermediate_size: int = Field(3072, ge=1, le=1_000_000)
    hidden_act: Activation = "gelu"
    max_position_embeddings: int = Field(512, ge=1, le=1_000_000)
    type_vocab_size: int = Field(2, ge=0, le=1_000)
    initializer_range: float = Field(0.02, gt=0)
    layer_norm_eps: float = Field(1e-12, gt=0)
    pad_token_id: int = Field(0, ge=0)
    # Width of the embeddings, where a linear layer projects them to the hidden size (ALBERT, ELECTRA). None
    # where the two are the same; the hidden size itself becomes None, but for ALBERT, which always projects.
    embedding_size: int | None = Field(None, ge=1, le=65_536)
    projection_place: Literal["after_norm", "before_norm"] = "after_norm"  # the latter has no bias

    # Dropout of attention weights, and elsewhere. `embedding_dropout` None means `hidden_dropout_prob`. It is
    # applied to the outputs of attention and the feed-forward part (BERT), or inside both (ModernBERT), or to
    # the outputs and inside the feed-forward part (gte), or to attention's output and there (jina).
    hidden_dropout_prob: float = Field(0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(0.1, ge=0, lt=1)
    embedding_dropout: float | None = Field(None, ge=0, lt=1)
    dropout_places: Literal["outputs", "inside", "outputs and inside", "first output and inside"] = "outputs"

    # Positions: a learned table, or rotations of queries and keys (Su et al. 2021). A pair of rotated values
    # is the i-th of either half of a head, or two neighbours.
    position_embedding: Literal["learned", "rotary"] = "learned"
    rotary_pairs: Literal["halves", "neighbours"] = "halves"
    rope_theta: float = Field(10_000.0, gt=0)
    local_rope_theta: float = Field(10_000.0, gt=0)  # of layers with local attention
    rope_factor: float = Field(1.0, gt=0)  # all angles are divided by it (linear scaling, Chen et al. 2023)

    # What is added to the scores of attention, the same in all layers: for each head a learned value by the
    # distance from query to key, in 32 buckets (Raffel et al. 2020, section 2.1), or minus the distance times
    # a slope (ALiBi: Press et al. 2022, with the same slopes to either side, as encoders have it).
    position_bias: Literal["none", "buckets", "alibi"] = "none"

    # Local attention: a token sees `local_attention // 2` tokens to either side; with None it sees all. Every
    # n-th layer, counted from the first, sees all in any case; `layer_types` is for other patterns.
    local_attention: int | None = Field(None, ge=0, le=1_000_000)
    global_attn_every_n_layers: int = Field(1, ge=1)
    layer_types: tuple[LayerType, ...] | None = None

    # Disentangled attention (He et al. 2021): scores also have products of queries with keys of the distance
    # (c2p) and of keys with queries of the distance (p2c), made of one table of distances. Up to
    # `position_buckets` / 2 each distance has rows of its own, longer ones share some (-1: none share), and
    # those from `max_relative_positions` on share all (-1: from `max_position_embeddings` on). Without
    # `position_biased_input` there is no table of positions.
    relative_attention: bool = False
    pos_att_type: tuple[Literal["c2p", "p2c"], ...] = ()
    share_att_key: bool = False  # products of the distances have the weights of queries and keys
    position_buckets: int = Field(-1, ge=-1, le=100_000)
    max_relative_positions: int = Field(-1, ge=-1, le=100_000)
    norm_rel_ebd: Literal["none", "layer_norm"] = "none"
    position_biased_input: bool = True

    # A convolution over the embeddings, which is added to the first layer's output; 0: none.
    conv_kernel_size: int = Field(0, ge=0, le=1_000)
    conv_act: Literal["tanh", "gelu", "gelu_new", "relu", "silu"] = "tanh"
    conv_groups: int = Field(1, ge=1, le=65_536)

    # Layers that share their weights (ALBERT): as many groups, each with `inner_group_num` layers of its own,
    # which are repeated in their order. None: every layer has its own weights. `num_hidden_layers` counts a
    # layer as often as it is computed.
    num_hidden_groups: int | None = Field(None, ge=1, le=1_000)
    inner_group_num: int = Field(1, ge=1, le=1_000)

    # Norms: before attention and feed-forward part, or after them; one before the first attention; one after
    # the last layer.
    pre_norm: bool = False
    first_norm: bool = True
    final_norm: bool = False
    norm: Literal["layer", "rms"] = "layer"
    norm_bias: bool = True
    attention_bias: bool = True
    feed_forward: Literal["plain", "gated"] = "plain"  # gated: Shazeer 2020
    feed_forward_bias: bool = True
    up_bias: bool | None = None  # of the feed-forward part's first product; None: `feed_forward_bias`

    # The dense layer before the vocabulary, which some families also have before their classifiers.
    head_act: Activation | None = None  # None: `hidden_act`
    head_bias: bool = True
    classifier_pooling: Literal["cls", "mean"] = "cls"

    @model_validator(mode="before")
    @classmethod
    def _fill_published(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        family = find_family(values.get("model_type", "bert"))
        values = {**family.published, **values}
        width = values.get("hidden_size", cls.model_fields["hidden_size"].default)
        if values.get("embedding_size") == width and not family.always_projects:
            values["embedding_size"] = None
        return values

    @field_validator("pos_att_type", mode="before")
    @classmethod
    def _split_types(cls, value: Any) -> Any:
        """The types in one order, of a list or as "p2c|c2p"."""
        parts = [part.strip() for part in value.lower().split("|")] if isinstance(value, str) else value
        if isinstance(parts, list | tuple) and all(isinstance(part, str) for part in parts):
            return sorted(set(parts))
        return value

    @model_validator(mode="after")
    def _check_shape(self) -> "BertConfig":
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads = {self.num_attention_heads} must divide "
                f"hidden_size = {self.hidden_size}"
            )
        if self.position_embedding == "rotary" and self.head_size % 2:
            raise ValueError(
                f"rotary positions turn pairs of values, but a head has {self.head_size}: give "
                "hidden_size / num_attention_heads an even value"
            )
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types has {len(self.layer_types)} entries for {self.num_hidden_layers} layers"
            )
        self._check_relative_attention()
        repeats, rest = divmod(self.num_hidden_layers, self.inner_group_num)
        if rest or (self.num_hidden_groups or 1) > repeats:
            raise ValueError(
                f"{self.num_hidden_layers} layers can't be split into num_hidden_groups = "
                f"{self.num_hidden_groups} of inner_group_num = {self.inner_group_num} each"
            )
        if self.max_length < 1:
            raise ValueError("max_position_embeddings leaves no position for a token")
        self._require_spelled()
        return self

    def _check_relative_attention(self) -> None:
        if self.relative_attention != bool(self.pos_att_type):
            raise ValueError(
                f"relative_attention = {self.relative_attention} doesn't go with pos_att_type = "
                f"{list(self.pos_att_type)}: one is empty without the other"
            )
        if self.position_buckets == 1:
            raise ValueError("position_buckets = 1 must be at least 2, or -1 for none")
        if self.conv_kernel_size and not self.conv_kernel_size % 2:
            raise ValueError(f"conv_kernel_size = {self.conv_kernel_size} must be odd, or 0 for none")
        if self.conv_kernel_size and self.hidden_size % self.conv_groups:
            raise ValueError(f"conv_groups = {self.conv_groups} must divide hidden_size = {self.hidden_size}")

    def _require_spelled(self) -> None:
        """Raises ValueError for a value that the family's config.json has no key for: a saved model would
        read back another one.
        """
        family = self.family
        for key, values in family.renamed.items():
            name = family.config_keys()[key]
            if getattr(self, name) not in values.values():
                raise ValueError(
                    f"{name} = {getattr(self, name)} is impossible for {self.model_type}: it has "
                    f"{' or '.join(values.values())}"
                )
        for name, info in type(self).model_fields.items():
            usual, value = family.published.get(name, info.default), getattr(self, name)
            if value is None and usual is not None:  # a file leaves None out, and would give the usual one
                raise ValueError(
                    f"{name} = None is impossible for {self.model_type}: give a value as {usual}"
                )
            if value != usual and name != "model_type" and not family.is_free(name):
                way_out = (
                    f": take a tokenizer whose padding is piece {usual}" if name == "pad_token_id" else ""
                )
                raise ValueError(
                    f"{name} = {value} is impossible for {self.model_type}, where it is {usual}{way_out}"
                )
        usual_segments = family.published.get("type_vocab_size", 2)
        if not family.optional_segments and (self.type_vocab_size == 0) != (usual_segments == 0):
            raise ValueError(f"type_vocab_size = {self.type_vocab_size} is impossible for {self.model_type}")

    @property
    def family(self) -> Family:
        return find_family(self.model_type)

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def layer_order(self) -> tuple[int, ...]:
        """The layers with weights of their own, counted from 0, in the order in which they are computed: each
        once, or several times where layers share weights.
        """
        if self.num_hidden_groups is None:
            return tuple(range(self.num_hidden_layers))
        inner = self.inner_group_num
        repeats = self.num_hidden_layers // inner
        groups = (
            int(i / (repeats / self.num_hidden_groups)) for i in range(repeats)
        )  # as transformers rounds
        return tuple(group * inner + number for group in groups for number in range(inner))

    def shares_weights_at(self, count: int) -> bool:
        """Whether one of the lowest `count` layers has the weights of one of the layers above."""
        return not set(self.layer_order[:count]).isdisjoint(self.layer_order[count:])

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings, and of the vectors that the masked-language head compares with them."""
        return self.embedding_size or self.hidden_size

    @property
    def position_offset(self) -> int:
        """Row of the position table used by a sequence's first token."""
        return self.pad_token_id + 1 if self.family.positions_after_padding else 0

    @property
    def max_length(self) -> int:
        """The longest sequence in tokens, special tokens included."""
        return self.max_position_embeddings - self.position_offset

    @property
    def relative_span(self) -> tuple[int, int]:
        """Half the number of rows of the table of distances, and the distance from which on all share one."""
        most = self.max_relative_positions
        most = most if most > 0 else self.max_position_embeddings
        return (self.position_buckets if self.position_buckets > 0 else most), most

    def is_local(self, layer: int) -> bool:
        """Whether this layer, counted from 0, has local attention."""
        types = layer_types(self.__dict__)
        return self.local_attention is not None and types[layer] == "sliding_attention"

    def window(self, layer: int) -> int | None:
        """The number of tokens to either side that a token of this layer sees; None for all."""
        return (
            self.local_attention // 2 if self.local_attention is not None and self.is_local(layer) else None
        )

    @property
    def masked_language_act(self) -> Activation:
        """The activation of the masked-language head, by default that of the layers."""
        return self.head_act or self.hidden_act

    @property
    def has_pooler(self) -> bool:
        return self.family.has_pooler

    @property
    def has_next_sentence(self) -> bool:
        return self.family.has_next_sentence


@check_arguments(name=check_text)
def preset(name: str, **changes: Any) -> BertConfig:
    """The config of a published size by its name: of the family `model_type` among `changes`, by default
    BERT.

    `changes` are further values of BertConfig. Raises ModelError for an unknown name and for values that are
    impossible.
    """
    sizes = find_family(changes.get("model_type", "bert")).sizes
    if name not in sizes:
        raise ModelError(f"Unknown size {name!r}. The published sizes are: {', '.join(sizes)}.")
    layers, width, heads, intermediate, embedding = sizes[name]
    values: dict[str, Any] = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
    }
    if embedding is not None:
        values["embedding_size"] = embedding
    return make_config(values | changes, where=f"the size {name}")


def make_config(values: dict[str, Any], where: str) -> BertConfig:
    """The config with these values. Raises ModelError that begins with `where` and names the first wrong
    one.
    """
    try:
        return BertConfig.model_validate(values)
    except ValidationError as error:
        raise ModelError(f"{where}: {describe_problem(error, BertConfig)}") from error

"""The shape of a BERT, in the names of Hugging Face's config.json, and the published sizes.

A variant is a set of values on independent axes, never a class: BERT, RoBERTa and DistilBERT differ in
where positions start, whether there are segments and a pooler, and how their config.json spells things.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bertsmith.errors import ModelError
from bertsmith.validation import first_problem

Family = Literal["bert", "roberta", "distilbert"]
Activation = Literal["gelu", "gelu_new", "relu"]

# Turc et al. 2019 (arXiv 1908.08962, table 1) and Devlin et al. 2019 (section 3): layers, width.
# Heads are width / 64 and the feed-forward width is 4 x width throughout.
PRESETS: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


# What each family was published with, where it differs from BERT: Liu et al. 2019 (RoBERTa: byte-level
# vocabulary, one segment, <pad> is 1, positions start after it), Sanh et al. 2019 (DistilBERT: half of
# BERT's layers, no segments).
_PUBLISHED: dict[str, dict[str, Any]] = {
    "roberta": {
        "vocab_size": 50265,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
    },
    "distilbert": {"num_hidden_layers": 6, "type_vocab_size": 0},
}


class BertConfig(BaseModel):
    """Shape and constants of one model. Sizes are counts, probabilities are in [0, 1).

    What isn't given is as the family was published. `type_vocab_size` 0 means no segment embeddings
    (DistilBERT). `max_position_embeddings` counts rows of the position table; RoBERTa leaves the first
    `pad_token_id + 1` of them unused, see `max_length`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model_type: Family = "bert"
    vocab_size: int = Field(30522, ge=1, le=2_000_000)
    hidden_size: int = Field(768, ge=1, le=65_536)
    num_hidden_layers: int = Field(12, ge=1, le=1_000)
    num_attention_heads: int = Field(12, ge=1, le=1_024)
    intermediate_size: int = Field(3072, ge=1, le=1_000_000)
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = Field(0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(0.1, ge=0, lt=1)
    max_position_embeddings: int = Field(512, ge=1, le=1_000_000)
    type_vocab_size: int = Field(2, ge=0, le=1_000)
    initializer_range: float = Field(0.02, gt=0)
    layer_norm_eps: float = Field(1e-12, gt=0)
    pad_token_id: int = Field(0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _as_published(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return _PUBLISHED.get(str(values.get("model_type")), {}) | values

    @model_validator(mode="after")
    def _possible(self) -> "BertConfig":
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads = {self.num_attention_heads} must divide "
                f"hidden_size = {self.hidden_size}"
            )
        if self.max_length < 1:
            raise ValueError("max_position_embeddings leaves no position for a token")
        if (self.type_vocab_size == 0) != (self.model_type == "distilbert"):
            raise ValueError(f"type_vocab_size = {self.type_vocab_size} is impossible for {self.model_type}")
        if self.model_type == "distilbert" and self.layer_norm_eps != 1e-12:
            # its config.json has no key for it: the saved model would compute something else
            raise ValueError("layer_norm_eps must be 1e-12 for distilbert")
        return self

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def position_offset(self) -> int:
        """Row of the position table used by a sequence's first token."""
        return self.pad_token_id + 1 if self.model_type == "roberta" else 0

    @property
    def max_length(self) -> int:
        """The longest sequence in tokens, special tokens included."""
        return self.max_position_embeddings - self.position_offset

    @property
    def masked_language_act(self) -> Activation:
        """Activation of the masked-language head: RoBERTa's is gelu whatever its layers use."""
        return "gelu" if self.model_type == "roberta" else self.hidden_act

    @property
    def has_pooler(self) -> bool:
        return self.model_type != "distilbert"

    @property
    def has_next_sentence(self) -> bool:
        """RoBERTa (section 4.2) and DistilBERT (section 3) were trained without next-sentence prediction."""
        return self.model_type == "bert"


def preset(name: str, **changes: Any) -> BertConfig:
    """A published size by name. Raises ModelError for an unknown name or an impossible change."""
    if name not in PRESETS:
        raise ModelError(f"Unknown size {name!r}. The published sizes are: {', '.join(PRESETS)}.")
    layers, width = PRESETS[name]
    values: dict[str, Any] = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": width // 64,
        "intermediate_size": 4 * width,
    }
    return make_config(values | changes, where=f"the size {name}")


def make_config(values: dict[str, Any], where: str) -> BertConfig:
    """Checks values and names the first that is wrong. Raises ModelError."""
    try:
        return BertConfig.model_validate(values)
    except ValidationError as error:
        raise ModelError(f"{where}: {first_problem(error, BertConfig)}") from error

"""The sides of pretraining_quality.py: what each is trained by, and the settings that were tried for it."""

from dataclasses import dataclass
from typing import Any

LENGTH = 128  # tokens of a text, or pair, at most
_UNIT = 8  # widths are multiples of it

# What follows `bertsmith pretrain budget`.
OURS: dict[str, tuple[str, ...]] = {
    "ours": (),
    # A trained encoder wants less than its new head.
    "minilm": (
        "init=minilm",
        "optimizer.kind=adamw",
        "optimizer.learning_rate=1e-3",
        "optimizer.layer_decay=0.7",
    ),
}


@dataclass(frozen=True)
class Plain:
    """Settings of a plain loop. Shares are of the time given: the rate rises in `warmup`, stays for `stable`,
    and falls to zero in what is left, linearly.

    family: "bert" learns from pairs (BertForPreTraining), "modernbert" from texts (ModernBertForMaskedLM).
    masked: share of tokens to predict; of them 80 % are [MASK], 10 % random, 10 % as they were.
    batch: as many texts as have this many times 128 tokens, which is how ours counts too.
    sparse: logits of the masked tokens alone, where transformers has a setting for it (ModernBERT).
    """

    family: str
    learning_rate: float
    weight_decay: float = 0.01
    beta2: float = 0.999
    dropout: float = 0.0
    initializer_range: float = 0.02
    masked: float = 0.15
    batch: int = 32
    warmup: float = 0.1
    stable: float = 0.0
    precision: str = "float32"
    sparse: bool = False
    fused: bool = False

    @property
    def pairs(self) -> bool:
        return self.family == "bert"

    def rate(self, progress: float) -> float:
        """The learning rate at `progress` in [0, 1]."""
        falling = 1 - self.warmup - self.stable
        return self.learning_rate * max(0.0, min(progress / self.warmup, (1 - progress) / falling, 1.0))


PLAIN = {
    # Devlin et al. 2019, appendix A.2
    "transformers": Plain("bert", 1e-4, dropout=0.1),
    "transformers-tuned": Plain("bert", 2e-3, beta2=0.98, initializer_range=0.08, fused=True),
    # Warner et al. 2024, appendix A
    "modernbert": Plain("modernbert", 8e-4, weight_decay=1e-5, beta2=0.98, masked=0.3),
    "modernbert-tuned": Plain(
        "modernbert",
        2e-3,
        beta2=0.98,
        initializer_range=0.08,
        masked=0.3,
        sparse=True,
        fused=True,
    ),
}

# What --choose tries, a line at a time, the best so far kept.
_TRIED: dict[str, tuple[Any, ...]] = {
    "learning_rate": (1e-3, 2e-3, 4e-3, 8e-3),
    "precision": ("float32", "bfloat16"),
    "batch": (8, 16, 32),
    "initializer_range": (0.02, 0.04, 0.08),
    "stable": (0.0, 0.4, 0.7),
}
TRIED = {
    "transformers-tuned": _TRIED,
    "modernbert-tuned": _TRIED | {"masked": (0.15, 0.3)},
}


def shape_beside(ours: Any, settings: Plain) -> Any:
    """A BertConfig: layers, width and heads of ours in the loop's family, and as many weights as a whole.
    What the family has more or fewer of, its feed-forward parts make up for.
    """
    from bertsmith.model.config import make_config

    kept = ("vocab_size", "pad_token_id", "hidden_size", "num_hidden_layers", "num_attention_heads")
    values = {name: getattr(ours, name) for name in kept} | {
        "model_type": settings.family,
        "initializer_range": settings.initializer_range,
        "hidden_dropout_prob": settings.dropout,
        "attention_probs_dropout_prob": settings.dropout,
    }

    def with_width(units: int) -> Any:
        return make_config(values | {"intermediate_size": units * _UNIT}, settings.family)

    least, more = (weights(with_width(units)) for units in (1, 2))
    return with_width(max(1 + round((weights(ours) - least) / (more - least)), 1))


def weights(shape: Any) -> int:
    """How many a model of masked language has."""
    from bertsmith.model.layers.initialisation import meta_init
    from bertsmith.tasks.pretraining.pretraining import PretrainingModel

    model = meta_init(lambda: PretrainingModel(shape, next_sentence=False))
    return sum(each.numel() for each in model.parameters())

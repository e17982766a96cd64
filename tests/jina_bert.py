"""jina's BERT (Günther et al. 2023, arXiv 2310.19923), which transformers lacks: importing this gives the
BERT of transformers jina's parts wherever a config says "alibi". They are written from the formulas, a head
at a time; all other parts are transformers' own.
"""

import functools
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.bert import modeling_bert as bert

from bertsmith.model.families.bert import JINA_BERT

ALIBI = {"position_embedding_type": "alibi", "feed_forward_type": "geglu", "emb_pooler": "mean"}
# Slopes as exponents of 2: of 8 heads as Press et al. 2022, section 3, have them, and of 12 as their code.
# Half as many heads have every second one, and those beyond a power of two the odd ones of twice as many.
SLOPES = {
    1: [-8],
    2: [-4, -8],
    3: [-4, -8, -2],
    4: [-2, -4, -6, -8],
    5: [-2, -4, -6, -8, -1],
    6: [-2, -4, -6, -8, -1, -3],
    8: [-1, -2, -3, -4, -5, -6, -7, -8],
    12: [*range(-1, -9, -1), -0.5, -1.5, -2.5, -3.5],
}


class JinaEmbeddings(bert.BertEmbeddings):
    """Without a table of positions."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        del self.position_embeddings

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None, **unused: Any) -> Tensor:
        segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        embedded = self.word_embeddings(input_ids) + self.token_type_embeddings(segments)
        return self.dropout(self.LayerNorm(embedded))


class JinaAttention(bert.BertSelfAttention):
    """Each score has minus the distance times the head's slope added."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **unused: Any) -> Any:
        batch, length, width = hidden_states.shape
        heads = self.num_attention_heads
        query, key, value = (
            linear(hidden_states).view(batch, length, heads, -1)
            for linear in (self.query, self.key, self.value)
        )
        places = torch.arange(length)
        distances = (places[None] - places[:, None]).abs()
        mixed, all_weights = [], []
        for head, exponent in enumerate(SLOPES[heads]):
            scores = query[:, :, head] @ key[:, :, head].mT / (width // heads) ** 0.5
            scores = scores - 2.0**exponent * distances
            if attention_mask is not None:
                hidden = ~attention_mask if attention_mask.dtype == torch.bool else attention_mask < 0
                scores = scores.masked_fill(hidden[:, 0], -torch.inf)
            weights = self.dropout(scores.softmax(-1))
            all_weights.append(weights)
            mixed.append(weights @ value[:, :, head])
        return torch.cat(mixed, -1), torch.stack(all_weights, 1)


class JinaFeedForward(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gated_layers = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.wo = nn.Linear(config.intermediate_size, config.hidden_size)
        self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.activation = {"geglu": nn.functional.gelu, "reglu": nn.functional.relu}[config.feed_forward_type]

    def forward(self, hidden_states: Tensor) -> Tensor:
        first, second = self.gated_layers(hidden_states).chunk(2, -1)
        return self.layernorm(hidden_states + self.wo(self.dropout(self.activation(first) * second)))


class JinaLayer(bert.BertLayer):
    def __init__(self, config: Any, layer_idx: int | None = None) -> None:
        super().__init__(config, layer_idx)
        self.attention.self = JinaAttention(config, layer_idx=layer_idx)
        del self.intermediate, self.output
        self.mlp = JinaFeedForward(config)

    def feed_forward_chunk(self, attention_output: Tensor) -> Tensor:
        return self.mlp(attention_output)


def jina_config(**values: Any) -> Any:
    """Their JinaBertConfig, whose files call themselves BERT's."""
    return transformers.BertConfig(**ALIBI | values)


_build_bert = bert.BertModel.__init__


@functools.wraps(_build_bert)
def _build(model: Any, config: Any, *more: Any, **named: Any) -> None:
    _build_bert(model, config, *more, **named)
    if getattr(config, "position_embedding_type", None) == "alibi":
        model.embeddings = JinaEmbeddings(config)
        model.encoder.layer = nn.ModuleList(JinaLayer(config, i) for i in range(config.num_hidden_layers))


def _save(model: Any, folder: Path | str, **named: Any) -> None:
    """With the names of jina's classes."""
    transformers.PreTrainedModel.save_pretrained(model, folder, **named)
    if getattr(model.config, "position_embedding_type", None) == "alibi":
        path = Path(folder) / "config.json"
        settings = json.loads(path.read_text())
        path.write_text(json.dumps(settings | {"architectures": [f"Jina{type(model).__name__}"]}))


bert.BertModel.__init__ = _build
bert.BertPreTrainedModel.save_pretrained = _save
_CLASSES = {f"JinaBert{ending}": getattr(transformers, f"Bert{ending}") for ending in JINA_BERT.classes}
for _module in (transformers, sys.modules["transformers"]):  # which replaces itself when a model is imported
    vars(_module).update(_CLASSES, JinaBertConfig=jina_config)

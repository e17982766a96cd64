"""The embeddings of token ids, the input of an encoder's first layer.

N tokens in the packed batch, E width of the embeddings, H hidden size, V vocabulary, P values of a patch.
"""

import torch
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch
from bertsmith.model.config import BertConfig
from bertsmith.model.layers.elementwise import Dropout, make_norm


class Embeddings(nn.Module):
    """Token embeddings, plus position and segment embeddings where the family has them, normalised (Devlin et
    al. 2019, figure 2), and projected where their width isn't the hidden size (Clark et al. 2020, section
    3.2), behind the norm or before it (DeBERTa).

    The P values of a patch are read by a linear layer, whose weights are the last P rows of the token
    embeddings.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.position_offset = config.position_offset
        width = config.embedding_width
        self.token = nn.Embedding(config.vocab_size, width)
        self.position: nn.Embedding | None = None
        if config.position_embedding == "learned" and config.position_biased_input:
            self.position = nn.Embedding(config.max_position_embeddings, width)
        self.segment = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.projects_first = config.projection_place == "before_norm"
        self.norm = make_norm(config, config.hidden_size if self.projects_first else width)
        rate = config.embedding_dropout
        self.dropout = Dropout(config.hidden_dropout_prob if rate is None else rate)
        self.project: nn.Linear | None = None
        if config.embedding_size is not None:
            self.project = nn.Linear(width, config.hidden_size, bias=not self.projects_first)

    def forward(self, batch: PackedBatch) -> Tensor:
        """The first layer's input (N, H) for the tokens of a batch."""
        embedded = self.lookup(batch)
        return embedded if self.project is None or self.projects_first else self.project(embedded)

    def lookup(self, batch: PackedBatch) -> Tensor:
        """The normalised embeddings of a batch: (N, E), before the projection, or (N, H) where that comes
        before the norm.
        """
        embedded: Tensor = self.token(batch.token_ids)
        if batch.values is not None:
            embedded = embedded + batch.values @ self.token.weight[-batch.values.shape[1] :]
        if self.position is not None:
            embedded = embedded + self.position(batch.position_ids + self.position_offset)
        if self.segment is not None:
            segments = batch.segment_ids
            if self.segment.num_embeddings == 1:  # RoBERTa has one segment for both texts of a pair
                segments = torch.zeros_like(segments)
            embedded = embedded + self.segment(segments)
        if self.project is not None and self.projects_first:
            embedded = self.project(embedded)
        normalised: Tensor = self.dropout(self.norm(embedded))
        return normalised


@torch.no_grad()
def share_segment(model: nn.Module) -> None:
    """Gives every segment the embedding of the first, for a model that was trained on single texts: the other
    segments' embeddings are random and untrained, and would disturb the second text of a pair.
    """
    for weight in _segment_weights(model):
        weight.copy_(weight[:1].expand_as(weight))


def shares_segment(model: nn.Module) -> bool:
    """Whether all segments have one embedding."""
    return all(torch.equal(weight, weight[:1].expand_as(weight)) for weight in _segment_weights(model))


def _segment_weights(model: nn.Module) -> list[Tensor]:
    tables = (part.segment for part in model.modules() if isinstance(part, Embeddings))
    return [table.weight for table in tables if table is not None]

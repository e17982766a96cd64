"""Token ids → hidden states.

N tokens in the packed batch, E width of the embeddings, H hidden size, V vocabulary, P values of a patch.
"""

import torch
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch
from bertsmith.model.config import BertConfig
from bertsmith.model.layers.elementwise import Dropout, make_norm


class Embeddings(nn.Module):
    """Token embeddings, plus those of positions and segments where the family has them, normalised (Devlin et
    al. 2019, figure 2). Where they are of another width than the layers a product follows (Clark et al. 2020,
    section 3.2).

    A patch is read by a linear layer: value p of it times row V - P + p of the token embeddings.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.position_offset = config.position_offset
        width = config.embedding_width
        self.token = nn.Embedding(config.vocab_size, width)
        self.position: nn.Embedding | None = None
        if config.position_embedding == "learned":
            self.position = nn.Embedding(config.max_position_embeddings, width)
        self.segment = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.norm = make_norm(config, width)
        own = config.embedding_dropout
        self.dropout = Dropout(config.hidden_dropout_prob if own is None else own)
        self.project = nn.Linear(width, config.hidden_size) if config.embedding_size is not None else None

    def forward(self, batch: PackedBatch) -> Tensor:
        """The first layer's input (N, H) for the tokens of a batch."""
        embedded = self.lookup(batch)
        return embedded if self.project is None else self.project(embedded)

    def lookup(self, batch: PackedBatch) -> Tensor:
        """Without the product behind them: -> (N, E)."""
        embedded: Tensor = self.token(batch.token_ids)
        if batch.values is not None:
            embedded = embedded + batch.values @ self.token.weight[-batch.values.shape[1] :]
        if self.position is not None:
            embedded = embedded + self.position(batch.position_ids + self.position_offset)
        if self.segment is not None:
            segments = batch.segment_ids
            if self.segment.num_embeddings == 1:  # RoBERTa's, for both texts of a pair
                segments = torch.zeros_like(segments)
            embedded = embedded + self.segment(segments)
        normalised: Tensor = self.dropout(self.norm(embedded))
        return normalised


@torch.no_grad()
def share_segment(model: nn.Module) -> None:
    """Gives each segment the first one's embedding, for a model that has only seen single texts: those of
    others were drawn at random and never trained, and would set a pair's second text apart.
    """
    for weight in _segment_weights(model):
        weight.copy_(weight[:1].expand_as(weight))


def shares_segment(model: nn.Module) -> bool:
    """Whether all segments have one embedding."""
    return all(torch.equal(weight, weight[:1].expand_as(weight)) for weight in _segment_weights(model))


def _segment_weights(model: nn.Module) -> list[Tensor]:
    tables = (part.segment for part in model.modules() if isinstance(part, Embeddings))
    return [table.weight for table in tables if table is not None]

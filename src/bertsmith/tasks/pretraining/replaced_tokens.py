"""Replaced-token detection (Clark et al. 2020, ELECTRA): a small generator fills masks, and the model that is
wanted, the discriminator, says of every token whether it is the text's own.

N tokens in the packed batch, K masked positions, R rows that a head reads, H hidden size, E width of the
embeddings, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig, make_config
from bertsmith.model.layers.activation import Activation
from bertsmith.model.layers.initialisation import initialise
from bertsmith.model.layers.layer import Layer
from bertsmith.model.meta_init import meta_init
from bertsmith.tasks.pretraining.pretraining import MaskedLanguageHead, PretrainingModel

_ROWS = 128  # positions sampled at a time: x 30,522 pieces x 4 bytes are 16 MB
_BLOCK = 256  # pieces of the vocabulary whose probabilities are added up together


class ReplacedTokenHead(nn.Module):
    """dense → activation → one logit a token: above 0, it was replaced."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = Activation(config.hidden_act)
        self.out = nn.Linear(config.hidden_size, 1)
        initialise(self, config.initializer_range)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(N, H) -> (N,)."""
        logits: Tensor = self.out(self.activation(self.dense(hidden_states)))
        return logits.squeeze(1)


class Generator(nn.Module):
    """A masked language model on the discriminator's embeddings: layers and a head of its own."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        width = config.embedding_size
        self.project = None if width is None else nn.Linear(width, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.num_hidden_layers))
        self.masked_language = MaskedLanguageHead(config)
        if self.project is not None:
            initialise(self.project, config.initializer_range)
        for layer in self.layers:
            layer.initialise(config)  # type: ignore[operator]

    def forward(self, embedded: Tensor, batch: PackedBatch, rows: Tensor) -> Tensor:
        """(N, E) embeddings of the masked text -> (R, E), what the vocabulary is compared with at `rows`."""
        states = embedded if self.project is None else self.project(embedded)
        *lower, last = self.layers
        for layer in lower:
            states = layer(states, batch)
        predicting: Tensor = self.masked_language(last(states, batch, rows))
        return predicting


class ReplacedTokenModel(nn.Module):
    """Discriminator and generator with one set of embeddings (section 3.2): all of them, LayerNorm too, as in
    google-research/electra; each has a product of its own behind them where its layers are of another width.
    """

    def __init__(self, config: BertConfig, generator: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Bert(config)
        self.replaced_token = ReplacedTokenHead(config)
        self.generator = Generator(generator)

    def another(self) -> "ReplacedTokenModel":
        """One of the same parts, with weights of its own."""
        return ReplacedTokenModel(self.config, self.generator.config)

    def masked_language(self) -> PretrainingModel:
        """The generator as a model of its own: the same weights, not a copy of them."""
        alone = meta_init(lambda: PretrainingModel(self.generator.config, next_sentence=False))
        embeddings = alone.encoder.embeddings
        shared = self.encoder.embeddings
        embeddings.token, embeddings.position = shared.token, shared.position
        embeddings.segment, embeddings.norm = shared.segment, shared.norm
        embeddings.project = self.generator.project
        alone.encoder.layers = self.generator.layers
        alone.masked_language = self.generator.masked_language
        return alone.train(self.training)


def generator_config(config: BertConfig, share: float) -> BertConfig:
    """As deep as the discriminator, with about `share` of its heads, width and feed-forward width (section
    3.2), at least one head; heads are as wide as the discriminator's.
    """
    heads = max(1, round(config.num_attention_heads * share))
    width = heads * config.head_size
    smaller = {
        "num_attention_heads": heads,
        "hidden_size": width,
        "intermediate_size": max(1, round(config.intermediate_size * width / config.hidden_size)),
        "embedding_size": config.embedding_width,
    }
    return make_config(config.model_dump() | smaller, "the generator")


@torch.no_grad()
def sample_pieces(predicting: Tensor, weight: Tensor, bias: Tensor, uniforms: Tensor) -> Tensor:
    """One piece a position from softmax(predicting weight^T + bias), by inverting its distribution function.

    predicting (K, E), weight (V, E), bias (V,), uniforms (K,) in [0, 1) -> (K,) int64. The same uniform gives
    the same piece, whatever stands beside it. (K, V) is never in memory at once.
    """
    pieces = [
        _inverted(F.linear(rows, weight, bias).float().softmax(1), wanted)
        for rows, wanted in zip(predicting.split(_ROWS), uniforms.split(_ROWS), strict=True)
    ]
    return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.int64, device=predicting.device)


def _inverted(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """(K, V) -> (K,): first the block of the vocabulary, then the piece in it. Adding up a whole row piece by
    piece took longer than the product that makes it.
    """
    size = probabilities.shape[1]
    whole = size // _BLOCK * _BLOCK
    blocks = probabilities[:, :whole].unflatten(1, (size // _BLOCK, _BLOCK)).sum(2)
    rest = probabilities[:, whole:].sum(1, keepdim=True)
    reached = torch.cat([blocks, rest], 1).cumsum(1, dtype=torch.float64)
    wanted = (uniforms * reached[:, -1]).unsqueeze(1)  # (K, 1)
    block = torch.searchsorted(reached, wanted, right=True).clamp_(max=reached.shape[1] - 1)
    before = F.pad(reached, (1, 0)).gather(1, block)
    places = torch.arange(_BLOCK, device=block.device)
    inside = probabilities.gather(1, (block * _BLOCK + places).clamp_(max=size - 1))  # (K, 256)
    place = torch.searchsorted(inside.cumsum(1, dtype=torch.float64), wanted - before, right=True)
    return (block * _BLOCK + place.clamp_(max=_BLOCK - 1)).squeeze(1).clamp_(max=size - 1)

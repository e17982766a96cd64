"""Counts the floating-point operations of matrix products, which no implementation can avoid, as the measure
of work and speed.

N tokens in the packed batch, R rows that a head reads, L length of a sequence.
"""

import numpy as np
import numpy.typing as npt

from bertsmith.model.config import BertConfig

Lengths = npt.NDArray[np.int64] | npt.NDArray[np.float64]


def encoder_flops(config: BertConfig, lengths: Lengths, rows: float) -> float:
    """The FLOPs of one forward pass over packed sequences of these lengths, without padding. After the last
    layer's attention only `rows` tokens are computed.
    """
    return linear_flops(config, float(lengths.sum()), rows) + attention_flops(config, lengths)


def linear_flops(config: BertConfig, tokens: float, rows: float) -> float:
    """The FLOPs of the products with weights: of the layers, of a projection of the embeddings, and of what
    layers make of the table of distances, once for all tokens. After the last layer's attention only `rows`
    tokens are computed.
    """
    hidden, wide, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    products = 3 if config.feed_forward == "gated" else 2
    projection = 0 if config.embedding_size is None else 2 * config.embedding_size * hidden
    before = 6 * hidden * hidden
    after = 2 * hidden * hidden + 2 * products * hidden * wide
    convolution = 2 * config.conv_kernel_size * hidden * hidden / config.conv_groups
    products_of_distances = 2 if config.share_att_key else len(config.pos_att_type)
    distances = (
        config.relative_attention * 2 * config.relative_span[0] * products_of_distances * 2 * hidden**2
    )
    of_layers = layers * (tokens * before + distances) + ((layers - 1) * tokens + rows) * after
    return tokens * (projection + convolution) + of_layers


def attention_flops(config: BertConfig, lengths: Lengths) -> float:
    """The FLOPs of queries with the keys they see, and of attention weights with values; local layers see a
    window. With disentangled attention, of queries and keys with their distances, too.
    """
    windows = (config.window(layer) for layer in range(config.num_hidden_layers))
    pairs = 4 * config.hidden_size * sum(seen_pairs(lengths, window) for window in windows)
    if not config.relative_attention:
        return pairs
    met = float((lengths * np.minimum(lengths, 2 * config.relative_span[0])).sum())
    return pairs + 2 * config.hidden_size * config.num_hidden_layers * len(config.pos_att_type) * met


def seen_pairs(lengths: Lengths, window: int | None) -> float:
    """The number of pairs of a query and a key that it sees: L squared for each sequence, fewer with a
    window.
    """
    length = lengths.astype(float)
    if window is None:
        return float((length**2).sum())
    reach = np.minimum(window, length - 1)  # to either side, but for the ends
    return float((length * (2 * reach + 1) - reach * (reach + 1)).sum())


def vocabulary_flops(config: BertConfig, positions: float, sampled: int = 0) -> float:
    """The FLOPs of the masked-language head at this many positions, against the whole vocabulary or `sampled`
    tokens of it.
    """
    pieces = min(sampled or config.vocab_size, config.vocab_size)
    return 2 * positions * config.embedding_width * (pieces + config.hidden_size)


def muon_flops(config: BertConfig, iterations: int = 5) -> float:
    """The FLOPs a step, whatever the batch, of Muon's Newton-Schulz iterations on every layer's matrices."""
    hidden, wide = config.hidden_size, config.intermediate_size
    gated = config.feed_forward == "gated"
    matrices = [(hidden, hidden)] * 4 + [(wide, hidden)] * (1 + gated) + [(hidden, wide)]
    if not config.share_att_key:
        matrices += [(hidden, hidden)] * len(config.pos_att_type)
    total = 0.0
    for rows, columns in (sorted(matrix) for matrix in matrices):
        # a Gram matrix, its square, and their product with the matrix
        total += 2 * rows * rows * (columns + rows + columns)
    return (max(config.layer_order) + 1) * iterations * total  # weights that layers share are stepped once

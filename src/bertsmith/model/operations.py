"""Floating-point operations that no implementation can avoid: what speed is measured by.

N tokens in the packed batch, R rows that a head reads.
"""

import numpy as np
import numpy.typing as npt

from bertsmith.model.config import BertConfig


def encoder_operations(config: BertConfig, lengths: npt.NDArray[np.int64], rows: float) -> float:
    """Of one forward pass: matrix products alone, and of the last layer after its attention `rows` only.

    This is what the packed layout computes, which is less than a padded one does.
    """
    hidden, wide, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    tokens = float(lengths.sum())
    attention = 4 * hidden * float((lengths.astype(float) ** 2).sum())
    before = tokens * 6 * hidden * hidden + attention  # of one layer: queries, keys, values, attention
    after = 2 * hidden * hidden + 4 * hidden * wide  # of one layer and row: output, feed-forward
    return layers * before + ((layers - 1) * tokens + rows) * after

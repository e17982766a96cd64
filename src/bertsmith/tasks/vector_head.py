"""A vector for each text of an example: its hidden states pooled, and made as long as all others.

N   tokens in the packed batch    E   examples    T   texts of an example    H   hidden size
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.tasks.encoding import Layout
from bertsmith.tasks.similarity import Pooling, pool_texts
from bertsmith.tasks.task import Head


class VectorHead(Head):
    """Has no weights: what it makes of a text, sentence-transformers makes of the same folder."""

    def __init__(self, pooling: Pooling, normalise: bool) -> None:
        super().__init__()
        self.pooling, self.normalise = pooling, normalise

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """(N, H) -> (E, T, H), T the most texts that an example has; those with fewer end in zeros."""
        most = int(layout.text_of_window.max()) + 1
        text = layout.example_of_window * most + layout.text_of_window
        places, number = torch.unique_consecutive(text, return_inverse=True)
        alone = replace(
            layout,
            example_of_window=number,
            text_of_window=torch.zeros_like(number),
            rows_of_example=(0,) * len(places),
        )
        vectors = pool_texts(states, alone, self.pooling, texts=1)
        vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        if self.normalise:
            vectors = F.normalize(vectors, dim=1)
        filled = vectors.new_zeros(layout.examples * most, vectors.shape[1])
        return filled.index_copy(0, places, vectors).view(layout.examples, most, -1)

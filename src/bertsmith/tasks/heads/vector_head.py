"""A vector for each text of an example: its hidden states pooled, and made as long as all others.

N   tokens in the packed batch    E   examples    T   texts of an example    H   hidden size
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bertsmith.data.batch import to_device
from bertsmith.tasks.examples.encoding import Layout
from bertsmith.tasks.heads.pooling import Pooling, pool_texts
from bertsmith.tasks.task import Head


class VectorHead(Head):
    """Has no weights: what it makes of a text, sentence-transformers makes of the same folder."""

    per_text: ClassVar[bool] = True

    def __init__(self, pooling: Pooling, normalise: bool) -> None:
        super().__init__()
        self.joins, self.normalise = pooling, normalise
        self._pooling, self.text_vectors = pooling, (pooling, normalise)

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """(N, H) -> (E, T, H), T the most texts that an example has; those with fewer end in zeros."""
        return self.answer(self.pool(states, layout), layout)

    def pool(self, states: Tensor, layout: Layout) -> Tensor:
        return pool_texts(states, layout, self._pooling)

    def answer(self, pooled: Tensor, layout: Layout) -> Tensor:
        texts = layout.texts_of_example
        vectors = pooled.to(torch.promote_types(pooled.dtype, torch.float32))
        if self.normalise:
            vectors = F.normalize(vectors, dim=1)
        most = max(texts)
        present = np.arange(most) < np.array(texts)[:, None]  # (E, T)
        places = to_device(np.flatnonzero(present), vectors.device)
        filled = vectors.new_zeros(len(texts) * most, vectors.shape[1])
        return filled.index_copy(0, places, vectors).view(len(texts), most, -1)

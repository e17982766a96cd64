"""Heads on hidden states: a classifier as the encoder's family has it, or text vectors.

N tokens, R rows, W windows, E examples, T texts, H hidden size, C outputs, F features of columns beside the
text.
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.data.batch import to_device
from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig
from bertsmith.model.families import HeadNames
from bertsmith.model.layers.elementwise import FUNCTIONS, Activation, Dropout, make_norm
from bertsmith.model.layers.initialisation import initialise
from bertsmith.tasks.examples.encoding import Layout
from bertsmith.tasks.heads.pooling import Pooling, mean_of_windows, pool_examples, pool_texts, pool_tokens
from bertsmith.tasks.task import Head


class ClassifierHead(Head):
    """[dense → activation → norm →] dropout → out: the modules in brackets if the family has them.

    Without `names` the family has no class for such a head, and it is saved in a file beside the encoder.
    """

    def __init__(
        self,
        config: BertConfig,
        names: HeadNames | None,
        outputs: int,
        dropout: float | None = None,
        columns: int = 0,
    ) -> None:
        """`dropout` is by default the encoder's; `out` also reads the F features of `columns`."""
        super().__init__()
        probability = config.hidden_dropout_prob if dropout is None else dropout
        head_names = names or HeadNames("")
        self.pooled = head_names.pooled
        self.dense = self.activation = self.norm = self.before_dense = None
        if head_names.dense:
            self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.head_bias)
            self.activation = Activation(head_names.activation or config.masked_language_act)
        if head_names.norm:
            self.norm = make_norm(config)
        if head_names.drops_first:
            self.before_dense = Dropout(probability)
        self.dropout = Dropout(probability)
        self.columns = columns
        self.out = nn.Linear(config.hidden_size + columns, outputs)
        files = {"dense": head_names.dense, "norm": head_names.norm, "out": head_names.out}
        self.file_names = {ours: theirs for ours, theirs in files.items() if theirs}
        if names is None or columns:  # no class of transformers reads them
            self.architecture, self.file_names = None, {}
        initialise(self, config.initializer_range)

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """Outputs (E, C), or (R, C) for a head that is `per_row`."""
        return self.in_units(self.out(self.apply_dropout(self.features(states, layout))))

    def outputs(self, states: Tensor) -> Tensor:
        if self.dense is not None and self.activation is not None:
            states = FUNCTIONS[self.activation.name](self.dense(states))
        outputs: Tensor = self.out(states if self.norm is None else self.norm(states))
        return outputs

    def refuse_graph(self, task: str) -> None:
        if self.columns:
            raise ModelError(
                f"The model for {task} reads columns of a table beside the text (features), but an exported "
                "graph reads texts alone. Train without features, or serve this model with bertsmith serve."
            )

    def features(self, states: Tensor, layout: Layout) -> Tensor:
        """(R, H) -> (R, H), the input of `out`."""
        if self.before_dense is not None:
            states = self.before_dense(states)
        if self.dense is not None and self.activation is not None:
            states = self.activation(self.dense(states))
        if self.norm is not None:
            states = self.norm(states)
        return states

    def apply_dropout(self, features: Tensor) -> Tensor:
        """Applies dropout to the text's features only: a whole column is too much to lose at once."""
        if not self.columns:
            dropped: Tensor = self.dropout(features)
            return dropped
        text, columns = features[..., : -self.columns], features[..., -self.columns :]
        return torch.cat([self.dropout(text), columns], -1)

    def answer_features(self, features: Tensor) -> Tensor:
        return self.in_units(self.out(features.to(self.out.weight.device)))

    def in_units(self, outputs: Tensor) -> Tensor:
        """Converts the output of `out` into the unit of the task's labels."""
        return outputs


class PooledHead(ClassifierHead):
    """One output for each example. Either as the family was published, from [CLS] or from the mean of all
    tokens; several windows of a text are averaged. Or a linear layer on the `pooling` of all tokens,
    normalised to length 1: in sentence-transformers' terms pooling, normalisation and a dense layer. `out`
    also reads the features of the table's `columns`, if there are any.
    """

    architecture: str | None = "ForSequenceClassification"

    def __init__(
        self, config: BertConfig, outputs: int, pooling: Pooling | None = None, columns: int = 0
    ) -> None:
        names = None if pooling else config.family.sequence_head
        super().__init__(config, names, outputs, columns=columns)
        self.pooling = pooling
        self.joins = pooling or "cls"  # a mean of windows
        self.reads_all = pooling is not None or config.classifier_pooling == "mean"

    def features(self, states: Tensor, layout: Layout) -> Tensor:
        """States (W, H), one row for each window, or (N, H) if the head `reads_all` -> (E, H + F)."""
        return self._add_columns(self.pool(states, layout), layout)

    def pool(self, states: Tensor, layout: Layout) -> Tensor:
        """The features of the text (E, H), not normalised yet."""
        if self.pooling is not None:
            return pool_tokens(states, layout, self.pooling)
        if self.reads_all:
            states = mean_of_windows(states, layout)
        features = super().features(states, layout)
        return features if layout.windows == layout.examples else pool_examples(features, layout, "mean")

    def answer(self, pooled: Tensor, layout: Layout) -> Tensor:
        """Pooled text features (E, H) -> outputs (E, C)."""
        return self.in_units(self.out(self.apply_dropout(self._add_columns(pooled, layout))))

    def _add_columns(self, pooled: Tensor, layout: Layout) -> Tensor:
        text = pooled if self.pooling is None else F.normalize(pooled, dim=1)
        return torch.cat([text, layout.columns.to(text.dtype)], 1) if self.columns else text


class RowHead(ClassifierHead):
    """A classifier with an output for each row that is read."""

    per_row: ClassVar[bool] = True


class VectorHead(Head):
    """Text vectors. It has no weights: sentence-transformers computes the same vectors from the folder."""

    per_text: ClassVar[bool] = True

    def __init__(self, pooling: Pooling, normalise: bool) -> None:
        super().__init__()
        self.joins, self.normalise = pooling, normalise
        self._pooling, self.text_vectors = pooling, (pooling, normalise)

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """(N, H) -> (E, T, H), T the largest number of texts in an example; shorter examples are padded with
        zeros.
        """
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
        positions = to_device(np.flatnonzero(present), vectors.device)
        filled = vectors.new_zeros(len(texts) * most, vectors.shape[1])
        return filled.index_copy(0, positions, vectors).view(len(texts), most, -1)


class PairHead(Head):
    """Pools each of two texts. Without classes its output is their cosine, with classes their logits."""

    def __init__(self, config: BertConfig, pooling: Pooling, classes: int) -> None:
        super().__init__()
        self._pooling = self.joins = pooling
        self.text_vectors = pooling, True  # normalised: the dot product is the cosine
        self.classifier = nn.Linear(3 * config.hidden_size, classes) if classes else None
        if self.classifier is not None:
            initialise(self.classifier, config.initializer_range)

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """(N, H) -> cosines (E, 1) or logits (E, C)."""
        return self.answer(self.pool(states, layout), layout)

    def pool(self, states: Tensor, layout: Layout) -> Tensor:
        return pool_texts(states, layout, self._pooling)

    def refuse_graph(self, task: str) -> None:
        if self.classifier is not None:
            raise ModelError(
                f"The model is for {task} with classes: it compares the vectors of two texts with a layer, "
                "but an exported graph reads one text at a time. Train with target=score, or classification "
                "on pairs."
            )

    def answer(self, pooled: Tensor, layout: Layout) -> Tensor:
        first, second = pooled.view(layout.examples, 2, -1).unbind(1)
        if self.classifier is None:
            return F.cosine_similarity(first, second).unsqueeze(1)
        logits: Tensor = self.classifier(torch.cat([first, second, (first - second).abs()], 1))
        return logits

"""Heads on hidden states: a classifier as the encoder's family has it, or text vectors.

N tokens, R rows (hidden states that the head reads: each window's first token, each word's first token, or
all tokens), W windows, E examples, T texts, H hidden size, C outputs, F features of columns beside the text.
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
from bertsmith.tasks.heads.pooling import (
    Pooling,
    Projection,
    mean_of_windows,
    pool_examples,
    pool_texts,
    pool_tokens,
)
from bertsmith.tasks.task import Head


class ClassifierHead(Head):
    """[dense → activation → norm →] dropout → out: the modules in brackets if the family has them.

    Without `names` the family has no class for such a head, and it is saved in a file beside the encoder.
    """

    def __init__(
        self,
        config: BertConfig,
        names: HeadNames | None,
        output_count: int,
        dropout: float | None = None,
        column_features: int = 0,
    ) -> None:
        """`dropout` is by default the encoder's. `out` also reads `column_features` numbers (F) that are made
        of columns beside the text.
        """
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
        self.column_features = column_features
        self.out = nn.Linear(config.hidden_size + column_features, output_count)
        names_in_files = {"dense": head_names.dense, "norm": head_names.norm, "out": head_names.out}
        self.file_names = {ours: theirs for ours, theirs in names_in_files.items() if theirs}
        if names is None or column_features:  # no class of transformers has such a head
            self.architecture, self.file_names = None, {}
        initialise(self, config.initializer_range)

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """Outputs (E, C), or (R, C) for a head that is `per_row`."""
        return self.to_label_units(self.out(self.apply_dropout(self.features(states, layout))))

    def outputs(self, states: Tensor) -> Tensor:
        """`forward` for a graph, which has neither dropout nor columns: (…, H) -> (…, C), each state on its
        own, in the unit of `out`.
        """
        if self.dense is not None and self.activation is not None:
            states = FUNCTIONS[self.activation.name](self.dense(states))
        outputs: Tensor = self.out(states if self.norm is None else self.norm(states))
        return outputs

    def refuse_graph(self, task: str) -> None:
        if self.column_features:
            raise ModelError(
                f"The model for {task} reads columns of a table beside the text (features), but an exported "
                "graph reads texts alone. Train without features, or serve this model with bertsmith serve."
            )

    def features(self, states: Tensor, layout: Layout) -> Tensor:
        """(R, H) -> (R, H), the input of `out`: hidden states after dense, activation and norm."""
        if self.before_dense is not None:
            states = self.before_dense(states)
        if self.dense is not None and self.activation is not None:
            states = self.activation(self.dense(states))
        if self.norm is not None:
            states = self.norm(states)
        return states

    def apply_dropout(self, features: Tensor) -> Tensor:
        """Applies dropout to the text's features only: a whole column is too much to lose at once."""
        if not self.column_features:
            dropped: Tensor = self.dropout(features)
            return dropped
        text, columns = features[..., : -self.column_features], features[..., -self.column_features :]
        return torch.cat([self.dropout(text), columns], -1)

    def answer_features(self, features: Tensor) -> Tensor:
        """Outputs (E, C) for features (E, F) that were computed earlier, without dropout."""
        return self.to_label_units(self.out(features.to(self.out.weight.device)))

    def to_label_units(self, outputs: Tensor) -> Tensor:
        """Converts outputs of `out` into the unit of the task's labels; a regression's `out` gives
        standardised numbers. By default they are the same.
        """
        return outputs


class PooledHead(ClassifierHead):
    """One output for each example. Either as the family was published, from [CLS] or from the mean of all
    tokens; several windows of a text are averaged. Or a linear layer on the `pooling` of all tokens,
    normalised to length 1: in sentence-transformers' terms pooling, normalisation and a dense layer. `out`
    also reads the features of the table's `columns`, if there are any.
    """

    architecture: str | None = "ForSequenceClassification"

    def __init__(
        self,
        config: BertConfig,
        output_count: int,
        pooling: Pooling | None = None,
        column_features: int = 0,
    ) -> None:
        names = None if pooling else config.family.sequence_head
        super().__init__(config, names, output_count, column_features=column_features)
        self.pooling = pooling
        self.joins = pooling or "cls"  # joins the vectors of a text's windows; "cls" takes their mean
        self.reads_all = pooling is not None or config.classifier_pooling == "mean"

    def features(self, states: Tensor, layout: Layout) -> Tensor:
        """States (W, H), one row for each window, or (N, H) if the head `reads_all` -> (E, H + F)."""
        return self._normalise_and_add_columns(self.pool(states, layout), layout)

    def pool(self, states: Tensor, layout: Layout) -> Tensor:
        """The text's part of the features (E, H), not normalised yet: the `pooling` of its tokens, or as the
        family was published, with dense, activation and norm before the mean over windows.
        """
        if self.pooling is not None:
            return pool_tokens(states, layout, self.pooling)
        if self.reads_all:
            states = mean_of_windows(states, layout)
        features = super().features(states, layout)
        return features if layout.windows == layout.examples else pool_examples(features, layout, "mean")

    def answer(self, pooled: Tensor, layout: Layout) -> Tensor:
        """What `pool` returns, (E, H) -> outputs (E, C): the second half of `forward`, for a long text whose
        parts were pooled one by one.
        """
        return self.to_label_units(
            self.out(self.apply_dropout(self._normalise_and_add_columns(pooled, layout)))
        )

    def _normalise_and_add_columns(self, pooled: Tensor, layout: Layout) -> Tensor:
        text = pooled if self.pooling is None else F.normalize(pooled, dim=1)
        return torch.cat([text, layout.columns.to(text.dtype)], 1) if self.column_features else text


class RowHead(ClassifierHead):
    """A classifier with an output for each hidden state that it reads, such as that of a word's first token
    (tags) or of every token of a passage (answer spans).
    """

    per_row: ClassVar[bool] = True


class VectorHead(Head):
    """Text vectors. It has no weights but those of its `projection`: sentence-transformers computes the same
    vectors from the folder, by the pair `text_vectors`, a pooling and whether vectors are normalised.
    """

    per_text: ClassVar[bool] = True

    def __init__(self, pooling: Pooling, normalise: bool, projection: Projection | None = None) -> None:
        super().__init__()
        self.joins, self.normalise, self.projection = pooling, normalise, projection
        self._pooling, self.text_vectors = pooling, (pooling, normalise)

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """(N, H) -> (E, T, D), T the largest number of texts in an example; shorter examples are padded with
        zeros.
        """
        return self.answer(self.pool(states, layout), layout)

    def pool(self, states: Tensor, layout: Layout) -> Tensor:
        """(N, H) -> a vector (H,) for each text, not projected or normalised yet."""
        return pool_texts(states, layout, self._pooling)

    def answer(self, pooled: Tensor, layout: Layout) -> Tensor:
        """The vectors that `pool` returns, projected, normalised if need be and padded to (E, T, D)."""
        texts = layout.texts_of_example
        vectors = pooled.to(torch.promote_types(pooled.dtype, torch.float32))
        if self.projection is not None:
            vectors = self.projection(vectors)
        if self.normalise:
            vectors = F.normalize(vectors, dim=1)
        most = max(texts)
        present = np.arange(most) < np.array(texts)[:, None]  # (E, T)
        positions = to_device(np.flatnonzero(present), vectors.device)
        filled = vectors.new_zeros(len(texts) * most, vectors.shape[1])
        return filled.index_copy(0, positions, vectors).view(len(texts), most, -1)


class PairHead(Head):
    """Pools each of two texts, and projects it if there is a `projection`. Without classes its output is
    their cosine, with classes their logits.
    """

    def __init__(
        self, config: BertConfig, pooling: Pooling, classes: int, projection: Projection | None = None
    ) -> None:
        super().__init__()
        self._pooling = self.joins = pooling
        self.projection = projection
        width = config.hidden_size if projection is None else projection.width(config.hidden_size)
        self.text_vectors = pooling, True  # normalised: the dot product is the cosine
        self.classifier = nn.Linear(3 * (width or config.hidden_size), classes) if classes else None
        if self.classifier is not None:
            initialise(self.classifier, config.initializer_range)

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """(N, H) -> cosines (E, 1) or logits (E, C)."""
        return self.answer(self.pool(states, layout), layout)

    def pool(self, states: Tensor, layout: Layout) -> Tensor:
        """(N, H) -> (2 E, H): the vectors of the first and second text of each example in turn."""
        return pool_texts(states, layout, self._pooling)

    def refuse_graph(self, task: str) -> None:
        if self.classifier is not None:
            raise ModelError(
                f"The model is for {task} with classes: it compares the vectors of two texts with a layer, "
                "but an exported graph reads one text at a time. Train with target=score, or classification "
                "on pairs."
            )

    def answer(self, pooled: Tensor, layout: Layout) -> Tensor:
        """The vectors that `pool` returns, (2 E, H) -> cosines (E, 1) or logits (E, C)."""
        vectors = pooled if self.projection is None else self.projection(pooled)
        first, second = vectors.view(layout.examples, 2, -1).unbind(1)
        if self.classifier is None:
            return F.cosine_similarity(first, second).unsqueeze(1)
        logits: Tensor = self.classifier(torch.cat([first, second, (first - second).abs()], 1))
        return logits

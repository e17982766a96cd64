"""Auxiliary tasks that train an encoder before it gets its head, on the same labelled examples: by
contrasting texts of equal and different labels, or by filling a gap with a label's words (cloze).
"""

import re
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.arrays import Ints
from bertsmith.data.batch import to_device
from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig
from bertsmith.tasks.examples.encoding import EncodedExample, Layout, Window
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.heads.classifier_head import PooledHead
from bertsmith.tasks.heads.pooling import pool_examples
from bertsmith.tasks.pretraining.pretraining import MaskedLanguageHead
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
from bertsmith.tasks.task import Head, Metrics, Outputs, Prediction, Task
from bertsmith.text.tokens.long_texts import TextEncoding
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer

FEWEST_A_BATCH = 4  # two texts of two labels: in fewer, no text meets its own label and another one
_TEMPERATURE = 0.1
_BETWEEN_WORDS = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])")


class AuxiliaryTask(Task[Any]):
    """A task with a head and loss of its own. Reading, encoding, calibration, decoding and metrics are those
    of the task that it prepares for.
    """

    main_metric = "accuracy"

    def __init__(self, task: Task[Any]) -> None:
        super().__init__(task.settings, task.labels)
        self._task, self.name = task, task.name  # type: ignore[misc]

    def auxiliary_examples(self, train: EncodedExamples) -> EncodedExamples:
        """The training examples in the form that the auxiliary loss needs."""
        return train

    def example(self, text: Any, where: str = "the input") -> Any:
        return self._task.example(text, where)

    def read(self, path: Path | str, *, labelled: bool = True) -> list[Any]:
        return self._task.read(path, labelled=labelled)

    def texts(self, example: Any) -> Sequence[str]:
        return self._task.texts(example)

    def encode(self, example: Any, pieces: Sequence[TextEncoding], tokenizer: Tokenizer) -> EncodedExample:
        return self._task.encode(example, pieces, tokenizer)

    def calibrate(
        self, outputs: Sequence[Outputs], examples: Sequence[Any], encoded: Sequence[EncodedExample]
    ) -> Metrics:
        """Calibrates a copy of the task, because others may hold the task itself."""
        self._task = copy(self._task)
        return self._task.calibrate(outputs, examples, encoded)

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[Any], encoded: Sequence[EncodedExample]
    ) -> list[Prediction]:
        return self._task.decode(outputs, examples, encoded)

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[Any]) -> Metrics:
        return self._task.metrics(predictions, examples)


class FeatureHead(PooledHead):
    """The features that a linear head would read, normalised, without a layer of its own."""

    def __init__(self, config: BertConfig, pooling: Any) -> None:
        super().__init__(config, 1, pooling)
        del self.out

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """Features (E, F) of L2 norm 1."""
        return self.features(states, layout)


class ClassContrast(AuxiliaryTask):
    """Supervised contrastive learning on the texts of a batch. Targets are a class each, or truth values (C,)
    of labels: two texts are then positives to the degree that they share labels.
    """

    @property
    def needs_global_batch(self) -> bool:
        """True: each text is contrasted with all others of the batch."""
        return True

    def head(self, config: BertConfig) -> Head:
        return FeatureHead(config, self._task.settings.linear_pooling)  # type: ignore[attr-defined]

    def loss(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        return self.losses(outputs, targets).sum()

    def losses(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        """(E, F) -> (E,); 0 for a text that shares no label with another text of the batch."""
        overlap = to_device(_label_overlap(targets), outputs.device)
        is_self = torch.eye(len(targets), dtype=torch.bool, device=outputs.device)
        similarities = (outputs.float() @ outputs.float().T / _TEMPERATURE).masked_fill(is_self, -torch.inf)
        log_probabilities = F.log_softmax(similarities, 1).masked_fill(is_self, 0.0)
        total = overlap.sum(1)
        return -(overlap * log_probabilities).sum(1) / total.where(total > 0, 1.0)

    def make_batches(self, targets: Sequence[Any], order: Ints, batch_size: int) -> list[Ints]:
        """Batches with several texts of each label, and as many labels as fit, so that each text meets others
        of its label. `order` has the shuffled indices of the examples. A text of several labels counts under
        its rarest one. `batch_size` is at least FEWEST_A_BATCH.
        """
        labels = _rarest_labels(targets)[order]
        label_rank = {label: rank for rank, label in enumerate(dict.fromkeys(labels.tolist()))}
        per_round = max(batch_size // len(label_rank), min(4, batch_size // 2))  # texts of a label
        counts = dict.fromkeys(label_rank, 0)
        rounds = np.zeros(len(order), np.int64)
        for position, label in enumerate(labels.tolist()):
            rounds[position] = counts[label] // per_round
            counts[label] += 1
        ranks = np.array([label_rank[label] for label in labels.tolist()], np.int64)
        ordered = order[np.lexsort((ranks, rounds))]
        starts = list(range(0, len(ordered), batch_size))
        if len(starts) > 1:  # divide the last two evenly: a few left over would meet hardly any others
            starts[-1] = (starts[-2] + len(ordered) + 1) // 2
        return np.split(ordered, starts[1:])


def _label_overlap(targets: Sequence[Any]) -> npt.NDArray[np.float32]:
    """Jaccard's index (E, E) of the label sets of two texts, in 0 … 1; 0 of a text with itself."""
    sets = np.array(targets)
    if sets.ndim == 1:
        sets = sets[:, None] == np.unique(sets)
    sets = sets.astype(np.float32)
    shared, sizes = sets @ sets.T, sets.sum(1)
    overlap: npt.NDArray[np.float32] = shared / np.maximum(sizes[:, None] + sizes - shared, 1)
    np.fill_diagonal(overlap, 0.0)
    return overlap


def _rarest_labels(targets: Sequence[Any]) -> Ints:
    """(E,): each text's label, or the rarest of several; -1 if it has none."""
    labels = np.array(targets)
    if labels.ndim == 1:
        return labels.astype(np.int64)
    frequency = np.where(labels, labels.sum(0), len(labels) + 1)
    return np.where(labels.any(1), frequency.argmin(1), -1).astype(np.int64)


class GapHead(Head):
    """The masked-language head, with the labels' words in place of the whole vocabulary. It reads R hidden
    states, those of the gaps alone: one for each window.
    """

    def __init__(self, masked_language: MaskedLanguageHead, word_vectors: Tensor, biases: Tensor) -> None:
        """`word_vectors` (C, H) and `biases` (C,) take the place of the vocabulary's, one for each label."""
        super().__init__()
        self.transform = nn.Sequential(
            masked_language.dense, masked_language.activation, masked_language.norm
        )
        self.out = nn.Linear(word_vectors.shape[1], word_vectors.shape[0])
        with torch.no_grad():
            self.out.weight.copy_(word_vectors)
            self.out.bias.copy_(biases)

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """Hidden states (R, H) of the gaps -> logits (E, C)."""
        outputs: Tensor = self.out(self.transform(states))
        return pool_examples(outputs, layout, "mean")


class Cloze(AuxiliaryTask):
    """A label is as likely as its words are in the gap (pattern-exploiting training, Schick and Schütze
    2021).
    """

    def __init__(self, task: Task[Any], source: Path, tokenizer: Tokenizer) -> None:
        """`source` is a folder with a masked-language head, see `supports_cloze`."""
        super().__init__(task)
        self._source, self._tokenizer = source, tokenizer

    def head(self, config: BertConfig) -> Head:
        """The pre-trained head. A word of several tokens, or a label of several words, is represented by
        their mean.
        """
        model, _ = load_pretraining_model(self._source)
        label_tokens = [torch.tensor(tokens) for tokens in label_token_ids(self.labels, self._tokenizer)]
        with torch.no_grad():
            table, bias = model.encoder.embeddings.token.weight, model.masked_language.bias
            word_vectors = torch.stack([table[tokens].mean(0) for tokens in label_tokens])
            biases = torch.stack([bias[tokens].mean() for tokens in label_tokens])
        return GapHead(model.masked_language, word_vectors, biases)

    def loss(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        return self._task.loss(outputs, targets)

    def count(self, targets: Sequence[Any]) -> float:
        """The divisor of the summed loss, as in the task that is prepared for."""
        return self._task.count(targets)

    def auxiliary_examples(self, train: EncodedExamples) -> EncodedExamples:
        """The examples with a gap after the text of each window; the head reads the gap."""
        gapped = [
            EncodedExample(tuple(map(self._add_gap, example.windows)), example.target)
            for example in train.encoded
        ]
        return EncodedExamples(train.examples, gapped)

    def _add_gap(self, window: Window) -> Window:
        ids, segments = window.token_ids, window.segment_ids
        suffix = len(self._tokenizer.template.behind)  # special tokens after the text
        end = len(ids) - suffix
        gap = min(end, self.settings.max_length - suffix - 1)
        ids = np.concatenate([ids[:gap], [self._tokenizer.mask_id], ids[end:]])
        segments = np.concatenate([segments[:gap], segments[end - 1 : end], segments[end:]])
        return Window(ids, segments, np.array([gap]))


def supports_cloze(task: Task[Any], source: Path, tokenizer: Tokenizer) -> bool:
    """Whether `Cloze` can prepare for the task: every label has words that the vocabulary knows, and the
    folder has a masked-language head to predict them. A tokenizer of values has no words.
    """
    if isinstance(tokenizer, ValueTokenizer) or not all(label_token_ids(task.labels, tokenizer)):
        return False
    try:
        load_pretraining_model(source)
    except ModelError:
        return False
    return True


def label_token_ids(labels: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The token ids of each label's words: 'card_arrival' has those of 'card arrival'. Tokens that the
    vocabulary doesn't know are left out. Empty for a label without letters, or if no token remains.
    """
    blank = tokenizer.blank_before_words  # Ġ begins a word
    texts = [blank + " ".join(filter(None, _BETWEEN_WORDS.split(label))) for label in labels]
    return [
        [token for token in encoding.ids if token != tokenizer.unk_id] if any(map(str.isalpha, text)) else []
        for text, encoding in zip(texts, tokenizer.encode_pieces(texts), strict=True)
    ]

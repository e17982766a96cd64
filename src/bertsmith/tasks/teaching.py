"""An encoder taught before it has its head, by a loss of another kind on the same labelled examples: by pairs
of one label (contrast), or by saying a label's word in a gap (cloze).
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
from bertsmith.text.tokens.long_texts import Pieces
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import ValueTokenizer

FEWEST_A_BATCH = 4  # two texts of each of two labels: of fewer none has both its like and another
_TEMPERATURE = 0.1
_BETWEEN_WORDS = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])")


class AuxiliaryTask(Task[Any]):
    """A subclass has a head and a loss of its own; all else is the task's."""

    main_metric = "accuracy"

    def __init__(self, task: Task[Any]) -> None:
        super().__init__(task.settings, task.labels)
        self._task, self.name = task, task.name  # type: ignore[misc]

    def examples(self, train: EncodedExamples) -> EncodedExamples:
        """The task's examples as they are taught by."""
        return train

    def example(self, text: Any, where: str = "the input") -> Any:
        return self._task.example(text, where)

    def read(self, path: Path | str, *, labelled: bool = True) -> list[Any]:
        return self._task.read(path, labelled=labelled)

    def texts(self, example: Any) -> Sequence[str]:
        return self._task.texts(example)

    def encode(self, example: Any, pieces: Sequence[Pieces], tokenizer: Tokenizer) -> EncodedExample:
        return self._task.encode(example, pieces, tokenizer)

    def calibrate(
        self, outputs: Sequence[Outputs], examples: Sequence[Any], encoded: Sequence[EncodedExample]
    ) -> Metrics:
        """As the task does, in a copy: the task itself may be held elsewhere, and stays as it is."""
        self._task = copy(self._task)
        return self._task.calibrate(outputs, examples, encoded)

    def decode(
        self, outputs: Sequence[Outputs], examples: Sequence[Any], encoded: Sequence[EncodedExample]
    ) -> list[Prediction]:
        return self._task.decode(outputs, examples, encoded)

    def metrics(self, predictions: Sequence[Prediction], examples: Sequence[Any]) -> Metrics:
        return self._task.metrics(predictions, examples)


class FeatureHead(PooledHead):
    """What a linear head would read, and no layer of its own."""

    def __init__(self, config: BertConfig, pooling: Any) -> None:
        super().__init__(config, 1, pooling)
        del self.out

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """-> (E, F), of length 1."""
        return self.features(states, layout)


class ClassContrast(AuxiliaryTask):
    """A loss between the texts of a batch in place of one on their labels. Targets are a class each, or
    (C,) which labels a text has: two are then alike by the share of their labels that both have.
    """

    @property
    def needs_global_batch(self) -> bool:
        return True

    def head(self, config: BertConfig) -> Head:
        return FeatureHead(config, self._task.settings.linear_pooling)  # type: ignore[attr-defined]

    def loss(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        return self.losses(outputs, targets).sum()

    def losses(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        """(E, F) -> (E,); 0 for a text that shares no label with another of the batch."""
        alike = to_device(_alikeness(targets), outputs.device)
        itself = torch.eye(len(targets), dtype=torch.bool, device=outputs.device)
        near = (outputs.float() @ outputs.float().T / _TEMPERATURE).masked_fill(itself, -torch.inf)
        shares = F.log_softmax(near, 1).masked_fill(itself, 0.0)
        total = alike.sum(1)
        return -(alike * shares).sum(1) / total.where(total > 0, 1.0)

    def make_batches(self, targets: Sequence[Any], order: Ints, batch_size: int) -> list[Ints]:
        """Batches of several texts a label, as many labels as fit: each text meets some of its own label. A
        text of several labels is counted as one of the rarest. `batch_size` is FEWEST_A_BATCH or more.
        """
        labels = _rarest(targets)[order]
        drawn = {label: place for place, label in enumerate(dict.fromkeys(labels.tolist()))}
        several = max(batch_size // len(drawn), min(4, batch_size // 2))
        seen = dict.fromkeys(drawn, 0)
        turn = np.zeros(len(order), np.int64)
        for place, label in enumerate(labels.tolist()):
            turn[place] = seen[label] // several
            seen[label] += 1
        of_label = np.array([drawn[label] for label in labels.tolist()], np.int64)
        by_turn = np.lexsort((of_label, turn))
        ordered = order[by_turn]
        starts = list(range(0, len(ordered), batch_size))
        if len(starts) > 1:  # the last two share their texts: a few left over would meet hardly any others
            starts[-1] = (starts[-2] + len(ordered) + 1) // 2
        return np.split(ordered, starts[1:])


def _alikeness(targets: Sequence[Any]) -> npt.NDArray[np.float32]:
    """(E, E) in 0 … 1, 0 of each with itself: Jaccard's index of two sets of labels."""
    sets = np.array(targets)
    if sets.ndim == 1:
        sets = sets[:, None] == np.unique(sets)
    sets = sets.astype(np.float32)
    both, sizes = sets @ sets.T, sets.sum(1)
    alike: npt.NDArray[np.float32] = both / np.maximum(sizes[:, None] + sizes - both, 1)
    np.fill_diagonal(alike, 0.0)
    return alike


def _rarest(targets: Sequence[Any]) -> Ints:
    """(E,) each text's label, or the rarest of several; -1 where there is none."""
    given = np.array(targets)
    if given.ndim == 1:
        return given.astype(np.int64)
    times = np.where(given, given.sum(0), len(given) + 1)
    return np.where(given.any(1), times.argmin(1), -1).astype(np.int64)


class GapHead(Head):
    """The masked-language head, and of the vocabulary the labels' words alone."""

    def __init__(self, known: MaskedLanguageHead, words: Tensor, biases: Tensor) -> None:
        """`words` (C, H) and `biases` (C,) are what the vocabulary's own are for each label."""
        super().__init__()
        self.transform = nn.Sequential(known.dense, known.activation, known.norm)
        self.out = nn.Linear(words.shape[1], words.shape[0])
        with torch.no_grad():
            self.out.weight.copy_(words)
            self.out.bias.copy_(biases)

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """(R, H) of the gaps -> (E, C)."""
        outputs: Tensor = self.out(self.transform(states))
        return pool_examples(outputs, layout, "mean")


class Cloze(AuxiliaryTask):
    """A label is as likely as its words are in the gap."""

    def __init__(self, task: Task[Any], source: Path, tokenizer: Tokenizer) -> None:
        """`source` is a folder with a masked-language head, as `can_be_gapped` says."""
        super().__init__(task)
        self._source, self._tokenizer = source, tokenizer

    def head(self, config: BertConfig) -> Head:
        """As pre-training left it: a word of several pieces, and a label of several words, is their mean."""
        model, _ = load_pretraining_model(self._source)
        pieces = [torch.tensor(words) for words in words_of(self.labels, self._tokenizer)]
        with torch.no_grad():
            table, bias = model.encoder.embeddings.token.weight, model.masked_language.bias
            words = torch.stack([table[piece].mean(0) for piece in pieces])
            biases = torch.stack([bias[piece].mean() for piece in pieces])
        return GapHead(model.masked_language, words, biases)

    def loss(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        return self._task.loss(outputs, targets)

    def count(self, targets: Sequence[Any]) -> float:
        return self._task.count(targets)

    def examples(self, train: EncodedExamples) -> EncodedExamples:
        """Each window with a gap behind its text, which the head reads."""
        gapped = [
            EncodedExample(tuple(map(self._with_gap, each.windows)), each.target) for each in train.encoded
        ]
        return EncodedExamples(train.examples, gapped)

    def _with_gap(self, window: Window) -> Window:
        ids, segments = window.token_ids, window.segment_ids
        end = len(ids) - len(self._tokenizer.template.behind)
        text = min(end, self.settings.max_length - len(self._tokenizer.template.behind) - 1)
        ids = np.concatenate([ids[:text], [self._tokenizer.mask_id], ids[end:]])
        segments = np.concatenate([segments[:text], segments[end - 1 : end], segments[end:]])
        return Window(ids, segments, np.array([text]))


def can_be_gapped(task: Task[Any], source: Path, tokenizer: Tokenizer) -> bool:
    """Whether every label has words, and the folder a masked-language head to say them."""
    if isinstance(tokenizer, ValueTokenizer) or not all(words_of(task.labels, tokenizer)):
        return False
    try:
        load_pretraining_model(source)
    except ModelError:
        return False
    return True


def words_of(labels: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The pieces of each label's words: 'card_arrival' has those of 'card arrival'. None of a label without
    letters, or whose words the vocabulary doesn't know.
    """
    blank = " " if tokenizer.family == "byte-level" else ""  # Ġ begins a word
    texts = [blank + " ".join(filter(None, _BETWEEN_WORDS.split(label))) for label in labels]
    found = tokenizer.encode_pieces(texts)
    return [
        [piece for piece in each.ids if piece != tokenizer.unk_id] if any(map(str.isalpha, text)) else []
        for text, each in zip(texts, found, strict=True)
    ]

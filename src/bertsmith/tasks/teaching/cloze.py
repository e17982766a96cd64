"""The encoder taught to fill a gap behind the text with the words of its label: what masked language
modelling has taught of these words helps from the first step (pattern-exploiting training: Schick and Schütze
2021; the bare gap without a phrase around it: Logan et al. 2022, "null prompts").

E examples, R rows that are read, H hidden size, C labels.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig
from bertsmith.tasks.examples.encoding import Encoded, Layout, Window
from bertsmith.tasks.finetuning import EncodedExamples
from bertsmith.tasks.heads.pooling import pool_examples
from bertsmith.tasks.pretraining.pretraining import MaskedLanguageHead
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
from bertsmith.tasks.task import Head, Task
from bertsmith.tasks.teaching.teaching import Teaching
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizer import ValueTokenizer

_BETWEEN_WORDS = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])")


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


class Cloze(Teaching):
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
            words = torch.stack([table[each].mean(0) for each in pieces])
            biases = torch.stack([bias[each].mean() for each in pieces])
        return GapHead(model.masked_language, words, biases)

    def loss(self, outputs: Tensor, targets: Sequence[Any]) -> Tensor:
        return self._task.loss(outputs, targets)

    def count(self, targets: Sequence[Any]) -> float:
        return self._task.count(targets)

    def examples(self, train: EncodedExamples) -> EncodedExamples:
        """Each window with a gap behind its text, which the head reads."""
        return EncodedExamples(train.examples, [self._gapped(each) for each in train.encoded])

    def _gapped(self, encoded: Encoded) -> Encoded:
        return Encoded(tuple(self._with_gap(each) for each in encoded.windows), encoded.target)

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

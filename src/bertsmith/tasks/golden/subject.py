"""A model of any kind, how it reads the golden texts, and what it computes for each, by stages.

The texts are in several scripts, with odd characters, written-out special tokens, pairs, and one of full
length.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.data.batch import PackedBatch
from bertsmith.errors import BertsmithError
from bertsmith.model.bert import Bert
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.model.static_table import StaticTable
from bertsmith.tasks.checkpoints.infer_task import ModelKind, model_kind
from bertsmith.tasks.checkpoints.sentence_folder import (
    SentenceSettings,
    load_sentence_model,
)
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.examples.encoding import (
    EncodedExample,
    Layout,
    Window,
    join_segments,
    pair_windows,
    rows_behind,
    single_windows,
    special_tokens,
)
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.forward_passes import evaluating, forward_passes, packed_batch
from bertsmith.tasks.heads.pooling import pool_texts
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
from bertsmith.tasks.task import Outputs, Task
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import require_text

# Several scripts, accents, numbers, odd characters, special tokens as text, and a text of almost nothing.
FIXED: tuple[str | tuple[str, str], ...] = (
    "The court granted the motion on 3 May 2019, at 10:45 a.m.",
    "my card hasn't arrived yet :( can u help??",
    "WHY IS THIS IN CAPITALS? Because It Matters.",
    "Der Käufer zahlte 1.234,56 € für die Wohnung in Köln; naïve coöperation, déjà vu.",
    "Москва — столица России. Київ.",
    "他在北京大学学习计算机科学。東京は日本の首都です。",
    "서울은 대한민국의 수도이다.",
    "القاهرة عاصمة مصر، والنيل.",
    "नई दिल्ली भारत की राजधानी है।",
    "ประเทศไทยมีเมืองหลวงคือกรุงเทพ",
    "[CLS] a [SEP] b [MASK] c [PAD] <s> </s> <mask>",
    "e\u0301 é \u00a0 \u200b \ufeff a\u0000b\tc\r\nd 👩‍👩‍👧 🇫🇷 \U0001d518 ﬁ ½",
    "https://example.org/a_b?q=1#top mail@x.org C:\\dir x=y+z;",
    ".",
    ("Who wrote it?", "It was written by Ada in 1843, and translated from French."),
    ("他是谁？", "鲁迅，原名周树人，是中国作家。"),
    ("A man is playing a guitar.", "Someone makes music."),
)
_PIECES = 96  # of the vocabulary, evenly over it
_LINES = 4  # that they are divided among
_ADDED = 8  # tokens in a text, which the shortest models read whole
_ADDED_LINES = 16
_CAPITALS = 32  # characters
_LONGEST = 512  # tokens: a text of 8,192 would take a large model half a minute
_QUESTION = "Is it so?"
_TOP = 5  # pieces for a mask


class GoldenInput(NamedTuple):
    """A text or a pair. The last text is repeated `times`, separated by blanks."""

    text: str | tuple[str, str]
    times: int = 1

    @property
    def given(self) -> str | tuple[str, str]:
        """The text or pair as it is given to the model, with repetitions."""
        *before, last = (self.text,) if isinstance(self.text, str) else self.text
        repeated = " ".join([last] * self.times)
        return (before[0], repeated) if before else repeated


def golden_inputs(tokenizer: Tokenizer, max_length: int, *, pairs_alone: bool = False) -> list[GoldenInput]:
    """The fixed texts; all tokens that were added to the vocabulary, and tokens from all over it, some in
    capitals, so that every part of the embedding table is read; and last, a text and a pair of more than
    `max_length` tokens. With `pairs_alone` each text is the second of a pair.
    """
    size = tokenizer.vocab_size
    chosen = range(0, size, max(1, size // _PIECES))
    lines = [tokenizer.decode(chosen[start::_LINES]).strip() for start in range(_LINES)]
    capitals = lines[0].upper()[:_CAPITALS]
    most = max(lines, key=len) or "a"
    times = 1 + min(max_length, _LONGEST) // max(1, len(tokenizer.encode(most).ids))
    fixed = [text for text in FIXED if not pairs_alone or not isinstance(text, str)]
    own = [text for text in (*_added_lines(tokenizer), *lines, capitals) if text]
    own_inputs = [GoldenInput((_QUESTION, text) if pairs_alone else text) for text in own]
    long = [] if pairs_alone else [GoldenInput(most, times)]
    return [*map(GoldenInput, fixed), *own_inputs, *long, GoldenInput((_QUESTION, most), times)]


def _added_lines(tokenizer: Tokenizer) -> list[str]:
    """The added tokens between full stops, where each is recognised as one. Tokens that aren't blank
    themselves have blanks around them, because next to another they might be read as a different token.
    """
    added = tokenizer.backend.get_added_tokens_decoder()
    tokens = [added[number].content for number in sorted(added) if number not in tokenizer.special_ids]
    apart = [token if token.isspace() else f" {token} " for token in tokens]
    starts = range(0, min(len(apart), _ADDED * _ADDED_LINES), _ADDED)
    return [f"a.{'.'.join(apart[start : start + _ADDED])}.b" for start in starts]


class Item(NamedTuple):
    """An input as the model reads it: the `texts` that are tokenised, and their windows."""

    input: GoldenInput
    texts: tuple[str, ...]
    encoded: EncodedExample
    example: Any = None


class GoldenSubject(ABC):
    """A model to be asked: its `encoder` as it is, or prepared for inference in any precision."""

    kind: ClassVar[str]

    def __init__(
        self, model: nn.Module, encoder: Bert | StaticTable, tokenizer: Tokenizer, max_length: int
    ) -> None:
        """`model` is what is prepared for inference: the encoder, or the module that holds it."""
        self.model, self.encoder, self.tokenizer, self.max_length = model, encoder, tokenizer, max_length

    @abstractmethod
    def item(self, given: GoldenInput) -> Item | None:
        """The input as the model reads it; None for a kind of input that it doesn't read, a pair or a single
        text.
        """

    @abstractmethod
    def outputs(self, items: Sequence[Item]) -> list[Outputs]:
        """The head's outputs, or vectors, computed as by `predict` and `embed`."""

    def answers(self, items: Sequence[Item], outputs: Sequence[Outputs]) -> list[Any]:
        """What users are told, as JSON, if that is more than the outputs."""
        return [None] * len(items)

    def pooled(self, states: Tensor, layout: Layout) -> Tensor | None:
        """What is computed from the hidden states (N, H) of one example before the outputs, if
        anything is.
        """
        return None

    @property
    def device(self) -> torch.device:
        return next(self.encoder.parameters()).device

    def inputs(self) -> list[GoldenInput]:
        """The texts and pairs that the model can be asked."""
        pairs_alone = self.item(GoldenInput("a")) is None
        return golden_inputs(self.tokenizer, self.max_length, pairs_alone=pairs_alone)

    def states(self, items: Sequence[Item], *, layers: bool = True) -> list[dict[str, Tensor]]:
        """For each item, the hidden states (N, H) by stage, first to last, and what is pooled from them.
        Without `layers` only the output of the embeddings.
        """
        if not items:
            return []
        encoded = [item.encoded for item in items]
        batch = packed_batch(encoded, range(len(items)), self.device)
        tokens = [example.tokens for example in encoded]
        states_of_items = []
        with torch.inference_mode(), evaluating(self.encoder):
            if isinstance(self.encoder, StaticTable):
                states = [self.encoder(batch)]
            elif layers:
                states = self.encoder.all_hidden_states(batch)
            else:
                states = [self.encoder.embeddings(batch)]
            names = ["embeddings", *(f"layer {number}" for number in range(1, len(states)))]
            parts = [state[: sum(tokens)].split(tokens) for state in states]
            for example, *item_states in zip(encoded, *parts, strict=True):
                by_stage = dict(zip(names, item_states, strict=True))
                if layers:
                    pooled = self.pooled(item_states[-1].float(), Layout([example], self.device))
                    by_stage |= {} if pooled is None else {"pooled": pooled}
                states_of_items.append(by_stage)
        return states_of_items


class TaskSubject(GoldenSubject):
    """A model with the head of a task, used through the task's contract alone."""

    kind = "task"

    def __init__(self, model: TaskModel, task: Task[Any], tokenizer: Tokenizer) -> None:
        super().__init__(model, model.encoder, tokenizer, task.settings.max_length)
        self.model: TaskModel = model
        self.task = task

    def item(self, given: GoldenInput) -> Item | None:
        columns: Sequence[str] = getattr(self.task, "column_names", ())
        value: Any = given.given
        if columns:  # the texts in a row of a table
            texts = (value,) if isinstance(value, str) else value
            value = dict.fromkeys(columns, 1) | dict(zip(("text", "text_pair"), texts, strict=False))
        try:
            example = self.task.example(value)
            (encoded,) = encode_examples(self.task, [example], self.tokenizer).encoded
        except BertsmithError:
            return None
        return Item(given, tuple(self.task.texts(example)), encoded, example)

    def outputs(self, items: Sequence[Item]) -> list[Outputs]:
        return outputs_of(self.model, [item.encoded for item in items])

    def answers(self, items: Sequence[Item], outputs: Sequence[Outputs]) -> list[Any]:
        examples, encoded = [item.example for item in items], [item.encoded for item in items]
        return [dict(prediction) for prediction in self.task.decode(outputs, examples, encoded)]

    def pooled(self, states: Tensor, layout: Layout) -> Tensor | None:
        head = self.model.head
        read = states if head.reads_all or layout.rows is None else states[layout.rows]
        if head.pooled:
            return self.model.encoder.pool(read)
        return None if head.joins is None else head.pool(read, layout)


class VectorSubject(GoldenSubject):
    """An encoder or a static table that embeds texts as its folder says. The first text of a pair is read as
    a query, all others as documents.
    """

    kind = "vectors"

    def __init__(
        self,
        encoder: Bert | StaticTable,
        tokenizer: Tokenizer,
        sentences: SentenceSettings,
        projection: nn.Module | None,
    ) -> None:
        most = encoder.config.max_length
        super().__init__(encoder, encoder, tokenizer, min(sentences.max_length or most, most))
        self.sentences, self.projection = sentences, projection

    def item(self, given: GoldenInput) -> Item:
        settings = self.sentences
        text = given.given
        prefixed = (
            [(settings.document_prefix, text)]
            if isinstance(text, str)
            else [(settings.query_prefix, text[0]), (settings.document_prefix, text[1])]
        )
        texts = tuple(map("".join, prefixed))
        is_table = isinstance(self.encoder, StaticTable)
        room = self.max_length - (0 if is_table else special_tokens(self.tokenizer, 1))
        sides = () if is_table else (self.tokenizer.truncation,)
        text_windows = []
        for number, ids in enumerate(self.tokenizer.encode_batch(texts, room)):
            (parts,) = single_windows(ids, room, None, *sides)
            token_ids, segment_ids = join_segments(self.tokenizer, *parts)
            prompt = "" if settings.include_prompt or is_table else prefixed[number][0]
            rows = rows_behind(prompt, self.tokenizer, len(token_ids))
            text_windows.append(Window(token_ids, segment_ids, rows, number))
        return Item(given, texts, EncodedExample(tuple(text_windows)))

    def outputs(self, items: Sequence[Item]) -> list[Outputs]:
        """The vectors (T, D) of each item's texts."""
        outputs: list[Outputs] = [np.zeros(0, np.float32)] * len(items)

        def compute(batch: PackedBatch, layout: Layout) -> Tensor:
            vectors = self.vectors(self.encoder(batch).float(), layout)
            return nn.functional.normalize(vectors[:, : self.sentences.truncate_dim], dim=1)

        encoded = [item.encoded for item in items]
        for numbers, layout, vectors in forward_passes(compute, encoded, self.device):
            ends = np.cumsum(layout.texts_of_example)[:-1]
            for number, rows in zip(numbers, np.split(vectors, ends), strict=True):
                outputs[number] = rows
        return outputs

    def pooled(self, states: Tensor, layout: Layout) -> Tensor:
        """(N, H) of all tokens, or (R, H) of those that are pooled -> (T, H), pooled as the folder says."""
        if layout.rows is not None and len(states) > len(layout.rows):
            states = states[layout.rows]
        return pool_texts(states, layout, self.sentences.pooling)

    def vectors(self, states: Tensor, layout: Layout) -> Tensor:
        """(N, H) -> (T, D), pooled and projected, not scaled to length 1. A projection stays on the
        processor.
        """
        pooled = self.pooled(states, layout)
        return pooled if self.projection is None else self.projection(pooled.cpu()).to(pooled.device)


class MaskSubject(GoldenSubject):
    """A masked language model: the token in the middle of the first text is masked and predicted."""

    kind = "masked-language"

    def __init__(self, model: PretrainingModel, tokenizer: Tokenizer) -> None:
        super().__init__(model, model.encoder, tokenizer, model.config.max_length)
        self.model: PretrainingModel = model

    def item(self, given: GoldenInput) -> Item | None:
        texts = (given.given,) if isinstance(given.given, str) else given.given
        room = self.max_length - special_tokens(self.tokenizer, len(texts))
        first, *second = self.tokenizer.encode_batch(texts, room)
        side = self.tokenizer.truncation
        (parts,) = (
            pair_windows(first, second[0], room, None, side)
            if second
            else single_windows(first, room, None, side)
        )
        if not len(parts[0]):
            return None
        token_ids, segment_ids = join_segments(self.tokenizer, *parts)
        position = len(self.tokenizer.template.before) + len(parts[0]) // 2
        token_ids[position] = self.tokenizer.mask_id
        return Item(given, texts, EncodedExample((Window(token_ids, segment_ids, np.array([position])),)))

    def outputs(self, items: Sequence[Item]) -> list[Outputs]:
        """Logits (V,) for each item's mask."""
        outputs: list[Outputs] = [np.zeros(0, np.float32)] * len(items)

        def compute(batch: PackedBatch, layout: Layout) -> Tensor:
            return self.model.vocabulary_logits(self.encoder(batch, layout.rows)).float()

        for numbers, _, logits in forward_passes(compute, [item.encoded for item in items], self.device):
            for number, row in zip(numbers, logits, strict=True):
                outputs[number] = row[: self.tokenizer.vocab_size]
        return outputs

    def answers(self, items: Sequence[Item], outputs: Sequence[Outputs]) -> list[Any]:
        """The likeliest tokens with their probabilities."""
        answers = []
        for row in outputs:
            probabilities = torch.from_numpy(row).softmax(0)
            best = probabilities.topk(min(_TOP, len(row)))
            pieces = [self.tokenizer.id_to_token(number) for number in best.indices.tolist()]
            answers.append(dict(zip(pieces, best.values.tolist(), strict=True)))
        return answers

    def pooled(self, states: Tensor, layout: Layout) -> Tensor:
        """(N, H) -> (R, H): the vectors that are compared with the token embeddings."""
        transformed: Tensor = self.model.masked_language(
            states if layout.rows is None else states[layout.rows]
        )
        return transformed


def open_subject(
    folder: Path,
    task: type[Task[Any]] | None = None,
    kind: ModelKind | None = None,
    purpose: str = "Asking for golden answers",
) -> GoldenSubject:
    """The folder's model in float32 on a processor, with torch's own kernels. `task` is for a task of your
    own, `kind` for what the model is taken as. Raises as loading does, and InputError, naming the `purpose`,
    for a model of images or numbers, which reads no text.
    """
    kind = kind or ("task" if task is not None else model_kind(folder))
    subject: GoldenSubject
    if kind == "task":
        model, opened = load_task_model(folder, task)
        subject = TaskSubject(model, opened, load_own_tokenizer(folder, model.encoder.config))
    elif kind == "masked-language":
        words, _ = load_pretraining_model(folder)
        subject = MaskSubject(words, load_own_tokenizer(folder, words.config))
    else:
        encoder, projection, sentences = load_sentence_model(folder)
        tokenizer = load_own_tokenizer(sentences.encoder, encoder.config)
        subject = VectorSubject(encoder, tokenizer, sentences, projection)
    require_text(subject.tokenizer, purpose)
    return subject

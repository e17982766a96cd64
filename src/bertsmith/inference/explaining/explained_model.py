"""A model that can be explained: in float32, with gradients, and its answer to an input as one number.

S copies of an input in a batch, N tokens of one copy, R rows that the head reads, C classes, V vocabulary,
H hidden size.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.arrays import Bools
from bertsmith.data.batch import PackedBatch
from bertsmith.data.windows import windows
from bertsmith.errors import InputError
from bertsmith.inference.embedding.text_chunks import TextWindows
from bertsmith.machine import device_of
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import load_encoder
from bertsmith.model.locate import locate_model
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.model.static_table import refuse_static
from bertsmith.tasks.checkpoints.infer_task import model_kind
from bertsmith.tasks.checkpoints.sentence_folder import read_sentence_settings, refuse_projection
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.examples.encoding import Encoded, Layout
from bertsmith.tasks.finetuning import pieces_of
from bertsmith.tasks.forward_passes import forward_pass
from bertsmith.tasks.heads.pooling import Pooling, pool_texts
from bertsmith.tasks.pretraining.fill_mask import masked_window
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
from bertsmith.tasks.task import Task
from bertsmith.tasks.task_model import TaskModel, at_least_float32
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import require_text

LONGEST = 512  # tokens of what is explained


@dataclass(frozen=True)
class Explained:
    """An input as the model reads it: one window, or one for each of two texts that are encoded apart.

    `target` names the number that `compute` gives for each of S copies: (S,), differentiable. `replaced` (N,)
    are the tokens that stand for the input, and so are others in a baseline: no special ones, and where two
    texts are encoded apart those of the second, whose likeness to the first is explained.
    """

    encoded: Encoded
    replaced: Bools
    target: str
    compute: Callable[[PackedBatch, Layout], Tensor]


class ExplainedModel:
    """A second copy of a model: what is prepared for inference has no gradients. `read` makes of an input and
    a target what is explained.
    """

    def __init__(
        self,
        module: nn.Module,
        encoder: Bert,
        tokenizer: Tokenizer,
        read: Callable[["ExplainedModel", Any, Any], Explained],
    ) -> None:
        self.module = module.requires_grad_(False).eval()
        require_text(tokenizer, "Looking inside")
        self.encoder, self.tokenizer = encoder, tokenizer
        self._read = read

    @property
    def is_of_vectors(self) -> bool:
        """Whether it answers with a cosine of two texts, and has nothing to say of one."""
        return self.module is self.encoder

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.encoder.embeddings.token.weight.device

    def read(self, given: Any, target: str | int | None = None) -> Explained:
        """`target`: a class, a piece of the vocabulary for the first mask, the number of a word; None is what
        the model answers. Raises InputError for what the model doesn't read, a target that it doesn't have,
        and more than one window or `LONGEST` tokens.
        """
        return self._read(self, given, target)

    def explained(self, encoded: Encoded, target: str, compute: Any) -> Explained:
        """With the tokens that a baseline replaces."""
        last = max(window.text for window in encoded.windows)
        kept = (*self.special, self.tokenizer.mask_id)
        replaced = [~np.isin(w.token_ids, kept) & (w.text == last) for w in encoded.windows]
        return Explained(encoded, np.concatenate(replaced), target, compute)

    @property
    def special(self) -> tuple[int, ...]:
        """Ids of the tokens around texts."""
        template = self.tokenizer.template
        return (*template.before, *template.between, *template.behind)

    def outputs(self, encoded: Encoded, compute: Any) -> Any:
        """Of the input as it is, on the host."""
        return forward_pass(compute, [encoded], self.device).found


def open_explained_model(
    name: str | Path,
    device: torch.device | str = "auto",
    as_vectors: bool = False,
    own: type[Task[Any]] | None = None,
) -> ExplainedModel:
    """By path, alias or hub name; `as_vectors` leaves a head away, `own` is a task of one's own. Raises
    ModelError as the loaders do.
    """
    folder, on = locate_model(name).folder, device_of(device)
    kind = "embedding" if as_vectors else model_kind(folder)
    refuse_static(folder)
    if kind == "task":
        model, task = load_task_model(folder, own)
        answers = _Answers(model.to(on), task)
        return ExplainedModel(model, model.encoder, load_own_tokenizer(folder, model.config), answers.read)
    if kind == "masked-language":
        masked, _ = load_pretraining_model(folder)
        tokenizer = load_own_tokenizer(folder, masked.config)
        masks = _Masks(masked, tokenizer.vocab_size)
        return ExplainedModel(masked.to(on), masked.encoder, tokenizer, masks.read)
    found = read_sentence_settings(folder)
    refuse_projection(folder, found.projection, "an explanation")
    encoder = load_encoder(found.encoder).to(on)
    tokenizer = load_own_tokenizer(found.encoder, encoder.config)
    longest = min(found.max_length or encoder.config.max_length, encoder.config.max_length)
    windows = TextWindows(tokenizer, longest, None)
    prefixes = found.query_prefix, found.document_prefix
    vectors = _Vectors(encoder, windows, found.pooling, *prefixes, found.truncate_dim)
    return ExplainedModel(encoder, encoder, tokenizer, vectors.read)


@dataclass(frozen=True)
class _Answers:
    """A fine-tuned model's."""

    model: TaskModel
    task: Task[Any]

    def read(self, model: ExplainedModel, given: Any, target: Any) -> Explained:
        example = self.task.example(given)
        (pieces,) = pieces_of(self.task, [example], model.tokenizer)
        encoded = require_short(self.task.encode(example, pieces, model.tokenizer))
        found = model.outputs(encoded, self._compute)
        name, number = self.task.answer_number(example, encoded, found, target)
        rows = sum(len(window.rows) for window in encoded.windows)

        def compute(batch: PackedBatch, layout: Layout) -> Tensor:
            outputs = self._compute(batch, layout)
            if self.model.head.per_row:
                outputs = outputs.view(-1, rows, outputs.shape[-1])  # (S R, C) -> (S, R, C)
            return number(outputs)

        return model.explained(encoded, name, compute)

    def _compute(self, batch: PackedBatch, layout: Layout) -> Tensor:
        return at_least_float32(self.model(batch, layout))


@dataclass(frozen=True)
class _Masks:
    """The probability of a piece in place of the first mask; a model may have rows without one."""

    model: PretrainingModel
    pieces: int

    def read(self, model: ExplainedModel, given: Any, target: Any) -> Explained:
        tokenizer = model.tokenizer
        if not isinstance(given, str):
            raise InputError(f"Expected a text with a mask, found {type(given).__name__}.")
        window, longest = masked_window(tokenizer, given, "The text"), self.model.config.max_length
        if (length := len(window.token_ids)) > longest:
            raise InputError(f"The text has {length:,} tokens; this model reads at most {longest:,}.")
        encoded = require_short(Encoded((replace(window, rows=window.rows[:1]),)))
        chosen = self._chosen(model, encoded, target)

        def compute(batch: PackedBatch, layout: Layout) -> Tensor:
            return self._logits(batch, layout).softmax(1)[:, chosen]

        return model.explained(encoded, tokenizer.id_to_token(chosen), compute)

    def _chosen(self, model: ExplainedModel, encoded: Encoded, target: Any) -> int:
        if target is None:
            return int(model.outputs(encoded, self._logits)[0].argmax())
        if not isinstance(target, str):
            raise InputError(f"target must be a piece of the vocabulary, found {target!r}.")
        return model.tokenizer.token_to_id(target)

    def _logits(self, batch: PackedBatch, layout: Layout) -> Tensor:
        """(S, V)."""
        logits = self.model.vocabulary_logits(self.model.encoder(batch, layout.rows))
        return logits[:, : self.pieces].float()


@dataclass(frozen=True)
class _Vectors:
    """The cosine of a query and a document; of one text, that with itself, whose attention can be seen."""

    encoder: Bert
    windows: TextWindows
    pooling: Pooling
    query_prefix: str
    document_prefix: str
    truncate_dim: int | None

    def read(self, model: ExplainedModel, given: Any, target: Any) -> Explained:
        match given:
            case str():
                texts = [self.document_prefix + given]
            case [str() as query, str() as document]:
                texts = [self.query_prefix + query, self.document_prefix + document]
            case _:
                raise InputError("Expected a text, or a query and a document to compare.")
        if target is not None:
            raise InputError(
                f"target: for vectors only the cosine is explained, found {target!r}. Leave target out."
            )
        made = []
        for number, text in enumerate(texts):
            (ids,) = self.windows.tokenizer.encode_batch([text], self.windows.room)
            ((start, end),) = windows(ids, self.windows.room, None, self.windows.tokenizer.truncation)
            (window,) = self.windows.sequence(ids[start:end]).windows
            made.append(replace(window, text=number))
        return model.explained(require_short(Encoded(tuple(made))), "cosine", self._cosines)

    def _cosines(self, batch: PackedBatch, layout: Layout) -> Tensor:
        pooled = pool_texts(self.encoder(batch, layout.rows).float(), layout, self.pooling)
        vectors = pooled.view(layout.examples, -1, pooled.shape[-1])  # (S, 1 or 2, H)
        vectors = vectors[..., : self.truncate_dim]
        return F.cosine_similarity(vectors[:, 0], vectors[:, -1])


def require_short(encoded: Encoded) -> Encoded:
    """Itself. Raises InputError for more than one window of a text, or `LONGEST` tokens."""
    windows, texts = len(encoded.windows), len({window.text for window in encoded.windows})
    if windows > texts:
        raise InputError(f"The input takes {windows} windows, but only one can be explained. Shorten it.")
    if encoded.tokens > LONGEST:
        raise InputError(
            f"The input has {encoded.tokens:,} tokens; at most {LONGEST} can be explained. Shorten it."
        )
    return encoded

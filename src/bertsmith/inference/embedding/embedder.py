"""Embedder: one vector of unit length for each text, for search and comparison.

Any encoder will do, whether or not it was trained for embeddings. Read `Embedder.embed_batches` first, which
`queries` and `documents` call; text_chunks.py tokenises.

E texts, W windows of them, N tokens in the packed batch, H hidden size, D width of a vector.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, get_args

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.argument_checks import (
    check_arguments,
    check_flag,
    check_function,
    check_text,
    integer_from,
    one_of,
    optional,
)
from bertsmith.data.batch import PackedBatch
from bertsmith.errors import InputError
from bertsmith.inference.embedding.text_chunks import Chunk, TableReader, TextWindows
from bertsmith.inference.embedding.vectors import Vectors, cut, normalised
from bertsmith.inference.engine import (
    Engine,
    autocasting,
    require_count,
    require_list,
    require_texts,
    start_engine,
)
from bertsmith.model.bert import Bert
from bertsmith.model.cpu.inference import prepare_for_inference
from bertsmith.model.cpu.int8 import Int8Choice
from bertsmith.model.cpu.kernel_layer import use_kernels_beside
from bertsmith.model.static_table import StaticTable, is_static, load_static
from bertsmith.progress import Progress
from bertsmith.tasks.checkpoints.infer_task import locate_vector_model
from bertsmith.tasks.checkpoints.projection_folders import read_projection
from bertsmith.tasks.checkpoints.sentence_folder import (
    SHORTEST,
    load_vector_encoder,
    read_sentence_settings,
)
from bertsmith.tasks.examples.encoding import EncodedExample, Layout
from bertsmith.tasks.forward_passes import forward_passes, usual_forward_tokens
from bertsmith.tasks.heads.pooling import Pooling, Projection, join_pooled, pool_examples

PromptKind = Literal["query", "document"]
Watch = Callable[[int, int], None]  # called with the numbers of texts and tokens done
LongTexts = Literal["truncate", "windows"]

PRECISIONS = (torch.float32, torch.int16, torch.int8, torch.bfloat16, torch.float16)
CHUNK = 4096  # texts: enough to find many of one length, few enough to hold
_STRIDE = 32  # tokens that neighbouring windows share


class EmbeddedChunk(NamedTuple):
    """`vectors` (E, D) of a chunk of texts, and the number of `tokens` the model computed for them."""

    vectors: Vectors
    tokens: int


Embedded = EmbeddedChunk  # the name that programs written for earlier versions import


class Embedder:
    """An encoder that turns texts into vectors, by the pooling that its folder names or else by mean pooling.

    >>> embedder = Embedder("minilm")
    >>> embedder.documents(["The court granted the motion.", "Denied."]).shape
    (2, 384)
    >>> embedder.queries(["Who won?"]) @ embedder.documents(["We did."]).T  # cosines

    Opens our own checkpoints, folders of sentence-transformers, plain encoders, and static tables (see
    docs/smaller.md), whose rows are looked up and summed on a processor in float32.

    query_prefix, document_prefix: put before each query or document; None means the folder's. prompt_name:
    one of the folder's prompts, by a task's name, before every text in place of both. max_length:
    in tokens, including special ones (without them for a static table); longer texts are truncated, or read
    in windows whose hidden states are pooled together, as long_texts says. dimensions: keep the first D of H
    dimensions, for models trained for that (Matryoshka); None means the folder's number.

    Batches are texts of like length with at most `batch_tokens` tokens and no padding: 640 by default on a
    processor, with one batch for each core at a time; 32,768 on a GPU. Vectors are float32. `compute_dtype`
    is the precision of matrix products: by default int16 by the compiled kernels, whose vectors have a cosine
    of 0.99999 with float32's, bfloat16 on a GPU that has it, and float32 otherwise; int8 is faster, and
    `int8_choice` says what it changes. With the kernels, or with
    batch_tokens=1, a text's vector is the same to the bit whatever the other texts are.
    """

    @check_arguments(
        query_prefix=optional(check_text),
        document_prefix=optional(check_text),
        max_length=optional(integer_from(1)),
        dimensions=optional(integer_from(1)),
        normalise=check_flag,
        batch_tokens=optional(integer_from(1)),
        compute_dtype=optional(one_of(*PRECISIONS)),
        prompt_name=optional(check_text),
    )
    def __init__(
        self,
        model: str | Path,
        query_prefix: str | None = None,
        document_prefix: str | None = None,
        max_length: int | None = None,
        long_texts: LongTexts = "truncate",
        dimensions: int | None = None,
        *,
        normalise: bool = True,
        batch_tokens: int | None = None,
        device: torch.device | str = "auto",
        compute_dtype: torch.dtype | None = None,
        prompt_name: str | None = None,
    ) -> None:
        """Opens an encoder by path, alias or hub name. Raises ModelError when there is no such model,
        InputError for settings that it doesn't support.
        """
        if not isinstance(long_texts, str) or long_texts not in get_args(LongTexts):
            raise InputError(f"long_texts must be {' or '.join(get_args(LongTexts))}, found {long_texts!r}.")
        self.folder = locate_vector_model(model)
        settings = self._settings = read_sentence_settings(self.folder)
        engine: Engine[Bert] | Engine[StaticTable]
        if is_static(self.folder):
            engine = start_engine(load_static(self.folder), settings.encoder)
        else:
            encoder = load_vector_encoder(settings, table_in_file=True)
            engine = start_engine(encoder, settings.encoder, device, compute_dtype)
        self.encoder: Bert | StaticTable = engine.model
        self.tokenizer, self.device, self.compute_dtype = engine[1:]
        config = self.encoder.config
        self.full_width = config.hidden_size
        self.projection = read_projection(settings.projection, config.hidden_size)
        if self.projection is not None:
            self.full_width = self.projection.width(config.hidden_size) or config.hidden_size
            use_kernels_beside(self.projection, nn.ModuleDict({"encoder": self.encoder}))
        self.dimensions = _require_within(dimensions, self.full_width, "dimensions", "the model's width") or (
            settings.truncate_dim and min(settings.truncate_dim, self.full_width)
        )
        self.max_length = _require_within(
            max_length, config.max_length, "max_length", "what it has positions for", SHORTEST
        ) or min(settings.max_length or config.max_length, config.max_length)
        if prompt_name is not None:
            if not (query_prefix is document_prefix is None):
                raise InputError(
                    "prompt_name and a prefix both say what stands before a text: give one of them."
                )
            if prompt_name not in settings.prompts:
                raise InputError(
                    f"prompt_name must be {' or '.join(settings.prompts)}, the prompts of {self.folder}; "
                    f"found {prompt_name[:80]!r}."
                )
            query_prefix = document_prefix = settings.prompts[prompt_name]
        self.prefixes: dict[PromptKind, str] = {
            "query": settings.query_prefix if query_prefix is None else query_prefix,
            "document": settings.document_prefix if document_prefix is None else document_prefix,
        }
        self.pooling: Pooling = settings.pooling
        self.long_texts = long_texts
        self.normalise = normalise
        self.batch_tokens = batch_tokens or usual_forward_tokens(self.device)
        self.windows = TextWindows(
            self.tokenizer,
            self.max_length,
            min(_STRIDE, (self.max_length - 2) // 4) if long_texts == "windows" else None,
            self.pooling == "cls",
            isinstance(self.encoder, StaticTable),
            not settings.include_prompt,
        )
        self._reader: TableReader | None = None
        if isinstance(self.encoder, StaticTable):
            room = self.windows.room if long_texts == "truncate" else None
            self._reader = TableReader(self.encoder, self.tokenizer, room)

    def __getstate__(self) -> dict[str, Any]:
        """A pickled copy computes on the processor: the machine that unpickles it may have no GPU."""
        state = dict(vars(self))
        if self.device.type != "cpu":
            cpu = torch.device("cpu")
            state |= {"encoder": deepcopy(self.encoder).to(cpu), "device": cpu}
            state |= {"batch_tokens": usual_forward_tokens(cpu), "compute_dtype": self.dtype_of_copies}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if isinstance(
            self.encoder, Bert
        ):  # an encoder that was on a GPU isn't prepared for the processor yet
            self.encoder = prepare_for_inference(self.encoder, self.compute_dtype)

    @property
    def dtype_of_copies(self) -> torch.dtype:
        """The precision of a pickled copy: float32 if this embedder is on a GPU, which any machine supports,
        else its own `compute_dtype`.
        """
        return self.compute_dtype if self.device.type == "cpu" else torch.float32

    @cached_property
    def model_sha256(self) -> str:
        """SHA-256 of all files that determine the vectors; of the weights alone where there are no others."""
        return self._settings.weights_sha256()

    @property
    def int8_choice(self) -> Int8Choice | None:
        """For `compute_dtype` torch.int8 which products stayed in int16, and the smallest cosine with float32
        on built-in texts; None for another.
        """
        return self.encoder.int8_choice if isinstance(self.encoder, Bert) else None

    @property
    def caveat(self) -> str:
        """A warning if the vectors are compared in another way than the model was trained for, else ''."""
        if not (self._settings.by_dot and self.normalise):
            return ""
        return (
            f"{self.folder} was trained for dot products, and here its vectors are compared by cosine, in "
            "which their lengths don't count: it may find less than it could. Prefer a model that was "
            "trained for cosines, as by `bertsmith finetune retrieval` unless normalise=false."
        )

    @property
    def width(self) -> int:
        """D, the number of dimensions of a vector, after any truncation."""
        return self.dimensions or self.full_width

    @check_arguments(progress=optional(check_function))
    def queries(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """Embeds texts that are searched for: (E, D). Raises InputError unless `texts` is a list of texts."""
        return self._embed_list(texts, "query", progress)

    @check_arguments(progress=optional(check_function))
    def documents(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """Embeds texts that are searched in: (E, D). Raises InputError unless `texts` is a list of texts."""
        return self._embed_list(texts, "document", progress)

    @property
    def encode(self) -> NoReturn:
        """Always raises AttributeError: `encode` couldn't know which prefix a text needs, so `queries` and
        `documents` take its place.
        """
        raise AttributeError(
            "An Embedder has no encode(). documents(texts) gives the vectors of what is searched in or "
            "compared, queries(texts) those of what is searched for."
        )

    @check_arguments(size=integer_from(1), watch=optional(check_function))
    def embed_batches(
        self,
        texts: Iterable[str],
        kind: PromptKind = "document",
        size: int = CHUNK,
        watch: Watch | None = None,
    ) -> Iterator[EmbeddedChunk]:
        """Yields the vectors of `size` texts at a time, in order; the last chunk may have fewer.

        A chunk's vectors don't depend on the chunks before or after it. A thread reads and tokenises ahead of
        the model. At most three chunks are in memory as token ids (8 bytes each), besides 130,000 characters
        of text or one longer text. `watch` is called after each batch with the numbers of texts and tokens
        done. Raises InputError for an unknown `kind` and for anything but texts.
        """
        if not isinstance(kind, str) or kind not in self.prefixes:
            raise InputError(f"kind must be query or document, found {kind!r}.")
        require_texts(texts)
        texts_before = tokens_before = 0

        def report(texts: int, tokens: int) -> None:
            if watch is not None:
                watch(texts_before + texts, tokens_before + tokens)

        if self._reader is not None:
            for vectors, tokens in self._reader.batches(texts, self.prefixes[kind], size):
                report(len(vectors), tokens)
                texts_before, tokens_before = texts_before + len(vectors), tokens_before + tokens
                yield EmbeddedChunk(self._truncate_and_normalise(vectors), tokens)
            return
        pending, pending_texts, pending_tokens = list[Vectors](), 0, 0
        for chunk in self.windows.chunks(texts, self.prefixes[kind], size):
            pending.append(self._embed_chunk(chunk, report))
            tokens = int(chunk.lengths.sum())
            pending_texts, pending_tokens = pending_texts + chunk.texts, pending_tokens + tokens
            texts_before, tokens_before = texts_before + chunk.texts, tokens_before + tokens
            if pending_texts == size:
                yield EmbeddedChunk(np.concatenate(pending), pending_tokens)
                pending, pending_texts, pending_tokens = [], 0, 0
        if pending:
            yield EmbeddedChunk(np.concatenate(pending), pending_tokens)

    def _embed_list(self, texts: Sequence[str], kind: PromptKind, progress: Progress | None) -> Vectors:
        require_list(texts)

        def report(end: int, tokens: int) -> None:
            if progress is not None:
                progress(end, len(texts), "texts")

        vectors = np.empty((len(texts), self.width), np.float32)
        end = 0
        for chunk in self.embed_batches(texts, kind, watch=report):
            start, end = end, end + len(chunk.vectors)
            require_count(max(end, len(vectors)), len(vectors))
            vectors[start:end] = chunk.vectors
        require_count(end, len(vectors))
        return vectors

    def _embed_chunk(self, chunk: Chunk, report: Watch) -> Vectors:
        """Embeds a chunk: (E, D). Each window is pooled first, (W, H), then a text's windows together.
        `report` counts a window as its share of a text.
        """
        sequences_done = tokens_done = 0
        pooled = np.empty((len(chunk.sequences), self.encoder.config.hidden_size), np.float32)
        options = self.pooling, self.device, self.compute_dtype, self.batch_tokens
        for indices, vectors in pooled_in_batches(self.encoder, chunk.sequences, *options):
            pooled[indices] = vectors
            sequences_done, tokens_done = (
                sequences_done + len(indices),
                tokens_done + int(chunk.lengths[indices].sum()),
            )
            report(sequences_done * chunk.texts // len(pooled), tokens_done)
        if len(pooled) > chunk.texts:
            weights = chunk.row_counts if self.pooling == "mean" else np.ones_like(chunk.lengths)
            pooled = join_pooled(pooled, chunk.text_of_sequence, weights, self.pooling)
        vectors = projected(pooled, self.projection, one_by_one=self.batch_tokens == 1)
        return self._truncate_and_normalise(vectors)

    def _truncate_and_normalise(self, pooled: Vectors) -> Vectors:
        """Cuts vectors to `dimensions` and scales them to unit length, as far as the settings ask for it."""
        if self.dimensions:
            pooled = cut(pooled, self.dimensions, normalise=False)
        return normalised(pooled) if self.normalise else pooled


def pooled_in_batches(
    encoder: Bert | StaticTable,
    sequences: Sequence[EncodedExample],
    pooling: Pooling,
    device: torch.device,
    compute_dtype: torch.dtype,
    batch_tokens: int | None = None,
) -> Iterator[tuple[list[int], Vectors]]:
    """Encodes and pools sequences in batches of like length, on `device`. Yields the indices of each batch's
    sequences and their vectors (…, H).
    """

    def pooled(batch: PackedBatch, layout: Layout) -> Tensor:
        with autocasting(encoder, device, compute_dtype):
            states = encoder(batch, layout.rows)
        return pool_examples(states.float(), layout, pooling)

    for indices, _, vectors in forward_passes(pooled, sequences, device, batch_tokens):
        yield indices, vectors


@torch.inference_mode()
def projected(pooled: Vectors, projection: Projection | None, *, one_by_one: bool = False) -> Vectors:
    """(E, H) -> (E, D) by the model's projection; unchanged for a model without one.

    With the kernels' products a vector is the same to the bit in any company. With torch's it is so only
    `one_by_one`, which takes long where other programs compute too: threads wait for each other every time.
    """
    if projection is None or not len(pooled):
        return pooled
    parts = []
    for part in torch.from_numpy(pooled).split(1 if one_by_one else len(pooled)):
        vectors = part
        for layer in projection.layers:
            vectors = layer.apply_apart(vectors)
        parts.append(vectors.numpy())
    return np.concatenate(parts)


def _require_within(value: int | None, highest: int, name: str, why: str, lowest: int = 1) -> int | None:
    if value is not None and not lowest <= value <= highest:
        raise InputError(f"{name} must be {lowest} to {highest}, {why}; found {value}.")
    return value

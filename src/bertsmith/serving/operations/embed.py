"""The operations on vectors: of texts, of their tokens, and the similarity of texts.

E inputs, W windows of them, T tokens of an input, H hidden size, D width of a vector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.inference.embedding.embedder import Embedder, projected
from bertsmith.inference.embedding.text_chunks import TextWindows
from bertsmith.inference.embedding.vectors import Vectors, cut, normalised
from bertsmith.inference.engine import Engine
from bertsmith.model.bert import Bert
from bertsmith.model.static_table import StaticTable
from bertsmith.serving.operations.operation import ForwardPass, Operation, Options, PreparedRequest
from bertsmith.serving.refusals import RequestTooLarge, TextTooLong
from bertsmith.tasks.checkpoints.sentence_folder import SentenceSettings, read_sentence_settings
from bertsmith.tasks.examples.encoding import EncodedExample, Layout, windows
from bertsmith.tasks.heads.pooling import Pooling, Projection, join_pooled, pool_examples
from bertsmith.tasks.task import Outputs

_STRIDE = 32  # tokens that neighbouring windows share
_MOST_NUMBERS = 1 << 23  # of an answer, 12 characters each in JSON: the token vectors of 8,192 tokens


@dataclass(frozen=True)
class Prompts:
    """The prompts that precede a text, as in sentence-transformers: the `default` one of encode, those
    `of_kind` query (encode_query) and document (encode_document), and those `by_name` (prompt_name).
    """

    default: str
    of_kind: Mapping[str, str]
    by_name: Mapping[str, str]

    @classmethod
    def from_settings(cls, settings: SentenceSettings) -> "Prompts":
        """The prompts that a model's folder defines."""
        of_kind = {"query": settings.query_prefix, "document": settings.document_prefix}
        return cls(settings.default_prompt, of_kind, settings.prompts)

    def choose(self, kind: Any, prompt_name: Any) -> str:
        """The prompt for a request's `kind` or `prompt_name`. Raises InputError for an unknown one, or
        both.
        """
        if kind is not None and prompt_name is not None:
            raise InputError("kind and prompt_name both choose a prompt: say one of them.")
        if kind is None and prompt_name is None:
            return self.default
        option, known, value = (
            ("kind", self.of_kind, kind) if kind is not None else ("prompt_name", self.by_name, prompt_name)
        )
        if not isinstance(value, str) or value not in known:
            raise InputError(f"{option} must be {' or '.join(known)}, found {str(value)[:80]!r}.")
        return known[value]


@dataclass(frozen=True)
class TextEncoder:
    """An encoder, and how its hidden states become a vector (pooling, projection, truncation)."""

    name: str
    encoder: Bert | StaticTable
    windows: TextWindows
    pooling: Pooling
    prompts: Prompts
    device: torch.device
    compute_dtype: torch.dtype
    projection: Projection | None = None
    dimensions: int | None = None  # of the vectors, None if as many as of the hidden states
    truncate_dim: int | None = None  # the first dimensions to return if a request doesn't choose

    @property
    def width(self) -> int:
        """D, the width of a vector before `dimensions` truncates it."""
        return self.dimensions or self.encoder.config.hidden_size

    def make_sequences(
        self, inputs: Sequence[Any], options: Options, names: Sequence[str] = ()
    ) -> tuple[list[EncodedExample], list[int], list[bool]]:
        """(W,) sequences, the index of the input of each, and whether each input (E,) was truncated.

        An input is a text or a list of token ids. `names` are what messages call the first inputs, if these
        aren't inputs of the request but, for example, its source. Raises InputError, TextTooLong.
        """
        sequences, owners, is_longer, room = (
            list[EncodedExample](),
            list[int](),
            list[bool](),
            self.windows.room,
        )
        prefix = self.prompts.choose(options.more.get("kind"), options.more.get("prompt_name"))
        titles = [
            *names,
            *(f"Input {number}" for number in range(1, len(inputs) - len(names) + 1)),
        ]
        for index, ids in enumerate(self._read_ids(inputs, prefix, options, titles)):
            is_longer.append(len(ids) > room)
            if is_longer[-1] and options.long_text == "error":
                raise TextTooLong(
                    f"{titles[index]} is longer than the {self.windows.max_length} tokens that the model "
                    "reads at a time. Shorten it, or say long_text = 'truncate' or 'windows'."
                )
            # A static table has no positions: it reads the whole text as one window, or its beginning.
            if isinstance(self.encoder, StaticTable):
                ranges = [(0, len(ids) if options.long_text == "windows" else min(len(ids), room))]
            elif options.long_text == "windows":
                ranges = windows(ids, room, min(_STRIDE, room // 4))
            else:
                ranges = windows(ids, room, None, self.windows.tokenizer.truncation)
            prompt = prefix if isinstance(inputs[index], str) else ""
            for start, end in ranges:
                is_first = start == 0 or options.long_text != "windows"
                sequences.append(self.windows.sequence(ids[start:end], prompt if is_first else ""))
                owners.append(index)
        is_cut = options.long_text != "windows"
        return sequences, owners, [is_cut and longer for longer in is_longer]

    def _read_ids(
        self, inputs: Sequence[Any], prefix: str, options: Options, names: Sequence[str]
    ) -> list[Sequence[int]]:
        """The token ids of each input, without special tokens; of a text beyond the limits just enough to see
        that it exceeds them.
        """
        texts = [prefix + text for text in inputs if isinstance(text, str)]
        limit: int | None = self.windows.room + 1
        if options.long_text == "windows":
            limit = None if options.most_tokens is None else options.most_tokens + 1
        tokenizer = self.windows.tokenizer
        encodings, ids = iter(tokenizer.encode_batch(texts, limit)), list[Sequence[int]]()
        known_ids = range(tokenizer.vocab_size)
        for name, input_ in zip(names, inputs, strict=True):
            if isinstance(input_, str):
                ids.append(next(encodings))
                continue
            if not isinstance(input_, list) or not all(
                type(id_) is int and id_ in known_ids for id_ in input_
            ):
                raise InputError(f"{name}: expected a text, or its token ids from 0 to {known_ids[-1]}.")
            # A client's tokenizer may have added the special tokens already.
            first, last = int(input_[:1] == [tokenizer.cls_id]), int(input_[-1:] == [tokenizer.sep_id])
            ids.append(input_[first : len(input_) - last])
        return ids


def make_text_encoder(name: str, embedder: Embedder) -> TextEncoder:
    """The TextEncoder of a model that was trained to make vectors."""
    return TextEncoder(
        name,
        embedder.encoder,
        embedder.windows,
        embedder.pooling,
        Prompts.from_settings(read_sentence_settings(embedder.folder)),
        embedder.device,
        embedder.compute_dtype,
        projection=embedder.projection,
        dimensions=embedder.full_width,
        truncate_dim=embedder.dimensions,
    )


def make_backbone_encoder(name: str, folder: Path, engine: Engine[Any], encoder: Bert) -> TextEncoder:
    """The TextEncoder of a model whose encoder is below a head, such as a masked language model."""
    settings = read_sentence_settings(folder)
    longest = min(settings.max_length or encoder.config.max_length, encoder.config.max_length)
    windows = TextWindows(engine.tokenizer, longest, None, settings.pooling == "cls")
    return TextEncoder(
        name,
        encoder,
        windows,
        settings.pooling,
        Prompts.from_settings(settings),
        engine.device,
        engine.compute_dtype,
    )


class EmbedOperation:
    """A vector (D,) for each input. `kind` (query or document) or `prompt_name` chooses the prompt;
    `dimensions` truncates to the first D values; `normalise` False leaves the length as it is.
    """

    option_names: frozenset[str] = frozenset({"kind", "prompt_name", "dimensions", "normalise"})

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder = encoder

        def pool(states: Tensor, layout: Layout) -> Tensor:
            return pool_examples(states.float(), layout, encoder.pooling)

        self.forward = ForwardPass.of_encoder(
            encoder.encoder, pool, encoder.device, encoder.compute_dtype, encoder.name
        )

    def prepare(self, inputs: Sequence[Any], options: Options, names: Sequence[str] = ()) -> PreparedRequest:
        """Tokenises the inputs; `names` as in `TextEncoder.make_sequences`. Raises InputError,
        TextTooLong.
        """
        width = self.encoder.width
        dimensions = options.more.get("dimensions")
        if dimensions is not None and (type(dimensions) is not int or not 1 <= dimensions <= width):
            raise InputError(f"dimensions must be 1 to {width}, the model's width, found {dimensions!r}.")
        normalise = options.more.get("normalise")
        if normalise is not None and type(normalise) is not bool:
            raise InputError(f"normalise must be true or false, found {normalise!r}.")
        kept_width = dimensions or self.encoder.truncate_dim
        _check_vector_count(len(inputs), kept_width or width, "inputs")
        sequences, owners, cut_off = self.encoder.make_sequences(inputs, options, names)
        tokens = (
            np.bincount(owners, [sequence.tokens for sequence in sequences], len(inputs)).astype(int).tolist()
        )

        def finish(outputs: Sequence[Outputs]) -> Vectors:
            vectors, owner_of_window = np.stack(outputs), np.array(owners)
            if len(owner_of_window) != owner_of_window[-1] + 1:  # (W, H) -> (E, H)
                lengths = np.array([len(sequence.windows[0].rows) for sequence in sequences])
                weights = lengths if self.encoder.pooling == "mean" else np.ones_like(lengths)
                vectors = join_pooled(vectors, owner_of_window, weights, self.encoder.pooling)
            vectors = projected(vectors, self.encoder.projection)
            if kept_width:
                vectors = cut(vectors, kept_width, normalise=False)
            return vectors if normalise is False else normalised(vectors)

        return PreparedRequest(self.forward, sequences, finish, tokens, cut_off)


class SimilarityOperation:
    """The cosine similarity of the option `source` and each input."""

    option_names: frozenset[str] = frozenset({"source", "kind", "prompt_name"})

    def __init__(self, embed: EmbedOperation) -> None:
        self.embed = embed

    def prepare(self, inputs: Sequence[Any], options: Options) -> PreparedRequest:
        more = dict(options.more)
        source = more.pop("source", None)
        if not isinstance(source, str):
            raise InputError(f"source must be a text, found {source!r}.")
        prepared = self.embed.prepare([source, *inputs], replace(options, more=more), ["The source"])

        def finish(outputs: Sequence[Outputs]) -> list[float]:
            vectors = prepared.finish(list(outputs))
            return [float(vector @ vectors[0]) for vector in vectors[1:]]

        source_was_cut, *cut_off = prepared.truncated
        return replace(
            prepared,
            finish=finish,
            input_tokens=prepared.input_tokens[1:],
            truncated=[source_was_cut or was_cut for was_cut in cut_off],
        )


class EmbedTokensOperation:
    """The last hidden states (T, H) of each input's tokens, special ones included; long inputs are
    truncated.
    """

    option_names: frozenset[str] = frozenset({"kind", "prompt_name"})

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder = replace(
            encoder, windows=replace(encoder.windows, first_row_only=False, skips_prompt=False)
        )
        self.forward = ForwardPass.of_encoder(
            encoder.encoder,
            lambda states, layout: states.float(),
            encoder.device,
            encoder.compute_dtype,
            encoder.name,
            per_row=True,
        )

    def prepare(self, inputs: Sequence[Any], options: Options) -> PreparedRequest:
        if options.long_text == "windows":
            raise InputError("Vectors of tokens are of one window: say long_text = 'truncate' or 'error'.")
        sequences, _, cut_off = self.encoder.make_sequences(inputs, options)
        tokens = [sequence.tokens for sequence in sequences]
        _check_vector_count(sum(tokens), self.encoder.encoder.config.hidden_size, "tokens")
        return PreparedRequest(self.forward, sequences, list, tokens, cut_off)


def make_vector_operations(encoder: TextEncoder) -> dict[str, Operation]:
    """The operations that any encoder has, by name."""
    embed = EmbedOperation(encoder)
    return {
        "embed": embed,
        "similarity": SimilarityOperation(embed),
        "embed_tokens": EmbedTokensOperation(encoder),
    }


def _check_vector_count(vectors: int, width: int, unit: str) -> None:
    """Raises RequestTooLarge if the vectors have more numbers than one answer may have."""
    if vectors * width > _MOST_NUMBERS:
        raise RequestTooLarge(
            f"The vectors of {vectors:,} {unit} are {vectors * width:,} numbers; at most {_MOST_NUMBERS:,} "
            "are sent at a time. Send fewer inputs at a time."
        )

"""An encoder without torch: its weights lie in the mapped file, its layers are the kernels' or NumPy's.

N   tokens in the packed batch    H   hidden size    A   heads    R   rows that are read
"""

import json
import math
import mmap
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertsmith.arrays import Float32s, Ints
from bertsmith.data.batch import batches_by_length
from bertsmith.errors import InputError, ModelError, NotFinite
from bertsmith.model.config import BertConfig
from bertsmith.model.config_json import config_from_hugging_face
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.int8 import Int8Choice, encode_texts, search_products
from bertsmith.model.manifest import MANIFEST
from bertsmith.model.own_tokenizer import load_own_tokenizer
from bertsmith.model.sentence_files import StaticConfig, table_folder, unread_rows
from bertsmith.model.untrusted import WEIGHTS, check_header_size, plain_file, read_settings
from bertsmith.model.weights import TranslatedWeights, from_hugging_face
from bertsmith.runtime.layers import (
    PANEL,
    ArrayLayer,
    ArrayLinear,
    ArrayNorm,
    StructLayer,
    StructLinear,
    find_library,
)
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.text.tokens.tokenizer import Tokenizer

_BATCH_TOKENS = 640  # for each core, as in tasks/forward_passes.py
_TYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I64": "<i8", "I32": "<i4", "I8": "i1", "BF16": "<u2"}
PRECISIONS = ("int16", "int8", "float32")


def map_tensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a safetensors file, mapped: processes that read the same file share its memory. bfloat16
    becomes float32. Raises ModelError for a file that is truncated or altered.
    """
    check_header_size(path)
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    size = int.from_bytes(content[:8], "little")
    try:
        header: Mapping[str, Any] = json.loads(content[8 : 8 + size])
        tensors = {
            name: _view(content, 8 + size, entry) for name, entry in header.items() if name != "__metadata__"
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(
            f"{path} is not a whole safetensors file ({error}). It may have been cut or altered."
        ) from error
    return tensors


def _view(content: mmap.mmap, start: int, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    (begin, end), shape = entry["data_offsets"], tuple(entry["shape"])
    kind = np.dtype(_TYPES[entry["dtype"]])
    count = math.prod(shape)
    if min(begin, end, *shape, 0) < 0 or end - begin != count * kind.itemsize or start + end > len(content):
        raise ValueError("a tensor that lies outside the file")
    values = np.frombuffer(content, kind, count, start + begin).reshape(shape)
    if entry["dtype"] == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values if kind.kind == "i" else values.astype(np.float32, copy=False)


def read_weights(folder: Path) -> tuple[BertConfig, TranslatedWeights, dict[str, Any]]:
    """A folder's config, its tensors under our names, and the content of config.json. Raises ModelError."""
    settings, path = read_settings(plain_file(folder, "config.json")), plain_file(folder, WEIGHTS)
    config = config_from_hugging_face(dict(settings), f"{folder}/config.json")
    return config, from_hugging_face(map_tensors(path), config, str(path)), settings  # type: ignore[arg-type]


class ArrayEncoder:
    """Hidden states of packed sequences. `precision` is that of the layers' products; in int8 an encoder can
    compute once these were chosen (`choose_products`).
    """

    def __init__(
        self, config: BertConfig, tensors: Mapping[str, Any], where: str, precision: str | None = None
    ) -> None:
        """`precision`: int16 by the kernels, as in the package with torch, where there are any; else float32.
        Raises ModelError for a family that is computed with torch alone, InputError for int16 and int8
        without kernels.
        """
        self.config, self.tensors, self.where = config, tensors, where
        has_kernels = find_library() is not None and _fits_kernels(config)
        if precision not in (None, *PRECISIONS):
            raise InputError(f"precision must be {', '.join(PRECISIONS)}, found {precision!r}.")
        if precision in ("int16", "int8") and not has_kernels:
            raise InputError(
                f"{precision} needs the compiled kernels, which there are none of for this model here."
            )
        self.precision = precision or ("int16" if has_kernels else "float32")
        if config.conv_kernel_size:
            raise ModelError(
                f"{where} convolves its first layer ({config.model_type}), which the package bertsmith "
                "computes alone, with torch. Install that one for this model."
            )
        self.token = self.take("embeddings.token.weight")
        self.position = self.get("embeddings.position.weight")
        self.segment = self.get("embeddings.segment.weight") if config.type_vocab_size else None
        self.norm = self.make_norm("embeddings.norm")
        project = "embeddings.project"
        self.project = None if config.embedding_size is None else self.make_linear(project)
        self.final_norm = self.make_norm("final_norm") if config.final_norm else None
        self.bias = _position_bias(config, self.get("relative.bias.weight"))
        self.distances: Float32s | None = None  # their table (2 S, H)
        if config.relative_attention:
            self.distances = self.take("relative.table.weight")
            if config.norm_rel_ebd == "layer_norm":
                self.distances = self.make_norm("relative.norm")(self.distances)
        self.int8_choice: Int8Choice | None = None
        self.packed = dict[tuple[str, str], StructLinear]()  # by name and precision, while layers are made
        self.in_int16: Collection[str] = ()
        self.layer_class = StructLayer if has_kernels else ArrayLayer
        if self.precision != "int8":
            self.layers = self._make_layers()
            self.packed.clear()
            _forget_pages(self.token)

    def _make_layers(self) -> list[StructLayer | ArrayLayer]:
        return [self.layer_class(self, number) for number in range(max(self.config.layer_order) + 1)]

    def choose_products(self, token_ids: Ints, segment_ids: Ints, lengths: Ints) -> None:
        """Chooses which products are in int8, on a batch of texts, as the package with torch does."""

        def states(in_int16: Collection[str] | None) -> Float32s:
            self.precision, self.in_int16 = "float32" if in_int16 is None else "int8", in_int16 or ()
            self.layers = self._make_layers()
            if in_int16 is None:
                self.packed.clear()
            return self(token_ids, segment_ids, lengths.tolist())

        self.int8_choice = search_products(max(self.config.layer_order) + 1, states, lengths.tolist())
        self.in_int16 = self.int8_choice.in_int16
        self.layers = self._make_layers()
        self.packed.clear()
        _forget_pages(self.token)

    def precision_of(self, name: str) -> str:
        """Of a product, by its name."""
        return "int16" if name in self.in_int16 else self.precision

    @cached_property
    def pooler(self) -> ArrayLinear | None:
        """The layer that a classifier's head may read."""
        return self.make_linear("pooler") if self.get("pooler.weight") is not None else None

    def get(self, name: str) -> Float32s | None:
        return self.tensors.get(f"encoder.{name}")

    def take(self, name: str) -> Float32s:
        tensor = self.get(name)
        if tensor is None:
            raise ModelError(f"{self.where} lacks encoder.{name}. It may have been cut or altered.")
        return tensor

    def make_linear(self, name: str) -> ArrayLinear:
        return ArrayLinear(self.take(f"{name}.weight"), self.get(f"{name}.bias"))

    def make_norm(self, name: str) -> ArrayNorm:
        epsilon, centred = self.config.layer_norm_eps, self.config.norm != "rms"
        return ArrayNorm(self.take(f"{name}.weight"), self.get(f"{name}.bias"), epsilon, centred)

    def __call__(
        self, token_ids: Ints, segment_ids: Ints, lengths: Sequence[int], rows: Ints | None = None
    ) -> Float32s:
        """The last hidden states (N, H) of sequences end to end, or (R, H) of the given rows. Raises
        NotFinite.
        """
        states = self._embed(token_ids, segment_ids, lengths)
        order = self.config.layer_order
        for place, number in enumerate(order):
            states = self.layers[number](states, lengths, rows if place == len(order) - 1 else None)
        if self.final_norm is not None:
            states = self.final_norm(states)
        if not np.isfinite(states).all():
            raise NotFinite(
                f"{self.where} was expected to give finite values, but they overflow: its weights are too "
                "large or damaged. Take another copy of it."
            )
        return states

    def _embed(self, token_ids: Ints, segment_ids: Ints, lengths: Sequence[int]) -> Float32s:
        embedded = self.token[token_ids]
        if self.position is not None:
            ends = np.cumsum(lengths)
            positions = np.arange(len(token_ids)) - np.repeat(ends - lengths, lengths)
            embedded = embedded + self.position[positions + self.config.position_offset]
        if self.segment is not None:
            segments = np.zeros_like(segment_ids) if len(self.segment) == 1 else segment_ids
            embedded = embedded + self.segment[segments]
        if self.project is not None and self.config.projection_place == "before_norm":
            return self.norm(self.project(embedded))
        embedded = self.norm(embedded)
        return embedded if self.project is None else self.project(embedded)


def _forget_pages(tensor: npt.NDArray[Any]) -> None:
    """Takes the pages of a tensor's file off this process: the layers have packed what they need of it, and
    what is read again comes from the system's cache.
    """
    owner: Any = tensor
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED)


def _fits_kernels(config: BertConfig) -> bool:
    """Whether the kernels compute layers of this shape."""
    rotary = config.position_embedding != "rotary" or config.rotary_pairs == "halves"
    return (
        config.head_size % PANEL == 0
        and config.intermediate_size % PANEL == 0
        and rotary
        and config.hidden_act in kernels.ACTIVATIONS
    )


def _position_bias(config: BertConfig, learned: Float32s | None) -> Float32s | None:
    """What is added to scores, (A, 2 R), as model/layers/attention.py has it: column R + d for a key d tokens
    after its query.
    """
    if config.position_bias == "none":
        return None
    reach = (config.max_length // 32 + 2) * 32
    distances = np.arange(-reach, reach)
    if config.position_bias == "buckets":
        assert learned is not None
        half, exact, farthest = 16, 8, 128
        near = np.abs(distances)
        logs = np.log(np.maximum(near, 1).astype(np.float32) / np.float32(exact))
        octaves = logs / np.float32(math.log(farthest / exact))
        far = np.minimum(exact + (octaves * (half - exact)).astype(np.int64), half - 1)
        buckets = np.where(near < exact, near, far) + half * (distances > 0)
        return np.ascontiguousarray(learned[buckets].T)
    heads = config.num_attention_heads
    whole = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * number / whole) for number in range(1, whole + 1)]
    slopes += [2 ** (-4 * number / whole) for number in range(1, 2 * (heads - whole), 2)]
    return np.asarray(-np.array(slopes, np.float32)[:, None] * np.abs(distances).astype(np.float32))


class ArrayTable:
    """A static table in the place of an encoder: a token's hidden state is its row."""

    precision = "float32"

    def __init__(self, folder: Path) -> None:
        """Raises ModelError for a file that is missing, damaged or holds no table."""
        path = plain_file(table_folder(folder), WEIGHTS)
        self.table = _read_table(map_tensors(path), path)
        if not np.isfinite(self.table).all():
            raise ModelError(f"{path} holds values that are not finite. Take another copy of the model.")
        if not (folder / MANIFEST).exists():  # in our own tables these rows are zeros already
            unread = unread_rows(folder, Tokenizer.load(table_folder(folder)))
            self.table = self.table.copy()
            self.table[[token_id for token_id in unread if token_id < len(self.table)]] = 0
        self.config = StaticConfig(*self.table.shape)

    def __call__(
        self, token_ids: Ints, segment_ids: Ints, lengths: Sequence[int], rows: Ints | None = None
    ) -> Float32s:
        """The hidden states (N, H) of tokens, or (R, H) of the given rows."""
        states: Float32s = self.table[token_ids if rows is None else token_ids[rows]]
        return states

    def sums(self, token_ids: Ints, starts: Ints) -> Float32s:
        """The sums (E, D) of the rows of tokens (N,), of which each text begins at its start (E,)."""
        sums = np.zeros((len(starts), self.config.hidden_size), np.float32)
        for number, (start, end) in enumerate(pairwise([*starts.tolist(), len(token_ids)])):
            np.add.reduce(self.table[token_ids[start:end]], axis=0, out=sums[number])
        return sums


def _read_table(tensors: Mapping[str, npt.NDArray[Any]], path: Path) -> Float32s:
    """The table (V, D), as model/static_table.py reads it."""
    table = tensors.get("embeddings", tensors.get("embedding.weight"))
    if table is None or table.ndim != 2:
        raise ModelError(
            f"{path} holds no static table: expected the tensor embeddings (pieces, dimensions), found "
            f"{', '.join(sorted(tensors)[:4]) or 'nothing'}."
        )
    rows, weights = tensors.get("mapping"), tensors.get("weights")
    if rows is not None:
        if rows.ndim != 1 or rows.dtype.kind != "i" or not ((rows >= 0) & (rows < len(table))).all():
            raise ModelError(f"{path}: mapping must name a row below {len(table):,} for each piece.")
        table = table[rows]
    table = np.asarray(table, np.float32)
    if weights is not None:
        if weights.shape != table.shape[:1]:
            raise ModelError(f"{path}: expected {len(table):,} weights, found the shape {weights.shape}.")
        table = table * weights.astype(np.float32)[:, None]
    return table


class BatchEngine:
    """An encoder with its tokenizer, computing batches of like length, one a core at a time."""

    def __init__(self, folder: Path, encoder: ArrayEncoder | ArrayTable) -> None:
        self.encoder, self.tokenizer = encoder, load_own_tokenizer(folder, encoder.config)
        if isinstance(encoder, ArrayEncoder) and encoder.precision == "int8":
            encoder.choose_products(*encode_texts(self.tokenizer, encoder.config.max_length, str(folder)))
        self.cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.cores, "forward-pass")

    def run(
        self, encoded: Sequence[EncodedExample], answer: Callable[[Float32s, list[EncodedExample]], Any]
    ) -> Iterator[tuple[list[int], Any]]:
        """The indices of each batch's examples, and what `answer` makes of their rows' hidden states."""

        def compute(numbers: list[int]) -> Any:
            batch = [encoded[number] for number in numbers]
            return answer(self._states(batch), batch)

        batches = list(batches_by_length([example.tokens for example in encoded], _BATCH_TOKENS))
        several = len(batches) > 1 and self.cores > 1
        answers = self.threads.map(compute, batches) if several else map(compute, batches)
        yield from zip(batches, answers, strict=True)

    def _states(self, batch: Sequence[EncodedExample]) -> Float32s:
        windows = [window for example in batch for window in example.windows]
        lengths = [len(window.token_ids) for window in windows]
        counts = [len(window.rows) for window in windows]
        rows = None
        if sum(counts) < sum(lengths):
            starts = np.cumsum(lengths) - lengths
            rows = np.concatenate([window.rows for window in windows]) + np.repeat(starts, counts)
        ids = np.concatenate([window.token_ids for window in windows], dtype=np.int64)
        segments = np.concatenate([window.segment_ids for window in windows])
        return self.encoder(ids, segments, lengths, rows)

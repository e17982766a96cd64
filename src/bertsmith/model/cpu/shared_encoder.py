"""One copy in memory of encoders with equal weights, such as those of fine-tuned models that were frozen.

Encoders are compared by all their weights, never by name or path. Poolers are shared apart from them, since
some heads have trained theirs. A file that holds the same weights as the file of an encoder in use isn't read
and packed again: comparing the bytes of the two takes a tenth of the time.
"""

import copy
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bertsmith.errors import ModelError
from bertsmith.files import parse_json, with_distinct_keys
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.kernel_layer import KernelLayer, KernelLinear
from bertsmith.model.cpu.process import give_back_memory
from bertsmith.model.file_table import COMPARED_AT_ONCE, FileTable
from bertsmith.model.layers.initialisation import meta_init
from bertsmith.model.untrusted import check_header_size
from bertsmith.model.weights import encoder_names

_PARTS = "embeddings", "relative", "convolution", "layers", "final_norm"
_SMALL = 4096  # values of a tensor that is hashed; biases and norms differ wherever anything was trained
_LOCK = Lock()
_HASHES: WeakKeyDictionary[Bert, bytes] = WeakKeyDictionary()  # of the encoders that are in use


class TensorPlace(NamedTuple):
    """Where a tensor stands in a file: its type and shape, its first byte and their number."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    size: int


class WeightsFile(NamedTuple):
    """A file of weights as it was when its header was read, and where the encoder's tensors stand in it, by
    their names in the family's table.
    """

    path: Path
    state: tuple[int, ...]
    places: Mapping[str, TensorPlace]

    @property
    def is_unchanged(self) -> bool:
        """Whether the file is still there, and was not written to."""
        try:
            return _state_of(self.path) == self.state
        except OSError:
            return False


_Stamps = tuple[tuple[int, int], ...]  # see `_stamp_weights`
# Of the layers that were read from a file: this file, and the stamps of the encoder's weights.
_FILES: WeakKeyDictionary[nn.Module, tuple[WeightsFile, _Stamps]] = WeakKeyDictionary()


class EncodersInUse:
    """The prepared encoders in use, for one that is about to be read to be computed with in `precision`."""

    def __init__(self, precision: torch.dtype) -> None:
        self.precision = precision
        self._file: WeightsFile | None = None

    def find(self, weights: Path, config: BertConfig) -> tuple[Bert, Collection[str]] | None:
        """An encoder with the parts of one in use that was read from a file with the same weights, bit for
        bit; its pooler is on the meta device. And the names of the encoder's tensors in the file. None if
        there is none.
        """
        own_file, names = _read_places(weights, config)
        self._file = own_file
        if not names:
            return None
        with _LOCK:
            candidates = {
                encoder.layers: encoder
                for encoder in list(_HASHES)
                if encoder.layers in _FILES
                and _FILES[encoder.layers][1] == _stamp_weights(encoder)
                and encoder.config == config
                and all(getattr(layer, "precision", None) == self.precision for layer in encoder.layers)
            }
        for layers, encoder in candidates.items():
            file, _ = _FILES[layers]
            if file.is_unchanged and _have_equal_bytes(own_file, file) and file.is_unchanged:
                return _copy_without_pooler(encoder), names
        return None

    def remember(self, encoder: Bert) -> None:
        """Notes of which file the encoder is that was read after `find` and then prepared."""
        prepared = all(isinstance(layer, KernelLayer) for layer in encoder.layers)
        if prepared and self._file is not None and self._file.places and self._file.is_unchanged:
            _FILES[encoder.layers] = self._file, _stamp_weights(encoder)


def _state_of(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read_places(path: Path, config: BertConfig) -> tuple[WeightsFile, Collection[str]]:
    """The places of the encoder's tensors, and their names in the file; both are empty for a file that isn't
    whole.
    """
    state = _state_of(path)
    try:
        check_header_size(path)
        with path.open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
            header = parse_json(file.read(start - 8).decode(), with_distinct_keys)
        header.pop("__metadata__", None)
        names = encoder_names(header, config)
        places = {name: _read_place(header[in_file], start) for name, in_file in names.items()}
    except (ModelError, ValueError, KeyError, TypeError, AttributeError):
        return WeightsFile(path, state, {}), ()
    return WeightsFile(path, state, places), set(names.values())


def _read_place(entry: Mapping[str, Any], start: int) -> TensorPlace:
    begin, end = entry["data_offsets"]
    return TensorPlace(entry["dtype"], tuple(entry["shape"]), start + begin, end - begin)


def _have_equal_bytes(one: WeightsFile, other: WeightsFile) -> bool:
    """Whether both files have the same tensors. The smallest are compared first: biases and norms differ
    wherever anything was trained.
    """
    if one.state == other.state:
        return True
    shapes, other_shapes = (
        {name: (place.dtype, place.shape) for name, place in file.places.items()} for file in (one, other)
    )
    if shapes != other_shapes:
        return False
    with one.path.open("rb") as file, other.path.open("rb") as other_file:
        return all(
            os.pread(file.fileno(), size, one.places[name].begin + start)
            == os.pread(other_file.fileno(), size, other.places[name].begin + start)
            for name in sorted(one.places, key=lambda name: one.places[name].size)
            for start in range(0, one.places[name].size, COMPARED_AT_ONCE)
            for size in [min(COMPARED_AT_ONCE, one.places[name].size - start)]
        )


def _copy_without_pooler(encoder: Bert) -> Bert:
    """An encoder with the parts of another, and nothing else of it. Its pooler has no weights yet."""
    size, copied = encoder.config.hidden_size, copy.copy(encoder)
    copied._modules, copied._buffers = dict(encoder._modules), dict(encoder._buffers)
    copied.adapter, copied.layer_weights, copied.int8_choice = None, None, None
    copied.pooler = meta_init(lambda: nn.Linear(size, size)) if encoder.config.has_pooler else None
    return copied


def share_encoder(encoder: Bert) -> bool:
    """Replaces the parts of an encoder by those of one in use that has the same shape, precision and weights,
    if there is one, and returns whether there was. Its own copies are freed.

    Only encoders whose layers are all `KernelLayer`s are shared: these are never trained or moved, and a
    sequence has the same bits in any batch.
    """
    if not all(isinstance(layer, KernelLayer) for layer in encoder.layers):
        return False
    with _LOCK:
        twin = next((other for other in list(_HASHES) if other.layers is encoder.layers), None)
    own_hash = _hash_small_weights(encoder) if twin is None else _HASHES[twin]
    with _LOCK:
        equal = next(
            (
                other
                for other, other_hash in list(_HASHES.items())
                if other is not encoder
                and other_hash == own_hash
                and (other is twin or _have_equal_weights(encoder, other))
            ),
            None,
        )
        if equal is not None:
            for part in _PARTS:
                setattr(encoder, part, getattr(equal, part))
            poolers = (other.pooler for other in _HASHES if other.layers is encoder.layers)
            encoder.pooler = next(filter(partial(_are_equal, encoder.pooler), poolers), encoder.pooler)
        _HASHES[encoder] = own_hash
    if equal is not None:
        give_back_memory()
    return equal is not None


def _hash_small_weights(encoder: Bert) -> bytes:
    """A hash of the shape, the precision and the small weights: it differs for most encoders that differ."""
    modules = [(type(module).__name__, getattr(module, "precision", None)) for module in _modules(encoder)]
    total = hashlib.sha256(f"{encoder.config.model_dump_json()} {modules}".encode())
    for weight in _weights(encoder):
        total.update(f"{weight.dtype} {tuple(weight.shape)}".encode())
        if weight.numel() <= _SMALL:
            total.update(weight.detach().numpy().tobytes())
    return total.digest()


def _have_equal_weights(encoder: Bert, other: Bert) -> bool:
    tables, other_tables = (
        [module for module in _modules(model) if isinstance(module, FileTable)] for model in (encoder, other)
    )
    return all(map(torch.equal, _weights(encoder), _weights(other))) and all(
        map(FileTable.has_rows_of, tables, other_tables)
    )


def _are_equal(pooler: nn.Module | None, other: nn.Module | None) -> bool:
    weights, other_weights = (_weights_of([module] if module else []) for module in (pooler, other))
    return type(pooler) is type(other) and all(map(torch.equal, weights, other_weights))


def _stamp_weights(encoder: Bert) -> _Stamps:
    """Where each weight lies, and how often it was written to: whoever changes a model in memory, and opens
    its folder again, gets the folder's.
    """
    tables = (module.weight for module in _modules(encoder) if isinstance(module, FileTable))
    return tuple(
        (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        for weight in (*_weights(encoder), *tables)
    )


def _weights(encoder: Bert) -> Iterator[Tensor]:
    return _weights_of(_modules(encoder))


def _weights_of(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    """All weights of the modules, but for a table that stays in its file."""
    for module in modules:
        if isinstance(module, KernelLayer):
            yield from module.packed_weights()
        elif isinstance(module, KernelLinear):
            yield from (module.panels, module.padded_bias)
        elif not isinstance(module, FileTable):
            yield from module.parameters(recurse=False)
            yield from module.buffers(recurse=False)


def _modules(encoder: Bert) -> Iterator[nn.Module]:
    parts = (getattr(encoder, name) for name in _PARTS)
    return (module for part in parts if part is not None for module in part.modules())

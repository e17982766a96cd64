"""One copy in memory of encoders with equal weights, such as those of fine-tuned models that were frozen.

Encoders are compared by all their weights, never by name or path. Poolers are shared apart from them, since
some heads have trained theirs.
"""

import hashlib
from collections.abc import Iterable, Iterator
from functools import partial
from threading import Lock
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bertsmith.model.bert import Bert
from bertsmith.model.cpu.kernel_layer import KernelLayer, KernelLinear
from bertsmith.model.cpu.process import give_back_memory
from bertsmith.model.file_table import FileTable

_PARTS = "embeddings", "relative", "convolution", "layers", "final_norm"
_SMALL = 4096  # values of a tensor that is hashed; biases and norms differ wherever anything was trained
_LOCK = Lock()
_HASHES: WeakKeyDictionary[Bert, bytes] = WeakKeyDictionary()  # of the encoders that are in use


def share_encoder(encoder: Bert) -> bool:
    """Replaces the parts of an encoder by those of one in use that has the same shape, precision and weights,
    if there is one, and returns whether there was. Its own copies are freed.

    Only encoders whose layers are all `KernelLayer`s are shared: these are never trained or moved, and a
    sequence has the same bits in any batch.
    """
    if not all(isinstance(layer, KernelLayer) for layer in encoder.layers):
        return False
    own_hash = _hash_small_weights(encoder)
    with _LOCK:
        equal = next(
            (
                other
                for other, other_hash in list(_HASHES.items())
                if other is not encoder and other_hash == own_hash and _have_equal_weights(encoder, other)
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

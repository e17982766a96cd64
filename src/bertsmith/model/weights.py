"""Translates tensor names between our modules and transformers' files.

Reading and writing use the same table, the family's record (bertsmith.model.families), and so can't disagree.
A row of the table names modules; the leaf (`weight`, `bias`) is the same on both sides. Where a row names
several of their modules, our tensor is theirs stacked by rows in that order: one product makes queries, keys
and values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig
from bertsmith.model.families import Family, ModuleNames, find_family

if TYPE_CHECKING:  # who computes without torch has arrays in the place of tensors
    from torch import Tensor

# Buffers of indices that old versions saved with the weights; TensorFlow's names of LayerNorm's parameters.
_INDEX_TABLES = ("embeddings.position_ids", "embeddings.token_type_ids")
_POSITIONS = "embeddings.position_embeddings.weight"
_OLD_LEAVES = {"gamma": "weight", "beta": "bias"}


@dataclass(frozen=True)
class TranslatedWeights:
    """The tensors under our names, and in `carried` those of fine-tuned heads, under the file's names."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    carried: dict[str, Tensor] = field(default_factory=dict)


@lru_cache(maxsize=8)
def _make_name_table(
    family: str, count: int, inner: int, *, adapters: bool = False
) -> dict[str, ModuleNames]:
    """The family's table for `count` layers, `inner` to a group: our module -> its row, with the encoder's
    prefix in their names.
    """
    names = find_family(family)
    layers = (
        row._replace(
            ours=row.ours.format(number),
            theirs=tuple(
                theirs.format(number, group=number // inner, inner=number % inner) for theirs in row.theirs
            ),
        )
        for number in range(count)
        for row in (names.adapted_layer if adapters else names.layer)
    )
    encoder = (
        row._replace(theirs=tuple(f"{names.prefix}.{theirs}" for theirs in row.theirs))
        for row in (*names.encoder, *layers)
    )
    return {row.ours: row for row in (*encoder, *names.heads)}


def _name_table(config: BertConfig, *, adapters: bool = False) -> dict[str, ModuleNames]:
    count = max(config.layer_order) + 1
    return _make_name_table(config.model_type, count, config.inner_group_num, adapters=adapters)


def from_hugging_face(tensors: Mapping[str, Tensor], config: BertConfig, where: str) -> TranslatedWeights:
    """Translates a file's tensors to our names, and stacks those of a row with several modules.

    Accepts the encoder's names with and without the family's prefix, old spellings, and the names in the
    files of a family's authors. Raises ModelError for a name that isn't in the table, for one given twice,
    for a stack with a missing or misshapen tensor, and for a tied tensor that differs from its twin.
    """
    names = config.family
    table = _name_table(config)
    row_of = {theirs: (row, index) for row in table.values() for index, theirs in enumerate(row.theirs)}
    stacks: dict[str, dict[int, Tensor]] = {}
    twins: dict[str, Tensor] = {}
    result = TranslatedWeights()
    carried = _carried_prefixes(tensors, names)
    unexpected = []
    for name, tensor in tensors.items():
        module, leaf = _split_name(name, names, row_of)
        if name.endswith(_INDEX_TABLES) or name.partition(".")[0] in names.ignored:
            continue
        if not config.position_biased_input and name.endswith(_POSITIONS):
            continue  # DeBERTa's third version has a table that nothing reads
        if f"{module}.{leaf}" in names.tied:
            twins[f"{module}.{leaf}"] = tensor
        elif module in row_of and name.partition(".")[0] not in carried:
            row, index = row_of[module]
            pieces = stacks.setdefault(f"{row.ours}.{leaf}", {})
            if index in pieces:
                raise ModelError(f"{where} holds {module}.{leaf} twice, under two spellings. Remove one.")
            pieces[index] = tensor
        elif name.partition(".")[0] in carried:
            result.carried[name] = tensor
        else:
            unexpected.append(name)
    for part, meaning in names.refused.items():
        if any(part in name for name in unexpected):
            raise ModelError(
                f"{where} has {meaning}, which Bertsmith doesn't compute: use another checkpoint."
            )
    if unexpected:
        raise ModelError(
            f"{where} holds tensors that a {config.model_type} model with {config.num_hidden_layers} layers "
            f"doesn't have: {listed(unexpected)}. Check that config.json belongs to these weights."
        )
    for ours, pieces in stacks.items():
        tensor = _stack(pieces, file_names(ours, config), where)
        result.tensors[ours] = _swap_halves(tensor) if _swaps(ours, table) else tensor
    _settle_twins(result.tensors, twins, names.tied, where)
    if names.authors is not None and any(name.startswith(f"{names.authors.prefix}.") for name in tensors):
        _add_zeros(result.tensors, names.authors.zeros)
    return result


def to_hugging_face(tensors: Mapping[str, Tensor], config: BertConfig, *, bare: bool) -> dict[str, Tensor]:
    """Translates our tensors to the file's names, the reverse of `from_hugging_face`. With `bare` the
    encoder's prefix is left out, as in a model without a head.

    Raises ValueError for a name that isn't in the table.
    """
    prefix, table = config.family.prefix + ".", _name_table(config)
    result: dict[str, Tensor] = {}
    for ours, tensor in tensors.items():
        theirs = file_names(ours, config)
        tensor = _swap_halves(tensor) if _swaps(ours, table) else tensor
        for name, piece in zip(theirs, tensor.chunk(len(theirs)), strict=True):
            result[name.removeprefix(prefix) if bare else name] = piece
    return result


def file_names(ours: str, config: BertConfig) -> tuple[str, ...]:
    """The names of one of our tensors in a file, several where it is a stack. Raises ValueError for a name
    that isn't in the table.
    """
    module, _, leaf = ours.rpartition(".")
    row = _name_table(config).get(module)
    if row is None:
        raise ValueError(f"{ours} has no row in the table of {config.model_type} names")
    return tuple(f"{theirs}.{leaf}" for theirs in row.theirs)


def encoder_names(names: Iterable[str], config: BertConfig) -> dict[str, str]:
    """Those of a file's tensors that are the encoder's, but for its pooler: the name in the table's spelling
    -> the name in the file. Empty where the file has a second copy of a tied tensor.
    """
    row_of = {theirs: row for row in _name_table(config).values() for theirs in row.theirs}
    result = dict[str, str]()
    for name in names:
        module, leaf = _split_name(name, config.family, row_of)
        if f"{module}.{leaf}" in config.family.tied:
            return {}
        if module in row_of and part_of(f"{row_of[module].ours}.{leaf}") == "encoder":
            result[f"{module}.{leaf}"] = name
    return result


def adapter_names(module: str, config: BertConfig) -> tuple[str, ...]:
    """The names of one of our encoder's modules in an adapter's files and in transformers' model in
    memory.
    """
    return _name_table(config, adapters=True)[module].theirs


def part_of(ours: str) -> str:
    """The part of a model that a tensor belongs to: "encoder", "pooler", or the name of a head."""
    if ours.startswith("encoder."):
        return "pooler" if ours.startswith("encoder.pooler.") else "encoder"
    return ours.partition(".")[0]


def listed(names: Iterable[str], shown: int = 4) -> str:
    """The first names in alphabetical order and the number of the others: "a, b and 7 more"."""
    ordered = sorted(names)
    rest = len(ordered) - shown
    return ", ".join(ordered[:shown]) + (f" and {rest} more" if rest > 0 else "")


def _carried_prefixes(tensors: Iterable[str], family: Family) -> frozenset[str]:
    """The first parts of the names of fine-tuned heads' tensors. Modules that these share with the
    masked-language head belong to them where the file has a classifier.
    """
    heads = family.fine_tuned_heads
    has_classifier = any(name.partition(".")[0] in heads for name in tensors)
    return heads | family.shared_heads if has_classifier else heads


def _split_name(name: str, family: Family, row_of: Mapping[str, object]) -> tuple[str, str]:
    """The module and the leaf of a tensor's name, in the table's spelling."""
    module, _, leaf = name.rpartition(".")
    bare = module if family.authors is None else module.removeprefix(f"{family.authors.prefix}.")
    if f"{family.prefix}.{bare}" in row_of:
        module = f"{family.prefix}.{bare}"
    module = family.read_as.get(module, module)
    return module, _OLD_LEAVES.get(leaf, leaf)


def _stack(pieces: dict[int, Tensor], theirs: tuple[str, ...], where: str) -> Tensor:
    missing = [name for index, name in enumerate(theirs) if index not in pieces]
    if missing:
        raise ModelError(
            f"{where} lacks {listed(missing)}, though its neighbours are there. It may have been cut."
        )
    if len(pieces) == 1:
        return pieces[0]
    ordered = [pieces[index] for index in range(len(pieces))]
    # Pieces of 30, 10 and 20 rows would stack to the right shape with every row in the wrong place.
    if len({tuple(piece.shape) for piece in ordered}) > 1 or not ordered[0].ndim:
        shapes = ", ".join(
            f"{name} {tuple(piece.shape)}" for name, piece in zip(theirs, ordered, strict=True)
        )
        raise ModelError(f"{where}: pieces of one stack must have one shape; found {shapes}.")
    joined: Tensor = _library(ordered[0]).concatenate(ordered)
    return joined


def _swaps(ours: str, table: Mapping[str, ModuleNames]) -> bool:
    """Whether a tensor's halves change places between a file and our module."""
    return table[ours.rpartition(".")[0]].second_half_first


def _swap_halves(tensor: Tensor) -> Tensor:
    swapped: Tensor = _library(tensor).roll(tensor, len(tensor) // 2, 0) if tensor.ndim else tensor
    return swapped


def _settle_twins(
    tensors: dict[str, Tensor], twins: Mapping[str, Tensor], tied: Mapping[str, str], where: str
) -> None:
    """Takes the second copy of a tied tensor where the first is missing. Raises ModelError where
    they differ.
    """
    for name, twin in twins.items():
        first = tensors.setdefault(tied[name], twin)
        if first.shape != twin.shape or not bool((first == twin).all()):
            raise ModelError(
                f"{where}: {name} differs from {tied[name]}. Bertsmith ties the masked-language head to the "
                "token embeddings and gives it one bias; a checkpoint with separate ones can't be used."
            )


def _add_zeros(tensors: dict[str, Tensor], biases: Mapping[str, str]) -> None:
    """Adds biases of zeros to a head that has none in its authors' files."""
    if all(weight in tensors for weight in biases.values()) and not any(bias in tensors for bias in biases):
        tensors |= {bias: _zeros_for(tensors[weight]) for bias, weight in biases.items()}


def _zeros_for(weight: Tensor) -> Tensor:
    zeros: Tensor = _library(weight).zeros(len(weight), dtype=weight.dtype)
    return zeros


def _library(tensor: Tensor) -> Any:
    """The module that has made a tensor: torch or, for an array, NumPy."""
    if isinstance(tensor, np.ndarray):
        return np
    import torch

    return torch

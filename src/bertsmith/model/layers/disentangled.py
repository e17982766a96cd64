"""Disentangled attention, whose scores also depend on how far a key is from its query, and the convolution of
the larger models that have it (He et al. 2021, arXiv 2006.03654, section 3.1; DeBERTa's second version).

    score(i, j) = (Q_i·K_j + Q_i·KR_b + K_j·QR_b) / sqrt(D (1 + types)),   b = row of the distance i - j

One table has a row for each distance, or for several far ones. A layer's products of it are the keys KR
("c2p") and queries QR ("p2c") of distances, computed once a batch. No score is looked up: the products of a
query with the keys of all distances, in order, are its scores but for a shift.

N tokens in the packed batch, A heads, D head size, H hidden size, S half the rows of the table; a group is R
sequences padded to L tokens; C queries at a time, which meet all L keys at W = C + L - 1 distances.
"""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch, to_device
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.attention import attend_far_by_kernel, is_kernel_faster
from bertsmith.model.cpu.grouped_attention import make_group_order
from bertsmith.model.layers.elementwise import FUNCTIONS, Dropout, make_norm

_MOST_SCORES = 1 << 22  # that are computed at once, with products of distances


class RelativePositions(nn.Module):
    """The table of distances, the same for all layers, perhaps normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(2 * config.relative_span[0], config.hidden_size)
        self.norm = make_norm(config) if config.norm_rel_ebd == "layer_norm" else None

    def forward(self) -> Tensor:
        """The table of vectors of the distances (2 S, H), normalised where the model does so."""
        weight = self.table.weight
        return weight if self.norm is None else self.norm(weight)


class DistanceRows(NamedTuple):
    """Which row of the table a distance has: `half` is S, and from `most` on all distances share a row. With
    `buckets` those further than S / 2 share some before.
    """

    half: int
    most: int
    buckets: bool

    def between(self, first: int, last: int, device: torch.device) -> Tensor:
        """The rows for the distances from `first` to `last`, which may be smaller: int64."""
        step = 1 if last >= first else -1
        return _distance_rows(self, first, last + step, step, device)

    def within(self, lengths: tuple[int, ...]) -> Tensor:
        """The rows for all distances within sequences of these lengths, in order, on the host."""
        most = max(lengths, default=1) - 1
        return self.between(-most, most, torch.device("cpu"))


class DistanceProducts(NamedTuple):
    """A layer's keys and queries of the distances, (2 S, A, D) each, None for a type that there isn't."""

    keys: Tensor | None
    queries: Tensor | None
    rows: DistanceRows

    def to(self, precision: torch.dtype) -> "DistanceProducts":
        """The same in another precision, contiguous."""
        keys = None if self.keys is None else self.keys.to(precision).contiguous()
        queries = None if self.queries is None else self.queries.to(precision).contiguous()
        return DistanceProducts(keys, queries, self.rows)

    @property
    def scale(self) -> float:
        """What scores are times, but for 1 / sqrt(D)."""
        return 1 / math.sqrt(1 + sum(part is not None for part in (self.keys, self.queries)))


@lru_cache(maxsize=64)  # the layers of a model ask for the same ones
def _distance_rows(rows: DistanceRows, first: int, end: int, step: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # the cached rows may be used with gradients next
        distances = torch.arange(first, end, step)
        if rows.buckets:
            near = rows.half // 2
            # in float32, step by step as the authors' code: a bucket ends where it rounds
            size = distances.abs().clamp(min=near)
            share = torch.log(size / near) / torch.log(torch.tensor((rows.most - 1) / near))
            far = torch.ceil(share * (near - 1)) + near
            distances = distances.where(size <= near, (far * distances.sign()).long())
        return (distances + rows.half).clamp(0, 2 * rows.half - 1).to(device)


class Distances(nn.Module):
    """A layer's products of the table of distances: by the weights of its queries and keys, or its own."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.types, self.shares_weights = config.pos_att_type, config.share_att_key
        self.heads = config.num_attention_heads
        self.rows = DistanceRows(*config.relative_span, config.position_buckets > 0)
        own = () if self.shares_weights else self.types
        self.key = nn.Linear(width, width) if "c2p" in own else None
        self.query = nn.Linear(width, width) if "p2c" in own else None
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, table: Tensor, qkv: nn.Module) -> DistanceProducts:
        """The products of the table (2 S, H); `qkv` makes the layer's queries, keys and values."""
        table = self.dropout(table)
        products: dict[str, Tensor] = {}
        if self.shares_weights:
            products["p2c"], products["c2p"] = _query_key_products(table, qkv)
        if self.key is not None:
            products["c2p"] = self.key(table)
        if self.query is not None:
            products["p2c"] = self.query(table)
        by_head = {kind: products[kind].unflatten(1, (self.heads, -1)) for kind in self.types}
        return DistanceProducts(by_head.get("c2p"), by_head.get("p2c"), self.rows)


def _query_key_products(table: Tensor, qkv: nn.Module) -> tuple[Tensor, Tensor]:
    """Queries and keys (2 S, H) of the table, by a linear module or one with LoRA."""
    if type(qkv) is not nn.Linear:
        queries, keys, _ = qkv(table).chunk(3, dim=1)
        return queries, keys
    count = 2 * table.shape[1]
    queries, keys = F.linear(table, qkv.weight[:count], qkv.bias[:count]).chunk(2, dim=1)
    return queries, keys


def attend_disentangled(
    qkv: Tensor, batch: PackedBatch, products: DistanceProducts, dropout: Dropout | None = None
) -> Tensor:
    """Disentangled attention within each sequence: qkv (N, 3, A, D) -> (N, A, D). The rows of padding tokens
    are undefined.
    """
    heads, size = qkv.shape[2:]
    drop = dropout if dropout is not None and dropout.training and dropout.probability > 0 else None
    parts = (qkv, products.keys, products.queries)
    has_gradient = torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in parts)
    if drop is None and not has_gradient and is_kernel_faster(qkv, batch.lengths):
        keys, queries, rows = products.to(torch.float32)
        return attend_far_by_kernel(qkv, batch.lengths, keys, queries, rows.within(batch.lengths))
    order = make_group_order(batch.lengths, batch.padding, heads, qkv.dtype, qkv.device)
    by_groups = qkv.reshape(-1, size).index_select(0, order.gather)
    groups = zip(*(order.vectors(part) for part in by_groups.chunk(3)), order.biases, strict=True)
    mixed = [_attend_group(group, bias, heads, products, drop) for *group, bias in groups]
    return torch.cat(mixed).index_select(0, order.scatter_heads).view(-1, heads, size)


def _attend_group(
    qkv: list[Tensor],
    bias: Tensor | None,
    heads: int,
    products: DistanceProducts,
    dropout: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """Queries, keys and values (R A, L, D) each -> (R A L, D); bias (R A, 1, L) hides padding."""
    by_head = [part.unflatten(0, (-1, heads)).transpose(0, 1) for part in qkv]  # (A, R, L, D) each
    _, sequences, length, size = by_head[0].shape
    biases = None if bias is None else bias.unflatten(0, (-1, heads)).transpose(0, 1)  # (A, R, 1, L)
    count = max(1, _MOST_SCORES // (3 * heads * length * length))  # sequences at once
    parts = []
    for start in range(0, sequences, count):
        query, key, value = (part[:, start : start + count].contiguous() for part in by_head)
        blocks = []
        for scores in _score_blocks(query, key, products):
            if biases is not None:
                scores = scores + biases[:, start : start + count]
            weights = scores.softmax(-1)
            blocks.append((weights if dropout is None else dropout(weights)).to(value.dtype) @ value)
        parts.append(torch.cat(blocks, 2))  # (A, R, L, D)
    return torch.cat(parts, 1).transpose(0, 1).reshape(-1, size)


def _score_blocks(query: Tensor, key: Tensor, products: DistanceProducts) -> Iterator[Tensor]:
    """The scores (A, R, C, L) of C queries at a time with all keys: of all at once where they are few. query,
    key (A, R, L, D).
    """
    heads, sequences, length, _ = query.shape
    block = max(1, min(length, _MOST_SCORES // (3 * heads * sequences * length)))
    for first in range(0, length, block):
        yield disentangled_scores(query[:, :, first : first + block], key, products, first)


def disentangled_scores(query: Tensor, key: Tensor, products: DistanceProducts, first: int = 0) -> Tensor:
    """The scores (A, R, C, L) of queries (A, R, C, D), which begin at token number `first`, with keys
    (A, R, L, D).
    """
    heads, sequences, block, size = query.shape
    length = key.shape[2]
    scale = products.scale / math.sqrt(size)
    query = query * scale
    last, least = first + block - 1, first - length + 1  # distances from the first key, and from the last one
    scores = query @ key.mT
    if products.keys is not None:
        keys = products.keys[products.rows.between(last, least, key.device)].permute(1, 2, 0)  # (A, D, W)
        met = query.reshape(heads, -1, size) @ keys
        scores = scores + _shift(met.view(heads, sequences, block, -1), length)
    if products.queries is not None:
        queries = products.queries[products.rows.between(least, last, key.device)].permute(1, 2, 0) * scale
        met = key.reshape(heads, -1, size) @ queries
        scores = scores + _shift(met.view(heads, sequences, length, -1), block).mT
    return scores


def _shift(x: Tensor, count: int) -> Tensor:
    """x (…, n, n + count - 1) -> a view (…, n, count): row r begins at column n - 1 - r."""
    *lead, rows, columns = x.shape
    strides = x.contiguous().stride()
    return x.contiguous().as_strided(
        (*lead, rows, count), (*strides[:-2], columns - 1, 1), x.storage_offset() + rows - 1
    )


class Convolution(nn.Module):
    """A convolution over the embeddings, added to the output of the first layer and normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width, kernel = config.hidden_size, config.conv_kernel_size
        self.reach = kernel // 2
        self.conv = nn.Conv1d(width, width, kernel, padding=self.reach, groups=config.conv_groups)
        self.activation = config.conv_act
        self.norm = make_norm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, embedded: Tensor, states: Tensor, batch: PackedBatch) -> Tensor:
        """Embeddings (N, H) and the first layer's output (N, H) -> (N, H)."""
        # zeros between the sequences, as many as the window reaches
        places = _spread_rows(batch.lengths, batch.padding, self.reach, embedded.device)
        spread = embedded.new_zeros(len(embedded) + self.reach * len(batch.lengths), embedded.shape[1])
        spread = spread.index_copy(0, places, embedded)
        convolved = self.conv(spread.T[None])[0].T.index_select(0, places)
        return self._add(convolved, states)

    def of_padded(self, embedded: Tensor, states: Tensor) -> Tensor:
        """The same for a padded batch, (B, L, H) each, where the embeddings of padding are zeros."""
        return self._add(self.conv(embedded.mT).mT, states)

    def _add(self, convolved: Tensor, states: Tensor) -> Tensor:
        normalised: Tensor = self.norm(states + FUNCTIONS[self.activation](self.dropout(convolved)))
        return normalised


@lru_cache(maxsize=4)
def _spread_rows(lengths: tuple[int, ...], padding: int, gap: int, device: torch.device) -> Tensor:
    """The rows of the tokens (N,) where a gap is left behind every sequence."""
    behind = np.arange(len(lengths) + bool(padding)) * gap
    counts = [*lengths, padding] if padding else lengths
    with torch.inference_mode(False):
        return to_device(np.arange(sum(counts)) + np.repeat(behind, counts), device)

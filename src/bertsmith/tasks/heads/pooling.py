"""From the hidden states of a text to its vector: pooling, in however many windows the text is read, and the
projection behind it, which are sentence-transformers' modules Dense, LayerNorm, Normalize and Dropout.

N tokens in the packed batch, R rows that are read, W windows, T texts, E examples, H hidden size, D width of
a vector.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bertsmith.data.batch import PackedBatch, to_device
from bertsmith.errors import ModelError
from bertsmith.model.folder_keys import DENSE_ACTIVATIONS
from bertsmith.model.layers import elementwise
from bertsmith.model.layers.initialisation import meta_init
from bertsmith.tasks.examples.encoding import Layout
from bertsmith.tasks.examples.encoding import Pooling as Pooling
from bertsmith.tasks.examples.encoding import join_pooled as join_pooled


def pool_examples(states: Tensor, layout: Layout, pooling: Pooling) -> Tensor:
    """(R, H) -> (E, H), over all windows of an example."""
    if layout.examples == 1 and pooling == "mean":  # a faster way to the same result
        if states.device.type != "cpu":
            return states.mean(0, keepdim=True)
        first = states.new_zeros(len(states), dtype=torch.int64)  # a sum in the same order, to the bit
        return states.new_zeros(1, states.shape[1]).index_add(0, first, states) / len(states)
    return _pool(states, layout.window_of_row, layout.example_of_window, layout.examples, pooling)


def pool_tokens(states: Tensor, layout: Layout, pooling: Pooling) -> Tensor:
    """(N, H) of all tokens, read or not -> (E, H), over all windows of an example."""
    return _pool(states, layout.window_of_token, layout.example_of_window, layout.examples, pooling)


def mean_of_windows(states: Tensor, layout: Layout) -> Tensor:
    """(N, H) of all tokens -> (W, H), the mean of each window."""
    window = layout.window_of_token  # (N,)
    tokens = torch.zeros(layout.windows, dtype=torch.int64, device=window.device)
    tokens = tokens.index_add(0, window, torch.ones_like(window))
    sums = torch.zeros(layout.windows, states.shape[1], dtype=states.dtype, device=states.device)
    return sums.index_add(0, window, states) / tokens[:, None]


def pool_texts(states: Tensor, layout: Layout, pooling: Pooling) -> Tensor:
    """(R, H) -> (T, H), each of an example's texts separately; T counts all texts of the batch."""
    return _pool(states, layout.window_of_row, layout.text_of_window, sum(layout.texts_of_example), pooling)


def _pool(
    states: Tensor, window_of_row: Tensor, text_of_window: Tensor, texts: int, pooling: Pooling
) -> Tensor:
    """(R, H) -> (T, H): over all rows of a text's windows, special tokens included, as in
    sentence-transformers. "cls" takes the mean of the windows' first rows.

    text_of_window (W,) has numbers below `texts`, each of which has a window; window_of_row (R,).
    """
    text = text_of_window[window_of_row]  # (R,)
    if pooling == "max":
        lowest = torch.full((texts, states.shape[1]), -torch.inf, dtype=states.dtype, device=states.device)
        return lowest.scatter_reduce(0, text[:, None].expand_as(states), states, "amax")
    if pooling == "cls":
        windows = torch.arange(len(text_of_window), device=text.device)
        firsts = torch.searchsorted(window_of_row, windows)
        states, text = states[firsts], text[firsts]
    sums = torch.zeros(texts, states.shape[1], dtype=states.dtype, device=states.device)
    # bincount would synchronise with the device to find the largest number
    rows = torch.zeros(texts, dtype=torch.int64, device=text.device).index_add(0, text, torch.ones_like(text))
    return sums.index_add(0, text, states) / rows[:, None]


def pool_sequences(states: Tensor, batch: PackedBatch, pooling: Pooling) -> Tensor:
    """(N, H) of all tokens -> (B, H), each sequence separately; padding tokens of the batch are ignored."""
    count = len(batch.lengths)
    lengths = to_device(np.array(batch.lengths, np.int64), states.device)
    numbers = torch.arange(count, device=states.device)
    sequence = numbers.repeat_interleave(lengths, output_size=sum(batch.lengths))  # (N,)
    return _pool(states[: len(sequence)], sequence, numbers, count, pooling)


# -- the projection ------------------------------------------------------------------------------------

_WIDEST = 1 << 16  # dimensions of a vector; more are a mistake or an attack
_BY_VECTOR = ("LogSoftmax", "Softmax", "Softmin")
_ACTIVATIONS: Mapping[str, Any] = {
    name: partial(getattr(nn, name), dim=-1) if name in _BY_VECTOR else getattr(nn, name)
    for name in DENSE_ACTIVATIONS
}


class ProjectionLayer(nn.Module):
    """A layer of a `Projection`. `settings` are the keys of its config.json in sentence-transformers, whose
    module of the name `kind` it is; its tensors have the names of that module's file.
    """

    kind: ClassVar[str]
    settings: Mapping[str, Any]

    def width(self, inputs: int) -> int | None:
        """The number of outputs for so many inputs; None where it takes another number."""
        return inputs

    def apply_apart(self, vectors: Tensor) -> Tensor:
        """As `forward`, (T, H) -> (T, D), but for products each vector by itself: torch's activations compute
        what is left over behind whole registers by another loop, with other last bits.
        """
        return torch.stack([self(vector) for vector in vectors])


class Dense(ProjectionLayer):
    """A linear layer and an activation: (…, H) -> (…, D). With `use_residual` the input is added to the
    result, through another linear layer if it has another width.
    """

    kind = "Dense"

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation_function: str = "Identity",
        use_residual: bool = False,
    ) -> None:
        """`activation_function` is a key of `DENSE_ACTIVATIONS`."""
        super().__init__()
        self.settings = {
            "in_features": in_features,
            "out_features": out_features,
            "bias": bias,
            "activation_function": activation_function,
            **({"use_residual": True} if use_residual else {}),
        }
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation_function = _ACTIVATIONS[activation_function]()
        self.use_residual = use_residual
        if use_residual and in_features != out_features:
            self.residual = nn.Linear(in_features, out_features, bias=False)

    def width(self, inputs: int) -> int | None:
        return self.settings["out_features"] if inputs == self.settings["in_features"] else None

    def forward(self, vectors: Tensor) -> Tensor:
        return self._add_residual(self.activation_function(self.linear(vectors)), vectors)

    def apply_apart(self, vectors: Tensor) -> Tensor:
        outputs = [self.activation_function(product) for product in self.linear(vectors)]
        return self._add_residual(torch.stack(outputs), vectors)

    def _add_residual(self, outputs: Tensor, vectors: Tensor) -> Tensor:
        if not self.use_residual:
            return outputs
        return outputs + (self.residual(vectors) if hasattr(self, "residual") else vectors)


class VectorNorm(ProjectionLayer):
    """LayerNorm of a vector, with torch's usual epsilon."""

    kind = "LayerNorm"

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.settings = {"dimension": dimension}
        self.norm = nn.LayerNorm(dimension)

    def width(self, inputs: int) -> int | None:
        return inputs if inputs == self.settings["dimension"] else None

    def forward(self, vectors: Tensor) -> Tensor:
        normalised: Tensor = self.norm(vectors)
        return normalised


class UnitLength(ProjectionLayer):
    """Scales a vector to length 1, before further layers: at the end of a projection the caller does it."""

    kind = "Normalize"
    settings: Mapping[str, Any] = {}

    def forward(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=-1)


class VectorDropout(ProjectionLayer):
    """Dropout of a vector's values, in training alone."""

    kind = "Dropout"

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.settings = {"dropout": dropout}
        self.dropout_layer = elementwise.Dropout(dropout)

    def forward(self, vectors: Tensor) -> Tensor:
        dropped: Tensor = self.dropout_layer(vectors)
        return dropped


PROJECTION_LAYERS: Mapping[str, type[ProjectionLayer]] = {
    layer.kind: layer for layer in (Dense, VectorNorm, UnitLength, VectorDropout)
}


def make_projection_layer(kind: str, settings: Mapping[str, Any], where: str) -> ProjectionLayer:
    """A layer with new weights, of the keys in its config.json; an activation is named by torch's class
    alone. Raises ModelError, naming the file `where`, for values that make no layer.
    """
    wrong = [f"{name} = {value!r}" for name, value in settings.items() if not _is_layer_setting(name, value)]
    try:
        if wrong:
            raise ValueError(", ".join(wrong))
        return PROJECTION_LAYERS[kind](**settings)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{where} doesn't describe a module {kind} ({str(error)[:200]}). It may have been altered."
        ) from error


def _is_layer_setting(name: str, value: Any) -> bool:
    if name in ("in_features", "out_features", "dimension"):
        return type(value) is int and 1 <= value <= _WIDEST
    if name == "dropout":
        return type(value) in (int, float) and 0 <= value <= 1
    if name == "activation_function":
        return isinstance(value, str) and value in DENSE_ACTIVATIONS
    return type(value) is bool


class Projection(nn.Sequential):
    """The layers between a text's pooled vector and its vector: (T, H) -> (T, D)."""

    def __init__(self, layers: Iterable[ProjectionLayer]) -> None:
        super().__init__(*layers)

    def width(self, inputs: int) -> int | None:
        """D, the number of dimensions for pooled vectors of so many; None where they don't fit."""
        width: int | None = inputs
        for layer in self.layers:
            width = None if width is None else layer.width(width)
        return width

    @property
    def layers(self) -> list[ProjectionLayer]:
        return [layer for layer in self if isinstance(layer, ProjectionLayer)]

    @torch.no_grad()
    def linear_part(self, inputs: int) -> Tensor:
        """The product (D, H) of its linear layers, without what no product can say: activations and norms."""
        product = torch.eye(inputs)
        for layer in self.layers:
            if isinstance(layer, Dense):
                product = layer.linear.weight.cpu().float() @ product
        return product

    def state(self) -> list[dict[str, Any]]:
        """The kind and the settings of each layer, as JSON."""
        return [{"type": layer.kind, **layer.settings} for layer in self.layers]

    @classmethod
    def from_state(cls, state: Any, where: str) -> "Projection":
        """The inverse of `state`, on the meta device: its weights are the model's. Raises ModelError if the
        file `where` was altered.
        """
        if not isinstance(state, list) or not all(
            isinstance(layer, dict) and layer.get("type") in PROJECTION_LAYERS for layer in state
        ):
            raise ModelError(f"{where}: projection: expected layers, found {str(state)[:80]!r}.")
        described = ((layer["type"], {k: v for k, v in layer.items() if k != "type"}) for layer in state)
        return meta_init(
            lambda: cls(make_projection_layer(kind, settings, where) for kind, settings in described)
        )

    def copy_for(self, inputs: int) -> "Projection":
        """A copy for pooled vectors of `inputs` dimensions. Layers that have to be of another width get new
        weights, and so do all if this one is on the meta device.
        """
        copies, width = list[ProjectionLayer](), inputs
        for layer in self.layers:
            first = {"Dense": "in_features", "LayerNorm": "dimension"}.get(layer.kind)
            settings = layer.settings if first is None else {**layer.settings, first: width}
            copy = type(layer)(**settings)
            if settings == layer.settings and not any(
                p.is_meta for p in (*layer.parameters(), *copy.parameters())
            ):
                copy.load_state_dict(layer.state_dict())
            copies.append(copy)
            width = copy.width(width) or width
        return Projection(copies)

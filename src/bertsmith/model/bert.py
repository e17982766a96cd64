"""An encoder on packed batches: embeddings → layers → hidden states → pooling.

N tokens in the packed batch, B sequences, H hidden size, 2 S rows of the table of distances, A heads, 2 R
distances.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from bertsmith.argument_checks import check_arguments, instance_of
from bertsmith.data.batch import PackedBatch
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.process import compute_alone_after_fork
from bertsmith.model.layers.attention import Alibi, PositionBias, select_rows
from bertsmith.model.layers.disentangled import Convolution, RelativePositions
from bertsmith.model.layers.elementwise import Activation, make_norm
from bertsmith.model.layers.embeddings import Embeddings
from bertsmith.model.layers.initialisation import initialise
from bertsmith.model.layers.layer import Layer

if TYPE_CHECKING:
    from bertsmith.model.cpu.int8 import Int8Choice


class AdaptedRows(NamedTuple):
    """The rows of a packed batch from `start` to before `end`. `adapter` gives what is added (N, 3 H) to a
    layer's products of its input, by the layer's number and the input (N, H), or None for nothing.
    """

    adapter: nn.Module | None
    start: int
    end: int


class Bert(nn.Module):
    """The encoder of every family; `config` says which of the optional parts it has."""

    layer_weights: Tensor | None
    adapter: nn.Module | None

    @check_arguments(config=instance_of(BertConfig))
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        compute_alone_after_fork()
        self.config = config
        self.int8_choice: Int8Choice | None = None  # for `prepare_for_inference` in int8
        self.embeddings = Embeddings(config)
        self.relative: RelativePositions | PositionBias | Alibi | None = None
        if config.relative_attention:
            self.relative = RelativePositions(config)
        elif config.position_bias == "buckets":
            self.relative = PositionBias(config)
        elif config.position_bias == "alibi":
            self.relative = Alibi(config)
        self.convolution = Convolution(config) if config.conv_kernel_size else None
        # those with weights of their own; `layer_sequence` has them as often as they are computed
        self.layers = nn.ModuleList(Layer(config, number) for number in range(max(config.layer_order) + 1))
        self.final_norm = make_norm(config) if config.final_norm else None
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if config.has_pooler else None
        self.pooler_activation = Activation("tanh")
        # (num_hidden_layers + 1,): a weight for each of all hidden states, where a model mixes them
        self.register_buffer("layer_weights", None, persistent=False)
        self.register_module("adapter", None)  # LoRA's parts, where they are computed beside the layers
        for part in (self.embeddings, self.relative, self.convolution):
            if part is not None:
                initialise(part, config.initializer_range)
        for layer in self.layers:
            layer.initialise(config)  # type: ignore[operator]
        if self.pooler is not None:
            initialise(self.pooler, config.initializer_range)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        compute_alone_after_fork()

    @property
    def layer_sequence(self) -> list[nn.Module]:
        """The layers in the order in which they are computed; ALBERT's are the same one again and again."""
        return [self.layers[number] for number in self.config.layer_order]

    def forward(
        self,
        batch: PackedBatch,
        rows: Tensor | None = None,
        adapted: Sequence[AdaptedRows] | None = None,
    ) -> Tensor:
        """The last layer's hidden states (N, H), or (R, H) where a head reads only the given rows; with
        `layer_weights` the mean of all hidden states by these weights. `adapted` are the rows of each adapter
        in a batch of several; None: all are of the encoder's own, if it has one.

        The last layer then computes only these: with 15 % of the tokens masked, that saves more than half of
        it. Padding tokens of the batch are left out.
        """
        if self.layer_weights is not None:
            return self.mix_states([select_rows(s, rows) for s in self.all_hidden_states(batch)])
        states = self.embeddings(batch)
        relative = self.relative_table()
        last = len(self.config.layer_order) - 1
        for number in range(last + 1):
            states = self.apply_layer(
                number, states, batch, rows if number == last else None, relative, adapted
            )
        states = self._apply_final_norm(states)
        return _drop_padding(states, batch) if rows is None else states

    def all_hidden_states(self, batch: PackedBatch) -> list[Tensor]:
        """The output of the embeddings and of every layer, the last one after the final norm if there is one:
        num_hidden_layers + 1 tensors of (N, H), padding tokens left out.
        """
        states: list[Tensor] = [self.embeddings(batch)]
        relative = self.relative_table()
        for number in range(len(self.config.layer_order)):
            states.append(self.apply_layer(number, states[-1], batch, None, relative))
        states[-1] = self._apply_final_norm(states[-1])
        return [_drop_padding(state, batch) for state in states]

    def mix_states(self, states: Sequence[Tensor]) -> Tensor:
        """The mean of all hidden states (…, H) by `layer_weights`, as sentence-transformers'
        WeightedLayerPooling takes it.
        """
        assert self.layer_weights is not None
        weighted = [weight * state for weight, state in zip(self.layer_weights, states, strict=True)]
        return torch.stack(weighted).sum(0) / self.layer_weights.sum()

    def relative_table(self) -> Tensor | None:
        """What every layer reads of distances: the table (2 S, H) of disentangled attention, or what is added
        to scores, (A, 2 R), as `attend` has it; None for most families.
        """
        if isinstance(self.relative, Alibi):
            return self.relative(self.embeddings.token.weight.device)  # type: ignore[no-any-return]
        return None if self.relative is None else self.relative()

    def apply_layer(
        self,
        number: int,
        states: Tensor,
        batch: PackedBatch,
        rows: Tensor | None = None,
        relative: Tensor | None = None,
        adapted: Sequence[AdaptedRows] | None = None,
    ) -> Tensor:
        """The output (N, H) of layer number `number` for its input (N, H), or (R, H) of the given rows; that
        of the first layer with the convolution, where there is one. `relative` is the `relative_table`,
        `adapted` as in `forward`.
        """
        place = self.config.layer_order[number]
        layer = self.layers[place]
        if adapted is not None or self.adapter is not None:
            return self._apply_adapted_layer(place, states, batch, rows, adapted)
        if number or self.convolution is None:
            output: Tensor = layer(states, batch, rows, relative)
            return output
        return select_rows(self.convolution(states, layer(states, batch, None, relative), batch), rows)

    def _apply_adapted_layer(
        self,
        place: int,
        states: Tensor,
        batch: PackedBatch,
        rows: Tensor | None,
        adapted: Sequence[AdaptedRows] | None,
    ) -> Tensor:
        """The output of the layer at this place with what adapters add."""
        if adapted is None:
            adapted = [AdaptedRows(self.adapter, 0, len(states))]
        added = states.new_zeros(len(states), 3 * states.shape[1])
        for adapter, start, end in adapted:
            adapter_rows = None if adapter is None else adapter(place, states[start:end])
            if adapter_rows is not None:
                added[start:end] = adapter_rows
        output: Tensor = self.layers[place](states, batch, rows, None, added)
        return output

    def _apply_final_norm(self, states: Tensor) -> Tensor:
        return states if self.final_norm is None else self.final_norm(states)

    def pool(self, first_tokens: Tensor) -> Tensor:
        """tanh(W h + b) of the hidden states of `batch.first_rows`: (B, H) -> (B, H).

        Raises ValueError for a family without a pooler (DistilBERT).
        """
        if self.pooler is None:
            raise ValueError(
                f"a {self.config.model_type} model has no pooler; use the first token's hidden state"
            )
        pooled: Tensor = self.pooler_activation(self.pooler(first_tokens))
        return pooled


def _drop_padding(states: Tensor, batch: PackedBatch) -> Tensor:
    return states[: -batch.padding] if batch.padding else states

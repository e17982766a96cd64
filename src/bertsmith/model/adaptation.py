"""Prepares a pre-trained encoder for fine-tuning: freezing its lowest layers, re-initialising its top ones,
and setting its dropout.
"""

from torch import nn

from bertsmith.errors import ModelError
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig
from bertsmith.model.layers.elementwise import Dropout
from bertsmith.model.layers.initialisation import initialise, meta_init


def freeze(model: Bert, embeddings: bool, lowest: int) -> None:
    """Freezes the embeddings and the `lowest` layers, which then cost nothing in the backward pass. What all
    layers read of distances is frozen with the embeddings, and a convolution with the first layer.

    A frozen layer implies frozen embeddings: gradients through frozen layers to trained embeddings would cost
    most of what freezing saves. No frozen part needs a gradient, so that autograd records nothing there.

    Dropout is turned off in frozen parts for good, also after `train()`: they are fixed functions, and noise
    would only cost time. (transformers leaves it on.) Raises ModelError where the model has fewer layers, and
    where others have the weights of the lowest ones.
    """
    _check_layers(model, lowest, "freeze the lowest")
    _require_own_weights(model, lowest, "freeze the lowest", lowest)
    frozen: list[nn.Module] = []
    if embeddings or lowest:
        convolution = model.convolution if lowest else None
        frozen = [part for part in (model.embeddings, model.relative, convolution) if part is not None]
    for part in [*frozen, *model.layer_sequence[:lowest]]:
        part.requires_grad_(False)
        for module in part.modules():
            if isinstance(module, Dropout):
                module.probability = 0.0


def reinitialise(model: Bert, top: int) -> None:
    """Re-initialises the `top` layers and the pooler from torch's generator, as at the start of pre-training.

    They are the most specialised in the pre-training task and, with little data, often worse than a random
    start (Zhang et al. 2021, "Revisiting few-sample BERT fine-tuning", section 5). 0 changes nothing. Raises
    ModelError where the model has fewer layers, and where others have the weights of the top ones.
    """
    _check_layers(model, top, "draw anew the top")
    _require_own_weights(model, model.config.num_hidden_layers - top, "draw anew the top", top)
    if not top:
        return
    for layer in dict.fromkeys(model.layer_sequence[model.config.num_hidden_layers - top :]):
        layer.initialise(model.config)  # type: ignore[operator]
    if model.pooler is not None:
        initialise(model.pooler, model.config.initializer_range)


def trained_share(model: nn.Module) -> float:
    """The number of trained weights over the number of all weights of a model, heads included."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, trained in sizes if trained) / sum(size for size, _ in sizes)


def _check_layers(model: Bert, count: int, purpose: str) -> None:
    layers = model.config.num_hidden_layers
    if not 0 <= count <= layers:
        raise ModelError(
            f"Can't {purpose} {count} layers: the model has {layers}. Give a number from 0 to {layers}."
        )


def _require_own_weights(model: Bert, boundary: int, purpose: str, count: int) -> None:
    if model.config.shares_weights_at(boundary):
        raise ModelError(
            f"Can't {purpose} {count} of {model.config.num_hidden_layers} layers of this "
            f"{model.config.model_type} model: others have the same weights. Give 0, or all."
        )


def apply_dropout(encoder: nn.Module, config: BertConfig) -> None:
    """Sets the dropout rates of a loaded encoder to those of a config."""
    rates = {
        name: module.probability
        for name, module in meta_init(lambda: Bert(config)).named_modules()
        if isinstance(module, Dropout)
    }
    for name, module in encoder.named_modules():
        if name in rates and isinstance(module, Dropout):
            module.probability = rates[name]

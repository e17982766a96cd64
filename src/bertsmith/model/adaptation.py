"""What of a finished encoder is trained on, and what starts anew."""

from torch import nn

from bertsmith.errors import ModelError
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig
from bertsmith.model.layers.elementwise import Dropout
from bertsmith.model.layers.initialisation import initialise
from bertsmith.model.meta_init import meta_init


def freeze(model: Bert, embeddings: bool, lowest: int) -> None:
    """Leaves the embeddings and the lowest layers as they are, at no cost in the backward pass.

    Layers are frozen together with all that lies below them, so `lowest` above 0 includes the embeddings: a
    gradient that had to travel through frozen layers to trained embeddings would cost most of what freezing
    saves. Since nothing frozen then needs a gradient, autograd records nothing there.

    Dropout is off in frozen parts for good, whatever `train()` says later: they are fixed functions, and
    noise on them would only be paid for. (transformers leaves it on.) Raises ModelError for a number of
    layers which the model doesn't have.
    """
    _check_layers(model, lowest, "freeze the lowest")
    frozen: list[nn.Module] = [model.embeddings] if embeddings or lowest else []
    for part in [*frozen, *model.layers[:lowest]]:
        part.requires_grad_(False)
        for module in part.modules():
            if isinstance(module, Dropout):
                module.probability = 0.0


def reinitialise(model: Bert, top: int) -> None:
    """Draws the top layers and the pooler anew, from torch's generator, as at the start of pre-training.

    They are the most specialised for the pre-training task and, with little data, often worse than a random
    start (Zhang et al. 2021, "Revisiting few-sample BERT fine-tuning", section 5). 0 changes nothing. Raises
    ModelError for a number of layers which the model doesn't have.
    """
    _check_layers(model, top, "draw anew the top")
    if not top:
        return
    for layer in model.layers[len(model.layers) - top :]:
        layer.initialise(model.config)  # type: ignore[operator]
    if model.pooler is not None:
        initialise(model.pooler, model.config.initializer_range)


def trained_share(model: nn.Module) -> float:
    """Weights that are trained / all weights, heads included where `model` has them."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(size for size, trained in sizes if trained) / sum(size for size, _ in sizes)


def _check_layers(model: Bert, asked: int, purpose: str) -> None:
    if not 0 <= asked <= len(model.layers):
        raise ModelError(
            f"Can't {purpose} {asked} layers: the model has {len(model.layers)}. "
            f"Give a number from 0 to {len(model.layers)}."
        )


def apply_dropout(encoder: nn.Module, config: BertConfig) -> None:
    """Sets the dropout rates of a loaded encoder to those of a shape."""
    rates = {
        name: module.probability
        for name, module in meta_init(lambda: Bert(config)).named_modules()
        if isinstance(module, Dropout)
    }
    for name, module in encoder.named_modules():
        if name in rates and isinstance(module, Dropout):
            module.probability = rates[name]

"""The last product of an embedding model, which makes vectors of other dimensions: Dense in modules.json.

H hidden size, D dimensions of a vector.
"""

from pathlib import Path

from torch import nn

from bertsmith.errors import ModelError
from bertsmith.model.folder_keys import DENSE
from bertsmith.model.untrusted import plain_file, read_settings, read_tensors

_WEIGHTS = "model.safetensors"


def read_projection(folder: Path, width: int) -> nn.Linear:
    """H -> D of a model of this width, as `SentenceSettings.projection` names it.

    Raises ModelError for an activation, for a product of another width, and for broken files.
    """
    path = plain_file(folder, "config.json")
    settings = read_settings(path)
    DENSE.require(settings, str(path))
    activation = str(settings.get("activation_function", "")).rpartition(".")[2]
    if activation != "Identity":
        raise ModelError(
            f"{path}: activation_function is {activation or 'not given, which means Tanh'}. Bertsmith "
            "computes a linear layer at the end without one alone (Identity), and others not yet. Use "
            "another model."
        )
    weights = plain_file(folder, _WEIGHTS)
    tensors = read_tensors(weights)
    weight, bias = tensors.pop("linear.weight", None), tensors.pop("linear.bias", None)
    if tensors or weight is None or weight.ndim != 2 or weight.shape[1] != width:
        found = "nothing" if weight is None else str(tuple(weight.shape))
        raise ModelError(
            f"{weights}: expected linear.weight of shape (dimensions, {width}) and linear.bias alone; found "
            f"{found}. Use a folder whose files belong together."
        )
    said = settings.get("in_features"), settings.get("out_features"), settings.get("bias", True)
    if said != (width, weight.shape[0], bias is not None):
        raise ModelError(
            f"{path} says in_features {said[0]}, out_features {said[1]}, bias {said[2]}, but {weights.name} "
            f"has the shape {tuple(weight.shape)} and {'a' if bias is not None else 'no'} bias. Use a folder "
            "whose files belong together."
        )
    if (bias is not None and bias.shape != weight.shape[:1]) or not all(
        bool(each.isfinite().all()) for each in (weight, bias) if each is not None
    ):
        raise ModelError(
            f"{weights}: a value isn't finite, or linear.bias has another shape. Take another copy."
        )
    linear = nn.Linear(width, weight.shape[0], bias=bias is not None)
    linear.weight.data = weight.float()
    if bias is not None:
        linear.bias.data = bias.float()
    return linear.eval().requires_grad_(False)


def refuse_projection(folder: Path, projection: Path | None, purpose: str) -> None:
    """Raises ModelError where `purpose` would leave a last product out."""
    if projection is not None:
        raise ModelError(
            f"{folder} ends in a linear layer that changes the vectors' dimensions ({projection.name}), "
            f"which {purpose} doesn't have. Use a model without it."
        )

"""The last product of an embedding model, which makes vectors of other dimensions: Dense in modules.json.

H hidden size, D dimensions of a vector.
"""

from pathlib import Path

from torch import nn

from bertsmith.errors import ModelError
from bertsmith.model.untrusted import plain_file, read_settings, read_tensors

_WEIGHTS = "model.safetensors"


def read_projection(folder: Path, width: int) -> nn.Linear:
    """H -> D of a model of this width, as `SentenceSettings.projection` names it.

    Raises ModelError for an activation, for a product of another width, and for broken files.
    """
    path = plain_file(folder, "config.json")
    settings = read_settings(path)
    activation = str(settings.get("activation_function", "")).rpartition(".")[2]
    if activation != "Identity":
        raise ModelError(
            f"{path}: activation_function is {activation or 'not given'}; a linear layer at the end "
            "is supported without one only (Identity)."
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

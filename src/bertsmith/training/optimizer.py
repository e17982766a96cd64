"""AdamW with BERT's parameter groups: no decay on biases and LayerNorm (google-research/bert,
optimization.py).
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def make_optimizer(
    model: nn.Module, weight_decay: float, betas: tuple[float, float], epsilon: float
) -> torch.optim.AdamW:
    """Fused: on a CPU 7 ms a step for 11 M weights, where the plain one takes 51."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for name, p in trained if decays(name)], "weight_decay": weight_decay},
        {"params": [p for name, p in trained if not decays(name)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=epsilon, fused=True)


def decays(name: str) -> bool:
    """Whether the parameter of this name is decayed: every weight matrix, embeddings among them."""
    part = name.rsplit(".", 2)[-2:]
    return part[-1] != "bias" and "norm" not in part[0]


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """The same rate for every group."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state: `NAME.exp_avg`, `NAME.exp_avg_sq` and `NAME.step` of each parameter."""
    return {
        f"{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    """The inverse of `optimizer_tensors`."""
    for name, parameter in model.named_parameters():
        state = {key: tensors[f"{name}.{key}"] for key in state_keys(tensors, name)}
        if state:
            optimizer.state[parameter] = {
                key: value if key == "step" else value.to(parameter.device) for key, value in state.items()
            }


def state_keys(tensors: Iterable[str], name: str) -> list[str]:
    """Which kinds of state there are for one parameter."""
    return [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{name}.{key}" in tensors]

"""What a run's figures depend on beside its recipe: versions, the machine and the seed."""

from typing import Any

import numpy
import tokenizers
import torch

from bertsmith import __version__
from bertsmith.machine import Hardware


def environment(seed: int, hardware: Hardware) -> dict[str, Any]:
    """As plain values, for a report."""
    return {
        "bertsmith": __version__,
        "torch": torch.__version__,
        "tokenizers": tokenizers.__version__,
        "numpy": numpy.__version__,
        "processor": hardware.processor,
        "cores": hardware.cores,
        "GPUs": ", ".join(gpu.name for gpu in hardware.gpus) or "none",
        "seed": seed,
    }

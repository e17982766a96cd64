"""Where a step makes the host wait for the GPU: each such place lets the GPU run out of work."""

import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

_ROOT = Path(__file__).parents[2]
_SEEN = "called a synchronizing CUDA operation"  # torch's first warning says only that the mode is young


def waits(step: Callable[[], object]) -> Counter[str]:
    """file:line → how often the host waited there, as torch.cuda.set_sync_debug_mode sees it.

    What it doesn't see: a copy from pageable memory that the driver itself waits for.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    found = [each for each in caught if _SEEN in str(each.message)]
    return Counter(f"{_short(each.filename)}:{each.lineno}" for each in found)


def _short(filename: str) -> str:
    """From the repository's root, or from the package that it belongs to."""
    path = Path(filename)
    if path.is_relative_to(_ROOT):
        return str(path.relative_to(_ROOT))
    return "/".join(path.parts[-3:])

"""Bertsmith: the whole life of a BERT, from raw text to a checkpoint that other tools open.

The names below are the public surface; each is imported when it is first used, so that
`import bertsmith` costs no torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME_OF = {
    "BertsmithError": "bertsmith.errors",
}

__all__ = ["BertsmithError"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bertsmith' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

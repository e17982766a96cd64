"""Every error that is the user's to mend; the command line prints its sentence and exits with 2.

    BertsmithError
    ├── InputError        a source, a file or a text is not what was expected
    │   ├── EncodingError     bytes that the text's encoding doesn't have
    │   ├── CorpusError       a corpus folder is missing, altered, or lacks what the command needs
    │   ├── TokenizerError    a vocabulary is broken or does not fit
    │   ├── FilterError       a filter of a search that isn't one, or names what there isn't
    │   └── StoreError        a token store is truncated, altered or made for another vocabulary
    ├── RecipeError       a setting is unknown or impossible
    ├── ModelError        a checkpoint is unsafe, incomplete or mis-shaped
    │   └── NotFinite         what a model computes overflows
    ├── ResourceError     too little disk or memory
    │   └── DiskFull          too little disk; what was finished stays
    ├── ExportRefused     an exported graph does not answer as its model does
    ├── MissingExtra      an optional package is not installed; prints the install command
    └── TrainingStopped   a run stopped by its guard: loss not finite, or a spike

A message says what was expected, what was found, where, and what to do next.
"""

import re
from collections.abc import Collection
from difflib import get_close_matches
from importlib import import_module
from typing import Any

# All but tab and line feed; 0x80 to 0x9f too, for some terminals take 0x9b for the beginning of a command.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class BertsmithError(Exception):
    """Base of all errors a user can mend."""


class InputError(BertsmithError):
    """A source, a file or a text is not what was expected."""


class EncodingError(InputError):
    """Bytes that the text's encoding doesn't have. `problem` says which and where, `likely` names an encoding
    that may have them; the command line adds the options that its command has for it.
    """

    def __init__(self, problem: str, likely: str) -> None:
        super().__init__(problem, likely)
        self.problem, self.likely = problem, likely

    def __str__(self) -> str:
        return f"{self.problem} Save it as UTF-8, or give its encoding ({self.likely!r}, for one)."


class CorpusError(InputError):
    """A corpus folder is missing, altered, or lacks what the command needs."""


class TokenizerError(InputError):
    """A vocabulary is broken or does not fit."""


class FilterError(InputError):
    """A filter of a search that isn't one, or names what there isn't."""


class StoreError(InputError):
    """A token store is truncated, altered or made for another vocabulary."""


class RecipeError(BertsmithError):
    """A setting is unknown or impossible."""


class ModelError(BertsmithError):
    """A checkpoint is unsafe, incomplete or mis-shaped."""


class NotFinite(ModelError):
    """What a model computes is infinite or NaN."""


class ResourceError(BertsmithError):
    """Too little disk or memory for what was asked."""


class DiskFull(ResourceError):
    """Too little disk for what was asked; what was finished stays."""


class TrainingStopped(BertsmithError):
    """A run stopped by its guard."""


class ExportRefused(BertsmithError):
    """An exported graph does not answer as its model does; `parity` has every figure that was compared."""

    def __init__(self, message: str, parity: dict[str, Any]) -> None:
        super().__init__(message)
        self.parity = parity


class MissingExtra(BertsmithError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package}: pip install 'bertsmith[{extra}]'")


def require(module: str, extra: str, purpose: str, package: str = "") -> None:
    """Raises MissingExtra unless `module` can be imported; `package` has it, if the name is another."""
    try:
        import_module(module)
    except ImportError as error:
        raise MissingExtra(package or module.partition(".")[0], extra, purpose) from error


def did_you_mean(name: str, choices: Collection[str], count: int = 1, cutoff: float = 0.5) -> str:
    """What follows a sentence on an unknown name, a blank before it; empty when no choice is near.

    Names `count` choices at most, the nearest first, whose likeness by difflib is at least `cutoff`.
    """
    near = get_close_matches(name, choices, n=count, cutoff=cutoff)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def printable(text: str) -> str:
    """For a terminal, which would obey control characters in names and texts of others: each as its escape,
    \\u001b, which JSON reads as the character again.
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)

"""Every error that is the user's to mend; the command line prints its sentence and exits with 2.

    BertsmithError
    ├── InputError        a source, a file or a text is not what was expected
    │   ├── EncodingError     bytes that the text's encoding doesn't have
    │   ├── CorpusError       a corpus folder is missing, altered, or lacks what the command needs
    │   ├── TokenizerError    a vocabulary is broken or does not fit
    │   ├── FilterError       a filter of a search that isn't one, or names what there isn't
    │   └── StoreError        a token store is damaged, made for another vocabulary, or lacks text
    ├── RecipeError       a setting is unknown or impossible
    ├── ModelError        a checkpoint is unsafe, incomplete or mis-shaped
    │   └── NotFinite         what a model computes overflows
    ├── ResourceError     too little disk or memory
    │   └── DiskFull          too little disk; what was finished stays
    ├── ExportRefused     an exported graph does not answer as its model does
    ├── MissingExtra      an optional package is not installed; prints the install command
    └── TrainingStopped   training diverged: loss not finite, or a spike; also in every trial, or in a fold

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
    """Bytes that the text's encoding doesn't have. `problem` says which and where, `likely_encoding` names an
    encoding that may have them. The command line names --encoding and --encoding-errors in its message, where
    the command has these options.
    """

    def __init__(self, problem: str, likely_encoding: str) -> None:
        super().__init__(problem, likely_encoding)
        self.problem, self.likely_encoding = problem, likely_encoding

    def __str__(self) -> str:
        return f"{self.problem} Save it as UTF-8, or give its encoding ({self.likely_encoding!r}, for one)."


class CorpusError(InputError):
    """A corpus folder is missing, altered, or lacks what the command needs."""


class TokenizerError(InputError):
    """A vocabulary is broken or does not fit."""


class FilterError(InputError):
    """A search's filter can't be parsed, or names a column that the index doesn't have."""


class StoreError(InputError):
    """A token store (a tokenised corpus) is truncated, altered, made for another vocabulary or corpus, or has
    too little text to train on.
    """


class RecipeError(BertsmithError):
    """A setting is unknown or impossible."""


class ModelError(BertsmithError):
    """A checkpoint is unsafe, incomplete or mis-shaped."""


class NotFinite(ModelError):
    """A model's outputs are infinite or NaN."""


class ResourceError(BertsmithError):
    """There is too little disk or memory for the work, or no permission to write."""


class DiskFull(ResourceError):
    """The disk is full, or too small for the work; what was finished is kept."""


class TrainingStopped(BertsmithError):
    """Training diverged (the loss isn't finite, or rose in a spike): that of a run, of every trial of a
    search, or of a fold.
    """


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
    """Raises MissingExtra unless `module` can be imported. `package`: the one to install, if it has another
    name.
    """
    try:
        import_module(module)
    except ImportError as error:
        raise MissingExtra(package or module.partition(".")[0], extra, purpose) from error


def did_you_mean(name: str, choices: Collection[str], count: int = 1, cutoff: float = 0.5) -> str:
    """' Did you mean …?', with a blank before it, to append to a sentence on an unknown name; '' if no choice
    is near.

    It names at most `count` choices, the nearest first, with a similarity by difflib of at least `cutoff`.
    """
    near = get_close_matches(name, choices, n=count, cutoff=cutoff)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def printable(text: str) -> str:
    """Returns the text with its control characters escaped, such as \\u001b: a terminal would obey them in
    names and texts of others. JSON reads the escape as the character again.
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)

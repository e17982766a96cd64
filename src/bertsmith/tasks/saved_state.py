"""Validates what a file says about a task before it is used: its settings, labels and numbers."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from bertsmith.errors import ModelError
from bertsmith.validation import describe_problem

S = TypeVar("S", bound=BaseModel)
_ADVICE = "The file was altered: take it from a copy, or train again."


class _State(BaseModel):
    """The part of a state that every task has; a task adds its own keys."""

    model_config = ConfigDict(strict=True)

    settings: dict[str, Any]
    labels: tuple[str, ...]


def read_state(state: Mapping[str, Any], settings: type[S], where: str) -> tuple[S, tuple[str, ...]]:
    """Settings and labels, with the types that they were written with. Raises ModelError naming `where`."""
    try:
        parsed = _State.model_validate_json(json.dumps(state))
        checked = settings.model_validate_json(json.dumps(parsed.settings), strict=True)
    except ValidationError as error:
        model = _State if error.title == _State.__name__ else settings
        raise ModelError(f"{where}: {describe_problem(error, model)} {_ADVICE}") from error
    require_labels(parsed.labels, where)
    return checked, parsed.labels


def require_labels(labels: Sequence[str], where: str) -> None:
    """Raises ModelError for an empty label, and for one that occurs twice."""
    for label, count in Counter(labels).most_common():
        if not label.strip():
            raise ModelError(f"{where}: one of the {len(labels):,} labels is empty. {_ADVICE}")
        if count > 1:
            raise ModelError(f"{where}: the label {label[:80]!r} stands twice. {_ADVICE}")


def require_number(value: Any, name: str, where: str) -> float:
    """Returns a finite number of a state as float. Raises ModelError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelError(f"{where}: {name}: expected a number, found {str(value)[:80]!r}. {_ADVICE}")
    return float(value)


def require_text(value: Any, name: str, where: str) -> str:
    """Returns a text of a state. Raises ModelError for anything else."""
    if not isinstance(value, str):
        raise ModelError(f"{where}: {name}: expected a text, found {str(value)[:80]!r}. {_ADVICE}")
    return value


def require_truth(value: Any, name: str, where: str) -> bool:
    """Returns True or False of a state. Raises ModelError for anything else."""
    if not isinstance(value, bool):
        raise ModelError(f"{where}: {name}: expected true or false, found {str(value)[:80]!r}. {_ADVICE}")
    return value

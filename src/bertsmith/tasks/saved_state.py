"""What a file says of a task, before anybody believes it: its settings, its labels and its numbers."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from bertsmith.errors import ModelError
from bertsmith.validation import first_problem

S = TypeVar("S", bound=BaseModel)
_WAY_ON = "The file was altered: take it from a copy, or train again."


class _State(BaseModel):
    """What every task keeps; a task adds its own."""

    model_config = ConfigDict(strict=True)

    settings: dict[str, Any]
    labels: tuple[str, ...]


def read_state(state: Mapping[str, Any], settings: type[S], where: str) -> tuple[S, tuple[str, ...]]:
    """Settings and labels, of the types that they were written with. Raises ModelError naming `where`."""
    try:
        found = _State.model_validate_json(json.dumps(state))
        checked = settings.model_validate_json(json.dumps(found.settings), strict=True)
    except ValidationError as error:
        kind = _State if error.title == _State.__name__ else settings
        raise ModelError(f"{where}: {first_problem(error, kind)} {_WAY_ON}") from error
    require_labels(found.labels, where)
    return checked, found.labels


def require_labels(labels: Sequence[str], where: str) -> None:
    """Raises ModelError for a label without a name, and for one that stands twice."""
    for label, count in Counter(labels).most_common():
        if not label.strip():
            raise ModelError(f"{where}: one of the {len(labels):,} labels is empty. {_WAY_ON}")
        if count > 1:
            raise ModelError(f"{where}: the label {label[:80]!r} stands twice. {_WAY_ON}")


def require_number(value: Any, name: str, where: str) -> float:
    """A finite number of a state. Raises ModelError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelError(f"{where}: {name}: expected a number, found {str(value)[:80]!r}. {_WAY_ON}")
    return float(value)


def require_text(value: Any, name: str, where: str) -> str:
    """A text of a state. Raises ModelError for anything else."""
    if not isinstance(value, str):
        raise ModelError(f"{where}: {name}: expected a text, found {str(value)[:80]!r}. {_WAY_ON}")
    return value


def require_truth(value: Any, name: str, where: str) -> bool:
    """True or False of a state. Raises ModelError for anything else."""
    if not isinstance(value, bool):
        raise ModelError(f"{where}: {name}: expected true or false, found {str(value)[:80]!r}. {_WAY_ON}")
    return value

"""What the settings of every run have in common, its learning rates among them, and how they are read,
changed and refused.

On the command line, settings have dotted names: `optimizer.learning_rate=3e-4`.
"""

import math
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from bertsmith.errors import RecipeError
from bertsmith.validation import UserSettings


@dataclass(frozen=True)
class Schedule:
    """The learning rate: `peak` is reached at the share `warmup` of the run; progress is in [0, 1].

    `decay` is the share at its end in which the rate falls, by 1 - √ of how far the decay has come (Hägele et
    al. 2024, section 4); None: all after the warm-up, linearly.
    """

    peak: float
    warmup: float
    decay: float | None = None

    def learning_rate(self, progress: float) -> float:
        """Zero at both ends; where there is no decay, `peak` to the end."""
        if progress < self.warmup:
            return self.peak * progress / self.warmup
        if self.decay is None:
            return self.peak * max(0.0, 1.0 - progress) / (1.0 - self.warmup)
        return self.peak * (1.0 - math.sqrt(self.decayed(progress)))

    def decayed(self, progress: float) -> float:
        """How far the decay has come, in [0, 1]."""
        decay = 1.0 - self.warmup if self.decay is None else self.decay
        return min(max((progress - (1.0 - decay)) / decay, 0.0), 1.0) if decay > 0 else 0.0

    def is_stable(self, progress: float) -> bool:
        """Whether the rate has reached its peak, and is to fall from here on at the earliest."""
        if self.decay is None:
            return False
        return self.warmup - 1e-9 <= progress <= 1.0 - self.decay + 1e-9


def _path_to_text(given: object) -> object:
    return os.fspath(given) if isinstance(given, os.PathLike) else given


# A pathlib path is as good as a string. A shell leaves ~ as it is behind a = or within quotes.
PathText = Annotated[str, BeforeValidator(_path_to_text), AfterValidator(os.path.expanduser)]


def _check_optimizer(kind: str) -> str:
    if kind not in ("adamw", "muon") and not re.fullmatch(r"[\w.]+:\w+", kind):
        raise ValueError("expected 'adamw' or 'muon', or your own as module:Class")
    return kind


class OptimizerSettings(UserSettings):
    """AdamW, or Muon for the matrices of the layers beside AdamW for all else; or a user's `module:Class`,
    which isn't told `beta1`, `beta2`, `epsilon` and `momentum`.

    After the warm-up the rate falls linearly (`schedule`), or stays until the `decay` (`wsd`). `warmup` and
    `decay` are numbers of steps, or below 1 shares of the run.

    `matrix_rate_factor` and `momentum` are Muon's: its learning rate in units of AdamW's, and its memory.
    `layer_decay` multiplies the learning rate once for each layer below the head: to go on from a trained
    encoder with a new head, which wants a rate that would spoil the encoder.
    """

    kind: Annotated[str, AfterValidator(_check_optimizer)] = "adamw"
    learning_rate: float = Field(1e-4, gt=0, le=1)
    schedule: Literal["linear", "wsd"] = "linear"
    warmup: float = Field(10_000, ge=0)
    decay: float = Field(0.2, ge=0)
    weight_decay: float = Field(0.01, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    epsilon: float = Field(1e-6, gt=0)
    max_grad_norm: float = Field(1.0, gt=0)
    layer_decay: float = Field(1.0, gt=0, le=1)
    matrix_rate_factor: float = Field(10.0, gt=0)
    momentum: float = Field(0.95, ge=0, lt=1)


class EvaluationSettings(UserSettings):
    """`every` is a number of steps, or below 1 a share of the run; `tokens` is how much held-out text."""

    every: float = Field(0.05, gt=0)
    tokens: int = Field(500_000, ge=1)


class CheckpointSettings(UserSettings):
    """`every` is a number of steps, or below 1 a share of the run; with `minutes`, one is written no later
    than so long after the last. The newest `keep` are kept.
    """

    every: float = Field(0.02, gt=0)
    minutes: float | None = Field(None, gt=0)
    keep: int = Field(2, ge=1)


class GuardSettings(UserSettings):
    """A loss that is not finite or jumps: stop with the batch saved, or go back and skip the batch."""

    action: Literal["stop", "skip"] = "stop"
    spike_factor: float = Field(3.0, gt=1)
    skips: int = Field(10, ge=0)


class HardwareSettings(UserSettings):
    """`auto` takes what the machine has; `bertsmith doctor` says what that is and why.

    `shard` is what several processes divide between them: batches only (DDP), or the weights, gradients and
    optimiser too (`full`, FSDP2).
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    threads: int | None = Field(None, ge=1)
    shard: Literal["none", "full"] = "none"


class RunSettings(UserSettings):
    """What every run of the loop has; its length is given by `steps` or by `hours`."""

    steps: int | None = Field(None, ge=1)
    hours: float | None = Field(None, gt=0)
    seed: int = Field(0, ge=0, lt=2**63)  # as torch takes it, with room to count on
    log_every: int = Field(1, ge=1)
    optimizer: OptimizerSettings = OptimizerSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    guard: GuardSettings = GuardSettings()
    hardware: HardwareSettings = HardwareSettings()

    @model_validator(mode="after")
    def _whole_matrices(self) -> Self:
        if self.optimizer.kind != "adamw" and self.hardware.shard == "full":
            raise ValueError(
                f"optimizer.kind = {self.optimizer.kind} needs every matrix whole, and hardware.shard = full "
                "divides them between the processes: choose optimizer.kind=adamw, or hardware.shard=none"
            )
        return self

    @property
    def schedule(self) -> Schedule:
        """The learning rate over the run."""
        decay = self.share_of("decay") if self.optimizer.schedule == "wsd" else None
        return Schedule(self.optimizer.learning_rate, self.share_of("warmup"), decay)

    @property
    def schedule_problem(self) -> str | None:
        """Why warm-up and decay have no room in the run; None where they have.

        Raises ValueError where they are given in steps, and the run in hours.
        """
        schedule, optimizer = self.schedule, self.optimizer
        if schedule.warmup >= 1:
            return (
                f"optimizer.warmup = {optimizer.warmup:g} steps is not shorter than the run of {self.steps} "
                "steps"
            )
        if schedule.warmup + (schedule.decay or 0) > 1 + 1e-9:
            return (
                f"optimizer.warmup = {optimizer.warmup:g} and optimizer.decay = {optimizer.decay:g} are "
                "together longer than the run"
            )
        return None

    def share_of(self, part: Literal["warmup", "decay"]) -> float:
        """Warm-up or decay as a share of the run."""
        length: float = getattr(self.optimizer, part)
        if length < 1:
            return length
        if self.steps is None:
            raise ValueError(
                f"a run of given hours needs optimizer.{part} below 1: a share of the run, not steps"
            )
        return length / self.steps

    def share_done(self, steps: float, seconds: float) -> float:
        """Progress in [0, 1] by steps, or by time in a run of given hours."""
        if self.steps is not None:
            return steps / self.steps
        assert self.hours is not None
        return min(seconds / (self.hours * 3600), 1.0)

    def phase(self, share_done: float) -> int:
        """Which phase a run is in at `share_done` in [0, 1]; most have one."""
        return 0

    def phase_facts(self, phase: int) -> dict[str, int]:
        """What the log says of a phase when it begins."""
        return {}


def read_toml(path: Path, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{name} is not a TOML file: {error}.") from error


def override(values: dict[str, Any], change: str, *kinds: type[BaseModel]) -> None:
    """Applies one `dotted.key=value`; the value is TOML, or else a plain string.

    Where one of the `kinds` has that key for text, or for a list, another type of TOML's is the text as it
    was typed: out=2024 is a folder.
    """
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise RecipeError(
            f"Expected dotted.key=value, found {change!r}. If it is one more file for an option, give the "
            "option again: --train a.csv --train b.csv."
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # TOMLDecodeError, and a number of 5,000 digits
        value = text
    if any(_is_as_typed(kind, key, value) for kind in kinds):
        value = text
    *parents, last = key.split(".")
    table = values
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise RecipeError(f"{key}: {parent} is a value, not a section.")
    table[last] = value
    other = {"steps": "hours", "hours": "steps"}.get(key)
    if other is not None:  # the run's length on the command line replaces the recipe's
        values.pop(other, None)


def _is_as_typed(kind: type[BaseModel], key: str, value: object) -> bool:
    """Whether TOML's value of a setting isn't what the setting holds: text, or a list."""
    first, _, rest = key.partition(".")
    if first not in kind.model_fields:
        return False
    types = _value_types(kind.model_fields[first].annotation)
    if rest:
        return any(
            isinstance(each, type) and issubclass(each, BaseModel) and _is_as_typed(each, rest, value)
            for each in types
        )
    if types == [str]:
        return not isinstance(value, str)
    if not types or any(get_origin(each) is not tuple or get_args(each)[1:] != (...,) for each in types):
        return False
    of_text = all(get_args(each)[0] is str for each in types)
    entries = value if isinstance(value, list) else [value]
    return not isinstance(value, str | list) or (
        of_text and not all(isinstance(each, str) for each in entries)
    )


def _value_types(annotation: Any) -> list[Any]:
    """Those that a value may have, None left out."""
    if get_origin(annotation) is Annotated:
        return _value_types(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for each in get_args(annotation) for kind in _value_types(each)]
    return [] if annotation in (None, NoneType) else [annotation]

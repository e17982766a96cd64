"""The settings that pre-training and fine-tuning runs share, the schedule of the learning rate, and how
settings are read from TOML and changed.

On the command line, settings have dotted names: `optimizer.learning_rate=3e-4`.
"""

import math
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from bertsmith.errors import RecipeError
from bertsmith.validation import UserSettings


@dataclass(frozen=True)
class Schedule:
    """The learning rate over a run. It rises linearly to `peak` in the first share `warmup` of the run.

    In the last share `decay` it falls as peak · (1 - √d), where d is the part of the decay that is over
    (Hägele et al. 2024, section 4). With `decay` None it falls linearly from the end of the warm-up.
    """

    peak: float
    warmup: float
    decay: float | None = None

    def learning_rate(self, progress: float) -> float:
        """The learning rate at `progress` in [0, 1]: zero at both ends, but `peak` at the end if `decay` is
        0.
        """
        if progress < self.warmup:
            return self.peak * progress / self.warmup
        if self.decay is None:
            return self.peak * max(0.0, 1.0 - progress) / (1.0 - self.warmup)
        return self.peak * (1.0 - math.sqrt(self.decayed(progress)))

    def decayed(self, progress: float) -> float:
        """The part of the decay that is over at `progress`, in [0, 1]."""
        decay = 1.0 - self.warmup if self.decay is None else self.decay
        return min(max((progress - (1.0 - decay)) / decay, 0.0), 1.0) if decay > 0 else 0.0

    def is_stable(self, progress: float) -> bool:
        """Whether the rate is at its constant peak at `progress`: after the warm-up and before the decay.
        Never true of a linear schedule, which has no constant part.
        """
        if self.decay is None:
            return False
        return self.warmup - 1e-9 <= progress <= 1.0 - self.decay + 1e-9


def _path_to_text(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


# A path as text, from a string or a pathlib path. A shell doesn't expand ~ behind = or within quotes.
PathText = Annotated[str, BeforeValidator(_path_to_text), AfterValidator(os.path.expanduser)]


def _check_optimizer(kind: str) -> str:
    if kind not in ("adamw", "muon") and not re.fullmatch(r"[\w.]+:\w+", kind):
        raise ValueError("expected 'adamw' or 'muon', or your own as module:Class")
    return kind


class OptimizerSettings(UserSettings):
    """The optimizer and its schedule. `kind` is `adamw`, `muon` (Muon for the matrices of the layers, AdamW
    for everything else), or a user's optimizer as `module:Class`, which doesn't get `beta1`, `beta2`,
    `epsilon` and `momentum`.

    With the schedule `linear` the rate falls linearly after the warm-up; with `wsd` it stays at its peak
    until the `decay`. `warmup` and `decay` are numbers of steps, or shares of the run if they are below 1.

    `matrix_rate_factor` and `momentum` are Muon's: its learning rate as a multiple of AdamW's, and its
    momentum. `layer_decay` multiplies the learning rate once for each layer below the head. It is for
    training a new head on a trained encoder, since the rate that the head needs would spoil the encoder.
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
    """Evaluation on held-out text. `every` is a number of steps, or a share of the run if it is below 1;
    `tokens` is the amount of held-out text.
    """

    every: float = Field(0.05, gt=0)
    tokens: int = Field(500_000, ge=1)


class CheckpointSettings(UserSettings):
    """Checkpoints. `every` is a number of steps, or a share of the run if it is below 1. With `minutes`, the
    next one is written at the latest so many minutes after the last. The newest `keep` are kept.
    """

    every: float = Field(0.02, gt=0)
    minutes: float | None = Field(None, gt=0)
    keep: int = Field(2, ge=1)


class GuardSettings(UserSettings):
    """What to do (`action`) about a loss that isn't finite or rises by `spike_factor`: stop the run with the
    batch saved, or go back and skip the batch, at most `skips` times.
    """

    action: Literal["stop", "skip"] = "stop"
    spike_factor: float = Field(3.0, gt=1)
    skips: int = Field(10, ge=0)


class HardwareSettings(UserSettings):
    """The hardware to run on. `auto` takes what the machine has; `bertsmith doctor` tells what that is and
    why.

    `shard` is what several processes divide between them: only batches (`none`, DDP), or the weights,
    gradients and the optimizer's state too (`full`, FSDP2).
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    threads: int | None = Field(None, ge=1)
    shard: Literal["none", "full"] = "none"


class RunSettings(UserSettings):
    """The settings of every run of the loop. Its length is given by `steps` or by `hours`."""

    steps: int | None = Field(None, ge=1)
    hours: float | None = Field(None, gt=0)
    seed: int = Field(0, ge=0, lt=2**63)  # torch takes 64 bits, and restarts count on from here
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
        """The schedule of the learning rate, with warm-up and decay as shares of the run."""
        decay = self.share_of("decay") if self.optimizer.schedule == "wsd" else None
        return Schedule(self.optimizer.learning_rate, self.share_of("warmup"), decay)

    @property
    def schedule_problem(self) -> str | None:
        """A sentence on why warm-up and decay don't fit into the run; None if they do.

        Raises ValueError if they are given in steps, but the run's length in hours.
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
        """Warm-up or decay as a share of the run. Raises ValueError for steps in a run of given hours."""
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
        """The index of the phase that a run is in at `share_done` in [0, 1]; most runs have only one."""
        return 0

    def phase_facts(self, phase: int) -> dict[str, int]:
        """The figures that the log records when a phase begins."""
        return {}


def read_toml(path: Path, name: str) -> dict[str, Any]:
    """Reads a TOML file. Raises RecipeError, which calls the file by `name`, if it isn't one."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{name} is not a TOML file: {error}.") from error


def override(values: dict[str, Any], change: str, *models: type[BaseModel]) -> None:
    """Applies one `dotted.key=value` to `values`. The value is TOML, or a plain string if it isn't valid
    TOML.

    If the field of that key in one of the `models` is text or a list, a TOML value of another type is taken
    as the text that was typed: out=2024 is a folder. Raises RecipeError for a change of another form, and for
    a key within a value that is no section.
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
    if any(_stays_text(model, key, value) for model in models):
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


def require_one_length(changes: Sequence[str]) -> None:
    """Raises RecipeError when both steps and hours are among the `dotted.key=value` changes: `override` would
    drop the first of them.
    """
    lengths = {change.partition("=")[0]: change for change in changes}
    if {"steps", "hours"} <= lengths.keys():
        raise RecipeError(
            f"{lengths['steps']} and {lengths['hours']} are both given; a run's length is one of them."
        )


def _stays_text(model: type[BaseModel], key: str, value: object) -> bool:
    """Whether the model's field of this dotted key holds text or a list, and the TOML `value` is neither."""
    first, _, rest = key.partition(".")
    if first not in model.model_fields:
        return False
    types = _value_types(model.model_fields[first].annotation)
    if rest:
        return any(
            isinstance(section, type) and issubclass(section, BaseModel) and _stays_text(section, rest, value)
            for section in types
        )
    if types == [str]:
        return not isinstance(value, str)
    if not types or any(get_origin(type_) is not tuple or get_args(type_)[1:] != (...,) for type_ in types):
        return False
    holds_text = all(get_args(type_)[0] is str for type_ in types)
    entries = value if isinstance(value, list) else [value]
    return not isinstance(value, str | list) or (
        holds_text and not all(isinstance(entry, str) for entry in entries)
    )


def _value_types(annotation: Any) -> list[Any]:
    """The types that a value of this annotation may have, without None."""
    if get_origin(annotation) is Annotated:
        return _value_types(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [value_type for member in get_args(annotation) for value_type in _value_types(member)]
    return [] if annotation in (None, NoneType) else [annotation]

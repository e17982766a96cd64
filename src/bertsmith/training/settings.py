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
from bertsmith.validation import Listed, UserSettings


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
    """AdamW, or Muon for the matrices of the layers beside AdamW for all else; or a user's `module:Class`,
    which isn't told `beta1`, `beta2`, `epsilon` and `momentum`.
    """

    kind: Annotated[str, AfterValidator(_check_optimizer)] = "adamw"
    """`muon`: Muon for the matrices of the layers, AdamW for all else. Or your own as `module:Class`."""
    learning_rate: float = Field(1e-4, gt=0, le=1)
    """The learning rate at its peak."""
    schedule: Literal["linear", "wsd"] = "linear"
    """After the warm-up the rate falls to zero (`linear`), or stays at its peak until the decay (`wsd`)."""
    warmup: float = Field(10_000, ge=0)
    """Steps to the peak; below 1, a share of the run. With `hours` it has to be a share."""
    decay: float = Field(0.2, ge=0)
    """With `wsd`, share of the run at its end in which the rate falls; from 1 on, steps."""
    weight_decay: float = Field(0.01, ge=0)
    """Not applied to biases and LayerNorm."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """AdamW's memory of the gradient."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """AdamW's memory of its square."""
    epsilon: float = Field(1e-6, gt=0)
    """What AdamW adds to the root of the squared gradient."""
    max_grad_norm: float = Field(1.0, gt=0)
    """A longer gradient is cut to this norm."""
    layer_decay: float = Field(1.0, gt=0, le=1)
    """Multiplies the learning rate once for each layer below the head, whose rate would spoil a trained
    encoder. Fine-tuning takes 0.75 where neither it nor a rate is given."""
    matrix_rate_factor: float = Field(10.0, gt=0)
    """Muon's learning rate, in units of AdamW's."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Muon's memory of the gradient."""


def _check_interval(every: float) -> float:
    if every > 1 and every != int(every):
        raise ValueError("expected a whole number of steps, or below 1 a share of the run")
    return every


class EvaluationSettings(UserSettings):
    """When held-out text is measured, and how much of it."""

    every: Annotated[float, AfterValidator(_check_interval)] = Field(0.05, gt=0)
    """Steps between two evaluations; below 1, a share of the run."""
    tokens: int = Field(500_000, ge=1)
    """Held-out text at most, the same at each evaluation."""


class CheckpointSettings(UserSettings):
    """When a checkpoint is written, and how many stay."""

    every: Annotated[float, AfterValidator(_check_interval)] = Field(0.02, gt=0)
    """Steps between two checkpoints; below 1, a share of the run."""
    minutes: float | None = Field(None, gt=0)
    """Write a checkpoint also when the last one is so many minutes old."""
    keep: int = Field(2, ge=1)
    """How many of the newest checkpoints stay."""


class GuardSettings(UserSettings):
    """What to do (`action`) about a loss that isn't finite or rises by `spike_factor`: stop the run with the
    batch saved, or go back and skip the batch, at most `skips` times.
    """

    action: Literal["stop", "skip"] = "stop"
    """At a bad step: `stop`, or `skip` to go back and leave the batch out."""
    spike_factor: float = Field(3.0, gt=1)
    """A loss over this many times the running mean is bad; ten times as many for rows of numbers."""
    skips: int = Field(10, ge=0)
    """How many batches may be skipped before the run stops all the same."""


class HardwareSettings(UserSettings):
    """`auto` takes what the machine has; `bertsmith doctor` says what that is and why."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """`cpu`, `cuda`, or `mps` for Apple's GPU, which `auto` doesn't take."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """`float32` or `bfloat16`; `auto` takes bfloat16 where the processor or GPU has instructions for it."""
    threads: int | None = Field(None, ge=1)
    """Threads of each process; by default one per core, divided over the processes of the machine."""
    shard: Literal["none", "full"] = "none"
    """What several processes divide: batches alone (DDP), or with `full` weights, gradients and optimiser too
    (FSDP2)."""


class RunSettings(UserSettings):
    """The settings of every run of the loop. Its length is given by `steps` or by `hours`."""

    steps: int | None = Field(None, ge=1)
    """The run's length in optimiser steps; give this or `hours`."""
    hours: float | None = Field(None, gt=0)
    """The run's length in hours of training."""
    seed: int = Field(0, ge=0, lt=2**63)  # as torch takes it, with room to count on
    """Decides the first weights, the order, the masks and dropout."""
    log_every: int = Field(1, ge=1)
    """Steps between two lines of the log."""
    trackers: Listed[Literal["mlflow", "wandb"]] = ()
    """Trackers that get the run's figures too: mlflow, wandb. TensorBoard's files are always written."""
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
    if key in ("steps", "hours"):  # the run's length on the command line replaces the recipe's
        values.pop(key if value == "none" else {"steps": "hours", "hours": "steps"}[key], None)


def require_one_length(changes: Sequence[str]) -> None:
    """Raises RecipeError when both steps and hours are among the `dotted.key=value` changes: `override` would
    drop the first of them.
    """
    lengths = {change.partition("=")[0]: change for change in changes if not change.endswith("=none")}
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

"""Published runs as the cost model sees them: a share from one run of an implementation, others predicted."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from bertsmith.model.config import preset
from bertsmith.model.layers.initialisation import meta_init
from bertsmith.planning.accelerators import Accelerator
from bertsmith.planning.cost import Implementation, compute_step_parts
from bertsmith.planning.workload import StepAmounts
from bertsmith.tasks.pretraining.pretraining import PretrainingModel

_SPECIAL, _MASKED = 3, 0.15


@dataclass(frozen=True)
class PublishedRun:
    """Phases of (sequence length, sequences a step, steps); hours as published, or by sequences a second."""

    size: str
    gpus: int
    micro_batch: int
    phases: tuple[tuple[int, int, int], ...]
    hours: float
    title: str = ""


@dataclass(frozen=True)
class Published:
    """An implementation on a kind of hardware, with the share of the peak that one run of it reached."""

    name: str
    how: Implementation
    hardware: Accelerator
    measured: PublishedRun
    checks: tuple[PublishedRun, ...]

    @property
    def share(self) -> float:
        """With which the measured run takes its hours; by halving, since waiting depends on it too."""
        low, high = 1e-3, 2.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if self.hours(self.measured, middle) > self.measured.hours else (low, middle)
            )
        return low

    def hours(self, run: PublishedRun, share: float) -> float:
        """What the cost model says."""
        hardware = replace(self.hardware, shares={1: share})
        config, weights = preset(run.size), _weights(run.size)
        seconds = 0.0
        for length, sequences, steps in run.phases:
            masked = round(_MASKED * (length - _SPECIAL))
            step = StepAmounts(sequences, sequences * length, sequences * length**2, sequences * masked)
            # of 512 tokens a fourth as many sequences fit into a micro-batch as of 128
            together = max(1, run.micro_batch * run.phases[0][0] // length)
            micro_batches = max(1, sequences // run.gpus // together)
            parts = compute_step_parts(
                config, weights, step, True, hardware, run.gpus, micro_batches, self.how
            )
            seconds += steps * sum(part.seconds for part in parts)
        return seconds / 3600


def published() -> Iterator[Published]:
    """Every implementation of published_runs.toml."""
    path = Path(__file__).with_name("published_runs.toml")
    for name, values in tomllib.loads(path.read_text(encoding="utf-8"))["implementations"].items():
        how = Implementation(
            **{key: values[key] for key in Implementation.__dataclass_fields__ if key in values}
        )
        hardware = Accelerator(name, values["title"], values["source"], "", {1: 1.0}, **values["hardware"])
        checks = tuple(_run(check) for check in values.get("check", ()))
        yield Published(name, how, hardware, _run(values["measured"]), checks)


def _run(values: Mapping[str, Any]) -> PublishedRun:
    phases = tuple(tuple(phase) for phase in values["phases"])
    hours = values.get("hours")
    if hours is None:
        _, sequences, steps = phases[0]
        hours = sequences * steps / values["sequences_per_second"] / 3600
    return PublishedRun(
        values["size"], values["gpus"], values["micro_batch"], phases, hours, values.get("title", "")
    )


@cache
def _weights(size: str) -> int:
    return sum(weight.numel() for weight in meta_init(lambda: PretrainingModel(preset(size))).parameters())

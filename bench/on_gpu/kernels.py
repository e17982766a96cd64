"""Where the time of a step goes: torch.profiler's kernels by group, and what the device waits for."""

import re
from collections.abc import Iterator
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from on_gpu.scale import Scale
from on_gpu.timing import Side, timed, wait

# The first that fits: names of CUDA kernels, or on a processor of torch's operators.
_GROUPS = {
    "exchange between GPUs": r"nccl",
    "attention": r"flash|fmha|attention|_RunAttention",
    "matrix products": r"gemm|gemv|nvjet|cutlass|xmma|cublas|splitk|(?<![a-z])(add|b|badd)?mm\b|::linear",
    "optimiser, clipping": r"multi_tensor|adam|foreach|lpnorm",
    "fused by torch.compile": r"triton",
    "LayerNorm": r"layer_?norm|gammabeta",
    "dropout": r"dropout|bernoulli|random_",
    "activation": r"gelu|tanh",
    "softmax and losses": r"softmax|nll|cross_entropy|_VocabularyLoss",
    "lookups, masks, sorting": r"index|gather|scatter|embedding|sort|radix|cumsum|scan|where|take",
    "copies, casts, zeros": r"copy|memcpy|memset|fill|zero|cat|to_copy|clone",
    "sums": r"reduce|sum",
    "other elementwise": r"elementwise|vectorized|add|mul|div|bitwise|aten::",
}


def profile_step(side: Side, prepared: Any, scale: Scale, steps: int = 3) -> Iterator[dict[str, Any]]:
    """A row a group: milliseconds of a step and their share of its duration without the profiler.

    On a GPU the rest of the duration is the device waiting for its next kernel. Raises nothing where the
    profiler sees no kernels: the rows then say so.
    """
    duration = min(timed(side, [prepared], scale, steps) for _ in range(3)) / steps
    found = _milliseconds(_recorded(side, prepared, scale, steps), scale, steps)
    busy = sum(found.values())
    for name, milliseconds in sorted(found.items(), key=lambda each: -each[1]):
        yield _row(name, milliseconds, duration)
    yield _row("sum of the above", busy, duration)
    if scale.device.type == "cuda":
        yield _row("the device waits", 1000 * duration - busy, duration)
    yield _row("a step without the profiler", 1000 * duration, duration)


def group_of(name: str) -> str:
    """Of a kernel or operator by its name."""
    return next((group for group, names in _GROUPS.items() if re.search(names, name, re.IGNORECASE)), "other")


def _recorded(side: Side, prepared: Any, scale: Scale, steps: int) -> list[Any]:
    activities = [ProfilerActivity.CPU]
    if scale.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as recorded:
        for _ in range(steps):
            side.step(prepared)
        wait(scale)
    # annotations span kernels that stand in the list themselves
    return [event for event in recorded.key_averages() if not event.is_user_annotation]


def _milliseconds(events: list[Any], scale: Scale, steps: int) -> dict[str, float]:
    """By group, of a step."""
    found: dict[str, float] = {}
    for event in events:
        microseconds = _own(event, scale)
        if microseconds:
            group = group_of(event.key)
            found[group] = found.get(group, 0.0) + microseconds / 1000 / steps
    return found


def _row(name: str, milliseconds: float, duration: float) -> dict[str, Any]:
    share = milliseconds / 1000 / duration
    return {"group": name, "ms a step": f"{milliseconds:.2f}", "share": f"{share:.1%}"}


def largest_kernels(side: Side, prepared: Any, scale: Scale, count: int = 12) -> list[dict[str, Any]]:
    """The single kernels that take most, with the group they were counted in."""
    times = {event.key: _own(event, scale) for event in _recorded(side, prepared, scale, 1)}
    return [
        {"kernel": name[:90], "group": group_of(name), "ms": f"{times[name] / 1000:.2f}"}
        for name in sorted(times, key=lambda name: -times[name])[:count]
        if times[name]
    ]


def _own(event: Any, scale: Scale) -> float:
    if scale.device.type != "cuda":
        return float(event.self_cpu_time_total)
    return float(event.self_device_time_total) if event.device_type == DeviceType.CUDA else 0.0

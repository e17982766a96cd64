"""What a container lets this process use: the limits of its Linux cgroup, version 1 or 2.

Inside a container the machine's own figures mislead: eight cores are visible where one and a half are
granted, and a process that goes by the memory of the host is killed without a word.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Without a limit, version 1 reports a page count near 2**63; no machine has that much.
_NO_LIMIT = 1 << 60


class MemoryLimit(NamedTuple):
    """Bytes granted, and bytes still free among them (the file cache counts as free: it gives way)."""

    total: int
    available: int


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Cores' worth of time granted (1.5 means 150 ms in every 100 ms); None without a limit.

    `root` is where proc/ and sys/ are found; tests give their own.
    """
    shares = [share for folder in _cgroups("cpu", root) if (share := _cpu_share(folder)) is not None]
    return min(shares, default=None)


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """The tightest memory limit of the cgroup and of those it lies in; None without one."""
    limits = [limit for folder in _cgroups("memory", root) if (limit := _memory_limit(folder)) is not None]
    return min(limits, key=lambda limit: limit.available, default=None)


def _cgroups(controller: str, root: Path) -> Iterator[Path]:
    """The folders that govern this process, innermost first. Limits of outer ones hold as well."""
    mount = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number != "0" and controller not in controllers.split(","):
            continue
        base = mount if number == "0" else mount / controller
        innermost = base / path.lstrip("/")
        yield from (folder for folder in (innermost, *innermost.parents) if folder.is_relative_to(base))


def _cpu_share(folder: Path) -> float | None:
    """Version 2: "150000 100000" or "max 100000" in one file; version 1: two files, -1 for no limit."""
    if words := _words(folder / "cpu.max"):
        quota, period = words
    else:
        quota = "".join(_words(folder / "cpu.cfs_quota_us"))
        period = "".join(_words(folder / "cpu.cfs_period_us"))
    if not quota or not period or quota in ("max", "-1"):
        return None
    return int(quota) / int(period)


def _memory_limit(folder: Path) -> MemoryLimit | None:
    total = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
    used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
    if total is None or total > _NO_LIMIT:
        return None
    return MemoryLimit(total, max(0, min(total, total - used + _reclaimable(folder))))


def _reclaimable(folder: Path) -> int:
    """Bytes of file cache that have not been touched lately."""
    statistics = dict(line.split() for line in _lines(folder / "memory.stat"))
    return int(statistics.get("total_inactive_file", statistics.get("inactive_file", "0")))


def _number(path: Path) -> int | None:
    words = _words(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _words(path: Path) -> list[str]:
    return [word for line in _lines(path) for word in line.split()]


def _lines(path: Path) -> list[str]:
    """A file that isn't there (another system, another version) sets no limit."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []

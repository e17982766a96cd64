"""The limits of a container, read from folders laid out as the Linux kernel lays them out."""

from pathlib import Path

import pytest

from bertsmith.machine import MemoryLimit, cpu_limit, memory_limit


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def test_a_machine_without_cgroups_sets_no_limit(tmp_path: Path) -> None:
    assert cpu_limit(tmp_path) is None
    assert memory_limit(tmp_path) is None


@pytest.mark.parametrize(("content", "expected"), [("150000 100000\n", 1.5), ("max 100000\n", None)])
def test_cpu_limit_of_version_2(tmp_path: Path, content: str, expected: float | None) -> None:
    root = machine(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": content})
    assert cpu_limit(root) == expected


@pytest.mark.parametrize(("quota", "expected"), [("250000\n", 2.5), ("-1\n", None)])
def test_cpu_limit_of_version_1(tmp_path: Path, quota: str, expected: float | None) -> None:
    folder = "sys/fs/cgroup/cpu/docker/abc"
    files = {
        "proc/self/cgroup": "3:cpuset:/\n2:cpu,cpuacct:/docker/abc\n",
        f"{folder}/cpu.cfs_quota_us": quota,
        f"{folder}/cpu.cfs_period_us": "100000\n",
    }
    assert cpu_limit(machine(tmp_path, files)) == expected


def test_the_tightest_limit_on_the_way_up_holds(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/container\n",
        "sys/fs/cgroup/pod/container/cpu.max": "max 100000\n",
        "sys/fs/cgroup/pod/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/pod/container/memory.max": "8000\n",
        "sys/fs/cgroup/pod/container/memory.current": "1000\n",
        "sys/fs/cgroup/pod/memory.max": "9000\n",
        "sys/fs/cgroup/pod/memory.current": "8500\n",
    }
    root = machine(tmp_path, files)
    assert cpu_limit(root) == 0.5
    assert memory_limit(root) == MemoryLimit(total=9000, available=500)


def test_file_cache_counts_as_available_memory(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "10000\n",
        "sys/fs/cgroup/memory.current": "9000\n",
        "sys/fs/cgroup/memory.stat": "anon 4000\ninactive_file 3000\nactive_file 2000\n",
    }
    assert memory_limit(machine(tmp_path, files)) == MemoryLimit(total=10_000, available=4_000)


def test_version_1_says_no_limit_by_a_huge_number(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/job\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "123\n",
    }
    assert memory_limit(machine(tmp_path, files)) is None


def test_a_path_of_the_host_that_is_not_mounted_falls_back_to_what_is(tmp_path: Path) -> None:
    """Inside a container without a cgroup namespace the path named is the host's."""
    files = {
        "proc/self/cgroup": "4:memory:/docker/0123\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "500\n",
        "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 100\n",
    }
    assert memory_limit(machine(tmp_path, files)) == MemoryLimit(total=2000, available=1600)

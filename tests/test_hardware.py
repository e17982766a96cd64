"""What the machine has, held against other sources, and what is decided from it."""

import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from bertsmith import machine
from bertsmith.machine import Gpu, Hardware, device_of, matmul_flops
from machines import PLAIN

V100 = Gpu("V100", 16 * 10**9, (7, 0))
A100 = Gpu("A100", 40 * 10**9, (8, 0))


def test_detection_agrees_with_other_sources() -> None:
    found = Hardware.detect()
    assert found.visible_cores <= (os.cpu_count() or 1)
    assert 1 <= found.cores <= found.visible_cores
    assert 0 < found.memory_available <= found.memory <= psutil.virtual_memory().total
    assert len(found.gpus) == torch.cuda.device_count()
    level = torch.backends.cpu.get_cpu_capability().lower()
    assert level in (*found.instructions, "default")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux to pin a process to one core")
def test_a_process_pinned_to_one_core_uses_one_thread() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        found = Hardware.detect()
    finally:
        os.sched_setaffinity(0, before)
    assert (found.visible_cores, found.cores, found.threads) == (1, 1, 1)


@pytest.mark.parametrize(("limit", "threads"), [(None, 4), (16.0, 4), (4.0, 4), (2.5, 2), (1.5, 1), (0.5, 1)])
def test_threads_never_exceed_the_cores_or_what_a_container_grants(limit: float | None, threads: int) -> None:
    assert replace(PLAIN, cpu_limit=limit).threads == threads


def test_hyper_threads_share_a_core(tmp_path: Path) -> None:
    """Two sockets of two cores of two threads, numbered as Linux does; seven of the eight are usable."""
    for cpu in range(8):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{cpu % 4 // 2}\n")
        (topology / "core_id").write_text(f"{cpu % 2}\n")
    assert machine._count_physical_cores(set(range(8)), tmp_path) == 4
    assert machine._count_physical_cores({0, 1, 2, 4, 5, 6}, tmp_path) == 3
    assert machine._count_physical_cores({0, 4}, tmp_path) == 1


@pytest.mark.parametrize(
    ("instructions", "gpus", "device", "precision", "reason"),
    [
        (("avx2",), (), "cpu", torch.float32, "no bfloat16 instructions"),
        (("avx2", "avx512", "avx512_vnni"), (), "cpu", torch.float32, "no bfloat16 instructions"),
        (("avx512", "avx512_bf16"), (), "cpu", torch.bfloat16, "avx512_bf16"),
        (("amx_bf16", "amx_int8"), (), "cpu", torch.bfloat16, "amx_bf16"),
        (("avx2",), (A100,), "cuda", torch.bfloat16, "8.0 has bfloat16"),
        (("amx_bf16",), (V100,), "cuda", torch.float32, "7.0 has no bfloat16"),
        (("avx2",), (A100, V100), "cuda", torch.float32, "7.0 has no bfloat16"),
    ],
)
def test_precision_is_what_the_hardware_computes_in(
    instructions: tuple[str, ...], gpus: tuple[Gpu, ...], device: str, precision: torch.dtype, reason: str
) -> None:
    found = replace(PLAIN, instructions=instructions, gpus=gpus)
    assert (found.device.type, found.precision) == (device, precision)
    assert reason in found.precision_reason


def test_matmul_speed_is_the_work_over_the_median_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One slow outlier, as another program causes, does not move the figure."""
    durations = iter([9.0, 0.2, 5.0, 0.2, 0.2])
    monkeypatch.setattr(machine, "_CPU_SIZE", 100)
    monkeypatch.setattr(machine, "_time_product", lambda *_: next(durations))
    assert matmul_flops(torch.float32, seconds=5.5, device=torch.device("cpu")) == pytest.approx(2e6 / 0.2)


def test_measuring_leaves_the_random_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CPU_SIZE", 64)
    before = torch.random.get_rng_state()
    assert matmul_flops(torch.float32, seconds=0.0, device=torch.device("cpu")) > 0
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.cuda
def test_a_gpu_is_measured_after_it_has_finished() -> None:
    """Without waiting for the GPU only the launch is timed, which no card could match by computing."""
    assert 1e12 < matmul_flops(torch.bfloat16, seconds=0.1) < 1e16


@pytest.mark.parametrize("there", [False, True])
def test_auto_is_a_gpu_where_there_is_one(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert device_of("auto").type == ("cuda" if there else "cpu")
    assert device_of("cpu").type == "cpu"

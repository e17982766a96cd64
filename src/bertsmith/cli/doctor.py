"""`bertsmith doctor`: shows this machine's hardware and packages, what training will use, and why."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bertsmith.cli.options import Flag
from bertsmith.cli.screen import console, print_facts, print_json, print_table, print_warning
from bertsmith.reporting import formatting

if TYPE_CHECKING:
    from bertsmith.training.diagnosis import Diagnosis


def doctor(*, json: Flag = False) -> None:
    """Show this machine's hardware, what training will use of it and why, and how fast that will be.

    It measures matrix products for half a second. It changes nothing and needs no network.

    Parameters
    ----------
    json
        Print everything as JSON, for a bug report or a script.

    Examples
    --------
    bertsmith doctor
    bertsmith doctor --json
    """
    from bertsmith.training.diagnosis import diagnose

    diagnosis = diagnose()
    if json:
        print_json(as_json(diagnosis))
        return
    print_facts("This machine", _describe_machine(diagnosis))
    print_facts("What training uses", _describe_use(diagnosis))
    console.print("\n[bold]Pre-training speed to expect[/bold] (rough; length 128, vocabulary 30,522)")
    rows = [
        (
            speed.size,
            f"{speed.parameters / 1e6:,.0f} M",
            int(speed.tokens_per_second),
            f"{speed.hours_per_billion_tokens:,.1f} h",
        )
        for speed in diagnosis.speeds
    ]
    print_table(("size", "parameters", "tokens/s", "a billion tokens"), rows)
    packages_by_group = {"base": _format_versions(diagnosis.packages)}
    for extra, packages in diagnosis.extras.items():
        is_incomplete = None in packages.values()
        advice = f"not installed: pip install 'bertsmith[{extra}]'"
        packages_by_group[f"extra {extra}"] = advice if is_incomplete else _format_versions(packages)
    print_facts("Packages", packages_by_group)
    for warning in diagnosis.warnings:
        print_warning(warning)


def as_json(diagnosis: "Diagnosis") -> dict[str, Any]:
    """The diagnosis as plain values for JSON; "used" has the choices: device, threads and precision."""
    hardware = diagnosis.hardware
    choices = {
        "device": str(hardware.device),
        "threads": diagnosis.threads,
        "precision": str(hardware.precision).removeprefix("torch."),
        "precision_reason": hardware.precision_reason,
        "network_needed": False,
    }
    return {**asdict(diagnosis), "used": choices}


def _describe_machine(diagnosis: "Diagnosis") -> dict[str, str]:
    hardware = diagnosis.hardware
    gb = 1e9
    gpus = [
        f"{gpu.name}, {gpu.memory / gb:.0f} GB, capability {'.'.join(map(str, gpu.capability))}"
        for gpu in hardware.gpus
    ]
    no_cuda = "Apple's, with device=mps" if hardware.has_mps else "none that torch can use"
    limit = "" if hardware.cpu_limit is None else f", the time of {hardware.cpu_limit:g} granted"
    return {
        "processor": f"{hardware.processor}, {formatting.counted(hardware.cores, 'core')}{limit}",
        "instructions": ", ".join(hardware.instructions) or "none that matter",
        "memory": f"{hardware.memory / gb:.1f} GB, {hardware.memory_available / gb:.1f} GB free",
        "GPU": "; ".join(gpus) or no_cuda,
        "disk": f"{diagnosis.disk_free / gb:.1f} GB free in this folder",
        "system": f"{diagnosis.system}, Python {diagnosis.python}",
    }


def _describe_use(diagnosis: "Diagnosis") -> dict[str, str]:
    hardware = diagnosis.hardware
    precision = str(hardware.precision).removeprefix("torch.")
    cpu = f"the CPU, {formatting.counted(diagnosis.threads, 'thread')}"
    if diagnosis.kernels:
        kernels = "compiled, for training and inference"
    elif "avx2" not in hardware.instructions:
        kernels = "none for this processor; torch computes everything"
    else:
        kernels = "not compiled; installed again on Linux with GCC 9 or newer, all it computes comes faster"
    return {
        "device": "the GPU" if hardware.gpus else cpu,
        "precision": f"{precision}: {hardware.precision_reason}",
        "matrix product": f"{formatting.flops(diagnosis.matmul_flops)} (calculations a second), measured now",
        **({} if hardware.gpus else {"kernels": kernels}),
        "network": "not needed; only a model given by its hub name is fetched",
    }


def _format_versions(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or 'MISSING'}" for name, version in packages.items())

"""`bertsmith doctor` as people and scripts see it."""

import json
from dataclasses import replace
from importlib.metadata import version

import pytest
import torch

from bertsmith import machine as hardware
from bertsmith.cli.main import main
from bertsmith.training import diagnosis


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products: the speed is not what is tested here."""
    monkeypatch.setattr(hardware, "_CPU_SIZE", 64)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)


def test_json_holds_what_was_found_and_what_is_decided(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    found = hardware.Hardware.detect()
    assert said["hardware"]["memory"] == found.memory
    assert said["hardware"]["instructions"] == list(found.instructions)
    assert said["used"]["device"] == found.device.type
    assert said["used"]["threads"] == 3, "what training would take"
    assert said["used"]["precision"] == str(found.precision).removeprefix("torch.")
    assert said["used"]["network_needed"] is False
    assert [speed["size"] for speed in said["speeds"]] == ["tiny", "mini", "small", "medium", "base", "large"]
    assert said["packages"]["torch"] == version("torch")  # torch.__version__ may name the build besides
    assert said["matmul_flops"] > 0


@pytest.mark.slow
def test_the_page_says_what_will_be_used_and_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = replace(hardware.Hardware.detect(), instructions=("avx2",), gpus=(), cores=2, cpu_limit=1.0)
    monkeypatch.setattr(hardware.Hardware, "detect", lambda: plain)
    assert main(["doctor"]) == 0
    page = capsys.readouterr().out
    assert "the CPU, 1 thread\n" in page.replace(" \n", "\n").replace("  ", "")
    assert "float32: the processor has no bfloat16 instructions" in page
    assert "not needed" in page
    assert "Warning: This container shows 2 cores but grants the time of 1." in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiled", "instructions", "says"),
    [
        (True, ("avx2",), "compiled, for training"),
        (False, ("avx2",), "not compiled; installed again"),
        (False, (), "none for this processor"),
    ],
)
def test_it_says_whether_kernels_are_compiled(
    compiled: bool,
    instructions: tuple[str, ...],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = replace(hardware.Hardware.detect(), instructions=instructions, gpus=())
    monkeypatch.setattr(hardware.Hardware, "detect", lambda: machine)
    monkeypatch.setattr(diagnosis, "has_kernels", lambda: compiled)
    assert main(["doctor"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("kernels")]
    assert line.split(maxsplit=1)[1].startswith(says)
    assert ("again" in line) == ("again" in says)


def test_a_missing_extra_shows_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        diagnosis, "_read_version", lambda package: None if package == "huggingface-hub" else "1.0"
    )
    assert main(["doctor"]) == 0
    assert "not installed: pip install 'bertsmith[hub]'" in capsys.readouterr().out

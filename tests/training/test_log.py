"""The log holds each step once, whatever was killed and resumed, and stays JSON whatever the loss does."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboardX.proto.event_pb2 import Event

from bertsmith.errors import InputError
from bertsmith.training.log import RunLog
from bertsmith.training.observer import RunObserver
from bertsmith.training.recipe import check_recipe


def steps(folder: Path) -> list[int]:
    return [record["step"] for record in RunLog.read(folder) if record["kind"] == "step"]


def write_steps(log: RunLog, numbers: range) -> None:
    for number in numbers:
        log.write("step", number, loss=10.0 / (number + 1))


def events(folder: Path) -> list[Event]:
    """TensorBoard's files, read by their published framing: length, checksum, message, checksum."""
    found = []
    for path in sorted((folder / "tensorboard").iterdir()):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            found.append(Event.FromString(content[12 : 12 + length]))
            content = content[16 + length :]
    return found


def test_what_was_written_is_read_back_to_the_bit(tmp_path: Path) -> None:
    values = {"loss": 0.1 + 0.2, "tokens": 2**53 + 1, "message": "Straße\n«x»", "nested": {"a": [1, None]}}
    with RunLog(tmp_path) as log:
        returned = log.write("step", 7, **values)
    assert RunLog.read(tmp_path) == [{"kind": "step", "step": 7, **values}] == [returned]


def test_tensors_and_numpy_scalars_become_numbers(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        log.write("step", 1, loss=torch.tensor(2.5), tokens=np.int64(3), gradient_norm=np.float32(0.5))
    (record,) = RunLog.read(tmp_path)
    assert record == {"kind": "step", "step": 1, "loss": 2.5, "tokens": 3, "gradient_norm": 0.5}


def test_numbers_that_are_not_finite_are_null_in_strict_json(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        log.write("step", 1, loss=float("nan"), gradient_norm=torch.tensor(float("inf")), mlm_loss=-np.inf)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    record = json.loads((tmp_path / "log.jsonl").read_text(), parse_constant=refuse)
    assert record == {"kind": "step", "step": 1, "loss": None, "gradient_norm": None, "mlm_loss": None}


def test_a_new_run_does_not_overwrite_the_log_of_another(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        write_steps(log, range(3))
    with pytest.raises(InputError, match=r"log\.jsonl is the log of an earlier run\. Resume that run"):
        RunLog(tmp_path)
    assert steps(tmp_path) == [0, 1, 2]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), max_size=4), st.integers(0, 20))
def test_each_step_is_there_once_after_any_number_of_resumes(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[int, int]], torn: int
) -> None:
    folder, reached = tmp_path_factory.mktemp("run"), 0
    for length, lost in lives:
        with RunLog(folder, append=True, step=reached) as log:
            write_steps(log, range(reached + 1, reached + length + 1))
        with (folder / "log.jsonl").open("ab") as file:
            file.write(b'{"kind":"step","step":99,"loss":1}'[:torn])
        reached = max(0, reached + length - lost)
    with RunLog(folder, append=True, step=reached) as log:
        write_steps(log, range(reached + 1, reached + 3))
    assert steps(folder) == list(range(1, reached + 3))


def test_a_rollback_takes_the_lines_of_the_lost_steps_with_it(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        write_steps(log, range(10))
        log.rewind(4)
        log.write("warning", 4, message="rolled back")
        write_steps(log, range(5, 7))
    assert steps(tmp_path) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("tail", [b'{"kind":"st', b'{"kind":"step","step":4}', b"\xc3", b"\0" * 4096, b"17"])
def test_an_incomplete_last_line_is_passed_over_and_then_removed(tmp_path: Path, tail: bytes) -> None:
    with RunLog(tmp_path) as log:
        write_steps(log, range(4))
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(tail)
    assert steps(tmp_path)[:4] == [0, 1, 2, 3]
    with RunLog(tmp_path, append=True, step=3) as log:
        write_steps(log, range(4, 6))
    assert steps(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_damage_elsewhere_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        write_steps(log, range(4))
    path = tmp_path / "log.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{]\n" + b"".join(lines[2:]))
    with pytest.raises(InputError, match=r"log\.jsonl, line 2: expected one JSON object"):
        RunLog.read(tmp_path)


def test_a_folder_without_a_log_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"log\.jsonl does not exist: .* is not the folder of a run"):
        RunLog.read(tmp_path)


def test_every_line_written_survives_a_kill(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from bertsmith.training.log import RunLog\n"
        "log = RunLog(Path(sys.argv[1]))\n"
        "for number in range(50): log.write('step', number, loss=1.0)\n"
        "print('written', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert steps(tmp_path) == list(range(50))


def test_tensorboard_gets_the_same_numbers_and_is_told_what_to_forget(tmp_path: Path) -> None:
    with RunLog(tmp_path, events_interval=0.0) as log:
        write_steps(log, range(3))
        log.write("evaluation", 2, mlm_accuracy=0.25, nsp_accuracy=None)
    with RunLog(tmp_path, append=True, step=1, events_interval=0.0) as log:
        write_steps(log, range(2, 4))
    found = events(tmp_path)
    scalars = [(v.tag, e.step, round(v.simple_value, 4)) for e in found for v in e.summary.value]
    assert scalars == [
        ("train/loss", 0, 10.0),
        ("train/loss", 1, 5.0),
        ("train/loss", 2, 3.3333),
        ("heldout/mlm_accuracy", 2, 0.25),
        ("train/loss", 2, 3.3333),
        ("train/loss", 3, 2.5),
    ]
    assert [event.step for event in found if event.HasField("session_log")] == [2]  # forget step 2 and later


def test_tensorboard_does_not_slow_down_quick_steps(tmp_path: Path) -> None:
    with RunLog(tmp_path, events_interval=3600.0) as log:
        write_steps(log, range(100))
        log.write("evaluation", 99, mlm_accuracy=0.5)
    tags = [value.tag for event in events(tmp_path) for value in event.summary.value]
    assert tags == ["train/loss", "heldout/mlm_accuracy"]


@pytest.mark.slow
def test_a_disk_without_room_for_events_neither_holds_the_run_up_nor_shows_a_traceback(
    tmp_path: Path,
) -> None:
    program = (
        "import resource, sys; from pathlib import Path; from bertsmith.training.log import RunLog\n"
        "log = RunLog(Path(sys.argv[1]), append=True, events_interval=0.0)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"  # the log stays below, the events don't
        "for n in range(40): log.write('step', n, loss=1., mfu=1., mlm_loss=1., nsp_loss=1.)\n"
        "log.rewind(39)\n"
        "print(log.pop_failure(), log.pop_failure())\n"
        "log.close()"
    )
    command = [sys.executable, "-c", program, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert "TensorBoard shows no more of this run until it is resumed None" in done.stdout
    assert done.stderr == ""
    assert steps(tmp_path) == list(range(40))


def test_a_run_whose_events_cannot_be_written_warns_once(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    machine = cast(Any, SimpleNamespace(ranks=SimpleNamespace(is_first=True)))
    recipe = check_recipe({"steps": 3, "optimizer": {"warmup": 0}}, "the test")
    observer = RunObserver(tmp_path, "A run", {}, recipe, machine, None, "run")
    with observer.open(0):
        for step in range(3):
            observer.record("step", step, loss=1.0)
    (warning,) = [record for record in RunLog.read(tmp_path) if record["kind"] == "warning"]
    assert warning["message"].startswith(str(tmp_path / "tensorboard"))
    assert steps(tmp_path) == [0, 1, 2]


def test_a_start_says_when(tmp_path: Path) -> None:
    before = time.time()
    with RunLog(tmp_path) as log:
        log.write("start", 0)
        log.write("start", 0, time=5.0)
    now, given_time = (record["time"] for record in RunLog.read(tmp_path))
    assert before <= now <= time.time()
    assert given_time == 5.0


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.write("start", 0, time=time.time())
    log.close()
    log.close()
    assert len(RunLog.read(tmp_path)) == 1

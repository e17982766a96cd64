"""Training in a process of its own: begun once, followed to its student, ended with the mirror."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from made_student import make_student
from running_mirror import wait_until
from test_call_store import call_of

from bertsmith.mirror.answering import training_process
from bertsmith.mirror.answering.judging import is_training_due
from bertsmith.mirror.answering.stage_store import StageStore, begin_forecast, read_forecasts, save_forecast
from bertsmith.mirror.answering.stages import Stage
from bertsmith.mirror.answering.training_process import Trainer, forecast_command, train_command
from bertsmith.mirror.settings import MirrorSettings, PriceSettings, read_settings
from bertsmith.mirror.store import Store
from bertsmith.mirror.student_file import ProofPlan


@pytest.fixture
def settings(tmp_path: Path) -> MirrorSettings:
    given = {"store": str(tmp_path / "calls.sqlite"), "students": str(tmp_path / "students")}
    return read_settings(None, given | {"train_options": ("--tiers", "tf-idf")}, {})


@pytest.fixture
def stages(settings: MirrorSettings) -> Iterator[StageStore]:
    store = Store(settings.store)
    store.add([call_of(1)])
    yield StageStore(store)
    store.close()


def stage(stages: StageStore) -> Stage:
    (found,) = stages.stages().values()
    return found


def running(script: str) -> Any:
    """A command that runs `script`, with OUT as its argument."""

    def command(_: Stage, out: Path, __: MirrorSettings) -> Sequence[str]:
        return [sys.executable, "-c", script, str(out)]

    return command


def ended(trainer: Trainer) -> Any:
    found: list[Any] = []

    def is_over() -> bool:
        found.append(trainer.poll())
        return not trainer.is_busy

    wait_until(is_over)
    return found[-1]


def test_the_command_keeps_the_stores_address_out_of_sight(settings: MirrorSettings, tmp_path: Path) -> None:
    command = train_command(Stage("v", "s"), tmp_path / "out", settings)
    assert command[1:5] == ["-m", "bertsmith", "mirror", "train"]
    assert settings.store not in command
    assert command[-2:] == ["--tiers", "tf-idf"]
    assert command[command.index("--epsilon") + 1] == "0.05"


def test_a_forecast_is_made_by_the_kinds_of_student_and_the_prices_of_the_settings(
    settings: MirrorSettings,
) -> None:
    """Of the options of a training those that a forecast has too."""
    options = ("--tiers", "tf-idf", "--restarts", "3", "--model=minilm", "epochs=2")
    priced = settings.model_copy(
        update={"train_options": options, "prices": PriceSettings(million_input_tokens=0.25)}
    )
    assert forecast_command(Stage("v", "s"), priced)[4:] == [
        "plan", "--version", "v", "--epsilon", "0.05", "--tiers", "tf-idf", "--model", "minilm",
        "--input-price", "0.25",
    ]  # fmt: skip


def test_a_forecast_is_no_training_and_is_begun_by_one_of_two_mirrors(
    settings: MirrorSettings,
    stages: StageStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    version = stage(stages).version

    def runs(script: str) -> Trainer:
        command = [sys.executable, "-c", script]
        monkeypatch.setattr(training_process, "forecast_command", lambda *_: command)
        return Trainer(settings, stages)

    trainer = runs("import time; time.sleep(60)")
    assert trainer.begin_forecast(stage(stages), 50) and trainer.is_busy
    assert read_forecasts(stages.store)[version]["calls"] == 50
    assert not Trainer(settings, stages).begin_forecast(stage(stages), 50)
    trainer.close()
    assert read_forecasts(stages.store) == {} and stages.trainings() == {}
    trainer = runs("print('why'); raise SystemExit(2)")
    assert trainer.begin_forecast(stage(stages), 50) and ended(trainer) is None
    forecast = read_forecasts(stages.store)[version]
    assert forecast["text"] == "" and forecast["why_not"].startswith("it failed: ")
    assert f"version {version}: no forecast: it failed: " in caplog.messages[-1]
    assert not trainer.begin_forecast(stage(stages), 50)  # as many are known
    trainer = runs("pass")
    assert trainer.begin_forecast(stage(stages), 100)
    save_forecast(stages.store, version, 100, {"text": "Forecast by 100 calls."})
    assert ended(trainer) is None and caplog.messages[-1] == f"version {version}: Forecast by 100 calls."
    # A mirror that was killed leaves a reservation, which ends by itself.
    assert begin_forecast(stages.store, version, 200, 60)
    assert not begin_forecast(stages.store, version, 400, 60) and begin_forecast(
        stages.store, version, 400, -1
    )
    assert stages.trainings() == {} and stages.students() == {}


def test_a_proven_student_is_known_and_an_unproven_one_is_not(
    settings: MirrorSettings, stages: StageStore, tmp_path: Path
) -> None:
    (call,) = stages.store.calls(stage(stages).version)
    made = {proven: tmp_path / f"made-{proven}" for proven in (True, False)}
    for proven, folder in made.items():
        make_student(folder, call, {"text": {}}, {}, is_proven=proven)
    copies = {
        proven: running(f"import shutil, sys; shutil.copytree({str(folder)!r}, sys.argv[1])")
        for proven, folder in made.items()
    }
    trainer = Trainer(settings, stages, copies[False])
    assert trainer.begin(stage(stages), 1)
    assert not trainer.begin(stage(stages), 1)
    assert ended(trainer) is None
    assert stages.trainings()[call.version].outcome == "nothing proven: the LLM goes on answering"
    shutil.rmtree(settings.students)
    trainer = Trainer(settings, stages, copies[True])
    assert trainer.begin(stage(stages), 1)
    of, student = ended(trainer)
    assert (of.version, stages.students()) == (call.version, {student.id: stages.students()[student.id]})
    assert Path(student.folder).parent == Path(settings.students)
    # The next one gets another folder: this one may be answering.
    assert trainer._folder(stage(stages)) != Path(student.folder)


def test_a_student_with_a_plan_is_known_and_its_proof_begins(
    settings: MirrorSettings, stages: StageStore, tmp_path: Path
) -> None:
    (call,) = stages.store.calls(stage(stages).version)
    counts = ((9.0, 0.0), (9.0, 1.0))
    plan = ProofPlan(
        epsilon=0.1, delta=0.05, thresholds=(0.5,), starts=(1.0,), counts=counts, forecast=(9, 20, None)
    )
    made = make_student(tmp_path / "made", call, {"text": {}}, {}, plan=plan)
    trainer = Trainer(
        settings, stages, running(f"import shutil, sys; shutil.copytree({str(made)!r}, sys.argv[1])")
    )
    assert trainer.begin(stage(stages), 1)
    _, student = ended(trainer)
    assert student.plan == plan
    assert stages.trainings()[call.version].outcome.endswith("whose proof goes on in shadow")
    proof = stages.evidence()[student.id].proof
    assert proof is not None and (proof.number, proof.plan, proof.threshold) == (1, plan, None)


def test_a_training_that_fails_is_told_with_where_to_look(
    settings: MirrorSettings, stages: StageStore, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(settings, stages, running("import sys; print('why'); sys.exit(2)"))
    trainer.begin(stage(stages), 1)
    assert ended(trainer) is None
    outcome = stages.trainings()[stage(stages).version].outcome
    assert outcome.startswith("failed with status 2: ")
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == [
        f"the training for version {stage(stages).version} has ended: {outcome}"
    ]
    assert (
        Path(outcome.removeprefix("failed with status 2: ").removesuffix(" says why")).read_text() == "why\n"
    )


def test_a_training_ends_with_the_mirror_and_is_begun_again(
    settings: MirrorSettings, stages: StageStore
) -> None:
    trainer = Trainer(settings, stages, running("import time; time.sleep(60)"))
    trainer.begin(stage(stages), 7)
    folder, began = trainer._folder(stage(stages)), time.monotonic()
    trainer.close()
    assert time.monotonic() - began < 15
    row = stages.trainings()[stage(stages).version]
    assert (row.calls, row.until, row.outcome) == (0, 0.0, "ended with the mirror")
    again = Trainer(settings, stages, running("pass"))
    assert again.begin(stage(stages), 7)
    assert again._folder(stage(stages)) == folder
    ended(again)


@pytest.mark.parametrize("heeds", ["pass", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_a_training_ends_where_processes_have_no_groups(
    settings: MirrorSettings, stages: StageStore, monkeypatch: pytest.MonkeyPatch, heeds: str
) -> None:
    """As on Windows."""
    monkeypatch.delattr(os, "killpg")
    monkeypatch.setattr(training_process, "_PATIENCE", 0.5)
    trainer = Trainer(
        settings, stages, running(f"import signal, time; {heeds}; print(flush=True); time.sleep(60)")
    )
    trainer.begin(stage(stages), 7)
    log = trainer._folder(stage(stages))
    wait_until(lambda: log.with_name(f"{log.name}.log").read_text())
    assert trainer._running is not None
    process = trainer._running.process
    trainer.close()
    assert process.returncode == (-signal.SIGTERM if heeds == "pass" else -signal.SIGKILL)
    assert stages.trainings()[stage(stages).version].outcome == "ended with the mirror"


def test_when_another_training_is_due() -> None:
    assert [is_training_due(new, 0, 500, is_urgent=False) for new in (499, 500)] == [False, True]
    assert [is_training_due(new, 0, 500, is_urgent=True) for new in (249, 250)] == [False, True]
    assert [is_training_due(new, 500, 500, is_urgent=False) for new in (249, 250)] == [False, True]
    assert [is_training_due(new, 4000, 500, is_urgent=False) for new in (1999, 2000)] == [False, True]
    assert [is_training_due(new, 4000, 500, is_urgent=True) for new in (249, 250)] == [False, True]


def test_a_process_that_cannot_be_begun_is_no_training(settings: MirrorSettings, stages: StageStore) -> None:
    trainer = Trainer(settings, stages, lambda *_: ["/no/such/program"])
    with pytest.raises(OSError, match="no/such/program"):
        trainer.begin(stage(stages), 7)
    assert not trainer.is_busy
    row = stages.trainings()[stage(stages).version]
    assert (row.calls, row.until, row.outcome) == (0, 0.0, "could not be begun")


def test_a_training_that_outlived_its_mirror_is_adopted(settings: MirrorSettings, stages: StageStore) -> None:
    (call,) = stages.store.calls(stage(stages).version)
    trainer = Trainer(settings, stages)
    assert stages.begin_training(call.version, 7, "killed", 60)
    assert trainer.adopt(stages.stages(), stages.trainings()) is None  # its owner may be alive
    assert stages.trainings()[call.version].owner == "killed"
    stages.keep_training(call.version, "killed", -1)
    folder = make_student(trainer._folder(stage(stages)), call, {"text": {}}, {})
    found = trainer.adopt(stages.stages(), stages.trainings())
    assert found is not None
    assert (found[0].version, found[1].folder) == (call.version, str(folder))
    assert stages.trainings()[call.version].outcome == f"student {found[1].id}"
    assert trainer.adopt(stages.stages(), stages.trainings()) is None


def test_a_training_that_was_killed_with_its_mirror_counts_as_none(
    settings: MirrorSettings, stages: StageStore
) -> None:
    version = stage(stages).version
    assert stages.begin_training(version, 7, "killed", -1)
    assert Trainer(settings, stages).adopt(stages.stages(), stages.trainings()) is None
    row = stages.trainings()[version]
    assert (row.calls, row.began, row.outcome) == (0, 0.0, "killed")

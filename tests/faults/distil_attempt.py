"""Distillations in processes of their own, and everything that two of them are compared by."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nursery
from finetune_attempt import tiny_model, write_labelled
from nursery import CONTEXT, Attempt, Settings
from places import PLACES, Fault, Strike, _after, _before

from bertsmith.compression.distilling.distil import distil_task
from bertsmith.compression.distilling.tasks import distiller
from bertsmith.compression.distilling.tasks import teacher as answer_cache
from bertsmith.files import read_json, sha256
from bertsmith.tasks.finetuning import FinetuningObjective
from bertsmith.training.finetuning import task_run as best
from bertsmith.training.finetuning.finetune import finetune
from bertsmith.training.log import RunLog

nursery.IMPORTED += ["bertsmith.compression.distilling.distil"]

_CLOCK = {"elapsed", "tokens_per_second", "mfu", "time", "seconds", "saving"}


class DistilFault(Fault):
    """A signal at the `time`-th arrival of a process at a place of `DISTIL_PLACES`."""

    @property
    def places(self) -> dict[str, Callable[[Strike], None]]:
        return DISTIL_PLACES


DISTIL_PLACES: dict[str, Callable[[Strike], None]] = {
    "before some answers are kept": _before(answer_cache, "atomic_write"),
    "after some answers were kept": _after(answer_cache, "atomic_write"),
    "before a micro-batch": _before(FinetuningObjective, "loss"),
    "after an evaluation counts": _after(best.BestWeights, "consider"),
    "in the middle of a checkpoint": PLACES["in the middle of a tensor file"],
    "before a file gets its name": _before(Path, "replace"),
    "before a run is noted as finished": _before(distiller.Restart, "write"),
    "before the student is saved": _before(distiller, "save_task_model"),
    "after the student was saved": _after(distiller, "save_task_model"),
    "before the results are written": _before(distiller, "write_distil_results"),
}


class DistilAttempt(Attempt):
    """One start of a distillation, which goes on where an earlier one ended."""

    def __init__(self, settings: Settings, *faults: nursery.Change, ranks: int = 1) -> None:
        self.out = Path(settings["out"])
        self.began, began = CONTEXT.Pipe(duplex=False)
        port = nursery._free_port() if ranks > 1 else 0
        self.processes = [
            CONTEXT.Process(target=distil_in_child, args=(settings, faults, began, rank, ranks, port))
            for rank in range(ranks)
        ]
        for process in self.processes:
            process.start()
        began.close()


def finish_distilling(settings: Settings, ranks: int = 1) -> None:
    """Runs, or goes on, to the end."""
    attempt = DistilAttempt(settings, ranks=ranks)
    assert attempt.wait() == [0] * ranks, [attempt.complaint(rank) for rank in range(ranks)]


def distil_in_child(
    settings: Settings, faults: tuple[nursery.Change, ...], began: Any, rank: int, ranks: int, port: int
) -> None:
    """What a forked process does."""
    from bertsmith.training import machine

    nursery._be_quiet()
    nursery._be_rank(rank, ranks, port)
    machine.matmul_flops = lambda *_, **__: 1e11  # measuring the machine takes a second
    distiller.write_distil_report = lambda *_: None  # and drawing pictures two
    answer_cache._SHARD_TOKENS = 200  # several shards of answers
    for fault in faults:
        fault.install()
    began.send_bytes(b"now")
    try:
        changes = settings["changes"]
        given = {name: value for name, value in settings.items() if name not in ("teacher", "changes")}
        distil_task([settings["teacher"]], *changes, **given, resume=True)
    except BaseException as error:
        complaint = nursery._complaint_file(Path(settings["out"]), rank)
        complaint.write_text(f"{type(error).__name__}: {error}")
        os._exit(1)


def distil_evidence(out: Path) -> dict[str, Any]:
    """Of a finished distillation: each step of both runs, the model and what was said of it, to the bit."""
    runs = [out / "student", out / "alone"]
    return {
        "answers": {str(path.relative_to(out)): sha256(path) for path in out.glob("answers/*/*.safetensors")},
        "steps": [_records(folder, "step") for folder in runs],
        "histories": [read_json(folder / "best" / "history.json") for folder in runs],
        "model": sha256(out / "model" / "model.safetensors"),
        "results": _without_clock(read_json(out / "results.json")),
        "predictions": (out / "predictions" / "dev.jsonl").read_text(),
    }


def teacher_in(folder: Path, words: list[str]) -> dict[str, str]:
    """A teacher, and the files that it and its students learn from."""
    train = write_labelled(folder / "train.jsonl", words, 48)
    dev = write_labelled(folder / "dev.jsonl", words[1:], 21)
    quick = ("epochs=2", "batch_size=8", "optimizer.learning_rate=0.005", "max_length=16")
    files = {"train": str(train), "dev": str(dev), "out": str(folder / "teacher")}
    finetune("classification", *quick, model=str(tiny_model(folder / "encoder", words)), **files)
    return {"teacher": str(folder / "teacher" / "model"), "train": str(train), "dev": str(dev)}


def _records(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [_without_clock(record) for record in RunLog.read(folder) if record["kind"] == kind]


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_clock(each) for key, each in value.items() if key not in _CLOCK}
    return [_without_clock(each) for each in value] if isinstance(value, list) else value

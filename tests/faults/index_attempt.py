"""Updates of an index in processes of their own, and the places in them where a process kills itself."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

import nursery
from index_documents import SETTINGS, Counting
from nursery import CONTEXT, Attempt
from places import Strike, _after, _before

from bertsmith import files
from bertsmith.inference.index import build as index_build
from bertsmith.inference.index import writer as index_writer
from bertsmith.inference.index.passage_table import PassageTable

# Imported before the fork: it takes seconds.
nursery.IMPORTED += ["lancedb", "bertsmith.inference.index.index"]
PASSAGES_AT_A_TIME = 6  # of a commit, so that a build of a few documents has several

INDEX_PLACES: dict[str, Callable[[Strike], None]] = {
    "before an index is made": _before(index_writer, "create_index"),
    "after an index was made": _after(index_writer, "create_index"),
    "before a folder gets its name": _before(Path, "rename"),
    "before passages are written": _before(PassageTable, "add"),
    "after passages were written": _after(PassageTable, "add"),
    "before documents are removed": _before(PassageTable, "remove"),
    "after documents were removed": _after(PassageTable, "remove"),
    "before a commit": _before(index_writer, "write_index_manifest"),
    "after a commit": _after(index_writer, "write_index_manifest"),
    "before a file gets its name": _before(Path, "replace"),
    "before small files are joined": _before(PassageTable, "optimise"),
    "after small files were joined": _after(PassageTable, "optimise"),
    "before vectors are indexed": _before(index_writer, "build_approximate"),
    "after vectors were indexed": _after(index_writer, "build_approximate"),
    "before old versions are forgotten": _before(PassageTable, "forget_old_versions"),
    "after old versions were forgotten": _after(PassageTable, "forget_old_versions"),
    "while files are forced to disk": _before(files, "flush"),
    "while the table's files are forced to disk": _before(index_writer, "flush"),
    "before a roll-back": _before(PassageTable, "roll_back"),
    "after a roll-back": _after(PassageTable, "roll_back"),
}


@dataclass(frozen=True)
class IndexFault:
    """SIGKILL at the `time`-th arrival at a place of `INDEX_PLACES`."""

    place: str
    time: int = 1

    def install(self) -> None:
        left = self.time

        def strike() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), SIGKILL)

        INDEX_PLACES[self.place](strike)


@dataclass(frozen=True)
class Job:
    """build or add with sources, or remove with ids."""

    kind: str
    index: Path
    arguments: tuple[str, ...]
    approximate_from: int = 10**9


class IndexAttempt(Attempt):
    """One start of an update."""

    def __init__(self, job: Job, *faults: IndexFault) -> None:
        self.out = job.index
        self.began, began = CONTEXT.Pipe(duplex=False)
        self.processes = [CONTEXT.Process(target=update_in_child, args=(job, faults, began))]
        self.processes[0].start()
        began.close()


def finish_update(job: Job) -> None:
    """Runs, or goes on, to the end."""
    attempt = IndexAttempt(job)
    assert attempt.wait() == [0], attempt.complaint()


def update_in_child(job: Job, faults: tuple[IndexFault, ...], began: Any) -> None:
    """What a forked process does."""
    from bertsmith.inference.index import index

    nursery._be_quiet()
    index_build.PASSAGES_AT_A_TIME = PASSAGES_AT_A_TIME
    for fault in faults:
        fault.install()
    index.create_index = index_writer.create_index  # by whatever name the fault was put there
    began.send_bytes(b"now")
    try:
        _run(job)
    except BaseException as error:
        nursery._complaint_file(job.index, 0).write_text(f"{type(error).__name__}: {error}")
        os._exit(1)
    os._exit(0)  # without waiting for LanceDB's threads


def _run(job: Job) -> None:
    from bertsmith.inference.index.index import Index

    if job.kind == "build":
        Index.build(
            job.arguments,
            job.index,
            embedder=Counting(),
            passages=SETTINGS,
            approximate_from=job.approximate_from,
        )
    elif job.kind == "add":
        Index.open(job.index, embedder=Counting()).add(job.arguments)
    else:
        Index.open(job.index, embedder=Counting()).remove(job.arguments)

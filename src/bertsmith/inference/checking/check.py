"""check_model: checks that a model, index or graph answers as it did when it was written, or as another tool
does.

A model is asked for its golden answers again, in float32 and in the precision that this machine uses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith.argument_checks import check_arguments, check_flag, check_path, instance_of, one_of, optional
from bertsmith.errors import InputError
from bertsmith.inference.checking.oracles import Oracle, their_answers
from bertsmith.inference.engine import autocasting, make_ready
from bertsmith.inference.export.artefact import check_graph, is_exported
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.integrity import Hits
from bertsmith.inference.index.manifest import MANIFEST as INDEX
from bertsmith.model.locate import locate_model
from bertsmith.model.manifest import MANIFEST, read_unverified_manifest
from bertsmith.tasks.golden.comparison import GoldenComparison, GoldenDifference, compare, compare_settings
from bertsmith.tasks.golden.records import (
    GOLDEN,
    ModelAnswers,
    answers_of,
    parse_golden,
    read_golden,
    settings_of,
    write_golden,
)
from bertsmith.tasks.golden.subject import GoldenSubject, open_subject
from bertsmith.tasks.task import Task

# The tolerated difference to float32 by precision, relative to the size of a stage's numbers. docs/check.md
# has the measurements.
TOLERANCES = {
    torch.float32: 2e-4,
    torch.int16: 1e-2,
    torch.int8: 0.5,
    torch.float16: 0.02,
    torch.bfloat16: 0.1,
}


@dataclass(frozen=True)
class Check:
    """The result of a check. `settings` are those that have changed; `comparisons` are of answers, by how
    they were computed; `beside` names what they were compared with.
    """

    folder: Path
    beside: str
    settings: tuple[GoldenDifference, ...]
    comparisons: dict[str, GoldenComparison]

    @property
    def agrees(self) -> bool:
        return not self.settings and all(comparison.agrees for comparison in self.comparisons.values())


@check_arguments(
    name=check_path,
    task=optional(instance_of(type)),
    against=optional(one_of("transformers", "sentence-transformers")),
    write=check_flag,
)
def check_model(
    name: str | Path,
    task: type[Task[Any]] | None = None,
    *,
    against: Oracle | None = None,
    write: bool = False,
) -> Check:
    """Checks a model by its golden answers, or `against` another tool that opens the same folder.

    `name` is a path, alias or hub name; `task` is the task's class if you wrote it yourself. `write` first
    replaces the golden answers by the current ones.

    Raises InputError for a folder without golden answers, and for a tool that isn't installed or doesn't open
    the folder; ModelError for a folder whose files differ from its manifest, and as loading does.
    """
    folder = locate_model(name).folder
    if (folder / INDEX).is_file():
        return _check_index(folder, against is not None or write)
    if is_exported(folder):
        return _check_exported(folder, against is not None or write)
    subject = open_subject(folder, task)  # first: an adapter, or a run's folder, is told what it is
    if against is not None:
        theirs = their_answers(against, folder, subject, subject.inputs())
        ours = answers_of(subject, [record.input for record in theirs.records], traced=len(theirs.records))
        beside = compare(theirs, ours, TOLERANCES[torch.float32], told=False)
        return Check(folder, f"{against} {version(against)}", (), {"float32": beside})
    if write:
        if read_unverified_manifest(folder) is None:
            raise InputError(
                f"{folder} has no {MANIFEST}, and golden answers belong to files whose hashes it says. "
                "Nothing was written."
            )
        if reason := write_golden(folder, task):
            raise InputError(f"No golden answers were written: {reason}")
    golden = read_golden(folder)
    if golden is None:
        raise InputError(
            f"{folder} has no golden answers: it is of another tool, or of a Bertsmith before 0.4. Keep what "
            "it answers now with --write, if it has a bertsmith.json, or compare it with another tool: "
            "--against transformers"
        )
    tolerance = TOLERANCES[torch.float32]
    comparisons = {"float32": compare(golden.answers, _answer_again(golden.answers, subject), tolerance)}
    device, dtype = make_ready(subject.model)
    with autocasting(subject.encoder, device, dtype):
        now = _answer_again(golden.answers, subject)
    used = f"{str(dtype).removeprefix('torch.')} on {device.type}, as used here"
    comparisons[used] = compare(golden.answers, now, TOLERANCES[dtype], told=False)
    settings = compare_settings(golden.settings, settings_of(folder))
    return Check(folder, f"its golden answers ({golden.created_by})", tuple(settings), comparisons)


def _check_index(folder: Path, wants_more: bool) -> Check:
    if wants_more:
        raise InputError(
            f"{folder} is an index, which is checked by its own golden queries. Leave --against and --write "
            "out, or check the model that it was made with."
        )
    index = Index.open(folder)
    index.verify()
    index.warn_if_unfinished()
    golden_pairs = index.golden_queries()
    if not golden_pairs:
        raise InputError(
            f"{folder} has no golden queries: a Bertsmith before 0.4 changed it last, or a change was "
            f"interrupted. Repeat {index.info.to_repeat or 'the same `bertsmith index build`'}."
        )
    now = index.embedder.queries([before.text for before, _ in golden_pairs])
    tolerance = TOLERANCES[torch.bfloat16]  # for vectors of length 1, in whatever precision this machine uses
    differences = [
        GoldenDifference(
            "vector of the query", repr(before.text), float(np.abs(before.vector - vector).max())
        )
        for (before, _), vector in zip(golden_pairs, now, strict=True)
    ]
    comparisons = {"queries": _as_comparison(differences, tolerance)}
    for name in ("by_vector", "by_words"):
        hits = [
            _compare_hits(name, before.text, getattr(before, name), getattr(after, name))
            for before, after in golden_pairs
        ]
        comparisons[f"hits {name.replace('_', ' ')}"] = _as_comparison(hits, TOLERANCES[torch.float32])
    return Check(folder, f"its golden queries ({index.info.created_by})", (), comparisons)


def _compare_hits(stage: str, text: str, before: Hits, now: Hits) -> GoldenDifference:
    """The largest change of a hit's score. A hit that is missing now counts with the last hit's score."""
    scores, lowest = dict(now), min((score for _, score in now), default=0.0)
    size, detail = 0.0, ""
    for id, score in before:
        change = abs(scores.get(id, lowest) - score) / max(1.0, abs(score))
        if change > size:
            size, detail = change, f"{id} had {score:.4f}"
    if len(before) != len(now):
        size, detail = float("inf"), f"{len(now)} hits, and there were {len(before)}"
    return GoldenDifference(stage.replace("_", " "), repr(text), size, detail)


def _as_comparison(differences: Sequence[GoldenDifference], tolerance: float) -> GoldenComparison:
    failing = tuple(difference for difference in differences if not difference.size <= tolerance)
    return GoldenComparison(
        len(differences), failing, max(differences, key=lambda difference: difference.size), tolerance
    )


def _check_exported(folder: Path, wants_more: bool) -> Check:
    if wants_more:
        raise InputError(
            f"{folder} is an exported graph, which is checked by its own golden answers. Leave --against and "
            "--write out, or check the model that it was made from."
        )
    if not (folder / GOLDEN).is_file():
        raise InputError(
            f"{folder} was exported by a Bertsmith before 0.4, without golden answers. Export again."
        )
    golden = parse_golden(folder / GOLDEN)
    answers = check_graph(folder, golden)
    settings = tuple(compare_settings(golden.settings, settings_of(folder)))
    return Check(folder, f"its golden answers ({golden.created_by})", settings, {"the graph": answers})


def _answer_again(golden: ModelAnswers, subject: GoldenSubject) -> ModelAnswers:
    return answers_of(subject, [record.input for record in golden.records])

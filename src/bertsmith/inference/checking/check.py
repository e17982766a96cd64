"""A model asked again for its golden answers, in float32 and as it is used here, or beside another tool."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith.door import door, flag, kind, one_of, optional, place
from bertsmith.errors import InputError
from bertsmith.inference.checking.oracles import Oracle, their_answers
from bertsmith.inference.engine import autocasting, make_ready
from bertsmith.inference.export.artefact import check_graph, is_exported
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.integrity import Hits
from bertsmith.inference.index.manifest import MANIFEST as INDEX
from bertsmith.model.locate import locate_model
from bertsmith.model.manifest import MANIFEST, stated_manifest
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

# How far numbers may be from those of float32, as a share of how large the numbers of their stage are. See
# docs/check.md for what was measured.
TOLERANCES = {torch.float32: 2e-4, torch.int16: 1e-2, torch.float16: 0.02, torch.bfloat16: 0.1}


@dataclass(frozen=True)
class Check:
    """`settings` that aren't what they were, and what became of the answers, by how they were computed.
    `beside` is what they were compared with.
    """

    folder: Path
    beside: str
    settings: tuple[GoldenDifference, ...]
    comparisons: dict[str, GoldenComparison]

    @property
    def agrees(self) -> bool:
        return not self.settings and all(comparison.agrees for comparison in self.comparisons.values())


@door(
    name=place,
    task=optional(kind(type)),
    against=optional(one_of("transformers", "sentence-transformers")),
    write=flag,
)
def check_model(
    name: str | Path,
    task: type[Task[Any]] | None = None,
    *,
    against: Oracle | None = None,
    write: bool = False,
) -> Check:
    """By path, alias or hub name; `task` for one of your own. Its golden answers are asked for again, or it
    is compared with what another tool makes of the same folder. `write` keeps what it answers now first.

    Raises InputError for a folder without golden answers and for a tool that isn't installed or doesn't open
    the folder, ModelError for one whose files aren't those of its manifest, and as loading does.
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
        if stated_manifest(folder) is None:
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
    asked = index.golden_queries()
    if not asked:
        raise InputError(
            f"{folder} has no golden queries: a Bertsmith before 0.4 changed it last, or a change was "
            f"interrupted. Repeat {index.info.to_repeat or 'the same `bertsmith index build`'}."
        )
    now = index.embedder.queries([before.text for before, _ in asked])
    tolerance = TOLERANCES[torch.bfloat16]  # of vectors of length 1, made in whatever is used here
    far = [
        GoldenDifference(
            "vector of the query", repr(before.text), float(np.abs(before.vector - vector).max())
        )
        for (before, _), vector in zip(asked, now, strict=True)
    ]
    comparisons = {"queries": _as_comparison(far, tolerance)}
    for name in ("by_vector", "by_words"):
        hits = [
            _compare_hits(name, before.text, getattr(before, name), getattr(found, name))
            for before, found in asked
        ]
        comparisons[f"hits {name.replace('_', ' ')}"] = _as_comparison(hits, TOLERANCES[torch.float32])
    return Check(folder, f"its golden queries ({index.info.created_by})", (), comparisons)


def _compare_hits(stage: str, text: str, before: Hits, now: Hits) -> GoldenDifference:
    """The largest change of a score: a hit that is missing now has that of the last one at most."""
    scores, least = dict(now), min((score for _, score in now), default=0.0)
    size, detail = 0.0, ""
    for id, score in before:
        change = abs(scores.get(id, least) - score) / max(1.0, abs(score))
        if change > size:
            size, detail = change, f"{id} had {score:.4f}"
    if len(before) != len(now):
        size, detail = float("inf"), f"{len(now)} hits, and there were {len(before)}"
    return GoldenDifference(stage.replace("_", " "), repr(text), size, detail)


def _as_comparison(found: Sequence[GoldenDifference], tolerance: float) -> GoldenComparison:
    differ = tuple(each for each in found if not each.size <= tolerance)
    return GoldenComparison(len(found), differ, max(found, key=lambda each: each.size), tolerance)


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

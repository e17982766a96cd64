"""A ladder of smaller models, each taught by the one given: how small can it be, and keep what is asked?

out/settings.json           what was asked for, and out/vocabulary.json which pieces candidates have
out/answers/                what the model says, asked once for all candidates
out/candidates/SLUG/        one candidate: its distillation, model/ and tried.json
out/results.json            every figure, and the choice
out/report.html             the picture: size and time against the score, with intervals
out/model/                  the chosen one
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bertsmith.compression.distilling.recipes import make_distil_recipe
from bertsmith.compression.distilling.tasks.data import DistilData, read_distil_data
from bertsmith.compression.distilling.tasks.teacher import Teacher
from bertsmith.compression.shrinking.candidates import (
    STATIC,
    LeftOut,
    OnTest,
    Shrunk,
    Tried,
    asked_for,
    begin_search,
    choose,
    decided_once,
    doubts,
    ladder,
)
from bertsmith.compression.shrinking.judging import Judge
from bertsmith.compression.shrinking.shrink_report import write_shrink_report
from bertsmith.compression.shrinking.training import (
    PRUNED,
    Work,
    seconds_beside,
    table_source,
    try_candidate,
    try_pruned,
    try_table,
)
from bertsmith.door import door, either, flag, function, kind, optional, place, several, text
from bertsmith.errors import InputError, RecipeError
from bertsmith.files import atomic_folder, require_free, write_json
from bertsmith.inference.lock import sole_writer
from bertsmith.machine import Hardware
from bertsmith.model.locate import locate_model
from bertsmith.model.static_table import refuse_static
from bertsmith.progress import Show, silent
from bertsmith.reporting import formatting
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.registry import find_task
from bertsmith.training.machine import leave, set_up_machine
from bertsmith.training.resources import require_room_to_save

KEEP = 0.98  # as --keep has it too
_OWN = ("layers", "width", "feed_forward", "student", "teacher", "out", "compare")
_MOST_LOST = 0.5  # of what may be lost, that a pruned vocabulary may cost


@dataclass(frozen=True)
class ShrinkResult:
    """Where the chosen model is, the report, and what became of every candidate."""

    model: Path
    report: Path
    shrunk: Shrunk


@door(
    model=place,
    overrides=several(text),
    out=place,
    dev=place,
    train=optional(either(several(place), place)),
    test=optional(place),
    texts=several(place),
    prune=flag,
    resume=flag,
    console=optional(kind(Console)),
    show=optional(function),
)
def shrink(
    model: str | Path,
    *overrides: str,
    out: str | Path,
    dev: str | Path,
    train: str | Path | Sequence[str | Path] | None = None,
    test: str | Path | None = None,
    texts: Sequence[str | Path] = (),
    hours: float | None = None,
    keep: float = KEEP,
    prune: bool = True,
    resume: bool = False,
    console: Console | None = None,
    show: Show | None = None,
    **values: Any,
) -> ShrinkResult:
    """Writes the fastest of smaller models that keep the share `keep` of the model's score on `dev`.

    Each candidate learns the model's answers to `train` and `texts` as `distil_task` has it, with the same
    settings. On the labelled rows of `test` the chosen model is reported on beside the whole one; nothing is
    learned or chosen by them. Without `prune` the vocabulary stays. Candidates that are not expected to be
    finished within `hours`, counted over all parts of an interrupted search, are left out. With `resume`,
    goes on; `hours` and `keep` may then be others. Raises InputError, RecipeError and ModelError before
    anything is trained.
    """
    _require(keep, hours)
    _refuse_own(overrides, values)
    refuse_static(locate_model(model).folder)
    files = {"dev": dev, "test": test, "out": out}
    given = {name: str(path) for name, path in files.items() if path is not None}
    more = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in values.items()
        if value is not None
    }
    learned = [str(train)] if isinstance(train, str | Path) else list(map(str, train or ()))
    found = given | {"teacher": [str(model)], "texts": list(map(str, texts)), "train": learned} | more
    recipe = make_distil_recipe(found | {"compare": False}, list(overrides))
    folder = Path(out)
    if not resume:
        require_free(folder)
    machine = set_up_machine(recipe.hardware, recipe.micro_batch_tokens, Hardware.detect())
    try:
        task = None if recipe.task is None else find_task(recipe.task)
        whole = Teacher.open(str(model), task, machine.device)
        data = read_distil_data(whole.task, recipe, [whole])
        encode_examples(whole.task, data.test or (), whole.tokenizer)  # refuses a cell that can't be read
        require_room_to_save(whole.model, folder)  # which is the one chosen where no smaller one will do
        begin_search(folder, asked_for(whole, recipe, overrides, values, prune))
        with sole_writer(folder):
            judge = Judge(whole, data.dev, machine.device)
            work = Work(folder, recipe, overrides, values, machine, judge, console, show or silent)
            return _search(work, data, hours, keep, prune)
    finally:
        leave()


def _refuse_own(overrides: Sequence[str], values: Mapping[str, Any]) -> None:
    """Settings of a distillation that each candidate has of its own: they would make all of them alike."""
    given = [*(change.partition("=")[0].strip() for change in overrides), *values]
    if own := next((name for name in given if name in _OWN), None):
        raise RecipeError(
            f"shrink: {own} is not to be given, since each candidate of a search has its own. Leave it out, "
            "or make that one model with bertsmith distil."
        )


def _require(keep: float, hours: float | None) -> None:
    if not 0 < keep <= 1:
        raise InputError(f"keep is a share of the model's score, above 0 and at most 1: found {keep}.")
    if hours is not None and not hours > 0:
        raise InputError(f"hours must be above 0, found {hours}.")


def _search(work: Work, data: DistilData, hours: float | None, keep: float, prune: bool) -> ShrinkResult:
    whole_folder = work.judge.whole.folder
    work.say(f"Measuring the model on {len(data.dev):,} rows of dev.")
    measured = work.judge.judge(whole_folder, "the model itself", "whole")
    whole = replace(measured, share=1.0, share_alone=1.0)
    tried, base = list[Tried](), whole_folder
    if prune and (pruned := try_pruned(work, data)) is not None:
        tried.append(pruned)
        if decided_once(work.out, pruned.score >= whole.score * (1 - (1 - keep) * _MOST_LOST)):
            base = work.folder(PRUNED) / "model"
        else:
            work.say(
                f"Without them {work.judge.metric} falls from {whole.score:.4f} to {pruned.score:.4f}: the "
                "others keep the whole vocabulary. More --texts would say which pieces are needed."
            )
    left_out = list[LeftOut]()
    seconds_left = float("inf") if hours is None else 3600 * hours
    before = table_source(work.judge.whole)
    for candidate in ladder(work.judge.whole.model.config, static=before is not None):
        found: Tried | LeftOut | None = Tried.read(work.folder(candidate.slug))
        if found is None:
            spent = sum(each.seconds for each in tried)
            if candidate.slug == STATIC and before is not None:
                found = try_table(work, before, base)
            else:
                found = try_candidate(work, candidate, base, seconds_left - spent, seconds_beside(tried))
        if isinstance(found, LeftOut):
            left_out.append(found)
            work.say(_left_out(found))
        else:
            tried.append(found)
            work.say(_finished(found, whole, work.judge.metric))
    return _written(work, data, whole, tried, left_out, keep)


def _written(
    work: Work,
    data: DistilData,
    whole: Tried,
    tried: Sequence[Tried],
    left_out: Sequence[LeftOut],
    keep: float,
) -> ShrinkResult:
    chosen = choose(whole, tried, keep)
    metric = work.judge.metric
    source = work.judge.whole.folder if chosen is whole else work.folder(chosen.slug) / "model"
    shrunk = Shrunk(
        metric=metric,
        keep=keep,
        whole=whole,
        tried=tuple(tried),
        chosen=chosen,
        left_out=tuple(left_out),
        warnings=(*data.warnings, *doubts(whole, tried, chosen, keep, metric), *map(_left_out, left_out)),
        on_test=None if data.test is None else _on_test(work, source, data.test),
    )
    with atomic_folder(work.out / "model", overwrite=True) as partial:
        shutil.copytree(source, partial, dirs_exist_ok=True)
    write_json(work.out / "results.json", shrunk.record())
    report = write_shrink_report(work.out, shrunk, str(work.recipe.teacher[0]))
    return ShrinkResult(work.out / "model", report, shrunk)


def _on_test(work: Work, chosen: Path, test: Sequence[Any]) -> OnTest:
    whole, error = work.judge.score(work.judge.whole.folder, test)
    score, own_error = work.judge.score(chosen, test)
    return OnTest(len(test), whole, error, score, own_error)


def _finished(found: Tried, whole: Tried, metric: str) -> str:
    return (
        f"{found.name}: {metric} {found.score:.4f}, {formatting.percent(found.score / whole.score)} of the "
        f"model's, in {formatting.percent(found.share_alone)} of its time."
        if whole.score
        else f"{found.name}: {metric} {found.score:.4f}."
    )


def _left_out(found: LeftOut) -> str:
    return (
        f"{found.name}: left out, it would take about {formatting.duration(found.seconds)}, and "
        f"{formatting.duration(found.left)} of the time are left"
    )

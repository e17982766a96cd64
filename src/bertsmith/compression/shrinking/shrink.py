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

from bertsmith.compression.distilling.recipes import DistilRecipe, distil_values, make_distil_recipe
from bertsmith.compression.distilling.tasks.data import DistilData, read_distil_data
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher
from bertsmith.compression.shrinking.candidates import (
    STATIC,
    CandidateResult,
    ReportedScores,
    ShrinkResults,
    SkippedCandidate,
    asked_for,
    begin_search,
    choose,
    decided_once,
    doubts,
    ladder,
)
from bertsmith.compression.shrinking.judging import CandidateJudge
from bertsmith.compression.shrinking.shrink_report import write_shrink_report
from bertsmith.compression.shrinking.table import table_source
from bertsmith.compression.shrinking.training import (
    PRUNED,
    ShrinkSearch,
    seconds_beside,
    try_candidate,
    try_pruned,
    try_table,
)
from bertsmith.door import door, either, flag, function, kind, optional, place, several, text
from bertsmith.errors import InputError, RecipeError
from bertsmith.files import atomic_folder, require_free, write_json
from bertsmith.model.locate import locate_model
from bertsmith.model.static_table import refuse_static
from bertsmith.progress import Show, silent
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.training.resources import require_room_to_save
from bertsmith.training.run import Run

KEEP = 0.98  # as --keep has it too
_OWN = ("layers", "width", "feed_forward", "student", "teacher", "out", "compare")
_MOST_LOST = 0.5  # of what may be lost, that a pruned vocabulary may cost


@dataclass(frozen=True)
class ShrinkResult:
    """Where the chosen model is, the report, and what became of every candidate."""

    model: Path
    report: Path
    shrunk: ShrinkResults


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
    _refuse(keep, hours, overrides, values)
    refuse_static(locate_model(model).folder)
    given = distil_values([model], texts, train, values, dev=dev, test=test, out=out)
    recipe = make_distil_recipe(given | {"compare": False}, list(overrides))

    def look() -> DistilRecipe:
        if not resume:
            require_free(Path(recipe.out))
        return recipe

    with Run.open(look, resume, console) as run:
        whole = TaskTeacher.open(str(model), recipe.own_task, run.machine.device)
        data = read_distil_data(whole.task, recipe, [whole])
        encode_examples(whole.task, data.test or (), whole.tokenizer)  # refuses a cell that can't be read
        require_room_to_save(whole.model, run.out)  # which is the one chosen where no smaller one will do
        begin_search(run.out, asked_for(whole, recipe, overrides, values, prune))
        judge = CandidateJudge(whole, data.dev, run.machine.device)
        search = ShrinkSearch(run, judge, overrides, values, show or silent)
        return _search(search, data, hours, keep, prune)


def _refuse(keep: float, hours: float | None, overrides: Sequence[str], values: Mapping[str, Any]) -> None:
    """What makes no search; and settings of a distillation that each candidate has of its own, which would
    make all of them alike.
    """
    if not 0 < keep <= 1:
        raise InputError(f"keep is a share of the model's score, above 0 and at most 1: found {keep}.")
    if hours is not None and not hours > 0:
        raise InputError(f"hours must be above 0, found {hours}.")
    given = [*(change.partition("=")[0].strip() for change in overrides), *values]
    if own := next((name for name in given if name in _OWN), None):
        raise RecipeError(
            f"shrink: {own} is not to be given, since each candidate of a search has its own. Leave it out, "
            "or make that one model with bertsmith distil."
        )


def _search(
    search: ShrinkSearch, data: DistilData, hours: float | None, keep: float, prune: bool
) -> ShrinkResult:
    whole_folder = search.judge.whole.folder
    search.say(f"Measuring the model on {len(data.dev):,} rows of dev.")
    measured = search.judge.judge(whole_folder, "the model itself", "whole")
    whole = replace(measured, share=1.0, share_alone=1.0)
    tried, base = list[CandidateResult](), whole_folder
    if prune and (pruned := try_pruned(search, data)) is not None:
        tried.append(pruned)
        if decided_once(search.run.out, pruned.score >= whole.score * (1 - (1 - keep) * _MOST_LOST)):
            base = search.folder(PRUNED) / "model"
        else:
            search.say(
                f"Without them {search.judge.metric} falls from {whole.score:.4f} to {pruned.score:.4f}: the "
                "others keep the whole vocabulary. More --texts would say which pieces are needed."
            )
    left_out = list[SkippedCandidate]()
    seconds_left = float("inf") if hours is None else 3600 * hours
    before = table_source(search.judge.whole)
    for candidate in ladder(search.judge.whole.model.config, static=before is not None):
        found: CandidateResult | SkippedCandidate | None = CandidateResult.read(search.folder(candidate.slug))
        if found is None:
            spent = sum(each.seconds for each in tried)
            if candidate.slug == STATIC and before is not None:
                found = try_table(search, before, base)
            else:
                found = try_candidate(search, candidate, base, seconds_left - spent, seconds_beside(tried))
        if isinstance(found, SkippedCandidate):
            left_out.append(found)
            search.say(found.sentence())
        else:
            tried.append(found)
            search.say(found.sentence(whole, search.judge.metric))
    return _written(search, data, whole, tried, left_out, keep)


def _written(
    search: ShrinkSearch,
    data: DistilData,
    whole: CandidateResult,
    tried: Sequence[CandidateResult],
    left_out: Sequence[SkippedCandidate],
    keep: float,
) -> ShrinkResult:
    chosen = choose(whole, tried, keep)
    metric = search.judge.metric
    source = search.judge.whole.folder if chosen is whole else search.folder(chosen.slug) / "model"
    on_test = None
    if data.test is not None:
        own, chosens = (search.judge.score(each, data.test) for each in (search.judge.whole.folder, source))
        on_test = ReportedScores(len(data.test), *own, *chosens)
    shrunk = ShrinkResults(
        metric=metric,
        keep=keep,
        whole=whole,
        tried=tuple(tried),
        chosen=chosen,
        left_out=tuple(left_out),
        warnings=(
            *data.warnings,
            *doubts(whole, tried, chosen, keep, metric),
            *(each.sentence() for each in left_out),
        ),
        on_test=on_test,
    )
    with atomic_folder(search.run.out / "model", overwrite=True) as partial:
        shutil.copytree(source, partial, dirs_exist_ok=True)
    write_json(search.run.out / "results.json", shrunk.record())
    report = write_shrink_report(search.run.out, shrunk, str(search.run.recipe.teacher[0]))
    return ShrinkResult(search.run.out / "model", report, shrunk)

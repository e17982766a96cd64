"""Distils a model into a ladder of smaller candidates and chooses the one of least work that keeps the score.

out/settings.json           the settings of the search
out/vocabulary.json         whether the candidates have the pruned vocabulary
out/answers/                the model's outputs, computed once for all candidates
out/candidates/SLUG/        one candidate: its distillation, model/ and tried.json
out/results.json            every figure, and the choice
out/report.html             charts of size and time against the score, with intervals
out/model/                  the chosen model
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bertsmith.argument_checks import (
    any_of,
    check_arguments,
    check_flag,
    check_function,
    check_path,
    check_text,
    instance_of,
    list_of,
    optional,
)
from bertsmith.compression.distilling.recipes import DistilRecipe, distil_values, make_distil_recipe
from bertsmith.compression.distilling.tasks.data import DistilData, read_distil_data
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher
from bertsmith.compression.shrinking.candidates import (
    STATIC,
    CandidateResult,
    ReportedScores,
    ShrinkResults,
    SkippedCandidate,
    begin_search,
    choose,
    collect_search_settings,
    find_doubts,
    list_candidates,
    settle_pruning,
)
from bertsmith.compression.shrinking.judging import CandidateJudge
from bertsmith.compression.shrinking.shrink_report import write_shrink_report
from bertsmith.compression.shrinking.table import find_table_source
from bertsmith.compression.shrinking.training import (
    PRUNED,
    ShrinkSearch,
    median_overhead,
    try_candidate,
    try_pruned,
    try_table,
)
from bertsmith.errors import InputError, RecipeError
from bertsmith.files import atomic_folder, require_new_folder, write_json
from bertsmith.model.locate import locate_model
from bertsmith.model.static_table import refuse_static
from bertsmith.progress import Show, silent
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.training.resources import require_room_to_save
from bertsmith.training.run import Run

KEEP = 0.98  # as --keep has it too
_CANDIDATE_SETTINGS = ("layers", "width", "feed_forward", "student", "teacher", "out", "compare")
_MOST_LOST = 0.5  # the share of the tolerated loss of score that pruning the vocabulary may use up


@dataclass(frozen=True)
class ShrinkResult:
    """The folder of the chosen model, the report's file, and the figures of every candidate."""

    model: Path
    report: Path
    shrunk: ShrinkResults


@check_arguments(
    model=check_path,
    overrides=list_of(check_text),
    out=check_path,
    dev=check_path,
    train=optional(any_of(list_of(check_path), check_path)),
    test=optional(check_path),
    texts=list_of(check_path),
    prune=check_flag,
    resume=check_flag,
    console=optional(instance_of(Console)),
    show=optional(check_function),
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
    """Writes to `out` the smaller model of least work that keeps the share `keep` of the model's score on
    `dev`.

    Each candidate learns the model's answers to `train` and `texts` as with `distil_task`, all with the same
    settings. The report compares the chosen model and the whole one on the labelled rows of `test`; nothing
    is learned or chosen by these. Without `prune` the vocabulary stays. Candidates that are not expected to
    finish within `hours`, counted over all parts of an interrupted search, are left out. `resume` continues a
    search; `hours` and `keep` may then differ. Raises InputError, RecipeError and ModelError before anything
    is trained.
    """
    _check_arguments(keep, hours, overrides, values)
    refuse_static(locate_model(model).folder)
    arguments = distil_values([model], texts, train, values, dev=dev, test=test, out=out)
    recipe = make_distil_recipe(arguments | {"compare": False}, list(overrides))

    def open_recipe() -> DistilRecipe:
        if not resume:
            require_new_folder(Path(recipe.out))
        return recipe

    with Run.open(open_recipe, resume, console) as run:
        whole = TaskTeacher.open(str(model), recipe.task_class, run.machine.device)
        data = read_distil_data(whole.task, recipe, [whole])
        encode_examples(whole.task, data.test or (), whole.tokenizer)  # refuses a cell that can't be read
        require_room_to_save(
            whole.model, run.out
        )  # the whole model is saved where no smaller one is good enough
        begin_search(run.out, collect_search_settings(whole, recipe, overrides, values, prune))
        judge = CandidateJudge(whole, data.dev, run.machine.device)
        search = ShrinkSearch(run, judge, overrides, values, show or silent)
        return _run_search(search, data, hours, keep, prune)


def _check_arguments(
    keep: float, hours: float | None, overrides: Sequence[str], values: Mapping[str, Any]
) -> None:
    """Raises InputError for a `keep` or `hours` out of range, and RecipeError for settings of a distillation
    that differ by candidate, such as layers.
    """
    if not 0 < keep <= 1:
        raise InputError(f"keep is a share of the model's score, above 0 and at most 1: found {keep}.")
    if hours is not None and not hours > 0:
        raise InputError(f"hours must be above 0, found {hours}.")
    names = [*(change.partition("=")[0].strip() for change in overrides), *values]
    if name := next((key for key in names if key in _CANDIDATE_SETTINGS), None):
        raise RecipeError(
            f"shrink: {name} is not to be given, since each candidate of a search has its own. Leave it out, "
            "or make that one model with bertsmith distil."
        )


def _run_search(
    search: ShrinkSearch, data: DistilData, hours: float | None, keep: float, prune: bool
) -> ShrinkResult:
    """Makes and judges the candidates one after the other, and writes the choice among them."""
    judge, whole_folder = search.judge, search.judge.whole.folder
    search.say(f"Measuring the model on {len(data.dev):,} rows of dev.")
    whole = replace(judge.judge(whole_folder, "the model itself", "whole"), share=1.0, share_alone=1.0)
    tried, base = list[CandidateResult](), whole_folder
    if prune and (pruned := try_pruned(search, data)) is not None:
        tried.append(pruned)
        if settle_pruning(search.run.out, pruned.score >= whole.score * (1 - (1 - keep) * _MOST_LOST)):
            base = search.folder(PRUNED) / "model"
        else:
            search.say(
                f"Without them {judge.metric} falls from {whole.score:.4f} to {pruned.score:.4f}: the "
                "others keep the whole vocabulary. More --texts would say which pieces are needed."
            )
    skipped = list[SkippedCandidate]()
    seconds_left = float("inf") if hours is None else 3600 * hours
    table_encoder = find_table_source(judge.whole)
    for candidate in list_candidates(judge.whole.model.config, static=table_encoder is not None):
        result: CandidateResult | SkippedCandidate | None = CandidateResult.read(
            search.folder(candidate.slug)
        )
        if result is None:
            spent = sum(earlier.seconds for earlier in tried)
            if candidate.slug == STATIC and table_encoder is not None:
                result = try_table(search, table_encoder, base)
            else:
                result = try_candidate(search, candidate, base, seconds_left - spent, median_overhead(tried))
        if isinstance(result, SkippedCandidate):
            skipped.append(result)
            search.say(result.sentence())
        else:
            tried.append(result)
            search.say(result.sentence(whole, judge.metric))
    return _write_results(search, data, whole, tried, skipped, keep)


def _write_results(
    search: ShrinkSearch,
    data: DistilData,
    whole: CandidateResult,
    tried: Sequence[CandidateResult],
    skipped: Sequence[SkippedCandidate],
    keep: float,
) -> ShrinkResult:
    """Chooses a candidate, measures it on test, and writes model, results.json and report.html."""
    judge = search.judge
    chosen = choose(whole, tried, keep)
    source = judge.whole.folder if chosen is whole else search.folder(chosen.slug) / "model"
    on_test = None
    if data.test is not None:
        whole_score, chosen_score = (
            judge.score(folder, data.test) for folder in (judge.whole.folder, source)
        )
        on_test = ReportedScores(len(data.test), *whole_score, *chosen_score)
    shrunk = ShrinkResults(
        metric=judge.metric,
        keep=keep,
        whole=whole,
        tried=tuple(tried),
        chosen=chosen,
        left_out=tuple(skipped),
        warnings=(
            *data.warnings,
            *find_doubts(whole, tried, chosen, keep, judge.metric),
            *(candidate.sentence() for candidate in skipped),
        ),
        on_test=on_test,
    )
    with atomic_folder(search.run.out / "model", overwrite=True) as partial:
        shutil.copytree(source, partial, dirs_exist_ok=True)
    write_json(search.run.out / "results.json", shrunk.record())
    report = write_shrink_report(search.run.out, shrunk, str(search.run.recipe.teacher[0]))
    return ShrinkResult(search.run.out / "model", report, shrunk)

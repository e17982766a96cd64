"""Trains a student on recorded calls and proves its claims. Read `train_student` first.

    understand → read → divide → train the tiers → choose → prove → student.json, model/, report.html

Beside OUT a folder OUT.training holds the work in progress: the split of the calls, and the fine-tuning. An
interrupted training resumes there; the folder is removed when the student is written. The folder of a
training with other settings, versions or calls stays, and the new one's is OUT.training-2, OUT.training-3 ….
"""

import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bertsmith.argument_checks import check_arguments, check_function, check_path, instance_of, optional
from bertsmith.errors import InputError, MissingExtra
from bertsmith.files import locked_folder, make_folder, read_json, remove_empty, write_json
from bertsmith.mirror.answering.replays import ReplayStore, compare_answers
from bertsmith.mirror.answering.shadow_proof import choose_unit_calls, describe_agreement
from bertsmith.mirror.answering.stage_store import StageStore, save_findings
from bertsmith.mirror.call import UNDATED
from bertsmith.mirror.learning.earlier_student import (
    EarlierStudent,
    find_unproven_student,
)
from bertsmith.mirror.learning.forecast import (
    RiskForecast,
    advise_risk,
    describe_forecast,
    forecast_risks,
    foreseen_calls,
)
from bertsmith.mirror.learning.learned_calls import (
    CallSplit,
    LearnedCall,
    LoadedCalls,
    group_ids_by_use,
    join_by_text,
    read_calls,
    split_by_ids,
    split_calls,
)
from bertsmith.mirror.learning.limits import (
    CallCurve,
    describe_refusals,
    describe_uneven_fields,
    estimate_teacher_ceiling,
    fit_call_curve,
)
from bertsmith.mirror.learning.proving import (
    ProofResult,
    choose_method,
    estimate_coverage,
    explain_postponement,
    postpone,
    prove,
    read_prices,
    target_epsilon,
)
from bertsmith.mirror.learning.report import StudentReport, render_report, summarise_findings
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.student_folder import (
    build_student_file,
    find_free_folder,
    is_replaceable,
    write_student,
)
from bertsmith.mirror.learning.teacher_change import (
    Features,
    choose_features,
    describe_time,
    find_change,
    leave_out_replayed,
    read_former_calls,
    translate_former,
)
from bertsmith.mirror.learning.tiers import (
    StudentCandidate,
    TeacherComparison,
    compare_with_teacher,
    train_encoder_candidates,
    train_named_candidate,
    train_word_candidate,
)
from bertsmith.mirror.learning.understand import LearningRecords, SiteProfile, understand
from bertsmith.mirror.store import Store
from bertsmith.mirror.student_file import StudentFile, student_id

_FEWEST_SINCE = 150  # calls since the answers changed, to learn the new ones from
_FROM_NAMES = (
    "it begins by names alone, so all recorded calls tell how often it agrees, and none is kept for a proof"
)
_PLAN = "plan.json"
Say = Callable[[str], None]


@dataclass(frozen=True)
class LearningResult:
    """The result of a training. `dev`, and `calibration` where it was used, are the chosen candidate's
    comparisons with the teacher; `tiers` has each tier's on dev. `why`: why the claim that was wanted isn't
    proven, or empty. `forecasts` were made before the calls kept for the proof were used. `unmatched` counts
    the calls that don't fit the template; `notes` are sentences for the user. `advice`: a risk that could be
    proven, where the proof wasn't begun; or empty.
    """

    folder: Path
    file: StudentFile
    parts: CallSplit
    unmatched: int
    dev: TeacherComparison
    calibration: TeacherComparison | None
    tiers: dict[str, TeacherComparison]
    curve: CallCurve | None
    why: str
    notes: tuple[str, ...]
    forecasts: tuple[RiskForecast, ...] = ()
    advice: str = ""


@dataclass(frozen=True)
class _LearningRun:
    """A training in progress: its calls, their split, the calls of the version before or, where the answers
    have changed `since` a time, those before it, its work folder, and its name in the store; the `features`
    that former answers are compared by.
    """

    settings: LearnSettings
    profile: SiteProfile
    read: LoadedCalls
    parts: CallSplit
    former: list[LearnedCall]
    since: float | None
    work: Path
    name: str
    features: Features


@check_arguments(
    store=instance_of(Store),
    out=check_path,
    settings=optional(instance_of(LearnSettings)),
    console=optional(instance_of(Console)),
    say=optional(check_function),
)
def train_student(
    store: Store,
    out: Path | str,
    *,
    site: str | None = None,
    version: str | None = None,
    settings: LearnSettings | None = None,
    console: Console | None = None,
    say: Say | None = None,
) -> LearningResult:
    """Trains on the calls of a site's latest version, or of `version`, and those merged with it.

    A student in `out` that a stage of the mirror names stays, and so does one with a better claim, or one on
    calls of another version: the new one goes to out-2, out-3 ….

    Resumes an interrupted training with the same store, settings and versions. `say` is called with a
    sentence for each step. Raises InputError where the site can't be mirrored or there are too few calls, and
    where another training is at work there; MissingExtra and ResourceError where an encoder alone is to be
    trained and can't be.
    """
    settings, out, say = settings or LearnSettings(), Path(out), say or (lambda _: None)
    read_prices(settings)
    if not is_replaceable(out):
        raise InputError(
            f"{out} exists and is no student's folder, or holds other files too, or is the current folder, "
            "so it is not replaced. Choose another --out."
        )
    records = LearningRecords(store)
    profile = understand(store, records.group(site, version))
    profile.require_mirrorable()
    _require_field(settings, profile)
    free = find_free_folder(store, out)
    if free != out:
        say(f"The student in {out} is one of the mirror's and stays: the new one goes to {free}")
    # Beside the folder that was asked for: the mirror may use it when an ended training goes on.
    out, first = free, out.with_name(out.name + ".training")
    made = make_folder(first)
    with locked_folder(first) as is_free:  # one lock for all trainings for OUT
        if not is_free:
            raise InputError(
                f"{first} is in use: another training is at work there. Wait until it has ended."
            )
        work = _find_work_folder(first, _build_plan(store, settings, profile), say)
        try:
            with _removed_where_refused(work):
                training = _start_run(store, records, profile, settings, work, say)
            learned = _run_training(training, records, out, console, say)
            shutil.rmtree(work, ignore_errors=True)
        finally:  # removes empty folders only: unfinished work stays
            remove_empty([work, first, *made])
    return learned


@contextmanager
def _removed_where_refused(work: Path) -> Iterator[None]:
    """Removes the work folder where the calls are refused (InputError): a later training begins with those
    that are there then. Not once the proof has begun, whose calls can't be used again; nor the fine-tuning of
    an interrupted training, which goes on once what was refused, as a model that was moved, is there again.
    """
    finetuned = [path for path in work.iterdir() if path.is_dir()]
    try:
        yield
    except InputError:
        if not any(path.exists() for path in finetuned):
            shutil.rmtree(work, ignore_errors=True)
        raise


def _build_plan(store: Store, settings: LearnSettings, profile: SiteProfile) -> dict[str, Any]:
    """What a resumed training must have in common, as JSON. Versions of one prompt have one id in all stores;
    a fingerprint tells the stores apart.
    """
    return {
        "store": store.fingerprint(_PLAN),
        "settings": settings.model_dump(mode="json"),
        "versions": sorted(version.version for version in profile.versions),
    }


def _find_work_folder(first: Path, plan: dict[str, Any], say: Say) -> Path:
    """The folder of an interrupted training with this plan, else `first` if it is empty, else a new folder
    beside it: another training, an unreadable plan, or anything else there stays as it is.
    """
    numbered = [path for path in first.parent.iterdir() if path.name.startswith(f"{first.name}-")]
    for folder in (first, *numbered):
        try:
            stored = read_json(folder / _PLAN)
        except (InputError, OSError):
            continue
        if isinstance(stored, dict) and {name: stored.get(name) for name in plan} == plan:
            return folder
    # What a killed process left of writing the plan is removed when it is written again.
    if all(path.name.startswith(f".{_PLAN}.") for path in first.iterdir()):
        return first
    number = 2
    while (new := first.with_name(f"{first.name}-{number}")).exists():
        number += 1
    say(
        f"What is in {first} stays: it is no training that was ended, or one with other settings, versions "
        f"or calls. The files of this one are in {new}"
    )
    make_folder(new)
    return new


def _require_field(settings: LearnSettings, profile: SiteProfile) -> None:
    paths = [field.path for field in profile.shape.fields if field.kind in ("enum", "boolean", "ordinal")]
    if settings.by_class is not None and settings.by_class not in paths:
        raise InputError(
            f"The answers have no field {settings.by_class!r} of one value of several. "
            f"There are: {', '.join(paths) or 'none'}."
        )


def _start_run(
    store: Store,
    records: LearningRecords,
    profile: SiteProfile,
    settings: LearnSettings,
    work: Path,
    say: Say,
) -> _LearningRun:
    """Resumes the plan in the work folder, or divides the calls and writes a new plan."""
    path, features = work / _PLAN, choose_features(settings)
    if path.exists():
        return _resume_run(records, profile, settings, work, read_json(path), say)
    read = read_calls(store, profile)
    changed = _find_told_change(store, profile)
    is_enough = changed is not None and len(_calls_since(changed, read.calls)) >= _FEWEST_SINCE
    told = changed if is_enough else None
    recent = read.calls if told is None else _calls_since(told, read.calls)
    parts = split_calls(recent, records.used_calls(), profile.shape, settings)
    # Also where the calls since a change are too few to be learned alone: those before prove nothing.
    proving = {call.id for call in parts.calibration if changed is None or call.began >= changed}
    # Again without the calibration calls: their answers may not influence the claim that they prove.
    profile = understand(store, profile.versions, proving)
    profile.require_mirrorable()
    _require_field(settings, profile)
    read = read_calls(store, profile)
    former, name, since = list[LearnedCall](), secrets.token_hex(6), None
    if not settings.from_names:
        former = read_former_calls(records, profile)
        say("Comparing the answers with earlier ones")
        since = told or find_change(read.calls, profile.shape, settings.seed, features)
    later = [] if since is None else _calls_since(since, read.calls)
    if since is not None and len(later) < _FEWEST_SINCE:
        say(f"{describe_time(since)} That is too lately to learn it: train again after more calls.")
        since = None
    if since is not None:
        is_later = {call.id for call in later}
        earlier = [call for call in read.calls if call.id not in is_later]
        former = leave_out_replayed(store, profile, earlier)
        # The answers by which a training finds a change can't prove a claim about the calls since.
        proving = proving if told is not None else set()
        read = replace(read, calls=later)
    parts = split_by_ids(read.calls, proving, profile.shape, settings)
    plan = {
        **_build_plan(store, settings, profile),
        "name": name,
        "calls": [call.id for call in read.calls],
        "former": [call.id for call in former],
        "since": since,
        "calibration": [call.id for call in parts.calibration],
        **profile.plan(),
    }
    write_json(path, plan)
    return _LearningRun(settings, profile, read, parts, former, since, work, name, features)


def _find_told_change(store: Store, profile: SiteProfile) -> float | None:
    """When the mirror last found that the LLM answers otherwise than before, in seconds since 1970; None
    where it didn't.
    """
    changes = StageStore(store).llm_changes()
    return max((changes[version] for version in profile.templates if version in changes), default=None)


def _calls_since(since: float, calls: Sequence[LearnedCall]) -> list[LearnedCall]:
    """Without undated calls, which have the time of their import, and may be older."""
    return [call for call in calls if call.began >= since and call.source != UNDATED]


def _resume_run(
    records: LearningRecords,
    profile: SiteProfile,
    settings: LearnSettings,
    work: Path,
    plan: dict[str, Any],
    say: Say,
) -> _LearningRun:
    """Resumes with the calls, shape and templates of the plan. Where some calls have been deleted since, the
    work done with them is removed, and the training starts again without them.
    """
    profile = profile.as_planned(plan)
    read, known, known_former = read_calls(records.store, profile), set(plan["calls"]), set(plan["former"])
    calls = [call for call in read.calls if call.id in known]
    earlier = [*read_former_calls(records, profile), *read.calls]
    former = [call for call in earlier if call.id in known_former]
    new = len([call for call in read.calls if call.id not in known | known_former])
    later = f"; {new:,} new ones are for the next training" if new else ""
    say(f"Going on with the training in {work}, which was ended, with its {len(calls):,} calls{later}")
    if len(calls) < len(known) or len(former) < len(known_former):
        for part in work.iterdir():
            if part.is_dir():
                shutil.rmtree(part)
        ids = {"calls": [call.id for call in calls], "former": [call.id for call in former]}
        write_json(work / _PLAN, plan | ids)
    parts = split_by_ids(calls, plan["calibration"], profile.shape, settings)
    read = replace(read, calls=calls)
    since, name = plan["since"], plan["name"]
    return _LearningRun(settings, profile, read, parts, former, since, work, name, choose_features(settings))


def _run_training(
    training: _LearningRun, records: LearningRecords, out: Path, console: Console | None, say: Say
) -> LearningResult:
    settings, parts, shape = training.settings, training.parts, training.profile.shape
    notes = [sentence] if (sentence := describe_refusals(records.store, training.profile)) else []
    version = training.profile.latest.version
    if pairs := ReplayStore(records.store).pairs(version, training.since or 0.0):
        notes.append(compare_answers(pairs, shape).as_sentence(shape))
    if odd := sum(not shape.allows(call.values) for call in training.read.calls):
        notes.append(
            f"{odd:,} of {len(training.read.calls):,} answers don't fit the fields: what is odd in them "
            "teaches nothing, and in the proof each of them counts as different."
        )
    earlier = None if settings.from_names else _find_earlier_student(training, records, say)
    if earlier is not None:
        candidates = [earlier.candidate]
        parts = CallSplit([], earlier.dev, earlier.calibration, [], frozenset())
        left = settings.model_copy(update={"delta": earlier.delta})
        name = f"{training.name}-earlier"
        trial = replace(training, parts=parts, former=[], settings=left, name=name)
        devs = [compare_with_teacher(earlier.candidate, earlier.dev, shape)]
        forecasts = forecast_risks(devs, foreseen_calls(len(parts.calibration)), left)
        verdict, calibrations, parts = _prove_candidates(trial, records, candidates, devs, say)
        earlier = None if verdict.why else earlier  # others may have used some of the calls meanwhile
    if earlier is not None:
        notes.append(earlier.note)
    else:
        with _removed_where_refused(training.work):
            if settings.from_names:
                candidates, devs = _begin_from_names(training, records, console, say, notes)
            else:
                candidates, devs = _train_candidates(training, console, say, notes)
        forecasts = forecast_risks(devs, foreseen_calls(len(training.parts.calibration)), settings)
        if forecasts:
            say(describe_forecast(forecasts))
        verdict, calibrations, parts = _prove_candidates(training, records, candidates, devs, say)
    advice = "" if verdict.tried else advise_risk(forecasts, settings)
    chosen, dev = candidates[verdict.chosen], devs[verdict.chosen]
    why = verdict.why
    if why and (sentence := describe_uneven_fields(dev, target_epsilon(settings))):
        why = f"{why}. {sentence}"
    ceiling = estimate_teacher_ceiling(training.read.calls, training.read.again, shape, settings.delta)
    curve = None
    if not settings.from_names and earlier is None:
        say("Learning curve")
        recorded = len(training.read.calls) + training.read.unmatched
        floor = 0.0 if ceiling is None else max(1 - ceiling.high, 0.0)
        curve = fit_call_curve(
            parts.train, parts.dev, shape, dev, chosen.tier, floor, settings.seed, recorded
        )
    file = build_student_file(
        training.profile, chosen, verdict.claims, parts, verdict.tried, ceiling, verdict.plan, training.name
    )
    if earlier is not None:
        known = {"trained_on": earlier.file.trained_on, "training": earlier.file.training}
        file = file.model_copy(update=known)
    free = find_free_folder(records.store, out, file)
    if free != out:
        reason = "the mirror uses it, or it is no student"  # since this training began
        if find_free_folder(records.store, out) == out:
            reason = "more is proven of it, or it is for other calls"
        notes.append(f"The student in {out} stays, since {reason}: the new one is in {free}.")
        out = free
    calibration = calibrations[verdict.chosen] if calibrations else None
    tiers = {str(candidate.tier): dev for candidate, dev in zip(candidates, devs, strict=True)}
    unmatched = training.read.unmatched
    report = StudentReport(
        file,
        parts,
        shape,
        dev,
        calibration,
        tiers,
        curve,
        why,
        unmatched,
        out,
        forecasts,
        advice,
        tuple(notes),
    )
    file = write_student(out, file, chosen, render_report(report))
    save_findings(records.store, student_id(out), training.profile.latest.version, summarise_findings(report))
    return LearningResult(
        out,
        file,
        parts,
        unmatched,
        dev,
        calibration,
        tiers,
        curve,
        why,
        tuple(notes),
        forecasts,
        advice,
    )


def _find_earlier_student(
    training: _LearningRun, records: LearningRecords, say: Say
) -> EarlierStudent | None:
    """A student that is trained already and can be proven now. Nothing is lost by trying: a new one, which
    won't have learned from the calls kept for its proof, may be proven by these too.
    """
    calls, profile, settings = training.read.calls, training.profile, training.settings
    if training.since is not None:
        return None
    student = find_unproven_student(records, profile, calls, settings)
    if student is None:
        return None
    say("Looking whether the latest student can be proven by now")
    # It is tried once, which a call that is marked as used says, also if this process is killed.
    records.record_uses(f"{training.name}-earlier", {"calibration": [student.calibration[0].id]})
    dev, judged = (
        [compare_with_teacher(student.candidate, own, profile.shape)]
        for own in (student.dev, student.calibration)
    )
    left = settings.model_copy(update={"delta": student.delta})
    if not prove([student.candidate], dev, judged, left).why:
        return student
    say("It can't")
    return None


def _train_candidates(
    training: _LearningRun, console: Console | None, say: Say, notes: list[str]
) -> tuple[list[StudentCandidate], list[TeacherComparison]]:
    """Trains the tiers, the cheaper first and the dearer only where the cheaper isn't enough on dev; returns
    the candidates with their comparisons on dev. Adds to `notes`.
    """
    settings, parts, shape = training.settings, training.parts, training.profile.shape
    candidates, devs, train = list[StudentCandidate](), list[TeacherComparison](), parts.train
    # Of which nothing is proven: they were chosen for the answers that they had.
    # And none with a text that judges or proves the student, as where an answer since then was asked again.
    known = {call.text for call in (*parts.learned, *parts.calibration)}
    again = [call for call in training.read.again if call.text not in known]
    asked = join_by_text((call for call in again if call.began >= (training.since or 0.0)), shape)
    learned = {call.text for call in (*parts.learned, *asked)}
    former = join_by_text((call for call in training.former if call.text not in learned), shape)
    translated = (
        translate_former(former, [*parts.train, *parts.dev], shape, settings.seed, training.features, asked)
        if former
        else None
    )
    if training.since is not None:
        in_shadow = " The change was found by them, so they prove nothing: the proof goes on in shadow."
        notes.append(
            f"{describe_time(training.since)} Only the {len(training.read.calls):,} calls since then count."
            + ("" if parts.calibration else in_shadow)
        )
    if translated is not None:
        notes.append(translated.as_sentence())
        train = [*translated.calls, *asked, *parts.train]  # the latest last, which a memory of texts keeps

    def add(candidate: StudentCandidate | None) -> None:
        if candidate is not None:
            candidates.append(candidate)
            devs.append(compare_with_teacher(candidate, parts.dev, shape))

    if "tf-idf" in settings.tiers:
        say("Training a classifier on words (TF-IDF with logistic regression)")
        add(train_word_candidate(train, parts.dev, shape))
    is_enough = bool(devs) and (
        estimate_coverage(devs[0].confidence, devs[0].differs, target_epsilon(settings)) >= settings.enough
    )
    if "encoder" in settings.tiers and not is_enough:
        say(f"Training an encoder ({settings.model})")
        try:
            encoders = train_encoder_candidates(train, parts.dev, shape, settings, training.work, console)
            add(choose_method(encoders, parts.dev, shape, target_epsilon(settings)))
        except MissingExtra as error:
            if not candidates:
                raise
            notes.append(f"The encoder was left out. {error}")
    if not candidates:
        raise InputError(
            f"No student of the kind {' or '.join(settings.tiers)} can give these answers: "
            "words alone find no quotes, and nothing can be learned of answers that are all the same."
        )
    return candidates, devs


def _begin_from_names(
    training: _LearningRun, records: LearningRecords, console: Console | None, say: Say, notes: list[str]
) -> tuple[list[StudentCandidate], list[TeacherComparison]]:
    """The candidate that learns no answer, and its comparison on all of them. Adds to `notes`."""
    profile, calls = training.profile, training.parts.dev
    (newest,) = records.store.latest(profile.latest.version, 1)
    say(f"Beginning by the names of the values ({training.settings.model})")
    candidate, names = train_named_candidate(
        newest.request, calls, profile.shape, training.settings, training.work, console
    )
    dev = compare_with_teacher(candidate, calls, profile.shape)
    described = sum(map(bool, names.values()))
    notes.append(
        f"From the names of {len(names):,} values ({described:,} described) and no answer it "
        f"{describe_agreement(int((~dev.differs).sum()), len(calls))}."
    )
    return [candidate], [dev]


def _prove_candidates(
    training: _LearningRun,
    records: LearningRecords,
    candidates: list[StudentCandidate],
    devs: list[TeacherComparison],
    say: Say,
) -> tuple[ProofResult, list[TeacherComparison], CallSplit]:
    """Proves the claims, or says why not; returns the result, the candidates' comparisons on the calibration
    calls, and the split. The calibration calls are recorded as used before they are read; those that another
    training has used meanwhile are removed from the split.
    """
    settings, parts = training.settings, training.parts
    while True:
        why = _FROM_NAMES
        if not settings.from_names:
            why = explain_postponement(devs, len(parts.calibration), len(training.read.calls), settings)
        used: dict[Any, list[str]] = dict(group_ids_by_use(parts))
        used["train"] += [call.id for call in training.former]
        if why:
            del used["calibration"]
        conflicts = records.record_uses(training.name, used)
        if not conflicts:
            break
        parts = replace(parts, calibration=[call for call in parts.calibration if call.id not in conflicts])
    own = (version.version for version in training.profile.versions)
    ReplayStore(records.store).leave_out(own, [*used["train"], *used["dev"]])
    unit_calls = choose_unit_calls(StageStore(records.store).persons(training.profile.templates))
    if why:
        if not settings.from_names:
            say("The proof isn't begun, since it would fail: the calls kept for it stay unused")
        return postpone(devs, why, settings, unit_calls), [], parts
    say(f"Proving, with the {len(parts.calibration):,} calls kept for it")
    calibrations = [
        compare_with_teacher(candidate, parts.calibration, training.profile.shape) for candidate in candidates
    ]
    result = prove(candidates, devs, calibrations, settings, len(training.read.calls), unit_calls)
    return result, calibrations, parts

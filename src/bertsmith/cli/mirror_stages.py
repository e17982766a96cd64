"""Who answers: `bertsmith mirror status` shows it, `promote` and `demote` change it by hand, and `check` says
whether what was promised holds.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bertsmith.cli.mirror_calls import (
    ANY_STORE,
    StoreOptions,
    name_store,
    open_store,
    print_skipped,
    read_mirror_settings,
)
from bertsmith.cli.options import Flag
from bertsmith.cli.screen import console, print_facts, print_json, print_note, print_table
from bertsmith.errors import InputError
from bertsmith.reporting.formatting import counted

if TYPE_CHECKING:
    from bertsmith.mirror.answering.accounts import Account
    from bertsmith.mirror.answering.stage_store import StageStore
    from bertsmith.mirror.answering.stages import Evidence, Stage, StudentRecord
    from bertsmith.mirror.settings import MirrorSettings
    from bertsmith.mirror.store import VersionCount

Mode = Literal["record", "shadow", "canary", "live"]
_SHOWN = 40  # versions of a site in the table
_SITES = (
    "Place: where your application calls the LLM; it has all calls of the same prompt. A "
    "changed prompt, schema or model begins a new version of it."
)
_STUDENTS = "Student: your small model, which learned from the LLM's answers. Relayed: answered by the LLM."
_DRIFT = "Drift: today's calls differ from those that the student was first compared on."
_MODES = {
    "record": "the LLM answers every call, and nothing is compared",
    "shadow": "the LLM answers every call, and the student is compared with it",
    "canary": "the student answers a share of the calls that it is sure of, the LLM all others",
    "live": "the student answers the calls that it is sure of, the LLM all others",
}


def status(*, store_options: StoreOptions = ANY_STORE, json: Flag = False) -> None:
    """Show what has been recorded, who answers, and what that saves.

    A place in your application that calls the LLM has all calls with the same prompt. This lists the places,
    their versions and their fields. For each version with a student, your small model, it
    shows the mode, how often the student answered and differed from the LLM, and the calls, time and money
    saved. It also counts the calls that could not be mirrored.

    Parameters
    ----------
    json
        Print JSON: all that the page at /bertsmith/ shows, except texts of calls.

    Examples
    --------
    bertsmith mirror status

    bertsmith mirror status --store calls.sqlite --json
    """
    from bertsmith.mirror.answering.accounts import read_accounts
    from bertsmith.mirror.answering.judging import describe_candidate
    from bertsmith.mirror.answering.replays import describe_replays
    from bertsmith.mirror.answering.stage_store import read_findings, read_forecasts
    from bertsmith.mirror.page.state import StateReader, describe_progress

    settings = read_mirror_settings(store_options)
    with _open_stages(store_options, reads=True) as stages:
        opened = stages.store
        if json:
            print_json(StateReader(opened, settings).state())
            return
        versions, skipped, calls = opened.versions(), opened.skipped(), opened.count()
        answering = read_accounts(stages, settings.prices)
        facts = {
            "calls": f"{calls:,}",
            "places in your application": f"{len({version.site for version in versions}):,}",
        }
        print_facts("Recorded", facts)
        if versions:
            _print_versions(versions)
        if answering:
            _print_accounts(answering, stages.students())
            named = {number for each in answering for number in (each.stage.student, each.stage.candidate)}
            evidence = stages.evidence()
            for number, known in evidence.items():
                if known.proof is not None and number in named:
                    print_note(f"student {number}: {describe_progress(known.proof)['text']}.")
            for stage in (account.stage for account in answering):
                if sentence := describe_candidate(stage, evidence):
                    print_note(sentence)
        for version, sentences in describe_replays(stages).items():
            print_note(f"version {version}: {sentences}")
        for version, change in stages.answerer_changes().items():
            print_note(f"version {version}: {change.as_sentence()}.")
        trainings, changed = stages.trainings(), stages.changed_stages()
        for version, forecast in read_forecasts(opened).items():
            if forecast.get("text") and version not in trainings and version not in changed:
                print_note(f"version {version}: {forecast['text']}")
        for version, findings in read_findings(opened).items():
            if findings.get("why_not"):
                print_note(f"version {version}: the last training proved nothing: {findings['why_not']}.")
        for training in trainings.values():
            began = datetime.fromtimestamp(training.began, UTC).strftime("%Y-%m-%d %H:%M")
            if training.until > datetime.now(UTC).timestamp():
                print_note(f"a student of version {training.version} is being trained, since {began} UTC.")
            elif training.calls and not training.until:  # later than that, a training was killed
                print_note(
                    f"the last training by --auto of version {training.version}, on {training.calls:,} "
                    f"calls: {training.outcome}. Its report and log lie in {settings.students}."
                )
        if skipped:
            print_skipped(skipped)


@contextmanager
def _open_stages(store_options: StoreOptions, *, reads: bool = False) -> "Iterator[StageStore]":
    with open_store(store_options, reads=reads) as opened:
        from bertsmith.mirror.answering.stage_store import StageStore

        yield StageStore(opened)


def _print_versions(versions: "list[VersionCount]") -> None:
    most = sorted(versions, key=lambda version: version.calls, reverse=True)[:_SHOWN]
    shown = [version for version in versions if version in most]
    rows = []
    fields = []
    for version in shown:
        first, last = (
            datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
            for seconds in (version.began, version.ended)
        )
        rows.append(
            (version.site, version.version, version.schema_name, version.model, version.calls, first, last)
        )
        kinds_of: dict[str, list[str]] = {}
        for path, kind in version.fields:
            kinds_of.setdefault(path, []).append(kind)
        fields += [
            (version.site, version.version, path, " or ".join(kinds)) for path, kinds in kinds_of.items()
        ]
    header = ("place", "version", "schema", "model", "calls", "first", "last")
    print_table(header, rows, "By place in your application, and version")
    console.print(_SITES, markup=False, soft_wrap=True)
    print_table(("place", "version", "field", "JSON type"), fields, "Fields of the answers")
    if len(versions) > _SHOWN:
        print_note(
            f"{len(versions) - _SHOWN:,} more versions with fewer calls. Where each call opens one, its "
            "text stands in the system prompt."
        )


def _print_accounts(accounts: "list[Account]", students: "Mapping[str, StudentRecord]") -> None:
    deltas = {
        students[account.stage.student].delta for account in accounts if account.stage.student in students
    }
    confidence = f"{100 * (1 - max(deltas)):g} % confidence" if deltas else "confidence"
    rows = [
        (
            account.stage.site,
            account.stage.version,
            f"{_format_mode(account.stage)}, fails" if account.fails else _format_mode(account.stage),
            account.stage.student or "-",
            account.answered,
            sum(account.relayed.values()),
            account.compared,
            "-" if account.differs is None else f"{100 * account.differs:.3g}%",
            f"at most {math.ceil(round(1e4 * account.interval.high, 6)) / 100:g}%"
            if account.compared
            else "-",
            "yes" if account.has_drifted else "no",
        )
        for account in accounts
    ]
    header = (
        "place", "version", "mode", "student", "answered", "relayed", "compared", "differ",
        f"with {confidence}", "drift",
    )  # fmt: skip
    print_table(header, rows, "Who answers")
    console.print(_STUDENTS, markup=False, soft_wrap=True)
    modes = {account.stage.mode for account in accounts}
    for mode in _MODES:
        if mode in modes:
            console.print(f"Mode {mode}: {_MODES[mode]}.", markup=False, soft_wrap=True)
    console.print(_DRIFT, markup=False, soft_wrap=True)
    reasons = [
        (account.stage.version, reason, calls)
        for account in accounts
        for reason, calls in sorted(account.relayed.items())
    ]
    if reasons:
        print_table(("version", "reason", "calls"), reasons, "Relayed although a student serves")
    silent = [
        (account.stage.version, reason, calls, meaning)
        for account in accounts
        for of, meaning in (
            (account.refused, "differing, where the student is sure"),
            (account.void, "nothing"),
        )
        for reason, calls in sorted(of.items())
    ]
    if silent:
        print_table(("version", "reason", "calls", "counts as"), silent, "Without an answer of the LLM")
    saved = [_format_savings(account) for account in accounts if account.answered or account.replays]
    if saved:
        money = (
            "version", "calls avoided", "ms each", "LLM's ms", "hours saved", "saved", "audits cost",
            "replays cost", "errors cost",
        )  # fmt: skip
        print_table(money, saved, "Saved and paid")
        console.print("Calls avoided: answers that no audit asked the LLM for, too.", markup=False)
        if replays := sum(account.replays for account in accounts):
            print_note(
                f"Replays: {counted(replays, 'recorded input')} asked again, each at the price of a call."
            )
        if any(account.money is None for account in accounts if account.answered or account.replays):
            console.print("For sums of money name the LLM's prices: [prices] in the settings.", markup=False)


def _format_savings(account: "Account") -> tuple[object, ...]:
    money = account.money
    errors = "-" if money is None or money.errors is None else "{:,.2f} to {:,.2f}".format(*money.errors)
    return (
        account.stage.version,
        account.calls_avoided,
        "-" if account.own_seconds is None else f"{account.own_seconds * 1000:.1f}",
        "-" if account.llm_seconds is None else f"{account.llm_seconds * 1000:.1f}",
        f"{account.seconds_saved / 3600:.2f}",
        "-" if money is None else f"{money.saved:,.2f}",
        "-" if money is None else f"{money.audits:,.2f}",
        "-" if money is None else f"{money.replays:,.2f}",
        errors,
    )


def _format_mode(stage: "Stage") -> str:
    mode = f"{stage.mode} {100 * stage.share:g}%" if stage.mode == "canary" else stage.mode
    return f"{mode}, held" if stage.is_held else mode


def promote(
    site: str,
    *,
    to: Mode | None = None,
    student: Path | None = None,
    candidate: Flag = False,
    share: float | None = None,
    store_options: StoreOptions = ANY_STORE,
) -> None:
    """Let a student do more at a SITE: record → shadow → canary → live.

    In shadow, the LLM answers, and the student is compared with it. In canary, the student answers a share of
    the calls that it is sure of; live, it answers all of those. Running mirrors follow within a second or
    two.

    Parameters
    ----------
    site
        A place in your application, by its name; or one of its versions, if several have students.
        `bertsmith mirror status` lists both.
    to
        The mode to promote to. By default the next one.
    student
        The folder of a student that `bertsmith mirror train` made. If the place has another one, this
        becomes the candidate; the mode stays then, so leave out --to.
    candidate
        Let the candidate replace the student now, in the same mode, without waiting for more comparisons.
    share
        Of a promotion to canary: the share of the calls it is sure of that the student answers. Default: 0.1.

    Examples
    --------
    bertsmith mirror promote b1a8c286578d

    bertsmith mirror promote b1a8c286578d --student students/intents --to canary --share 0.2

    bertsmith mirror promote b1a8c286578d --candidate
    """
    from bertsmith.mirror.answering.judging import apply_move, require_proof
    from bertsmith.mirror.student_file import read_student_file

    if candidate and (to is not None or student is not None):
        raise InputError(
            "--candidate keeps the mode. Leave out --to and --student, or promote in a second step."
        )
    settings = read_mirror_settings(store_options, canary_share=share)
    with _open_stages(store_options) as stages:
        before = stages.find(site, () if student is None else read_student_file(student).templates)
        named = None if student is None else _read_student(student, before)
        after = before
        if named is not None and before.student in ("", named.id):
            after = replace(before, student=named.id)
        elif named is not None:  # a candidate; beside itself it would be compared twice
            after = replace(before, candidate=named.id)
        if named is not None and named.id != after.student and to is not None:
            raise InputError(
                f"Version {before.version} has the student {before.student}, and the one in {student} "
                "becomes its candidate: the mode stays. Leave out --to, or promote in a second step."
            )
        # A candidate is compared; it takes its turn when that has proven it.
        if named is None or to is not None or not before.student:
            move = "approve" if candidate else "promote"
            after = apply_move(stages, after, move, settings.canary_share, to or "")
        if named is not None and named.plan is not None and after.student == named.id:
            require_proof(after, stages.evidence().get(named.id))
        if share is not None and after.share != share:
            raise InputError(
                f"--share is for a promotion to canary, and version {before.version} goes from {before.mode} "
                f"to {after.mode}. Leave it out; to change the share of a canary, demote it first."
            )
        evidence = stages.evidence()
        if named is not None:
            stages.add_student(named)
        _change_stage(stages, before, after)
        _warn_of_doubts(before, after, evidence, settings, name_store(store_options))


def demote(
    site: str,
    *,
    to: Mode | None = None,
    former: Flag = False,
    store_options: StoreOptions = ANY_STORE,
) -> None:
    """Let a student do less at a SITE: live → canary → shadow → record. Or go back to the former student.

    What was demoted by hand doesn't rise by itself, also with --auto, until a hand promotes it.

    Parameters
    ----------
    site
        A place in your application, by its name; or one of its versions, if several have students.
    to
        The mode to demote to. By default the one before.
    former
        Let the former student replace the present one, in the same mode.

    Examples
    --------
    bertsmith mirror demote b1a8c286578d

    bertsmith mirror demote b1a8c286578d --to record

    bertsmith mirror demote b1a8c286578d --former
    """
    from bertsmith.mirror.answering.judging import apply_move

    if former and to is not None:
        raise InputError("--former keeps the mode. Leave out --to, or demote in a second step.")
    settings = read_mirror_settings(store_options)
    with _open_stages(store_options) as stages:
        before = stages.find(site)
        move = "roll-back" if former else "demote"
        after = apply_move(stages, before, move, settings.canary_share, to or "")
        _change_stage(stages, before, after)


def _read_student(folder: Path, before: "Stage") -> "StudentRecord":
    """Reads a student that may answer this version, now or once its proof stands. Raises InputError if
    nothing is proven of it and nothing planned, or if it was trained for another version.
    """
    from bertsmith.mirror.answering.training_process import read_student
    from bertsmith.mirror.learning.proving import list_next_steps
    from bertsmith.mirror.student_file import read_student_file

    student = read_student(folder, before.version)
    if student is None:
        steps = list_next_steps(read_student_file(folder).claims, str(folder))
        raise InputError(
            f"Nothing is proven of the student in {folder} that lets it answer. "
            f"{steps[0] if steps else 'Record more calls and train again.'}"
        )
    templates = read_student_file(folder).templates
    if before.version not in templates:
        raise InputError(
            f"The student in {folder} was trained for version {', '.join(sorted(templates))}, and not for "
            f"{before.version}. Name that version, or train a student for this one."
        )
    return student


def _change_stage(stages: "StageStore", before: "Stage", after: "Stage") -> None:
    from bertsmith.mirror.answering.judging import change_stage

    if after != before:
        change_stage(stages, before, after, "by command")
    change = f"{before.version}: {before.mode} → {after.mode}"
    if after.candidate and after.candidate != before.candidate:
        change += f", candidate {after.candidate}"
    elif after.student:
        change += f", student {after.student}"
    console.print(change, markup=False)
    console.print(f"Mode {after.mode}: {_MODES[after.mode]}.", markup=False, soft_wrap=True)


def _warn_of_doubts(
    before: "Stage",
    after: "Stage",
    evidence: "Mapping[str, Evidence]",
    settings: "MirrorSettings",
    store: str,
) -> None:
    """A note where a hand promotes a student that was compared less often than --auto waits for, or differed
    too often so far; and where a candidate that answers less takes the place.
    """
    from bertsmith.mirror.answering.judging import describe_candidate

    if after.student == before.candidate and (sentence := describe_candidate(before, evidence)):
        print_note(sentence)
    fewest = settings.canary_calls if before.mode == "canary" else settings.shadow_calls
    student = evidence.get(before.student)
    compared = 0 if student is None else student.in_stage
    doubts = []
    if compared < fewest:
        doubts.append(f"was compared in {compared:,} calls, where --auto waits for {fewest:,}")
    if student is not None and student.audits.rate() > student.audits.epsilon:
        rate, most = student.audits.rate(), student.audits.epsilon
        doubts.append(f"differed in {100 * rate:.4g}% so far, where {100 * most:g}% may")
    if doubts and after.mode in ("canary", "live") and after.mode != before.mode:
        print_note(
            f"in mode {before.mode} the student {', and '.join(doubts)}. Back: "
            f"bertsmith mirror demote {before.site}{store}"
        )


def check(*, store_options: StoreOptions = ANY_STORE, files: bool = True, json: Flag = False) -> int:
    """Check whether what was promised of each student still holds. Exit status 1 if something doesn't, or if
    there is nothing to check.

    It checks the answers for which the LLM was asked too, against the share that may differ; whether the
    evidence has demoted a student; whether the calls have changed, or the model that answers them; audits
    that got no answer; and the students' files against their hashes.

    Parameters
    ----------
    files
        Check the students' folders. Give --no-files if they are on other machines.
    json
        Print JSON.

    Examples
    --------
    bertsmith mirror check

    bertsmith mirror check --store postgresql://reader@db/mirror --no-files --json
    """
    from bertsmith.mirror.answering.judging import check_guarantees

    with _open_stages(store_options, reads=True) as stages:
        checks = check_guarantees(stages, looks_at_files=files)
    holds = bool(checks) and all(check.holds for check in checks)
    if json:
        print_json({"holds": holds, "findings": [vars(check) for check in checks]})
    elif checks:
        rows = [
            (check.site, check.version, check.mode, "holds" if check.holds else "BROKEN", check.what)
            for check in checks
        ]
        print_table(("place", "version", "mode", "", "what"), rows, "Guarantees")
    else:
        print_note(
            "Nothing was checked: no student has served in this store yet. If one should, look whether "
            "--store is the one that the mirror writes to."
        )
    return 0 if holds else 1

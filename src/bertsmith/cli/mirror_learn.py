"""`bertsmith mirror plan`, `understand`, `train` and `set`: from calls to a student, and what is proven of
it.
"""

import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from bertsmith.cli.mirror_calls import (
    ANY_STORE,
    StoreOptions,
    name_store,
    open_store,
    print_skipped,
    read_mirror_settings,
)
from bertsmith.cli.options import (
    Flag,
    collect_options,
    continues_when_repeated,
    finetune_setting_names,
    takes_settings,
)
from bertsmith.cli.screen import (
    console,
    print_facts,
    print_json,
    print_note,
    print_paths,
    print_table,
    progress_bar,
)
from bertsmith.errors import InputError
from bertsmith.files import atomic_write, refuse_existing
from bertsmith.progress import silent
from bertsmith.reporting import formatting

if TYPE_CHECKING:
    from bertsmith.mirror.learning.train import LearningResult
    from bertsmith.mirror.learning.understand import SiteProfile

_SHOWN = 12  # values of a field
_INPUT = (
    "«text» stands for what differs from call to call: the student reads it, and nothing else of the prompt."
)


@Parameter(name="*")
@dataclass(frozen=True)
class ClaimOptions:
    """What is to be proven.

    Parameters
    ----------
    epsilon
        The largest share of the student's answers that may differ from the LLM's. Default: 0.05, unless the
        mirror's settings (--config) have another.
    delta
        The probability that the guarantee is wrong all the same. Default: 0.05, for 95 % confidence, unless
        the mirror's settings have another.
    call_price
        The price of a call to the LLM. With --error-price, what saves most is proven instead of --epsilon.
    error_price
        What an answer that differs costs, in the same currency.
    by_class
        The path of a field, such as $.intent. Each of its values gets a threshold and a guarantee of its own.
    """

    epsilon: float | None = None
    delta: float | None = None
    call_price: float | None = None
    error_price: float | None = None
    by_class: str | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class LearningOptions:
    """How it is learned.

    Parameters
    ----------
    model
        The encoder to start from. Default: minilm.
    tiers
        The kinds of student to train: tf-idf (a classifier on words), encoder (a fine-tuned encoder), or both
        with a comma between them (default). The cheaper one, tf-idf, wins if it is enough.
    enough
        The share of calls that the cheaper kind must answer to be enough. Default: 0.95.
    calibration_share
        The share of calls, the latest, that are kept for the proof. Default: 0.3.
    most_calibration
        Calls that are kept for the proof, at most. Default: 4000.
    restarts
        Trainings of the encoder, of which the best is kept. Default: 1.
    seed
        The same calls and seed give the same student. Default: 0.
    from_names
        Begin by the names of the values, and learn no answer: for a first forecast, from 20 calls on.
    """

    model: str | None = None
    tiers: Annotated[str | None, Parameter(name=("--kinds", "--tiers"))] = None
    enough: float | None = None
    calibration_share: Annotated[float | None, Parameter(name=("--proof-share", "--calibration-share"))] = (
        None
    )
    most_calibration: Annotated[int | None, Parameter(name=("--most-proof-calls", "--most-calibration"))] = (
        None
    )
    restarts: int | None = None
    seed: int | None = None
    from_names: Flag = False


def understand(
    site: str | None = None,
    *,
    version: str | None = None,
    store_options: StoreOptions = ANY_STORE,
    json: Flag = False,
) -> None:
    """Show what varies in the calls of a place, SITE: where the input is in the messages, and each field.

    Prompts of a place are alike except for the input, which is shown as «text». Look at it before you train.
    A field can be learned if it has few values, is a number, or quotes the input.

    Parameters
    ----------
    site
        As `bertsmith mirror status` shows it. By default every place.
    version
        One of its versions; those merged with it count too. By default the one that was called last.
    json
        Print JSON.

    Examples
    --------
    bertsmith mirror understand

    bertsmith mirror understand b1a8c286578d --store calls.sqlite
    """
    with open_store(store_options, reads=True) as opened:
        from bertsmith.mirror.learning.understand import LearningRecords
        from bertsmith.mirror.learning.understand import understand as look

        records = LearningRecords(opened)
        if site is None and version is None:
            latest = {group[0].site: group for group in records.groups()}
            groups = list(latest.values()) or [records.group(None)]
        else:
            groups = [records.group(site, version)]
        profiles = [look(opened, group) for group in groups]
        if json:
            print_json([_profile_as_json(profile) for profile in profiles])
            return
        every_version = opened.versions()
        for profile in profiles:
            options = (f" --version {version}" if version else "") + name_store(store_options)
            _print_profile(profile, options)
            shown = {one.version for one in profile.versions}
            others = [v for v in every_version if v.site == profile.site and v.version not in shown]
            if others and version is None:
                calls, advice = sum(other.calls for other in others), "bertsmith mirror merge joins them."
                if profile.calls + calls < 2 * (len(shown) + len(others)):
                    advice = (
                        "so nearly each call begins one. What varies in the system prompt belongs into the "
                        "user's message."
                    )
                print_note(
                    f"{calls:,} calls of this place had another prompt, schema or model, in "
                    f"{formatting.counted(len(others), 'version')}: bertsmith mirror status lists them, "
                    f"{advice}"
                )


@Parameter(name="*")
@dataclass(frozen=True)
class TrafficOptions:
    """What the calls don't tell.

    Parameters
    ----------
    call_price
        The price of a call to the LLM.
    input_price
        The price of a million input tokens, which the LLM reads.
    output_price
        The price of a million output tokens, which it writes.
    calls_per_day
        Calls a day. By default as the times in the file tell.
    """

    call_price: float | None = None
    input_price: float = 0.0
    output_price: float = 0.0
    calls_per_day: float | None = None


def plan(
    *files: Path,
    out: Path | None = None,
    epsilon: float | None = None,
    model: str | None = None,
    kinds: Annotated[str | None, Parameter(name=("--kinds", "--tiers"))] = None,
    version: str | None = None,
    traffic: Annotated[TrafficOptions | None, Parameter(group="Prices and traffic")] = None,
    redact: str | None = None,
    format: str | None = None,
    store_options: StoreOptions = ANY_STORE,
    json: Flag = False,
) -> None:
    """Forecast from logged or recorded calls what a student could answer, by when, and what that saves.

    It reads what `bertsmith mirror import` reads; without a file it takes what the mirror has recorded, and
    `status` shows the forecast. For each place in your application a quick student learns from most of its
    calls, or of few calls knows the values' names alone; the others say how much it could answer where 2, 5,
    10 or 20 % of its answers may differ from the LLM's. It asks no LLM, keeps no student, and proves nothing.

    Parameters
    ----------
    files
        The files. Of a batch, both. Without any: the store of --store.
    out
        Write a page to this file that one can show: HTML, without texts of calls.
    epsilon
        The allowed difference that you want. Default: 0.05.
    model
        The encoder to try. Default: minilm.
    kinds
        The kinds of student to try: tf-idf (words alone, which is faster), encoder, or both (default).
    version
        Of recorded calls: those of this version alone.
    redact
        As for `bertsmith mirror serve`.
    format
        A wire format of your own, as for `bertsmith mirror serve`.
    json
        Print JSON.

    Examples
    --------
    bertsmith mirror plan calls.jsonl --out plan.html

    bertsmith mirror plan langfuse.jsonl --input-price 0.25 --output-price 2 --calls-per-day 5000

    bertsmith mirror plan --store calls.sqlite
    """
    if files and (version is not None or store_options.store is not None):
        raise InputError("Give either FILES, or --store and --version of recorded calls.")
    traffic = traffic or TrafficOptions()
    mirror = read_mirror_settings(store_options, redact=redact, format=format)
    if out is not None:
        refuse_existing(out)
    from bertsmith.mirror.importing import CallImport
    from bertsmith.mirror.learning.plan import (
        PLAN_COLUMNS,
        PlanOptions,
        describe_place,
        format_plan_rows,
        list_plan_facts,
        plan_as_json,
        plan_calls,
        plan_recorded,
        render_plan,
    )
    from bertsmith.mirror.learning.settings import LearnSettings
    from bertsmith.mirror.settings import PriceSettings

    given = {"epsilon": epsilon, "model": model}
    values: dict[str, Any] = {"epsilon": mirror.epsilon, "delta": mirror.delta}
    values |= {name: value for name, value in given.items() if value is not None}
    if kinds is not None:
        values["tiers"] = tuple(kinds.replace(",", " ").split())
    prices = mirror.prices
    if (traffic.call_price, traffic.input_price, traffic.output_price) != (None, 0.0, 0.0):
        prices = PriceSettings(
            call=traffic.call_price,
            million_input_tokens=traffic.input_price,
            million_output_tokens=traffic.output_price,
        )
    planning = PlanOptions(LearnSettings(**values), prices, traffic.calls_per_day)

    def say(sentence: str) -> None:
        if not json:
            console.print(f"{sentence} …", markup=False, soft_wrap=True)

    if files:
        calls = CallImport(files, mirror.redactor, mirror.formats)
        planned = plan_calls(files, calls, planning, say, show=silent if json else progress_bar)
    else:
        with open_store(store_options) as opened:
            planned = plan_recorded(opened, planning, version, say)
    if out is not None:
        options = {
            "--store": store_options.store, "--config": store_options.config, "--version": version,
            "--epsilon": epsilon, "--model": model, "--kinds": kinds, "--redact": redact, "--format": format,
            "--call-price": traffic.call_price, "--input-price": traffic.input_price or None,
            "--output-price": traffic.output_price or None, "--calls-per-day": traffic.calls_per_day,
        }  # fmt: skip
        named = [str(part) for pair in options.items() if pair[1] is not None for part in pair]
        atomic_write(
            out, render_plan(planned, shlex.join(["bertsmith", "mirror", "plan", *map(str, files), *named]))
        )
    if json:
        print_json(plan_as_json(planned))
        return
    for place in planned.places:
        print_facts(f"Planned · {place.name}", dict(list_plan_facts(place)[1:]))
        if rows := format_plan_rows(place, planned.settings):
            print_table(PLAN_COLUMNS, rows, "Forecast")
        console.print(describe_place(place, planned.settings), markup=False, soft_wrap=True)
    if planned.counts.skipped:
        print_skipped(dict(planned.counts.skipped))
    for note in planned.notes:
        print_note(note)
    if planned.left_out:
        print_note(f"{planned.left_out:,} calls of other places, prompts or models were not looked at.")
    names = shlex.join(map(str, files))
    if files and any(place.chosen is not None for place in planned.places):
        print_note(f"to train and prove a student with these calls: bertsmith mirror import {names}")
    if out is None:
        print_note("for a page that one can show: --out plan.html")
    else:
        print_paths(page=out)


@takes_settings(finetune_setting_names)
@continues_when_repeated
def train(
    *overrides: str,
    site: str | None = None,
    version: str | None = None,
    out: Path | None = None,
    store_options: StoreOptions = ANY_STORE,
    claim: Annotated[ClaimOptions | None, Parameter(group="What is proven")] = None,
    learning: Annotated[LearningOptions | None, Parameter(group="How it is learned")] = None,
    json: Flag = False,
) -> None:
    """Train a student on recorded calls, and prove how far it may answer in the LLM's place.

    TF-IDF comes first, and an encoder if that isn't enough. The latest calls are kept aside and used once:
    they prove from which confidence on the student's answers differ from the LLM's in at most --epsilon. OUT
    holds student.json, the model and report.html, which shows texts of some calls. Repeat the command to go
    on with an interrupted training.

    Parameters
    ----------
    overrides
        Settings of the encoder's fine-tuning as key=value, for instance epochs=4 max_length=256.
    site
        As `bertsmith mirror status` shows it. Needed if there are several.
    version
        One of its versions; those merged with it count too. By default the one that was called last.
    out
        The student's folder. Default: students/SITE, where the mirror's settings have no other folder for
        `students`. Another student there is replaced, unless the mirror uses it, more is proven of it, or
        it is proven for another version; then the new one goes to OUT-2, OUT-3 and so on.
    json
        Print what was proven as JSON.

    Examples
    --------
    bertsmith mirror train

    bertsmith mirror train --site b1a8c286578d --epsilon 0.02 --out students/tickets

    bertsmith mirror train --call-price 0.002 --error-price 0.1

    bertsmith mirror train --kinds tf-idf
    """
    mirror = read_mirror_settings(store_options)
    values = {"epsilon": mirror.epsilon, "delta": mirror.delta} | collect_options(claim, learning)
    if "tiers" in values:
        values["tiers"] = tuple(values["tiers"].replace(",", " ").split())
    with open_store(store_options) as opened:
        from bertsmith.mirror.learning.settings import LearnSettings
        from bertsmith.mirror.learning.train import train_student
        from bertsmith.mirror.learning.understand import LearningRecords

        settings = LearnSettings(**values, overrides=overrides)
        name = LearningRecords(opened).group(site, version)[0].site
        shown = None if json else console
        learned = train_student(
            opened,
            out or Path(mirror.students) / name,
            site=site,
            version=version,
            settings=settings,
            console=shown,
            say=None if json else lambda sentence: console.print(f"{sentence} …", markup=False),
        )
    if json:
        file = learned.file
        print_json(
            {
                "student": str(learned.folder),
                "tier": file.tier,
                "claims": file.claims.model_dump(mode="json") | {"coverage": file.claims.coverage},
                "is_promotable": file.is_promotable,
                "plan": file.plan.model_dump(mode="json") if file.plan is not None else None,
                "why_not": learned.why or None,
                "forecasts": [
                    {
                        "epsilon": forecast.epsilon,
                        "coverage": forecast.coverage,
                        "coverage_interval": forecast.interval,
                        "nothing_proven": forecast.unproven,
                        "calls_needed": forecast.needed if math.isfinite(forecast.needed) else None,
                    }
                    for forecast in learned.forecasts
                ],
                "agreement_on_dev": learned.dev.agreement,
                "agreement": learned.calibration.agreement if learned.calibration is not None else None,
                "forecast": learned.curve.forecast(1 - file.claims.epsilon)
                if learned.curve is not None
                else None,
                "ceiling": file.ceiling.model_dump(mode="json") if file.ceiling is not None else None,
            }
        )
    else:
        _print_learned(learned, name_store(store_options))


def set_risk(student: Path, *, epsilon: float, store_options: StoreOptions = ANY_STORE) -> None:
    """Choose another allowed difference for a STUDENT, of those that were proven together.

    A training proves on the same calls how much the student may answer where 2, 5, 10 and 20 % of its answers
    may differ. All of that holds together, so this needs no new proof and no new calls.

    Parameters
    ----------
    student
        The student's folder. It is changed in place, unless the mirror uses it: then the student with the
        other difference goes to STUDENT-2.
    epsilon
        The largest share of the student's answers that may differ from the LLM's.

    Examples
    --------
    bertsmith mirror set students/intents --epsilon 0.1
    """
    with open_store(store_options) as opened:
        from bertsmith.mirror.learning.proving import describe_claims
        from bertsmith.mirror.learning.student_folder import choose_risk

        folder, file = choose_risk(opened, student, epsilon)
    console.print(describe_claims(file.claims), markup=False, soft_wrap=True)
    print_note(
        "to compare the student with the LLM on new calls, which changes no answer: bertsmith mirror promote "
        f"{file.site} --student {shlex.quote(str(folder))}{name_store(store_options)}"
    )
    print_paths(student=folder)


def _print_profile(profile: "SiteProfile", options: str) -> None:
    latest = profile.latest
    facts = {
        "place in your application": profile.site,
        "versions": ", ".join(version.version for version in profile.versions),
        "LLM": latest.model,
        "calls": f"{profile.calls:,}",
        "prompt": f"{profile.fitting:,} of {profile.looked_at:,} calls have this prompt",
    }
    if profile.odd:
        facts["passed over"] = f"{profile.odd:,} of {profile.looked_at:,}, whose answers don't fit the fields"
    print_facts("Understood", facts)
    for prompt in dict.fromkeys(template.describe() for template in profile.templates.values()):
        console.print(prompt, markup=False, highlight=False)
    if profile.templates:
        console.print(_INPUT, markup=False, soft_wrap=True)
    rows = []
    for field in profile.shape.fields:
        shares = profile.shares[field.path]
        values = ", ".join(f"{name} {count:,}" for name, count in shares[:_SHOWN])
        more = f" and {len(shares) - _SHOWN:,} more" if len(shares) > _SHOWN else ""
        notes = [name for name, holds in _field_traits(field).items() if holds]
        rows.append((field.path, field.kind, ", ".join(notes), values + more))
    if rows:
        print_table(("field", "kind", "", "values"), rows, "Fields")
    refused = [(part.path, part.why, "yes" if part.required else "no") for part in profile.shape.refused]
    if refused:
        print_table(("part", "why it can't be learned", "required"), refused, "Not learned")
    if profile.why_not:
        print_note(f"These calls can't be mirrored: {profile.why_not}.")
    else:
        command = f"bertsmith mirror train --site {profile.site}{options}"
        print_note(f"to train a student on these calls: {command}")


def _field_traits(field: Any) -> dict[str, bool]:
    return {"nullable": field.nullable, "optional": field.optional, "values as seen": field.is_observed}


def _profile_as_json(profile: "SiteProfile") -> dict[str, Any]:
    return {
        "site": profile.site,
        "versions": [version.version for version in profile.versions],
        "calls": profile.calls,
        "looked_at": profile.looked_at,
        "fitting": profile.fitting,
        "odd": profile.odd,
        "templates": {version: template.describe() for version, template in profile.templates.items()},
        "fields": [
            {
                "path": field.path,
                "kind": field.kind,
                **_field_traits(field),
                "values": dict(profile.shares[field.path]),
            }
            for field in profile.shape.fields
        ],
        "not_learned": [vars(part) | {"path": part.path} for part in profile.shape.refused],
        "is_mirrorable": not profile.why_not,
        "why_not": profile.why_not or None,
    }


def _print_learned(learned: "LearningResult", store: str) -> None:
    from bertsmith.mirror.learning.forecast import foreseen_calls, format_forecast_rows
    from bertsmith.mirror.learning.proving import (
        describe_ceiling,
        describe_claims,
        describe_plan,
        format_agreement_row,
        format_claim_rows,
        list_next_steps,
    )
    from bertsmith.mirror.learning.tiers import tier_title

    file, parts = learned.file, learned.parts
    texts = len(parts.train) + len(parts.dev)
    if parts.train:
        learned_from = f"{len(parts.learned):,} calls, {texts:,} different texts"
    elif parts.learned:
        learned_from = f"the names of the values, and {len(parts.learned):,} inputs without their answers"
    else:
        learned_from = f"{file.trained_on.calls:,} calls, by the student before"
    facts = {
        "place in your application": file.site,
        "learned from": learned_from,
        "kept for the proof": f"{len(parts.calibration):,} calls",
        "student": f"{tier_title(file.tier)}: your small model, which learned from the LLM",
    }
    if learned.unmatched:
        facts["left to the LLM"] = f"{learned.unmatched:,} calls that have another prompt"
    print_facts("Learned", facts)
    rows = [format_agreement_row(name, judged) for name, judged in learned.tiers.items()]
    print_table(("student", "agrees with the LLM", "calls"), rows, "On the calls to choose the model by")
    if learned.forecasts:
        header: tuple[str, ...] = ("allowed difference", "calls answered", "calls that the proof needs")
        kept = foreseen_calls(len(parts.calibration))
        print_table(
            header,
            format_forecast_rows(learned.forecasts, kept),
            f"Forecast with {kept:,} calls kept for the proof",
        )
    if not learned.why or file.claims.others or any(file.claims.fields.values()):
        header = ("part", "confidence from", "answers", "of them differ", "guaranteed")
        print_table(header, format_claim_rows(file.claims), "Proven")
    console.print(describe_claims(file.claims, learned.unmatched), markup=False, soft_wrap=True)
    if learned.why:
        print_note(f"Not proven: {learned.why}.")
    if file.plan is not None:
        print_note(f"{describe_plan(file.plan)}.")
    steps = list_next_steps(file.claims, shlex.quote(str(learned.folder)))
    for sentence in (*steps, learned.advice, describe_ceiling(file.ceiling), *learned.notes):
        if sentence:
            print_note(sentence)
    if learned.curve is not None:
        print_note(learned.curve.forecast(1 - file.claims.epsilon))
    if not learned.why or file.plan is not None:
        print_note(
            "to compare the student with the LLM on new calls, which changes no answer: "
            f"bertsmith mirror promote {file.site} --student {shlex.quote(str(learned.folder))}{store}"
        )
    print_paths(student=learned.folder, report=learned.folder / "report.html")

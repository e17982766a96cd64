"""What a student could do for calls that were logged, before a mirror records, trains or proves anything:
`bertsmith mirror plan`.

For each place in the application a quick student learns from a part of its calls, and the others forecast
which share it could answer at each allowed difference. All calls may be looked at here, so nothing is proven;
the calls that a proof would keep are only counted. The calls of files lie in a store of their own, which is
deleted at the end; in a mirror's store, `plan_recorded` keeps the forecast alone. Where there are few calls
the student begins by the names of the values, and all calls say how often it agrees. Read `plan_calls` first.
"""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.errors import BertsmithError, InputError, MissingExtra
from bertsmith.mirror.answering.shadow_proof import describe_agreement
from bertsmith.mirror.answering.stage_store import save_forecast
from bertsmith.mirror.call import UNDATED
from bertsmith.mirror.importing import CallImport, ImportCounts
from bertsmith.mirror.learning.forecast import RiskForecast, forecast_risks, foreseen_calls
from bertsmith.mirror.learning.learned_calls import (
    CallSplit,
    LoadedCalls,
    read_calls,
    sample_like_traffic,
    split_by_ids,
)
from bertsmith.mirror.learning.limits import describe_uneven_fields
from bertsmith.mirror.learning.proving import FAR
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.tiers import (
    TeacherComparison,
    compare_with_teacher,
    tier_title,
    train_encoder_candidates,
    train_named_candidate,
    train_word_candidate,
)
from bertsmith.mirror.learning.understand import LearningRecords, SiteProfile, understand
from bertsmith.mirror.settings import PriceSettings
from bertsmith.mirror.store import Store, VersionCount
from bertsmith.progress import Show, silent
from bertsmith.reporting import formatting
from bertsmith.reporting.charts import FIRST, MUTED, picture, squares
from bertsmith.reporting.formatting import (
    format_confidence,
    format_percent,
    format_upper_percent,
    format_whole_percent,
)
from bertsmith.reporting.page import as_markup, render_page
from bertsmith.reporting.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DEV_SHARE = 0.3  # of the texts forecast, the others teach
_MOST_PLACES = 8
_EARLY = 200  # calls, below which a student from names tells more than one that learns from a part of them
_SECONDS_A_CALL = {"tf-idf": 0.003, "encoder": 0.012}  # on one core of 2024; a first guess
_SECONDS_AT_LEAST = 10
_DAY, _MONTH = 86_400.0, 30
_LEAST_SPAN = 3600.0  # seconds between the first call and the last, below which they tell no rate
_AUDITED = 0.05  # of the student's answers; the LLM is asked too
_QUICK = ("method=linear",)  # a head on a frozen encoder
_MAY_HELP = "A better encoder (--model), simpler answers, or more calls may help."
_ANY_RATE = "How many calls there are a day isn't known: --calls-per-day"
Say = Callable[[str], None]


@dataclass(frozen=True)
class PlanOptions:
    """What the calls don't tell: the price of a call or of a million tokens, and the calls a day of the file.
    `learn` has the risks and the kinds of student.
    """

    learn: LearnSettings = field(default_factory=LearnSettings)
    prices: PriceSettings = field(default_factory=PriceSettings)
    calls_per_day: float | None = None


@dataclass(frozen=True)
class PlacePlan:
    """The plan for one place in the application: `calls` of the file, `daily` of them a day, and the `price`
    of one (None: unknown). The share `fitting` has the prompt that a student reads. `kept` calls of the file
    would be kept for the proof; `forecasts` are made for these, or, where no call has a time, for as many as
    would be kept. `why_not`: why no student can learn them, or empty. `uneven`: which fields could be
    answered by themselves where others can't be. `compared`: in how many calls the student that was tried
    agrees, and of how many. `by_names`: it has learned no answer, and is forecast as if many calls were kept.
    """

    name: str
    model: str
    schema: str
    fields: tuple[str, ...]
    calls: int
    daily: float | None
    price: float | None
    kept: int
    student: str = ""
    agreement: float = 0.0
    forecasts: tuple[RiskForecast, ...] = ()
    why_not: str = ""
    fitting: float = 1.0
    uneven: str = ""
    compared: tuple[int, int] = (0, 0)
    by_names: bool = False

    @property
    def chosen(self) -> RiskForecast | None:
        """The forecast at the risk that is wanted, or at the smallest larger one that has a chance."""
        wanted = next((forecast.epsilon for forecast in self.forecasts if forecast.is_wanted), 1.0)
        larger = [forecast for forecast in self.forecasts if forecast.epsilon >= wanted]
        return next((forecast for forecast in larger if forecast.has_chance), None)

    def monthly_calls(self, forecast: RiskForecast) -> float | None:
        """Calls a month that the student answers; None where the rate is unknown."""
        return None if self.daily is None else self.daily * _MONTH * self.fitting * forecast.coverage

    def monthly_saving(self, forecast: RiskForecast) -> float | None:
        """Money a month that these calls cost today, without that of audits, which go on."""
        answered = self.monthly_calls(forecast)
        return None if answered is None or self.price is None else answered * self.price * (1 - _AUDITED)

    def describe_when(self, forecast: RiskForecast, settings: LearnSettings) -> str:
        """When the proof can stand: 'now', 'in 12 days', or what it takes instead."""
        if forecast.has_chance and self.kept:
            return "now, with these calls"
        if self.by_names:
            return "once it has learned from answers"
        if forecast.needed > FAR * max(self.kept, round(settings.calibration_share * self.calls)):
            return "not by this student"
        needed = forecast.needed / settings.calibration_share
        more = max(needed - self.calls, forecast.needed - self.kept, 1)
        if self.daily is None:
            return f"after about {round_up(more):,} more calls"
        days = max(1, round(more / self.daily))
        return f"in about {formatting.counted(days, 'day')}, after {round_up(more):,} more calls"


@dataclass(frozen=True)
class CallPlan:
    """The plans of all places, those with most calls first, and what the files hold beside them."""

    files: tuple[str, ...]
    places: tuple[PlacePlan, ...]
    counts: ImportCounts
    left_out: int
    settings: LearnSettings
    notes: tuple[str, ...]

    @property
    def saving(self) -> float | None:
        """Money a month over all places at their chosen risks; None where no place tells."""
        savings = [place.monthly_saving(place.chosen) for place in self.places if place.chosen is not None]
        known = [saving for saving in savings if saving is not None]
        return sum(known) if known else None


def round_up(count: float) -> int:
    """Rounded up to two digits: an estimate has no more."""
    step: int = 10 ** max(len(f"{int(count)}") - 2, 0)
    return -int(-count // step) * step


def plan_calls(
    files: Sequence[Path],
    calls: CallImport,
    options: PlanOptions,
    say: Say = lambda _: None,
    show: Show = silent,
) -> CallPlan:
    """Plans for the calls in the files, which `calls` reads. `say` gets a sentence for each step, and the
    first tells how long all takes. Stores nothing. Raises InputError where no call can be learned.
    """
    with tempfile.TemporaryDirectory(prefix="bertsmith-plan-", ignore_cleanup_errors=True) as folder:
        store = Store(str(Path(folder) / "calls.sqlite"), create=True)
        try:
            with show("Reading") as progress:
                counts = calls.into(store, progress)
            groups = sorted(
                LearningRecords(store).groups(), key=lambda group: -sum(one.calls for one in group)
            )
            if not groups:
                raise InputError(_describe_nothing(counts))
            places, left_out, notes = _plan_places(store, groups, options, counts, Path(folder), say)
        finally:
            store.close()
    return CallPlan(tuple(map(str, files)), places, counts, left_out, options.learn, notes)


def plan_recorded(
    store: Store, options: PlanOptions, version: str | None = None, say: Say = lambda _: None
) -> CallPlan:
    """Plans for the calls that a mirror has recorded: of all places, or of a `version` and those merged with
    it. The store gets the forecasts, no student, and no call counts as used. Raises InputError where there
    are none.
    """
    records = LearningRecords(store)
    groups = records.groups() if version is None else [records.group(None, version)]
    if not groups:
        raise InputError("The store has no calls yet: bertsmith mirror serve records them.")
    groups = sorted(groups, key=lambda group: -sum(one.calls for one in group))
    counts = ImportCounts(added=sum(one.calls for group in groups for one in group))
    with tempfile.TemporaryDirectory(prefix="bertsmith-plan-", ignore_cleanup_errors=True) as folder:
        places, left_out, notes = _plan_places(store, groups, options, counts, Path(folder), say)
    for place, group in zip(places, groups, strict=False):
        for one in group:
            save_forecast(store, one.version, one.calls, summarise_place(place, options.learn))
    return CallPlan((), places, counts, left_out, options.learn, notes)


def _plan_places(
    store: Store,
    groups: Sequence[Sequence[VersionCount]],
    options: PlanOptions,
    counts: ImportCounts,
    work: Path,
    say: Say,
) -> tuple[tuple[PlacePlan, ...], int, tuple[str, ...]]:
    """The plans of the first places, how many calls the others have, and notes."""
    notes = list[str]()
    say(_announce(groups[:_MOST_PLACES], options.learn))
    places = tuple(
        _plan_place(store, group, options, counts, work / str(number), say, notes)
        for number, group in enumerate(groups[:_MOST_PLACES])
    )
    left_out = sum(one.calls for group in groups[_MOST_PLACES:] for one in group)
    return places, left_out, tuple(dict.fromkeys(notes))


def _describe_nothing(counts: ImportCounts) -> str:
    reasons = ", ".join(f"{reason} {calls:,}" for (_, reason), calls in counts.skipped.most_common())
    return (
        f"None of the calls can be mirrored{f' ({reasons})' if reasons else ''}: a student learns from calls "
        "whose answers are JSON with a schema."
    )


def _announce(groups: Sequence[Sequence[VersionCount]], settings: LearnSettings) -> str:
    calls = sum(version.calls for group in groups for version in group)
    seconds = _SECONDS_AT_LEAST + sum(_SECONDS_A_CALL[tier] for tier in settings.tiers) * calls
    places = formatting.counted(len(groups), "place")
    return (
        f"{calls:,} calls of {places} in your application: this takes about {formatting.duration(seconds)}, "
        "asks no LLM and keeps no student"
    )


def _plan_place(
    store: Store,
    group: Sequence[VersionCount],
    options: PlanOptions,
    counts: ImportCounts,
    work: Path,
    say: Say,
    notes: list[str],
) -> PlacePlan:
    profile = understand(store, group)
    latest, settings = profile.latest, options.learn
    daily = _count_daily(store, profile, options, counts.added + counts.skipped.total())
    place = PlacePlan(
        name=latest.site,
        model=latest.model,
        schema=latest.schema_name,
        fields=tuple(own.path for own in profile.shape.fields),
        calls=profile.calls,
        daily=daily,
        price=_find_price(store, profile, options.prices, counts),
        kept=0,
        why_not=profile.why_not,
    )
    if profile.why_not:
        return place
    read = read_calls(store, profile)
    read = replace(read, calls=sample_like_traffic(read.calls, settings.seed))
    dated = sum(call.source != UNDATED for call in read.calls)
    wanted = min(round(settings.calibration_share * len(read.calls)), settings.most_calibration)
    if dated < len(read.calls):
        undated = len(read.calls) - dated
        notes.append(
            f"{profile.site}: {undated:,} calls have no time. A student learns from them, and they prove "
            "nothing."
        )
    fitting = len(read.calls) / max(len(read.calls) + read.unmatched, 1)
    if (dev := _try_names(store, profile, read, settings, work / "names", say, notes)) is not None:
        return replace(
            place,
            student="begins by the names of the values",
            agreement=dev.agreement,
            forecasts=forecast_risks([dev], foreseen_calls(0), settings),
            fitting=fitting,
            compared=_count_agreeing(dev),
            by_names=True,
        )
    try:
        parts = split_by_ids(
            read.calls, (), profile.shape, settings.model_copy(update={"dev_share": _DEV_SHARE})
        )
        tiers, devs = _try_students(profile, parts, settings, work, say, notes)
    except InputError as error:
        return replace(place, why_not=str(error).rstrip("."))
    best = max(range(len(devs)), key=lambda number: devs[number].agreement)
    return replace(
        place,
        kept=min(wanted, dated),
        student=tier_title(tiers[best]),
        agreement=devs[best].agreement,
        forecasts=forecast_risks(devs, min(wanted, dated) or wanted, settings),
        fitting=fitting,
        uneven=describe_uneven_fields(devs[best], settings.epsilon),
        compared=_count_agreeing(devs[best]),
    )


def _count_agreeing(dev: TeacherComparison) -> tuple[int, int]:
    return int((~dev.differs).sum()), len(dev.differs)


def _try_names(
    store: Store,
    profile: SiteProfile,
    read: LoadedCalls,
    settings: LearnSettings,
    work: Path,
    say: Say,
    notes: list[str],
) -> TeacherComparison | None:
    """The comparison of a student that begins by names with all calls; None where there are many calls, or
    names say nothing. Adds to `notes`.
    """
    if not 0 < len(read.calls) < _EARLY or "encoder" not in settings.tiers:
        return None
    (newest,) = store.latest(profile.latest.version, 1)
    say(f"{profile.site}: a student that begins by the names of the values ({settings.model})")
    try:
        candidate, _ = train_named_candidate(newest.request, read.calls, profile.shape, settings, work)
    except MissingExtra as error:
        notes.append(f"The encoder was left out. {error}")
    except InputError:  # other answers than one of several named values
        pass
    else:
        return compare_with_teacher(candidate, read.calls, profile.shape)
    return None


def _try_students(
    profile: SiteProfile, parts: CallSplit, settings: LearnSettings, work: Path, say: Say, notes: list[str]
) -> tuple[list[str], list[TeacherComparison]]:
    """The kinds of student that could be tried, and their comparisons on the calls that weren't learned."""
    tiers, devs = list[str](), list[TeacherComparison]()
    shape = profile.shape
    if "tf-idf" in settings.tiers:
        say(f"{profile.site}: a classifier on words")
        if (candidate := train_word_candidate(parts.train, parts.dev, shape)) is not None:
            tiers.append(candidate.tier)
            devs.append(compare_with_teacher(candidate, parts.dev, shape))
    if "encoder" in settings.tiers:
        say(f"{profile.site}: an encoder ({settings.model})")
        quick = settings.model_copy(update={"overrides": settings.overrides or _QUICK})
        try:
            for candidate in train_encoder_candidates(parts.train, parts.dev, shape, quick, work):
                tiers.append(candidate.tier)
                devs.append(compare_with_teacher(candidate, parts.dev, shape))
        except MissingExtra as error:
            notes.append(f"The encoder was left out. {error}")
        except BertsmithError as error:
            if not devs:
                raise
            notes.append(f"{profile.site}: the encoder was left out. {error}")
    if not devs:
        raise InputError("no kind of student can give these answers")
    return tiers, devs


def _count_daily(store: Store, profile: SiteProfile, options: PlanOptions, calls: int) -> float | None:
    """Calls a day: the option's, by this place's part of the file's `calls`, or by the times of the calls."""
    if options.calls_per_day is not None:
        return options.calls_per_day * profile.calls / max(calls, 1)
    times = [
        call.began
        for version in profile.versions
        for call in store.calls(version.version)
        if call.source != UNDATED
    ]
    span = max(times, default=0.0) - min(times, default=0.0)
    return None if span < _LEAST_SPAN else len(times) / span * _DAY


def _find_price(
    store: Store, profile: SiteProfile, prices: PriceSettings, counts: ImportCounts
) -> float | None:
    """The mean price of a call: the option's, by its tokens, or what the calls say themselves."""
    if prices.call is not None:
        return prices.call
    if prices.million_input_tokens or prices.million_output_tokens:
        costs = [
            (
                call.completion.input_tokens * prices.million_input_tokens
                + call.completion.output_tokens * prices.million_output_tokens
            )
            / 1e6
            for version in profile.versions
            for call in store.calls(version.version)
            if call.completion.input_tokens is not None and call.completion.output_tokens is not None
        ]
        return sum(costs) / len(costs) if costs else None
    said = [counts.costs[version.version] for version in profile.versions if version.version in counts.costs]
    return sum(money for _, money in said) / sum(calls for calls, _ in said) if said else None


# -- in words ------------------------------------------------------------------------------------------------


def describe_place(place: PlacePlan, settings: LearnSettings) -> str:
    """What could be answered locally, in a sentence."""
    if place.why_not:
        return f"No student can answer these calls: {place.why_not}."
    chosen = place.chosen
    wanted = format_upper_percent(settings.epsilon)
    if chosen is None:
        return (
            f"Nothing can be expected to be proven by these {place.calls:,} calls, even where more than "
            f"{wanted} may differ. " + (f"{place.uneven}." if place.uneven else _MAY_HELP)
        )
    which = "the calls with this prompt" if place.fitting < 1 else "the calls"
    sentence = (
        f"A student can be expected to answer {chosen.describe_coverage()} of {which}, with at most "
        f"{format_upper_percent(chosen.epsilon)} of its answers differing from the LLM's."
    )
    if not chosen.is_wanted:
        sentence = f"With at most {wanted} differing, most likely nothing can be proven yet. {sentence}"
    return sentence


def describe_forecast(place: PlacePlan, settings: LearnSettings) -> str:
    """What a student of the place could do by the calls that are there, what that saves, and how sure all of
    that is, in sentences; empty where no student can learn them.
    """
    wanted = next((forecast for forecast in place.forecasts if forecast.is_wanted), None)
    if wanted is None:
        return ""
    agreeing, compared = place.compared
    begins = (
        "that knows the names of the values alone" if place.by_names else "that learns from a part of them"
    )
    sentences = [
        f"Forecast by {place.calls:,} calls: a student {begins} {describe_agreement(agreeing, compared)}.",
        f"Where at most {format_upper_percent(wanted.epsilon)} of its answers may differ, it could answer "
        f"{wanted.describe_coverage()} of the calls.",
    ]
    if (chosen := place.chosen) is not None and chosen is not wanted:
        sentences.append(
            f"Where {format_upper_percent(chosen.epsilon)} may differ: {chosen.describe_coverage()}."
        )
    low, high = wanted.interval
    shares = [share * place.fitting for share in (wanted.coverage, low, high)]
    span, calls = ("a month", place.daily * _MONTH) if place.daily else ("of each 1,000 calls", 1000.0)
    middle, fewest, most = (f"{round(calls * share):,}" for share in shares)
    sentences.append(f"That is {span} {middle} calls ({fewest} to {most})")
    if place.price is not None:
        cost, least, greatest = (f"{calls * share * place.price * (1 - _AUDITED):,.2f}" for share in shares)
        sentences[-1] += f", which cost {cost} today ({least} to {greatest})"
    return " ".join(sentences) + "."


def summarise_place(place: PlacePlan, settings: LearnSettings) -> dict[str, Any]:
    """What the store keeps of a place's forecast, as JSON without texts of calls."""
    agreeing, compared = place.compared
    return {
        "text": describe_forecast(place, settings),
        "why_not": place.why_not or None,
        "by_names": place.by_names,
        "agreeing": agreeing,
        "compared": compared,
        "risks": [
            {"epsilon": forecast.epsilon, "coverage": forecast.coverage, "interval": list(forecast.interval)}
            for forecast in place.forecasts
        ],
    }


def format_plan_rows(place: PlacePlan, settings: LearnSettings) -> list[list[str]]:
    """Table rows by allowed difference: the share answered, calls and money a month, and when."""
    rows = []
    for forecast in place.forecasts:
        answered, saving = place.monthly_calls(forecast), place.monthly_saving(forecast)
        hopeful = forecast.has_chance
        rows.append(
            [
                format_upper_percent(forecast.epsilon) + (" (wanted)" if forecast.is_wanted else ""),
                forecast.describe_coverage(),
                "-" if answered is None or not hopeful else f"{round(answered):,}",
                "-" if saving is None or not hopeful else f"{saving:,.2f}",
                place.describe_when(forecast, settings),
            ]
        )
    return rows


PLAN_COLUMNS = ("allowed difference", "answered locally", "calls a month", "saved a month", "when")


def list_plan_facts(place: PlacePlan) -> list[tuple[str, str]]:
    """The place's facts with their names."""
    facts = [
        ("place in your application", place.name),
        ("LLM", place.model),
        ("fields of the answers", ", ".join(place.fields) or "none"),
        ("calls", f"{place.calls:,}"),
        (
            "calls a day",
            "unknown: --calls-per-day" if place.daily is None else f"about {round(place.daily):,}",
        ),
        ("price of a call", "unknown: --call-price" if place.price is None else f"{place.price:.3g}"),
    ]
    if place.fitting < 1:
        facts.insert(4, ("calls with this prompt", format_whole_percent(place.fitting)))
    if place.forecasts:
        facts += [
            ("student tried", f"{place.student}: agrees in {format_percent(place.agreement)}"),
            ("calls kept for the proof", f"{place.kept:,} of these, which are paid already"),
        ]
        if place.price is not None:
            facts.append(("the proof by new calls instead", f"{place.kept * place.price:,.2f}"))
        if place.chosen is not None and place.price is not None and place.daily is not None:
            audits = place.daily * _MONTH * place.fitting * place.chosen.coverage * _AUDITED * place.price
            facts.append(("audits, a month", f"{audits:,.2f} (one answer in twenty, counted above)"))
    return facts


def plan_as_json(plan: CallPlan) -> dict[str, Any]:
    """The plan as JSON values, for programs to read."""
    return {
        "files": list(plan.files),
        "epsilon": plan.settings.epsilon,
        "delta": plan.settings.delta,
        "saving_per_month": plan.saving,
        "places": [
            {
                "site": place.name,
                "model": place.model,
                "fields": list(place.fields),
                "calls": place.calls,
                "calls_per_day": place.daily,
                "price_of_call": place.price,
                "calls_to_prove": place.kept,
                "agreement": place.agreement if place.forecasts else None,
                "why_not": place.why_not or None,
                "risks": [
                    {
                        "epsilon": forecast.epsilon,
                        "coverage": forecast.coverage,
                        "coverage_interval": forecast.interval,
                        "nothing_proven": forecast.unproven,
                        "calls_per_month": place.monthly_calls(forecast),
                        "saving_per_month": place.monthly_saving(forecast),
                        "when": place.describe_when(forecast, plan.settings),
                    }
                    for forecast in place.forecasts
                ],
            }
            for place in plan.places
        ],
        "not_mirrored": {reason: calls for (_, reason), calls in sorted(plan.counts.skipped.items())},
        "left_out": plan.left_out,
    }


def render_plan(plan: CallPlan, command: str) -> str:
    """The HTML page, which holds no text of a call. `command` makes it again."""
    hopeful = [place for place in plan.places if place.chosen is not None]
    calls = sum(place.calls for place in plan.places)
    answered = sum(
        place.calls * place.fitting * place.chosen.coverage for place in hopeful if place.chosen is not None
    )
    allowed = {format_upper_percent(place.chosen.epsilon) for place in hopeful if place.chosen is not None}
    where = f", where {' or '.join(sorted(allowed))} may differ" if allowed else ""
    headline = [
        (
            f"of the calls could be answered locally{where}",
            format_whole_percent(answered / calls) if answered else "none",
        ),
        ("saved a month", "unknown" if plan.saving is None else f"{plan.saving:,.2f}"),
        ("calls", f"{calls:,}"),
        ("places in your application", f"{len(plan.places)}"),
    ]
    today = datetime.now(UTC)
    return render_page(
        "plan.html.jinja",
        title="What a small model of your own could answer",
        status=f"A forecast from logged calls, {today:%Y-%m-%d}",
        headline=headline,
        warnings=[],
        places=[
            {
                "title": f"{place.name} · {place.schema}" if place.schema else place.name,
                "sentence": describe_place(place, plan.settings),
                "table": Table(
                    "",
                    list(PLAN_COLUMNS),
                    format_plan_rows(place, plan.settings),
                    text_columns=frozenset({0, 1, 4}),
                ),
                "pictures": _draw_place(place),
                "facts": list_plan_facts(place),
            }
            for place in plan.places
        ],
        confidence=format_confidence(plan.settings.delta),
        dates=_list_dates(plan, today),
        notes=_list_notes(plan),
        command=command,
    )


def _list_dates(plan: CallPlan, today: datetime) -> list[str]:
    """What happens when, if one begins today."""
    hopeful = [place for place in plan.places if place.chosen is not None and place.kept]
    if not hopeful:
        return []
    dates = [f"{today:%Y-%m-%d}: import these calls and train. The proof takes minutes, and asks no LLM."]
    sure = [
        place.daily * place.fitting * place.chosen.coverage
        for place in hopeful
        if place.chosen is not None and place.daily
    ]
    if sure:  # in canary the LLM is asked about nine in ten of these
        days = math.ceil(100 / min(sure) + 100 / (0.9 * min(sure)))
        compared = today + timedelta(days=days)
        dates.append(
            f"about {compared:%Y-%m-%d}: the student was compared on 100 sure answers in shadow and on 100 "
            "in canary, and answers all calls that it is sure of."
        )
    return dates


def _list_notes(plan: CallPlan) -> list[str]:
    notes = list(plan.notes)
    if plan.counts.skipped:
        reasons = ", ".join(f"{reason} {calls:,}" for (_, reason), calls in plan.counts.skipped.most_common())
        notes.append(f"Not counted: calls that can't be mirrored ({reasons}).")
    if plan.left_out:
        notes.append(f"Not looked at: {plan.left_out:,} calls of other places, prompts or models.")
    return notes


def _draw_place(place: PlacePlan) -> list[tuple[str, Any]]:
    if place.chosen is None:
        return []
    chosen = place.chosen

    def paint(axes: "Axes") -> None:
        from matplotlib.ticker import PercentFormatter

        for height, forecast in enumerate(place.forecasts):
            low, high = forecast.interval
            axes.barh(height, forecast.coverage, color=FIRST if forecast is chosen else MUTED, height=0.5)
            axes.plot([low, high], [height, height], color=FIRST, linewidth=1)
        labels = [format_upper_percent(forecast.epsilon) for forecast in place.forecasts]
        axes.set_yticks(range(len(labels)), labels)
        axes.set_xlim(0, 1)
        axes.set_xlabel("share of calls answered locally, with its 90 % interval")
        axes.set_ylabel("allowed difference")
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, 0, symbol=" %"))

    return [
        (
            f"Of 100 calls, where at most {format_upper_percent(chosen.epsilon)} may differ",
            as_markup(squares(chosen.coverage, chosen.epsilon)),
        ),
        ("By allowed difference", as_markup(picture("Calls answered locally by allowed difference", paint))),
    ]

"""The state of a mirror as one JSON object, for the page and for `bertsmith mirror status --json`. Values of
answers are counted; they are shown only where they are not free text.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertsmith.metrics.guarantees.bounds import clopper_pearson
from bertsmith.mirror.answering.accounts import read_accounts
from bertsmith.mirror.answering.replays import ReplayCount, ReplayStore, describe_replays
from bertsmith.mirror.answering.shadow_proof import ShadowProof, describe_agreement, describe_calls
from bertsmith.mirror.answering.stage_store import (
    AgreementPoint,
    StageStore,
    read_agreement_points,
    read_findings,
    read_forecasts,
)
from bertsmith.mirror.answering.stages import empty_evidence
from bertsmith.mirror.call import Call, Json
from bertsmith.mirror.fields import normalize_number
from bertsmith.mirror.settings import MirrorSettings
from bertsmith.mirror.store import Store, VersionCount
from bertsmith.mirror.tables import walk_values
from bertsmith.mirror.template import BETWEEN, PromptTemplate, find_template
from bertsmith.reporting.formatting import format_whole_percent

_SAMPLED_CALLS = 400  # latest calls of a version that its details are computed from
_DETAILED = 24  # versions that get details
_CHANGES = 100  # changes of stages that are shown, the latest
_BLOCKS = 12  # blocks that the comparisons with the LLM are divided into
_DELTA = 0.05  # error probability of the blocks' intervals
_GROWTH = 1.05  # details are computed again once a version has this many times as many calls
_SHOWN = 12  # values of a field that are shown
_RULES = (
    "auto", "epsilon", "delta", "train_after", "shadow_calls", "canary_calls", "canary_share", "audit_share",
)  # fmt: skip
# Texts count as values rather than free text if there are at most so many, each so often on average.
_MAX_DIFFERENT, _MIN_REPEATS = 100, 10


def describe_progress(proof: ShadowProof) -> dict[str, Any]:
    """How far a proof in shadow is, as JSON: `outlook` are the calls that are still to be compared until it
    stands (low, middle, high; null for very many), and `text` says all of it in words.
    """
    outlook, threshold = proof.outlook(), proof.threshold
    still = "" if threshold is not None else f". Until then: {describe_calls(*outlook)}"
    if threshold is None and (agreement := proof.agreement()) is not None:
        forecast = proof.forecast()
        low, high = map(format_whole_percent, forecast.interval)
        still += (
            f". So far it {describe_agreement(*agreement)}. By these, and those to choose the model by, it "
            f"comes to answer about {format_whole_percent(forecast.coverage)} of the calls ({low} to {high})"
        )
    return {
        "number": proof.number,
        "calls": proof.proof.calls,
        "threshold": threshold,
        "coverage": None if threshold is None else proof.coverage(threshold),
        "epsilon": proof.plan.epsilon,
        "delta": proof.plan.delta,
        "outlook": outlook,
        "text": proof.describe() + still,
    }


class StateReader:
    """Reads the state of one store. A version's details are kept until it has markedly more calls."""

    def __init__(self, store: Store, settings: MirrorSettings) -> None:
        self.store, self.stages, self.settings = store, StageStore(store), settings
        # By version: its number of calls at that time, its details, and its template.
        self._details_cache: dict[str, tuple[int, dict[str, Any], PromptTemplate | None]] = {}
        self._replays: tuple[dict[str, ReplayCount], dict[str, str]] = {}, {}

    def state(self, *, has_texts: bool = False) -> dict[str, Any]:
        """The state as JSON; with `has_texts`, examples of a student's errors come with their text."""
        versions, stages, to_train = self.store.versions(), self.stages.stages(), self._to_train()
        accounted = read_accounts(self.stages, self.settings.prices)
        trained = read_findings(self.store)
        prioritised = {account.stage.version for account in accounted} | trained.keys()
        # Versions with a student or a training first, then those with most calls.
        ordered = sorted(versions, key=lambda version: (version.version not in prioritised, -version.calls))
        shown = [version for version in ordered if version.calls][:_DETAILED]
        return {
            "at": time.time(),
            "calls": sum(version.calls for version in versions),
            "rules": {name: getattr(self.settings, name) for name in _RULES},
            "versions": [
                vars(version)
                | {
                    "to_train": to_train.get(version.version, 0),
                    "fields": _group_types(version),
                    "stage": vars(stages[version.version]),
                }
                for version in versions
                if version.version in stages
            ],
            "details": {version.version: self._details(version) for version in shown},
            "answering": [account.as_json() for account in accounted],
            "students": self._students(),
            "agreement": {
                student: _summarise_agreement(course)
                for student, course in read_agreement_points(self.store).items()
            },
            "learned": {version: self._learned(report, has_texts) for version, report in trained.items()},
            "trainings": self._trainings(),
            "forecasts": read_forecasts(self.store),
            "replays": self._describe_replays(),
            "changes": [change._asdict() for change in self.stages.changes()[-_CHANGES:]],
            "not_mirrored": [
                {"protocol": protocol, "reason": reason, "calls": count}
                for (protocol, reason), count in sorted(self.store.skipped().items())
            ],
        }

    def _to_train(self) -> dict[str, int]:
        """The number of calls that a training of each version would have: merged versions share theirs; calls
        that only asked a recorded input again don't count.
        """
        counts, into = self.stages.call_counts(1), self.stages.merged()
        of_group = Counter[str]()
        for version, calls in counts.items():
            of_group[into.get(version, version)] += calls
        return {version: of_group[into.get(version, version)] for version in counts}

    def _details(self, version: VersionCount) -> dict[str, Any]:
        cached = self._details_cache.get(version.version)
        if cached is not None and cached[0] <= version.calls <= _GROWTH * cached[0]:
            return cached[1]
        calls = self.store.latest(version.version, _SAMPLED_CALLS)
        template = find_template([call.request.messages for call in calls])
        # The constant pieces of each part of each message; the varying text stands between them.
        pieces = [
            {"role": message.role, "parts": [list(part.pieces) for part in message.parts]}
            for message in (() if template is None else template.messages)
        ]
        details = {"values": summarise_values(calls), "template": None if template is None else pieces}
        self._details_cache[version.version] = version.calls, details, template
        return details

    def _students(self) -> dict[str, Any]:
        evidence_by_student, students = self.stages.evidence(), dict[str, Any]()
        for number, student in self.stages.students().items():
            evidence = evidence_by_student.get(number) or empty_evidence(student.epsilon, student.delta)
            low, high = evidence.audits.interval()
            students[number] = {
                "added": student.added,
                "epsilon": student.epsilon,
                "delta": student.delta,
                "decision": evidence.decision,
                "compared": evidence.audits.count,
                "in_stage": evidence.in_stage,
                "coverage": evidence.coverage if evidence.seen else None,
                "rate": evidence.audits.rate() if evidence.audits.count else None,
                "low": low,
                "high": high,
                "proof": None if evidence.proof is None else describe_progress(evidence.proof),
            }
        return students

    def _trainings(self) -> dict[str, Any]:
        now = time.time()
        return {
            version: {
                "calls": row.calls,
                "began": row.began,
                "outcome": row.outcome,
                "is_under_way": row.until > now,
            }
            for version, row in self.stages.trainings().items()
        }

    def _describe_replays(self) -> dict[str, str]:
        """The sentences about inputs asked again; kept until there are more answers."""
        counts = ReplayStore(self.store).counts()
        if counts != self._replays[0]:
            self._replays = counts, describe_replays(self.stages)
        return self._replays[1]

    def _learned(self, report: dict[str, Any], has_texts: bool) -> dict[str, Any]:
        """A training's report, its examples with their texts; None where the call has been deleted."""
        confusions = report.get("confusions", [])
        calls = self.store.calls_named(example["call"] for example in confusions) if has_texts else {}
        texts = dict[str, str]()
        for name, call in calls.items():
            # The varying part of its messages, if the version's template is known.
            cached = self._details_cache.get(call.version)
            template = cached[2] if cached is not None else None
            text = template.input_of(call.request) if template is not None else None
            texts[name] = text or BETWEEN.join(
                part for message in call.request.inputs for part in message.parts
            )
        shown = [
            {name: value for name, value in example.items() if name != "call"}
            | {"text": texts.get(example["call"])}
            for example in confusions
        ]
        return report | {"confusions": shown}


def _group_types(version: VersionCount) -> dict[str, list[str]]:
    """The JSON paths of a version's answers, each with the types of its values."""
    types: dict[str, list[str]] = {}
    for path, type_name in version.fields:
        types.setdefault(path, []).append(type_name)
    return types


def _summarise_agreement(course: list[AgreementPoint]) -> dict[str, Any]:
    """How often a student agrees with the LLM: the confidence sequence over all comparisons, and blocks of
    comparisons with an interval each, so that a recent change isn't hidden by all that came before.
    """
    blocks, last = list[dict[str, Any]](), AgreementPoint(0, course[0].at, 0.0, 0.0, 0.0, 1.0)
    for point in course:
        count = point.compared - last.compared
        if count < course[-1].compared / _BLOCKS:
            continue
        differing = round(point.differing - last.differing)
        low, high = clopper_pearson(differing, count, _DELTA)
        blocks.append(
            {"compared": point.compared, "at": point.at, "calls": count, "differing": differing,
             "rate": differing / count, "low": low, "high": high}
        )  # fmt: skip
        last = point
    return {"course": [point._asdict() for point in course], "blocks": blocks}


def summarise_values(calls: Sequence[Call]) -> dict[str, dict[str, Any]]:
    """The values of answers by JSON path: the number of `calls` sampled, how many `different` values they
    have, the most frequent `values` with their counts or the `range` of numbers, and whether it `is_text`:
    free text may be about a person, so no value of it is shown.
    """
    counts: dict[str, Counter[Any]] = {}
    for call in calls:
        for path, value in walk_values(call.completion.value):
            # Parts below the depth of `walk_values` can't be counted; 1.0 counts as 1.
            key = normalize_number(value) if isinstance(value, str | bool | int | float | None) else "…"
            counts.setdefault(path, Counter())[type(key), key] += 1
    named = set(_schema_values(calls[0].request.schema)) if calls else set[str]()
    return {path: _summarise_field(values, len(calls), named) for path, values in sorted(counts.items())}


def _summarise_field(counts: Counter[Any], calls: int, named: set[str]) -> dict[str, Any]:
    texts = [key for kind, key in counts if kind is str and key not in named]
    is_text = bool(texts) and (len(counts) > _MAX_DIFFERENT or counts.total() < _MIN_REPEATS * len(counts))
    numbers = [key for kind, key in counts if kind in (int, float)]
    is_number = len(numbers) == len(counts) and len(numbers) > _SHOWN
    summary: dict[str, Any] = {"calls": calls, "different": len(counts), "is_text": is_text, "values": []}
    if is_number:
        summary["range"] = [min(numbers), max(numbers)]
    elif not is_text:
        for (_, key), count in counts.most_common(_SHOWN):
            shown = json.dumps(key) if key is None or isinstance(key, bool) else str(key)
            summary["values"].append([shown, count])
    return summary


def _schema_values(schema: Json) -> Iterator[str]:
    """Yields the texts that the schema itself names as values, by enum or const."""
    if isinstance(schema, Mapping):
        for key, part in schema.items():
            values = part if key == "enum" and isinstance(part, list) else [part] if key == "const" else []
            yield from (value for value in values if isinstance(value, str))
            yield from _schema_values(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _schema_values(part)

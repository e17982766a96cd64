"""All there is to see of a mirror as one JSON object: for the page, and `bertsmith mirror status --json`.
Values of answers are counted, and shown where they are no texts.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertsmith.metrics.guarantees.bounds import clopper_pearson
from bertsmith.mirror.answering.accounts import read_accounts
from bertsmith.mirror.answering.stage_store import (
    AgreementPoint,
    StageStore,
    read_agreement_points,
    read_findings,
)
from bertsmith.mirror.answering.stages import empty_evidence
from bertsmith.mirror.call import Call, Json
from bertsmith.mirror.fields import plain
from bertsmith.mirror.settings import MirrorSettings
from bertsmith.mirror.store import Store, VersionCount
from bertsmith.mirror.tables import values_of
from bertsmith.mirror.template import BETWEEN, PromptTemplate, find_template

_LOOKED_AT = 400  # calls of a version, the latest
_DETAILED = 24  # versions whose calls are looked at
_CHANGES = 100  # the latest
_BLOCKS = 12  # parts that comparisons are divided into
_DELTA = 0.05  # of the intervals of blocks
_GROWN = 1.05  # times as many calls, after which a version is looked at once more
_SHOWN = 12  # values of a field
_RULES = (
    "auto", "epsilon", "delta", "train_after", "shadow_calls", "canary_calls", "canary_share", "audit_share",
)  # fmt: skip
_MOST, _AGAIN = 100, 10  # different ones of a field, and how often each came: then they are no free text


class StateReader:
    """At one store. What a version's calls hold is kept until there are markedly more of them."""

    def __init__(self, store: Store, settings: MirrorSettings) -> None:
        self.store, self.stages, self.settings = store, StageStore(store), settings
        self._known: dict[str, tuple[int, dict[str, Any], PromptTemplate | None]] = {}

    def state(self, *, has_texts: bool = False) -> dict[str, Any]:
        """With `has_texts` texts of calls stand beside what a student takes them for."""
        versions, stages, to_train = self.store.versions(), self.stages.stages(), self._to_train()
        accounted = read_accounts(self.stages, self.settings.prices)
        trained = read_findings(self.store)
        wanted = {each.stage.version for each in accounted} | trained.keys()
        # Those, then the versions with most calls.
        ordered = sorted(versions, key=lambda each: (each.version not in wanted, -each.calls))
        shown = [each for each in ordered if each.calls][:_DETAILED]
        return {
            "at": time.time(),
            "calls": sum(each.calls for each in versions),
            "rules": {name: getattr(self.settings, name) for name in _RULES},
            "versions": [
                vars(each)
                | {
                    "to_train": to_train.get(each.version, 0),
                    "fields": _fields(each),
                    "stage": vars(stages[each.version]),
                }
                for each in versions
                if each.version in stages
            ],
            "details": {each.version: self._details(each) for each in shown},
            "answering": [each.as_json() for each in accounted],
            "students": self._students(),
            "agreement": {
                student: _agreement(of) for student, of in read_agreement_points(self.store).items()
            },
            "learned": {version: self._learned(each, has_texts) for version, each in trained.items()},
            "trainings": self._trainings(),
            "changes": [each._asdict() for each in self.stages.changes()[-_CHANGES:]],
            "not_mirrored": [
                {"protocol": protocol, "reason": reason, "calls": count}
                for (protocol, reason), count in sorted(self.store.passed().items())
            ],
        }

    def _to_train(self) -> dict[str, int]:
        """Of each version how many calls a training would have: of merged ones, those of all; none that were
        asked again.
        """
        counts, into = self.stages.call_counts(1), self.stages.merged()
        of_group = Counter[str]()
        for version, calls in counts.items():
            of_group[into.get(version, version)] += calls
        return {version: of_group[into.get(version, version)] for version in counts}

    def _details(self, version: VersionCount) -> dict[str, Any]:
        known = self._known.get(version.version)
        if known is not None and known[0] <= version.calls <= _GROWN * known[0]:
            return known[1]
        calls = self.store.latest(version.version, _LOOKED_AT)
        template = find_template([each.request.messages for each in calls])
        # Of each message the parts, and of these the constant pieces, between which stands what varies.
        pieces = [
            {"role": each.role, "parts": [list(part.pieces) for part in each.parts]}
            for each in (() if template is None else template.messages)
        ]
        found = {"values": seen_values(calls), "template": None if template is None else pieces}
        self._known[version.version] = version.calls, found, template
        return found

    def _students(self) -> dict[str, Any]:
        known, found = self.stages.evidence(), dict[str, Any]()
        for number, student in self.stages.students().items():
            evidence = known.get(number) or empty_evidence(student.epsilon, student.delta)
            low, high = evidence.audits.interval()
            found[number] = {
                "added": student.added,
                "epsilon": student.epsilon,
                "delta": student.delta,
                "decision": evidence.decision,
                "compared": evidence.audits.count,
                "in_stage": evidence.in_stage,
                "rate": evidence.audits.rate() if evidence.audits.count else None,
                "low": low,
                "high": high,
            }
        return found

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

    def _learned(self, found: dict[str, Any], has_texts: bool) -> dict[str, Any]:
        """With the text of each example, as it is stored; none where its call has been deleted."""
        confusions = found.get("confusions", [])
        calls = self.store.calls_named(each["call"] for each in confusions) if has_texts else {}
        texts = dict[str, str]()
        for name, call in calls.items():
            # What varies of its messages, where that is known.
            known = self._known.get(call.version)
            template = known[2] if known is not None else None
            text = template.input_of(call.request) if template is not None else None
            texts[name] = text or BETWEEN.join(part for each in call.request.inputs for part in each.parts)
        shown = [
            {name: value for name, value in each.items() if name != "call"}
            | {"text": texts.get(each["call"])}
            for each in confusions
        ]
        return found | {"confusions": shown}


def _fields(version: VersionCount) -> dict[str, list[str]]:
    """Each path with its types."""
    found: dict[str, list[str]] = {}
    for path, kind in version.fields:
        found.setdefault(path, []).append(kind)
    return found


def _agreement(course: list[AgreementPoint]) -> dict[str, Any]:
    """The confidence sequence, and beside it blocks of comparisons by themselves, each with its interval:
    what came lately doesn't hide among what came before.
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
    return {"course": [each._asdict() for each in course], "blocks": blocks}


def seen_values(calls: Sequence[Call]) -> dict[str, dict[str, Any]]:
    """By JSON path: `calls` looked at, how many `different` values there are, the most frequent `values` with
    their counts or the `range` of numbers, and whether it `is_text`: a value might then be about somebody,
    and none is given.
    """
    counts: dict[str, Counter[Any]] = {}
    for call in calls:
        for path, value in values_of(call.completion.value):
            # What can be counted: 1.0 is 1.
            shown = plain(value) if isinstance(value, str | bool | int | float | None) else "…"
            counts.setdefault(path, Counter())[type(shown), shown] += 1
    named = set(_named(calls[0].request.schema)) if calls else set[str]()
    return {path: _of_field(of, len(calls), named) for path, of in sorted(counts.items())}


def _of_field(counts: Counter[Any], calls: int, named: set[str]) -> dict[str, Any]:
    texts = [key for kind, key in counts if kind is str and key not in named]
    is_text = bool(texts) and (len(counts) > _MOST or counts.total() < _AGAIN * len(counts))
    numbers = [key for kind, key in counts if kind in (int, float)]
    is_number = len(numbers) == len(counts) and len(numbers) > _SHOWN
    found: dict[str, Any] = {"calls": calls, "different": len(counts), "is_text": is_text, "values": []}
    if is_number:
        found["range"] = [min(numbers), max(numbers)]
    elif not is_text:
        for (_, key), count in counts.most_common(_SHOWN):
            shown = json.dumps(key) if key is None or isinstance(key, bool) else str(key)
            found["values"].append([shown, count])
    return found


def _named(schema: Json) -> Iterator[str]:
    """Texts that the schema itself names as values."""
    if isinstance(schema, Mapping):
        for key, each in schema.items():
            given = each if key == "enum" and isinstance(each, list) else [each] if key == "const" else []
            yield from (value for value in given if isinstance(value, str))
            yield from _named(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _named(each)

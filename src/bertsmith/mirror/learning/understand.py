"""Describes a site's calls (`understand`): the versions that count as one, the templates that find their
input, and the fields of their answers with the frequency of values.

`LearningRecords` are the tables of learning in a store, beside the calls:

merged       version → the version that it was merged with (bertsmith.mirror.tables)
uses         training, call → train, dev or calibration
unanswered   fingerprints of our own questions that got no usable answer

Calls that proved a claim are used up: another model, or another claim, needs calls by which nothing was
chosen. Later trainings may learn from them.
"""

import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import (
    Connection,
    delete,
    inspect,
    select,
    text,
)  # fmt: skip
from sqlalchemy.dialects import postgresql, sqlite

from bertsmith.errors import InputError, did_you_mean
from bertsmith.mirror.call import AGAIN, OWN_SOURCES, Call
from bertsmith.mirror.database import READING, is_sqlite
from bertsmith.mirror.fields import ABSENT, AnswerShape, Field, format_value
from bertsmith.mirror.learning.schema_fields import AnswerObservation, infer_shape
from bertsmith.mirror.store import Store, VersionCount
from bertsmith.mirror.tables import CALLS, LEARNING, MERGED, UNANSWERED, USES
from bertsmith.mirror.template import FEWEST, PromptTemplate, find_template

_LOOKED_AT = 2000  # the latest calls of a version
_ALL_SMALL = ""  # the template of versions that have too few calls for one of their own
Use = Literal["train", "dev", "calibration"]
_LOCK = 0x6C6561  # of PostgreSQL's advisory locks: "lea"
_AT_ONCE = 500


@dataclass(frozen=True)
class SiteProfile:
    """The description of a group of versions that count as one. `templates` by version; of the `looked_at`
    calls `fitting` fit their template, and `odd` have answers that don't fit the fields. `shares` has for
    each field its values as text with their counts. `why_not`: why no model can be trained; empty where one
    can.
    """

    versions: tuple[VersionCount, ...]
    templates: dict[str, PromptTemplate]
    shape: AnswerShape
    looked_at: int
    fitting: int
    odd: int
    shares: dict[str, list[tuple[str, int]]]
    why_not: str

    @property
    def site(self) -> str:
        return self.versions[0].site

    @property
    def calls(self) -> int:
        """The number of all calls of all versions."""
        return sum(version.calls for version in self.versions)

    @property
    def latest(self) -> VersionCount:
        """The version with the latest call of the traffic; without traffic, with the latest call."""
        return max(self.versions, key=lambda version: version.recency)

    def plan(self) -> dict[str, Any]:
        """What a training that goes on later has to read the calls by, as JSON."""
        templates = {
            version: template.model_dump(mode="json") for version, template in self.templates.items()
        }
        return {"shape": self.shape.model_dump(mode="json"), "templates": templates}

    def as_planned(self, plan: Mapping[str, Any]) -> "SiteProfile":
        """This profile with the shape and the templates of a `plan`."""
        templates = {
            version: PromptTemplate.model_validate(template)
            for version, template in plan["templates"].items()
        }
        return replace(self, shape=AnswerShape.model_validate(plan["shape"]), templates=templates)

    def require_mirrorable(self) -> None:
        """Raises InputError with `why_not` where no model can be trained."""
        if self.why_not:
            raise InputError(
                f"The calls of {self.site} can't be mirrored: {self.why_not}. "
                f"bertsmith mirror understand {self.site} shows what was found."
            )


def understand(
    store: Store, group: Sequence[VersionCount], to_prove: Collection[str] = frozenset()
) -> SiteProfile:
    """Describes the latest calls of a group of versions. Calls with an id in `to_prove` have no influence on
    the shape of the answers, which decides when two answers are the same.
    """
    latest = {version.version: _read_latest_calls(store, version.version) for version in group}
    templates = _find_templates(latest)
    calls = [call for version_calls in latest.values() for call in version_calls]
    fitting = sum(_extract_input(call, templates) is not None for call in calls)
    newest = max(calls, key=lambda call: (call.source not in OWN_SOURCES, call.began), default=None)
    shape_calls = calls
    if to_prove:
        shape_calls = [
            call for version in group for call in _read_latest_calls(store, version.version, to_prove)
        ]
    observations = [
        AnswerObservation(call.completion.value, _extract_input(call, templates) or "")
        for call in shape_calls
    ]
    shape = infer_shape(newest.request.schema if newest is not None else {}, observations)
    why_not = shape.why_not
    if not templates:
        why_not = (
            f"its prompt can't be told from its input: it takes {FEWEST} calls whose messages have the same "
            f"roles and differ, and there are {len(calls):,} calls"
        )
    return SiteProfile(
        tuple(group),
        templates,
        shape,
        len(calls),
        fitting,
        sum(not shape.allows(shape.read(call.completion.value)) for call in calls),
        {field.path: _count_values(field, shape, observations) for field in shape.fields},
        why_not,
    )


def _read_latest_calls(store: Store, version: str, without: Collection[str] = frozenset()) -> list[Call]:
    traffic = (call for call in store.calls(version) if call.source != AGAIN and call.id not in without)
    return list(deque(traffic, maxlen=_LOOKED_AT))


def _extract_input(call: Call, templates: Mapping[str, PromptTemplate]) -> str | None:
    template = templates.get(call.version)
    return None if template is None else template.input_of(call.request)


def _find_templates(latest: dict[str, list[Call]]) -> dict[str, PromptTemplate]:
    """A template for each version; versions with too few calls share one, in which their prompts vary."""
    templates: dict[str, PromptTemplate] = {}
    small = list[Call]()
    for version, calls in latest.items():
        template = find_template([call.request.messages for call in calls])
        if template is not None:
            templates[version] = template
        else:
            small += calls
    together = find_template([call.request.messages for call in small])
    if together is not None:
        templates |= {call.version: together for call in small}
    return templates


def _count_values(
    field: Field, shape: AnswerShape, observations: Sequence[AnswerObservation]
) -> list[tuple[str, int]]:
    counts: Counter[str] = Counter()
    for observation in observations:
        value = shape.read(observation.answer)[field.path]
        if field.kind == "labels" and isinstance(value, tuple):
            counts.update(map(format_value, value))
        elif field.kind == "spans" and isinstance(value, tuple):
            counts.update(kind or "quote" for kind, _ in value)
        elif field.kind == "number" and value is not None and value is not ABSENT:
            counts["a number"] += 1
        else:
            counts[format_value(value)] += 1
    return counts.most_common()


class LearningRecords:
    """The tables of learning in one store; created where they are missing, unless the store is read-only."""

    def __init__(self, store: Store) -> None:
        self.store = store
        if store.reads:
            return
        with store.engine.begin() as connection:
            self._lock(connection)
            MERGED.create(connection, checkfirst=True)
            LEARNING.create_all(connection)

    # -- versions ------------------------------------------------------------------------------------------

    def groups(self) -> list[tuple[VersionCount, ...]]:
        """Versions that count as one, each group oldest first; the group with the latest call of the traffic
        last, after groups of which there are only answers that the mirror asked for itself.
        """
        into = self._merged()
        groups: dict[str, list[VersionCount]] = {}
        for version in self.store.versions():
            groups.setdefault(into.get(version.version, version.version), []).append(version)
        ordered = [tuple(sorted(group, key=lambda version: version.began)) for group in groups.values()]
        return sorted(ordered, key=lambda group: max(version.recency for version in group))

    def group(self, site: str | None, version: str | None = None) -> tuple[VersionCount, ...]:
        """The group of the site that has the latest traffic, or the one that `version` is in. Without a site,
        the store's only one. Raises InputError saying what there is.
        """
        groups = self.groups()
        sites = list(dict.fromkeys(version.site for group in groups for version in group))
        if not sites:
            raise InputError("The store has no calls yet: bertsmith mirror serve records them.")
        if site is None and len(sites) > 1 and version is None:
            raise InputError(f"The store has several places: name one with --site ({', '.join(sites[:12])}).")
        if site is not None and site not in sites:
            raise InputError(
                f"The store has no calls of a place {site!r}.{did_you_mean(site, sites)} "
                f"There are: {', '.join(sites[:12])}."
            )
        fitting = [group for group in groups if site is None or group[0].site == site]
        if version is not None:
            into = self._merged()
            target = into.get(version, version)  # a merged version may have no calls left
            fitting = [group for group in fitting if target == into.get(group[0].version, group[0].version)]
            if not fitting:
                raise InputError(
                    f"There is no version {version!r}"
                    f"{f' of {site}' if site else ''}: bertsmith mirror status shows all."
                )
        return fitting[-1]

    def merge(self, site: str, versions: Sequence[str]) -> tuple[VersionCount, ...]:
        """Makes these versions of a site count as one from now on, and returns their group. Raises InputError
        for an unknown version, and for fewer than two.
        """
        existing = {version.version for version in self.store.versions() if version.site == site}
        if len(set(versions)) < 2:
            raise InputError("Name the place, then at least two of its versions that are to count as one.")
        for version in versions:
            if version not in existing:
                raise InputError(
                    f"The place {site!r} has no version {version!r}.{did_you_mean(version, existing)} "
                    "bertsmith mirror status shows all."
                )
        into = self._merged()
        targets = {into.get(version, version) for version in versions}
        chosen = into.get(versions[0], versions[0])
        moved = {version for version, target in into.items() if target in targets} | set(versions) | targets
        rows = [{"version": version, "into": chosen} for version in sorted(moved)]
        with self.store.engine.begin() as connection:
            connection.execute(delete(MERGED).where(MERGED.c.version.in_(sorted(moved))))
            connection.execute(MERGED.insert(), rows)
        return self.group(site, versions[0])

    def _merged(self) -> dict[str, str]:
        with self.store.engine.connect().execution_options(**READING) as connection:
            if not inspect(connection).has_table(MERGED.name):
                return {}
            return {row.version: row.into for row in connection.execute(select(MERGED))}

    # -- uses ----------------------------------------------------------------------------------------------

    def calibration_calls(self) -> set[str]:
        """The ids of calls that any training used for calibration."""
        with self.store.engine.connect().execution_options(**READING) as connection:
            return set(connection.scalars(select(USES.c.call).where(USES.c.use == "calibration")))

    def used_calls(self) -> set[str]:
        """The ids of calls that any training has used."""
        with self.store.engine.connect().execution_options(**READING) as connection:
            return set(connection.scalars(select(USES.c.call).distinct()))

    def read_uses(self, training: str) -> dict[str, str]:
        """The calls of one training: call id → train, dev or calibration."""
        with self.store.engine.connect().execution_options(**READING) as connection:
            rows = connection.execute(select(USES).where(USES.c.training == training))
            return {row.call: row.use for row in rows}

    def record_uses(self, training: str, uses: Mapping[Use, Iterable[str]]) -> set[str]:
        """Records the use of calls, in one idempotent transaction, and removes the uses of deleted calls.

        Returns the ids of the calibration calls that another training has used for calibration too: then
        nothing is recorded. Empty where the uses were recorded.
        """
        rows = [
            {"training": training, "call": call, "use": use, "at": time.time()}
            for use, calls in uses.items()
            for call in calls
        ]
        proving = [row["call"] for row in rows if row["use"] == "calibration"]
        insert = (sqlite if is_sqlite(self.store.engine) else postgresql).insert(USES)
        with self.store.engine.begin() as connection:
            self._lock(connection)
            conflicts = set[str]()
            others = select(USES.c.call).where(USES.c.use == "calibration", USES.c.training != training)
            for begin in range(0, len(proving), _AT_ONCE):
                batch = proving[begin : begin + _AT_ONCE]
                conflicts |= set(connection.scalars(others.where(USES.c.call.in_(batch))))
            if conflicts:
                return conflicts
            for begin in range(0, len(rows), _AT_ONCE):
                connection.execute(insert.on_conflict_do_nothing(), rows[begin : begin + _AT_ONCE])
            connection.execute(delete(USES).where(USES.c.call.not_in(select(CALLS.c.id))))
        return set()

    # -- the mirror's own questions ------------------------------------------------------------------------

    def unanswered_questions(self) -> set[str]:
        """The fingerprints of our own questions that got no usable answer."""
        with self.store.engine.connect().execution_options(**READING) as connection:
            return set(connection.scalars(select(UNANSWERED.c.question)))

    def save_unanswered(self, questions: Iterable[str]) -> None:
        """Stores the fingerprints of questions that got no usable answer."""
        rows = [{"question": fingerprint} for fingerprint in sorted(set(questions))]
        insert = (sqlite if is_sqlite(self.store.engine) else postgresql).insert(UNANSWERED)
        if rows:
            with self.store.engine.begin() as connection:
                connection.execute(insert.on_conflict_do_nothing(), rows)

    def _lock(self, connection: Connection) -> None:
        """Takes a lock until the transaction ends; in SQLite a transaction is the only writer anyway."""
        if not is_sqlite(self.store.engine):
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})

"""Stages, students and their evidence in a store. Each change is one transaction that looks first: of two
replicas that want the same, one makes it.

How a student's agreement ran is a point of its confidence sequence now and then: whenever a fiftieth more
comparisons have come in, so that there are some hundreds of them however long a student serves.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Table,
    and_,
    case,
    delete,
    false,
    func,
    inspect,
    or_,
    select,
    update,
)

from bertsmith.errors import InputError
from bertsmith.metrics.guarantees.audit import Audits
from bertsmith.mirror.answering.stages import (
    VOID,
    Evidence,
    EvidenceBatch,
    Stage,
    StudentComparison,
    StudentRecord,
    empty_evidence,
    read_evidence_row,
)
from bertsmith.mirror.call import AGAIN, LABELLED
from bertsmith.mirror.database import READING, is_sqlite
from bertsmith.mirror.store import Store
from bertsmith.mirror.tables import (
    AGREEMENT,
    AUDITS,
    CALLS,
    CHANGES,
    EVIDENCE,
    LEARNED,
    MERGED,
    STAGES,
    STUDENTS,
    TALLIES,
    TRAININGS,
    VERSIONS,
)

Tallies = Mapping[tuple[str, str, str], tuple[int, float]]  # (version, student, outcome) → calls, seconds

UNDER_WAY = "under way"  # the outcome of a training that has none yet
_FEWEST = 10  # comparisons between two points
_SHARE = 50  # of those so far: one in so many


class VersionFacts(NamedTuple):
    """What tells a version from the others of its site."""

    site: str
    model: str
    schema: Any
    began: float


class StageChange(NamedTuple):
    """One change of a stage."""

    version: str
    revision: int
    changed: float
    mode_before: str
    mode: str
    student: str
    by: str
    why: str


class CallMeans(NamedTuple):
    """Of calls; None where none of them says it."""

    seconds: float | None
    input_tokens: float | None
    output_tokens: float | None


class StageStore:
    """On the database of a store of calls."""

    def __init__(self, store: Store) -> None:
        self.store, self.engine = store, store.engine

    def _reading(self) -> Connection:
        return self.engine.connect().execution_options(**READING)

    def versions(self, wanted: Iterable[str]) -> dict[str, VersionFacts]:
        """Of these."""
        columns = VERSIONS.c.id, VERSIONS.c.site, VERSIONS.c.model, VERSIONS.c.schema, VERSIONS.c.began
        asking = select(*columns).where(VERSIONS.c.id.in_(sorted(wanted)))
        with self._reading() as connection:
            return {
                row.id: VersionFacts(row.site, row.model, orjson.loads(row.schema), row.began)
                for row in connection.execute(asking)
            }

    def stages(self) -> dict[str, Stage]:
        """Of every recorded version; one that never changed is in mode record."""
        known = self.changed_stages()
        with self._reading() as connection:
            for row in connection.execute(select(VERSIONS.c.id, VERSIONS.c.site)):
                known.setdefault(row.id, Stage(row.id, row.site))
        return known

    def find(self, named: str) -> Stage:
        """By version, or by site where only one of its versions has a student. Raises InputError."""
        stages = self.stages()
        if named in stages:
            return stages[named]
        of_site = [each for each in stages.values() if each.site == named]
        meant = [each for each in of_site if each.student or each.candidate] or of_site
        if len(meant) == 1:
            return meant[0]
        if not meant:
            raise InputError(
                f"There is no site or version {named!r} in the store. `bertsmith mirror status` lists them."
            )
        versions = ", ".join(sorted(each.version for each in meant))
        raise InputError(f"Site {named} has {len(meant)} versions. Name one: {versions}.")

    def changed_stages(self) -> dict[str, Stage]:
        """Of the versions that have a student, or had one."""
        with self._reading() as connection:
            rows = connection.execute(select(STAGES))
            return {row.version: Stage(**{**row._mapping, "is_held": bool(row.is_held)}) for row in rows}

    def change(self, before: Stage, after: Stage, by: str, why: str) -> bool:
        """False where the stage is no longer `before`: somebody else has changed it, and nothing is done."""
        now = time.time()
        row = {
            "site": after.site,
            "mode": after.mode,
            "share": after.share,
            "student": after.student,
            "former": after.former,
            # Beside itself it would be compared twice.
            "candidate": after.candidate if after.candidate != after.student else "",
            "revision": before.revision + 1,
            "changed": now,
            "is_held": int(after.is_held),
        }
        with self.engine.begin() as connection:
            if before.revision == 0:
                inserting = self._insertion(STAGES).values(version=before.version, **row)
                done = connection.execute(
                    inserting.on_conflict_do_nothing().returning(STAGES.c.version)
                ).all()
                if not done:
                    return False
            else:
                here = and_(STAGES.c.version == before.version, STAGES.c.revision == before.revision)
                if connection.execute(update(STAGES).where(here).values(**row)).rowcount != 1:
                    return False
            connection.execute(
                CHANGES.insert().values(
                    version=before.version,
                    revision=before.revision + 1,
                    changed=now,
                    mode_before=before.mode,
                    mode=after.mode,
                    student=after.student or before.student,
                    by=by,
                    why=why,
                )
            )
            if after.student:
                fresh = update(EVIDENCE).where(EVIDENCE.c.student == after.student)
                connection.execute(fresh.values(in_stage=0))
        return True

    def changes(self) -> list[StageChange]:
        """The oldest first."""
        with self._reading() as connection:
            rows = connection.execute(select(CHANGES).order_by(CHANGES.c.changed, CHANGES.c.revision))
            return [StageChange(*row) for row in rows]

    def add_student(self, student: StudentRecord) -> bool:
        """False where it is there: then it is in this folder from now on."""
        row = vars(student) | {"added": student.added or time.time()}
        inserting = self._insertion(STUDENTS).values(**row).on_conflict_do_nothing()
        with self.engine.begin() as connection:
            is_new = bool(connection.execute(inserting.returning(STUDENTS.c.id)).all())
            if not is_new:
                mine = STUDENTS.c.id == student.id
                connection.execute(update(STUDENTS).where(mine).values(folder=student.folder))
        return is_new

    def students(self) -> dict[str, StudentRecord]:
        """By id."""
        with self._reading() as connection:
            return {row.id: StudentRecord(*row) for row in connection.execute(select(STUDENTS))}

    def fold(self, student: StudentRecord, batch: EvidenceBatch) -> Evidence:
        """Adds to the student's evidence, whoever else does so too. An audit that is settled counts once, one
        that is void not at all.
        """
        with self.engine.begin() as connection:
            first = empty_evidence(student.epsilon, student.delta).row()
            inserting = self._insertion(EVIDENCE).values(student=student.id, **first)
            connection.execute(inserting.on_conflict_do_nothing())
            mine = EVIDENCE.c.student == student.id
            row = connection.execute(select(EVIDENCE).where(mine).with_for_update()).one()
            counted = list[StudentComparison]()
            for each in batch.comparisons:
                is_open = and_(AUDITS.c.id == each.audit, AUDITS.c.outcome.is_(None))
                settling = update(AUDITS).where(is_open).values(outcome=each.outcome)
                if each.audit and connection.execute(settling).rowcount != 1:
                    continue
                if each.outcome != VOID:
                    counted.append(each)
            evidence = read_evidence_row(row).after(counted, batch.confidences)
            connection.execute(update(EVIDENCE).where(mine).values(**evidence.row()))
            if counted:
                save_point_if_due(connection, student.id, evidence.audits)
        return evidence

    def evidence(self) -> dict[str, Evidence]:
        """Of each student that there is any of."""
        with self._reading() as connection:
            return {row.student: read_evidence_row(row) for row in connection.execute(select(EVIDENCE))}

    def tally(self, tallies: Tallies) -> None:
        """Adds these up with those that are there."""
        if not tallies:
            return
        with self.engine.begin() as connection:
            for (version, student, outcome), (calls, seconds) in sorted(tallies.items()):
                adding = self._insertion(TALLIES).values(
                    version=version, student=student, outcome=outcome, calls=calls, seconds=seconds
                )
                connection.execute(
                    adding.on_conflict_do_update(
                        index_elements=[TALLIES.c.version, TALLIES.c.student, TALLIES.c.outcome],
                        set_={
                            "calls": TALLIES.c.calls + adding.excluded.calls,
                            "seconds": TALLIES.c.seconds + adding.excluded.seconds,
                        },
                    )
                )

    def tallies(self) -> dict[tuple[str, str, str], tuple[int, float]]:
        """All of them."""
        with self._reading() as connection:
            return {
                (row.version, row.student, row.outcome): (row.calls, row.seconds)
                for row in connection.execute(select(TALLIES))
            }

    def draw(self, audit: str, version: str, student: str, probability: float, least: float) -> None:
        """An audit, before the LLM is asked. Once more is no fault: a database may go away as it commits."""
        row = {
            "id": audit,
            "version": version,
            "student": student,
            "drawn": time.time(),
            "probability": probability,
            "least": least,
        }
        with self.engine.begin() as connection:
            connection.execute(self._insertion(AUDITS).values(**row).on_conflict_do_nothing())

    def unsettled(self, before: float) -> list[Any]:
        """Audits drawn earlier than `before` of which nothing is known: rows of AUDITS."""
        late = and_(AUDITS.c.outcome.is_(None), AUDITS.c.drawn < before)
        with self._reading() as connection:
            return list(connection.execute(select(AUDITS).where(late).order_by(AUDITS.c.drawn).limit(500)))

    def answered_audits(self) -> list[Any]:
        """Audits of which nothing is known though the LLM's answer is stored: rows of AUDITS."""
        left = and_(AUDITS.c.outcome.is_(None), AUDITS.c.id.in_(select(CALLS.c.id)))
        with self._reading() as connection:
            return list(connection.execute(select(AUDITS).where(left).order_by(AUDITS.c.drawn).limit(500)))

    def audit_outcomes(self, version: str | None = None) -> dict[tuple[str, str], int]:
        """How many audits, of all versions or of one, by (student, outcome); 'open' where it isn't known."""
        outcome = func.coalesce(AUDITS.c.outcome, "open")
        asking = select(AUDITS.c.student, outcome, func.count()).group_by(AUDITS.c.student, outcome)
        if version is not None:
            asking = asking.where(AUDITS.c.version == version)
        with self._reading() as connection:
            return {(student, found): count for student, found, count in connection.execute(asking)}

    def begin_training(self, version: str, calls: int, owner: str, seconds: float) -> bool:
        """False where another trains this version. `owner` has it for `seconds`, then anybody."""
        now = time.time()
        row = {"calls": calls, "began": now, "owner": owner, "until": now + seconds, "outcome": UNDER_WAY}
        with self.engine.begin() as connection:
            inserting = self._insertion(TRAININGS).values(version=version, **row)
            if connection.execute(inserting.on_conflict_do_nothing().returning(TRAININGS.c.version)).all():
                return True
            free = and_(TRAININGS.c.version == version, TRAININGS.c.until < now)
            return connection.execute(update(TRAININGS).where(free).values(**row)).rowcount == 1

    def keep_training(self, version: str, owner: str, seconds: float) -> None:
        """It still runs."""
        self._training(version, owner, {"until": time.time() + seconds})

    def end_training(self, version: str, owner: str, outcome: str, *, is_undone: bool = False) -> None:
        """It is over; with `is_undone` it is as if no training had been."""
        undone = {"calls": 0, "began": 0.0} if is_undone else {}
        self._training(version, owner, {"until": 0.0, "outcome": outcome, **undone})

    def _training(self, version: str, owner: str, row: dict[str, Any]) -> None:
        mine = and_(TRAININGS.c.version == version, TRAININGS.c.owner == owner)
        with self.engine.begin() as connection:
            connection.execute(update(TRAININGS).where(mine).values(**row))

    def trainings(self) -> dict[str, Any]:
        """The last one of each version: rows of TRAININGS."""
        with self._reading() as connection:
            return {row.version: row for row in connection.execute(select(TRAININGS))}

    def call_counts(self, least: int) -> dict[str, int]:
        """Recorded calls of the versions that have so many, or were merged with others; without those that
        were asked again.
        """
        count = func.count()
        with self._reading() as connection:
            is_merged = CALLS.c.version.in_(select(MERGED.c.version)) if _has_merged(connection) else false()
            wanted = or_(count >= least, is_merged)
            asking = select(CALLS.c.version, count).where(CALLS.c.source != AGAIN)
            asking = asking.group_by(CALLS.c.version).having(wanted)
            return {row[0]: row[1] for row in connection.execute(asking)}

    def merged(self) -> dict[str, str]:
        """Of the versions that count as one with others: the version that names them together."""
        with self._reading() as connection:
            if not _has_merged(connection):
                return {}
            return {row.version: row.into for row in connection.execute(select(MERGED))}

    def calls_since(self, version: str, began: float) -> int:
        """Those of a version that began later, in seconds since 1970."""
        later = and_(CALLS.c.version == version, CALLS.c.began > began, CALLS.c.source != AGAIN)
        with self._reading() as connection:
            return connection.execute(select(func.count()).select_from(CALLS).where(later)).scalar_one()

    def means(self) -> dict[str, CallMeans]:
        """Of each version's recorded calls; of merged versions, which one student answers, of all of theirs.
        The seconds are those that clients waited: calls of ours wait for a busy LLM, and ask it again.
        """
        into = self.merged()
        name: ColumnElement[str] = CALLS.c.version
        calls: FromClause = CALLS
        if into:
            name = func.coalesce(MERGED.c.into, CALLS.c.version)
            calls = CALLS.outerjoin(MERGED, CALLS.c.version == MERGED.c.version)
        asking = (
            select(
                name,
                func.avg(case((CALLS.c.source.not_in((AGAIN, LABELLED)), CALLS.c.seconds))),
                func.avg(CALLS.c.input_tokens),
                func.avg(CALLS.c.output_tokens),
            )
            .select_from(calls)
            .group_by(name)
        )
        with self._reading() as connection:
            found = {
                row[0]: CallMeans(*(None if each is None else float(each) for each in row[1:]))
                for row in connection.execute(asking)
            }
        return found | {version: found[target] for version, target in into.items() if target in found}

    def _insertion(self, table: Table) -> Any:
        from sqlalchemy.dialects import postgresql, sqlite

        return sqlite.insert(table) if is_sqlite(self.engine) else postgresql.insert(table)


def _has_merged(connection: Connection) -> bool:
    return inspect(connection).has_table(MERGED.name)


class AgreementPoint(NamedTuple):
    """After `compared` comparisons, of which `differing` differed, the share that differs was `rate`, and
    lay between `low` and `high`. `at`: seconds since 1970.
    """

    compared: int
    at: float
    differing: float
    rate: float
    low: float
    high: float


def save_point_if_due(connection: Connection, student: str, audits: Audits) -> None:
    """If it is due; `connection` is in the transaction that changes the evidence."""
    last = connection.execute(
        select(func.coalesce(func.max(AGREEMENT.c.compared), 0)).where(AGREEMENT.c.student == student)
    ).scalar_one()
    if audits.count - last < max(_FEWEST, last // _SHARE):
        return
    low, high = audits.interval()
    point = AgreementPoint(audits.count, time.time(), audits.disagreements(), audits.rate(), low, high)
    connection.execute(AGREEMENT.insert().values(student=student, **point._asdict()))


def read_agreement_points(store: Store) -> dict[str, list[AgreementPoint]]:
    """By student, the first one first."""
    asking = select(AGREEMENT).order_by(AGREEMENT.c.student, AGREEMENT.c.compared)
    found: dict[str, list[AgreementPoint]] = {}
    with store.engine.connect().execution_options(**READING) as connection:
        for student, *rest in connection.execute(asking):
            found.setdefault(student, []).append(AgreementPoint(*rest))
    return found


def save_findings(store: Store, student: str, version: str, found: dict[str, Any]) -> None:
    """What a training found of a version; the same student trained again takes the former's place."""
    row = {"student": student, "version": version, "at": time.time(), "found": orjson.dumps(found).decode()}
    with store.engine.begin() as connection:
        connection.execute(delete(LEARNED).where(LEARNED.c.student == student))
        connection.execute(LEARNED.insert().values(**row))


def read_findings(store: Store) -> dict[str, dict[str, Any]]:
    """Of each version what its latest training found, with the student's id and the time. One of merged
    versions is of each of them.
    """
    latest: dict[str, dict[str, Any]] = {}
    with store.engine.connect().execution_options(**READING) as connection:
        for row in connection.execute(select(LEARNED).order_by(LEARNED.c.at)):
            found = {"student": row.student, "at": row.at, **orjson.loads(row.found)}
            for version in (row.version, *found.pop("versions", ())):
                latest[version] = found
    return latest

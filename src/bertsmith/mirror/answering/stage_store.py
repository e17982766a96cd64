"""Stages, students and their evidence in the database of a store. Each change is one transaction that checks
the current state first: of two replicas that make the same change, one succeeds.

The course of a student's agreement is stored as points of its confidence sequence, one whenever a fiftieth
more comparisons have come in: some hundreds of points, however long a student serves. Read `StageStore`
first.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
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
    text,
    update,
)

from bertsmith.errors import InputError, did_you_mean
from bertsmith.metrics.guarantees.audit import Audits
from bertsmith.mirror.answering.shadow_proof import ShadowProof
from bertsmith.mirror.answering.stages import (
    LLM_CHANGED,
    VOID,
    Evidence,
    EvidenceBatch,
    Stage,
    StudentComparison,
    StudentRecord,
    empty_evidence,
    read_evidence_row,
)
from bertsmith.mirror.call import AGAIN, OWN_SOURCES
from bertsmith.mirror.database import READING, is_sqlite
from bertsmith.mirror.identity import AnswererChange, find_answerer_change
from bertsmith.mirror.store import Store
from bertsmith.mirror.tables import (
    AGREEMENT,
    AUDITS,
    CALLS,
    CHANGES,
    EVIDENCE,
    FORECASTS,
    LEARNED,
    MERGED,
    STAGES,
    STUDENTS,
    TALLIES,
    TRAININGS,
    VERSIONS,
)

Tallies = Mapping[tuple[str, str, str], tuple[int, float]]  # (version, student, outcome) → calls, seconds

UNDER_WAY = "under way"  # the outcome of a training that hasn't ended
_FEWEST = 10  # comparisons between two points
_BLIND_LENGTH = 16  # hexadecimal digits
_SHARE = 50  # a point after this fraction (1/50) more comparisons


class VersionFacts(NamedTuple):
    """What distinguishes a version from the others of its site; `began` is in seconds since 1970."""

    site: str
    model: str
    schema: Any
    began: float


class StageChange(NamedTuple):
    """One change of a stage: when (seconds since 1970), from and to which mode, by whom and why."""

    version: str
    revision: int
    changed: float
    mode_before: str
    mode: str
    student: str
    by: str
    why: str


class CallMeans(NamedTuple):
    """Means over calls; None where no call has the value."""

    seconds: float | None
    input_tokens: float | None
    output_tokens: float | None


class StageStore:
    """Reads and changes stages, students, evidence, counts, audits and trainings in a store's database."""

    def __init__(self, store: Store) -> None:
        self.store, self.engine = store, store.engine

    def _reading(self) -> Connection:
        return self.engine.connect().execution_options(**READING)

    def versions(self, ids: Iterable[str]) -> dict[str, VersionFacts]:
        """The facts of the versions with these ids; unknown ids are left out."""
        columns = VERSIONS.c.id, VERSIONS.c.site, VERSIONS.c.model, VERSIONS.c.schema, VERSIONS.c.began
        query = select(*columns).where(VERSIONS.c.id.in_(sorted(ids)))
        with self._reading() as connection:
            return {
                row.id: VersionFacts(row.site, row.model, orjson.loads(row.schema), row.began)
                for row in connection.execute(query)
            }

    def stages(self) -> dict[str, Stage]:
        """The stage of every recorded version; one that never changed is in mode record."""
        stages = self.changed_stages()
        with self._reading() as connection:
            for row in connection.execute(select(VERSIONS.c.id, VERSIONS.c.site)):
                stages.setdefault(row.id, Stage(row.id, row.site))
        return stages

    def answerer_changes(self) -> dict[str, AnswererChange]:
        """By version, since when another model answers the application's calls; most have no such change."""
        own = CALLS.c.source.not_in(OWN_SOURCES)
        columns = CALLS.c.version, CALLS.c.began, CALLS.c.answer_model
        several = (
            select(CALLS.c.version).where(own).group_by(CALLS.c.version)
            .having(func.min(CALLS.c.answer_model) != func.max(CALLS.c.answer_model))
        )  # fmt: skip
        query = select(*columns).where(own, CALLS.c.version.in_(several)).order_by(CALLS.c.began, CALLS.c.id)
        answers: dict[str, list[tuple[float, str]]] = {}
        with self._reading() as connection:
            for version, began, model in connection.execute(query):
                answers.setdefault(version, []).append((began, model))
        changes = {version: find_answerer_change(of_version) for version, of_version in answers.items()}
        return {version: change for version, change in changes.items() if change is not None}

    def find(self, name: str, among: Collection[str] = ()) -> Stage:
        """The stage of a version, or of a site where only one of its versions has a student, or is one of
        `among`. Raises InputError where there is none or several.
        """
        stages = self.stages()
        if name in stages:
            return stages[name]
        of_site = [stage for stage in stages.values() if stage.site == name]
        matches = [stage for stage in of_site if stage.version in among] or of_site
        matches = [stage for stage in matches if stage.student or stage.candidate] or matches
        if len(matches) == 1:
            return matches[0]
        if not matches:
            names = {word for stage in stages.values() for word in (stage.site, stage.version)}
            raise InputError(
                f"There is no place in your application and no version {name!r} in the store."
                f"{did_you_mean(name, sorted(names))} `bertsmith mirror status` lists them."
            )
        versions = ", ".join(sorted(stage.version for stage in matches))
        raise InputError(f"The place {name} has {len(matches)} versions. Name one: {versions}.")

    def changed_stages(self) -> dict[str, Stage]:
        """The stages that were ever changed: of the versions that have or had a student."""
        with self._reading() as connection:
            rows = connection.execute(select(STAGES))
            return {row.version: Stage(**{**row._mapping, "is_held": bool(row.is_held)}) for row in rows}

    def change(self, before: Stage, after: Stage, by: str, why: str) -> bool:
        """Stores a change of a stage and its reason. False where the stage is no longer `before`, because
        somebody else has changed it: then nothing is stored.
        """
        now = time.time()
        row = {
            "site": after.site,
            "mode": after.mode,
            "share": after.share,
            "student": after.student,
            "former": after.former,
            # As candidate and student at once it would be compared twice.
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
            fresh = {after.student}
            if after.candidate != before.candidate:  # it may have served before, and is compared anew
                fresh.add(after.candidate)
            counted_anew = update(EVIDENCE).where(EVIDENCE.c.student.in_(sorted(fresh)))
            connection.execute(counted_anew.values(in_stage=0))
            if after.candidate != before.candidate:  # both are compared on the same calls from now on
                connection.execute(counted_anew.values(sure=0.0, seen=0.0))
        return True

    def changes(self) -> list[StageChange]:
        """All changes of all stages, the oldest first."""
        with self._reading() as connection:
            rows = connection.execute(select(CHANGES).order_by(CHANGES.c.changed, CHANGES.c.revision))
            return [StageChange(*row) for row in rows]

    def llm_changes(self) -> dict[str, float]:
        """By version, when it was last found that the LLM answers otherwise than before, in seconds since
        1970.
        """
        own = and_(CHANGES.c.by == "evidence", CHANGES.c.why.startswith(LLM_CHANGED))
        query = select(CHANGES.c.version, func.max(CHANGES.c.changed)).where(own).group_by(CHANGES.c.version)
        with self._reading() as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def add_student(self, student: StudentRecord) -> bool:
        """Stores a student, and begins its proof if it has a plan. False where its id is known: then only its
        folder is updated.
        """
        row = {column.name: getattr(student, column.name) for column in STUDENTS.columns}
        row["added"] = student.added or time.time()
        inserting = self._insertion(STUDENTS).values(**row).on_conflict_do_nothing()
        with self.engine.begin() as connection:
            number = 0 if student.plan is None else self._next_proof(connection, student.version)
            is_new = bool(connection.execute(inserting.returning(STUDENTS.c.id)).all())
            if not is_new:
                mine = STUDENTS.c.id == student.id
                connection.execute(update(STUDENTS).where(mine).values(folder=student.folder))
            elif student.plan is not None:
                evidence = empty_evidence(student.epsilon, student.delta)
                begun = replace(evidence, proof=ShadowProof(student.plan, number)).row()
                connection.execute(EVIDENCE.insert().values(student=student.id, **begun))
        return is_new

    def _next_proof(self, connection: Connection, version: str) -> int:
        """The number of the version's next proof. Nobody else takes it until the transaction ends."""
        if not is_sqlite(self.engine):
            connection.execute(text(f"LOCK TABLE {STUDENTS.name} IN SHARE ROW EXCLUSIVE MODE"))
        proofs = select(EVIDENCE.c.proof).join(STUDENTS, STUDENTS.c.id == EVIDENCE.c.student)
        of_version = and_(STUDENTS.c.version == version, EVIDENCE.c.proof.is_not(None))
        numbers = [orjson.loads(row.proof)["number"] for row in connection.execute(proofs.where(of_version))]
        return max(numbers, default=0) + 1

    def students(self) -> dict[str, StudentRecord]:
        """All students that were ever added, by id."""
        with self._reading() as connection:
            return {row.id: StudentRecord(*row) for row in connection.execute(select(STUDENTS))}

    def proven_thresholds(self, students: Iterable[str]) -> dict[str, float | None]:
        """Of those of the students whose proof grows in shadow, the laxest threshold proven so far."""
        grown = and_(EVIDENCE.c.student.in_(sorted(students)), EVIDENCE.c.proof.is_not(None))
        query = select(EVIDENCE.c.student, EVIDENCE.c.proof).where(grown)
        with self._reading() as connection:
            return {
                row.student: ShadowProof.from_json(orjson.loads(row.proof)).threshold
                for row in connection.execute(query)
            }

    def fold(self, student: StudentRecord, batch: EvidenceBatch) -> Evidence:
        """Adds a batch to the student's evidence, under a lock on its row, and returns the sum. An audit
        counts once, a void one not at all. Where the student has a proof, the batch counts once, and drift
        begins a new proof.
        """
        with self.engine.begin() as connection:
            first = empty_evidence(student.epsilon, student.delta).row()
            inserting = self._insertion(EVIDENCE).values(student=student.id, **first)
            connection.execute(inserting.on_conflict_do_nothing())
            mine = EVIDENCE.c.student == student.id
            row = connection.execute(select(EVIDENCE).where(mine).with_for_update()).one()
            before = read_evidence_row(row)
            if before.proof is not None and before.proof.has_batch(batch.id):
                return before
            counted = list[StudentComparison]()
            for comparison in batch.comparisons:
                is_open = and_(AUDITS.c.id == comparison.audit, AUDITS.c.outcome.is_(None))
                settling = update(AUDITS).where(is_open).values(outcome=comparison.outcome)
                if comparison.audit and connection.execute(settling).rowcount != 1:
                    continue
                if comparison.outcome != VOID:
                    counted.append(comparison)
            calls = [replace(call, person=self._blind(student.id, call.person)) for call in batch.calls]
            evidence = before.after(counted, batch.confidences, calls)
            if evidence.proof is not None and evidence.drift is not None and evidence.drift.alarm:
                evidence = evidence.after_drift(self._next_proof(connection, student.version))
            connection.execute(update(EVIDENCE).where(mine).values(**evidence.row()))
            if counted:
                save_point_if_due(connection, student.id, evidence.audits)
        return evidence

    def _blind(self, student: str, person: str) -> str:
        """A name for the person that tells nothing, and is another one for each student."""
        return self.store.fingerprint(f"{student} {person}")[:_BLIND_LENGTH] if person else ""

    def evidence(self) -> dict[str, Evidence]:
        """The evidence by student, for the students that have any."""
        with self._reading() as connection:
            return {row.student: read_evidence_row(row) for row in connection.execute(select(EVIDENCE))}

    def tally(self, tallies: Tallies) -> None:
        """Adds counts and seconds to the stored ones, in one transaction."""
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
        """All stored counts: (version, student, outcome) → (calls, seconds)."""
        with self._reading() as connection:
            return {
                (row.version, row.student, row.outcome): (row.calls, row.seconds)
                for row in connection.execute(select(TALLIES))
            }

    def draw(self, audit: str, version: str, student: str, probability: float, least: float) -> None:
        """Stores an audit before the LLM is asked. Idempotent: a database may fail while it commits."""
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
        """Open audits drawn earlier than `before` (seconds since 1970): rows of AUDITS, at most 500."""
        late = and_(AUDITS.c.outcome.is_(None), AUDITS.c.drawn < before)
        with self._reading() as connection:
            return list(connection.execute(select(AUDITS).where(late).order_by(AUDITS.c.drawn).limit(500)))

    def answered_audits(self) -> list[Any]:
        """Open audits although the LLM's answer is stored: rows of AUDITS, at most 500."""
        left = and_(AUDITS.c.outcome.is_(None), AUDITS.c.id.in_(select(CALLS.c.id)))
        with self._reading() as connection:
            return list(connection.execute(select(AUDITS).where(left).order_by(AUDITS.c.drawn).limit(500)))

    def audit_outcomes(self, version: str | None = None) -> dict[tuple[str, str], int]:
        """The number of audits, of all versions or of one, by (student, outcome); 'open': not settled."""
        outcome = func.coalesce(AUDITS.c.outcome, "open")
        query = select(AUDITS.c.student, outcome, func.count()).group_by(AUDITS.c.student, outcome)
        if version is not None:
            query = query.where(AUDITS.c.version == version)
        with self._reading() as connection:
            return {(student, result): count for student, result, count in connection.execute(query)}

    def begin_training(self, version: str, calls: int, owner: str, seconds: float) -> bool:
        """Reserves a version's training for `owner` for `seconds`. False where another owner has it."""
        now = time.time()
        row = {"calls": calls, "began": now, "owner": owner, "until": now + seconds, "outcome": UNDER_WAY}
        with self.engine.begin() as connection:
            inserting = self._insertion(TRAININGS).values(version=version, **row)
            if connection.execute(inserting.on_conflict_do_nothing().returning(TRAININGS.c.version)).all():
                return True
            free = and_(TRAININGS.c.version == version, TRAININGS.c.until < now)
            return connection.execute(update(TRAININGS).where(free).values(**row)).rowcount == 1

    def keep_training(self, version: str, owner: str, seconds: float) -> None:
        """Extends the owner's reservation of a running training to `seconds` from now."""
        self._update_training(version, owner, {"until": time.time() + seconds})

    def end_training(self, version: str, owner: str, outcome: str, *, is_undone: bool = False) -> None:
        """Stores how a training ended. With `is_undone` it doesn't count as a training."""
        undone = {"calls": 0, "began": 0.0} if is_undone else {}
        self._update_training(version, owner, {"until": 0.0, "outcome": outcome, **undone})

    def _update_training(self, version: str, owner: str, row: dict[str, Any]) -> None:
        mine = and_(TRAININGS.c.version == version, TRAININGS.c.owner == owner)
        with self.engine.begin() as connection:
            connection.execute(update(TRAININGS).where(mine).values(**row))

    def trainings(self) -> dict[str, Any]:
        """The last training of each version: rows of TRAININGS."""
        with self._reading() as connection:
            return {row.version: row for row in connection.execute(select(TRAININGS))}

    def call_counts(self, least: int) -> dict[str, int]:
        """The number of recorded calls of each version that has at least so many or was merged, without calls
        that were asked again.
        """
        count = func.count()
        with self._reading() as connection:
            is_merged = CALLS.c.version.in_(select(MERGED.c.version)) if _has_merged(connection) else false()
            query = select(CALLS.c.version, count).where(CALLS.c.source != AGAIN)
            query = query.group_by(CALLS.c.version).having(or_(count >= least, is_merged))
            return {row[0]: row[1] for row in connection.execute(query)}

    def merged(self) -> dict[str, str]:
        """For each merged version, the version that stands for its group."""
        with self._reading() as connection:
            if not _has_merged(connection):
                return {}
            return {row.version: row.into for row in connection.execute(select(MERGED))}

    def calls_since(self, version: str, began: float) -> int:
        """The number of a version's calls later than `began` (seconds since 1970)."""
        later = and_(CALLS.c.version == version, CALLS.c.began > began, CALLS.c.source != AGAIN)
        with self._reading() as connection:
            return connection.execute(select(func.count()).select_from(CALLS).where(later)).scalar_one()

    def persons(self, versions: Iterable[str]) -> list[tuple[str, float]]:
        """For each recorded call of the versions, whom it is about (fingerprints; empty: nobody) and when it
        began, in the order of time.
        """
        columns = func.coalesce(CALLS.c.subject, ""), CALLS.c.began
        query = select(*columns).where(CALLS.c.version.in_(sorted(versions)), CALLS.c.source != AGAIN)
        with self._reading() as connection:
            return [(row[0], row[1]) for row in connection.execute(query.order_by(CALLS.c.began))]

    def means(self) -> dict[str, CallMeans]:
        """The means over each version's recorded calls; merged versions, which one student answers, share
        theirs. Seconds are only of clients' calls: our own calls wait for a busy LLM and retry.
        """
        into = self.merged()
        name: ColumnElement[str] = CALLS.c.version
        calls: FromClause = CALLS
        if into:
            name = func.coalesce(MERGED.c.into, CALLS.c.version)
            calls = CALLS.outerjoin(MERGED, CALLS.c.version == MERGED.c.version)
        query = (
            select(
                name,
                func.avg(case((CALLS.c.source.not_in(OWN_SOURCES), CALLS.c.seconds))),
                func.avg(CALLS.c.input_tokens),
                func.avg(CALLS.c.output_tokens),
            )
            .select_from(calls)
            .group_by(name)
        )
        with self._reading() as connection:
            means = {
                row[0]: CallMeans(*(None if mean is None else float(mean) for mean in row[1:]))
                for row in connection.execute(query)
            }
        return means | {version: means[target] for version, target in into.items() if target in means}

    def _insertion(self, table: Table) -> Any:
        from sqlalchemy.dialects import postgresql, sqlite

        return sqlite.insert(table) if is_sqlite(self.engine) else postgresql.insert(table)


def _has_merged(connection: Connection) -> bool:
    return inspect(connection).has_table(MERGED.name)


class AgreementPoint(NamedTuple):
    """A student's agreement after `compared` comparisons, of which `differing` differed: the share that
    differs was estimated as `rate`, between `low` and `high`. `at` is in seconds since 1970.
    """

    compared: int
    at: float
    differing: float
    rate: float
    low: float
    high: float


def save_point_if_due(connection: Connection, student: str, audits: Audits) -> None:
    """Stores a point when enough comparisons have come in since the last. `connection` is in the transaction
    that changes the evidence.
    """
    last = connection.execute(
        select(func.coalesce(func.max(AGREEMENT.c.compared), 0)).where(AGREEMENT.c.student == student)
    ).scalar_one()
    if audits.count - last < max(_FEWEST, last // _SHARE):
        return
    low, high = audits.interval()
    point = AgreementPoint(audits.count, time.time(), audits.disagreements(), audits.rate(), low, high)
    connection.execute(AGREEMENT.insert().values(student=student, **point._asdict()))


def read_agreement_points(store: Store) -> dict[str, list[AgreementPoint]]:
    """The points of each student, in the order of their comparisons."""
    query = select(AGREEMENT).order_by(AGREEMENT.c.student, AGREEMENT.c.compared)
    points: dict[str, list[AgreementPoint]] = {}
    with store.engine.connect().execution_options(**READING) as connection:
        for student, *values in connection.execute(query):
            points.setdefault(student, []).append(AgreementPoint(*values))
    return points


def begin_forecast(store: Store, version: str, calls: int, seconds: float) -> bool:
    """Reserves the forecast of a version by so many calls. False where one by as many is there, or another
    process began one within the last `seconds`.
    """
    now, row = time.time(), {"calls": calls, "at": time.time(), "found": None}
    with store.engine.begin() as connection:
        FORECASTS.create(connection, checkfirst=True)
        inserting = StageStore(store)._insertion(FORECASTS).values(version=version, **row)
        if connection.execute(inserting.on_conflict_do_nothing().returning(FORECASTS.c.version)).all():
            return True
        is_older = and_(FORECASTS.c.found.is_not(None), FORECASTS.c.calls < calls)
        is_left = and_(FORECASTS.c.found.is_(None), FORECASTS.c.at < now - seconds)
        free = and_(FORECASTS.c.version == version, or_(is_older, is_left))
        return connection.execute(update(FORECASTS).where(free).values(**row)).rowcount == 1


def withdraw_forecast(store: Store, version: str) -> None:
    """Removes the reservation of a forecast that isn't made after all."""
    unmade = and_(FORECASTS.c.version == version, FORECASTS.c.found.is_(None))
    with store.engine.begin() as connection:
        connection.execute(delete(FORECASTS).where(unmade))


def save_forecast(store: Store, version: str, calls: int, found: Mapping[str, Any]) -> None:
    """Stores what a student could answer, by so many calls of the version, in place of earlier forecasts."""
    row = {"calls": calls, "at": time.time(), "found": orjson.dumps(found).decode()}
    with store.engine.begin() as connection:
        FORECASTS.create(connection, checkfirst=True)
        inserting = StageStore(store)._insertion(FORECASTS).values(version=version, **row)
        connection.execute(inserting.on_conflict_do_update(index_elements=[FORECASTS.c.version], set_=row))


def read_forecasts(store: Store) -> dict[str, dict[str, Any]]:
    """By version its last forecast, with its number of `calls` and the time `at`; only these two while it is
    being made.
    """
    with store.engine.connect().execution_options(**READING) as connection:
        if not inspect(connection).has_table(FORECASTS.name):
            return {}
        return {
            row.version: {"calls": row.calls, "at": row.at, **orjson.loads(row.found or "{}")}
            for row in connection.execute(select(FORECASTS))
        }


def save_findings(store: Store, student: str, version: str, findings: dict[str, Any]) -> None:
    """Stores the findings of a version's training, in place of earlier ones of the same student."""
    row = {
        "student": student,
        "version": version,
        "at": time.time(),
        "found": orjson.dumps(findings).decode(),
    }
    with store.engine.begin() as connection:
        connection.execute(delete(LEARNED).where(LEARNED.c.student == student))
        connection.execute(LEARNED.insert().values(**row))


def read_findings(store: Store) -> dict[str, dict[str, Any]]:
    """The findings of each version's latest training, with the student's id and the time. A training of
    merged versions is the latest of each of them.
    """
    latest: dict[str, dict[str, Any]] = {}
    with store.engine.connect().execution_options(**READING) as connection:
        for row in connection.execute(select(LEARNED).order_by(LEARNED.c.at)):
            findings = {"student": row.student, "at": row.at, **orjson.loads(row.found)}
            for version in (row.version, *findings.pop("versions", ())):
                latest[version] = findings
    return latest

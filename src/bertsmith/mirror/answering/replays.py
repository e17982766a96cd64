"""Replays: recorded inputs that are asked again, one beside each passing call, within a budget.

    planned in the store → prepared → a call passes → claimed → LLM asked → recorded as a call

The mirror has no key of its own on disk, so an input waits until a call of the version that it is to be asked
under has been answered by the LLM, and is asked with the headers and the parameters of that call
(`bertsmith.mirror.answering.audits`). Each is asked once: it is claimed in the store before, so that several
mirrors on one store share the work, and what a killed mirror had claimed stays without an answer. Read
`ReplayStore.plan` first, which takes any stored calls.
"""

import time
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from sqlalchemy import and_, case, func, inspect, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from bertsmith.mirror.call import REPLAYED, Call
from bertsmith.mirror.database import READING, is_sqlite
from bertsmith.mirror.identity import replayed_call_id
from bertsmith.mirror.store import Store
from bertsmith.mirror.tables import CALLS, REPLAYS, TRAININGS

PREPARED = 64  # questions of a version that are read before a call passes
ANSWERED = "answered"  # the outcome of a question whose answer is recorded
_DELETED = "deleted"  # … whose recorded call is gone
_LATER = 1_000_000  # places further back, where the LLM had no time


class ReplayQuestion(NamedTuple):
    """The input of a stored `call`, to be asked under `version`. The answer becomes the call `id`, of this
    `source`.
    """

    id: str
    version: str
    source: str
    call: Call


class ReplayCount(NamedTuple):
    """Of one version: inputs that are to be asked again in all, those asked, and those answered."""

    planned: int
    asked: int
    answered: int

    @property
    def is_open(self) -> bool:
        """Whether some are still to be asked."""
        return self.asked < self.planned


class ReplayStore:
    """The table of replays in a store, which is created with the first plan."""

    def __init__(self, store: Store) -> None:
        self.store, self.engine = store, store.engine
        self._has_table = False

    @property
    def has_table(self) -> bool:
        """Whether anything was ever planned."""
        if not self._has_table:
            with self.engine.connect().execution_options(**READING) as connection:
                self._has_table = inspect(connection).has_table(REPLAYS.name)
        return self._has_table

    def plan(
        self, version: str, calls: Iterable[Call], source: str = REPLAYED, *, is_first: bool = False
    ) -> int:
        """Plans to ask the inputs of stored `calls` once more under `version`, in this order and after those
        planned before; returns how many are new. An input is asked only beside a passing call of that
        version, with its system prompt, model and parameters. The answers are stored as calls of this
        `source`: REPLAYED ones count like the traffic, so their inputs must be drawn like it; AGAIN ones tell
        how often the LLM contradicts itself.

        With `is_first` nothing is planned where something was before, or a training of the version has begun.
        """
        insert = (sqlite if is_sqlite(self.engine) else postgresql).insert(REPLAYS)
        with self.engine.begin() as connection:
            self.store.lock(connection)
            REPLAYS.create(connection, checkfirst=True)
            count, last = connection.execute(
                select(func.count(), func.coalesce(func.max(REPLAYS.c.place % _LATER), -1)).where(
                    REPLAYS.c.version == version
                )
            ).one()
            trained = select(TRAININGS.c.version).where(TRAININGS.c.version == version)
            if is_first and (count or connection.execute(trained).first() is not None):
                return 0
            rows = [
                {
                    "id": replayed_call_id(call.id, version),
                    "version": version,
                    "source": source,
                    "recorded": call.id,
                    "place": last + number,
                    "asked": 0.0,
                }
                for number, call in enumerate(calls, 1)
            ]
            if not rows:
                return 0
            inserting = insert.on_conflict_do_nothing().returning(REPLAYS.c.id)
            return len(connection.execute(inserting, rows).all())

    def prepare(self, version: str, *, is_answered: bool) -> list[ReplayQuestion]:
        """The next questions of a version, with the recorded calls. Where a student answers its calls
        (`is_answered`), the replays that were to prove one are left out. What has an answer already, or is of
        a call that was deleted, is settled.
        """
        is_open = and_(REPLAYS.c.version == version, REPLAYS.c.asked == 0, REPLAYS.c.outcome.is_(None))
        query = select(REPLAYS).where(is_open).order_by(REPLAYS.c.place).limit(PREPARED)
        if is_answered:
            query = query.where(REPLAYS.c.source != REPLAYED)
        with self.engine.connect().execution_options(**READING) as connection:
            rows = list(connection.execute(query))
        known = self.store.calls_named([name for row in rows for name in (row.id, row.recorded)])
        questions = list[ReplayQuestion]()
        for row in rows:
            if row.id in known or row.recorded not in known:
                self.settle(row.id, ANSWERED if row.id in known else _DELETED)
                continue
            questions.append(ReplayQuestion(row.id, version, row.source, known[row.recorded]))
        return questions

    def claim(self, question: str) -> bool:
        """Whether the caller may ask it: nobody else has, and its recorded call is still stored."""
        is_open = and_(REPLAYS.c.id == question, REPLAYS.c.asked == 0, REPLAYS.c.outcome.is_(None))
        is_stored = REPLAYS.c.recorded.in_(select(CALLS.c.id))
        claiming = update(REPLAYS).where(is_open, is_stored).values(asked=time.time())
        with self.engine.begin() as connection:
            return connection.execute(claiming).rowcount == 1

    def settle(self, question: str, outcome: str) -> None:
        """Stores what came of a question."""
        self._set(question, {"outcome": outcome})

    def postpone(self, question: str, cause: str) -> None:
        """Gives a claimed question back, to be asked after all others, since the LLM gave no answer. The
        second time it is settled with the `cause`.
        """
        is_second = REPLAYS.c.place >= _LATER
        asked = case((is_second, REPLAYS.c.asked), else_=0.0)
        outcome = case((is_second, cause), else_=None)
        place = REPLAYS.c.place % _LATER + _LATER
        self._set(question, {"asked": asked, "outcome": outcome, "place": place})

    def _set(self, question: str, row: dict[str, Any]) -> None:
        with self.engine.begin() as connection:
            connection.execute(update(REPLAYS).where(REPLAYS.c.id == question).values(**row))

    def counts(self) -> dict[str, ReplayCount]:
        """How many questions there are of each version that has any."""
        if not self.has_table:
            return {}
        query = select(
            REPLAYS.c.version,
            func.count(),
            func.count().filter(or_(REPLAYS.c.asked > 0, REPLAYS.c.outcome.is_not(None))),
            func.count().filter(REPLAYS.c.outcome == ANSWERED),
        ).group_by(REPLAYS.c.version)
        with self.engine.connect().execution_options(**READING) as connection:
            return {version: ReplayCount(*counts) for version, *counts in connection.execute(query)}

    def recorded(self, versions: Iterable[str]) -> dict[str, str]:
        """The ids of the recorded calls whose inputs are, or are to be, asked again under one of the
        `versions`, by the id of the call with the answer.
        """
        if not self.has_table:
            return {}
        query = select(REPLAYS.c.id, REPLAYS.c.recorded).where(REPLAYS.c.version.in_(sorted(versions)))
        with self.engine.connect().execution_options(**READING) as connection:
            return {row.id: row.recorded for row in connection.execute(query)}

    def pairs(self, version: str) -> list[tuple[Call, Call]]:
        """The recorded calls that were asked again under `version`, each with the new answer, in the order of
        these.
        """
        recorded = self.recorded([version])
        answers = [call for call in self.store.calls(version) if call.id in recorded]
        former = self.store.calls_named([recorded[call.id] for call in answers])
        return [(former[recorded[call.id]], call) for call in answers if recorded[call.id] in former]


class ReplayQueue:
    """The prepared questions by version. The reconciler's thread fills it, others take from it."""

    def __init__(self) -> None:
        self.sites: frozenset[str] = frozenset()
        self._questions: dict[str, deque[ReplayQuestion]] = {}
        self._site_of = dict[str, str]()  # by version

    def fill(self, replays: ReplayStore, answered: Collection[str]) -> None:
        """Reads the next questions of the versions that have few waiting; one that was taken meanwhile can't
        be claimed twice. A student answers the calls of the `answered` versions.
        """
        questions: dict[str, deque[ReplayQuestion]] = {}
        for version, count in replays.counts().items():
            waiting = self._questions.get(version, deque())
            is_answered = version in answered
            if is_answered or len(waiting) < PREPARED / 2:
                waiting = deque(replays.prepare(version, is_answered=is_answered) if count.is_open else ())
                if waiting:
                    self._site_of[version] = waiting[0].call.site
            if waiting:
                questions[version] = waiting
        self._questions = questions
        self.sites = frozenset(self._site_of[version] for version in questions)

    def take(self, version: str) -> ReplayQuestion | None:
        """The next question of a version; None where there is none."""
        try:
            return self._questions[version].popleft()
        except (KeyError, IndexError):
            return None

"""How a student's agreement ran: a point of its confidence sequence now and then, and what a training found.

A point is kept whenever a fiftieth more comparisons have come in, so that there are some hundreds of them
however long a student serves.
"""

import time
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, delete, func, select

from bertsmith.metrics.guarantees.audit import Audits
from bertsmith.mirror.database import READING
from bertsmith.mirror.stage_tables import AGREEMENT, LEARNED
from bertsmith.mirror.store import Store

_FEWEST = 10  # comparisons between two points
_SHARE = 50  # of those so far: one in so many


class Point(NamedTuple):
    """After `compared` comparisons, of which `differing` differed, the share that differs was `rate`, and
    lay between `low` and `high`. `at`: seconds since 1970.
    """

    compared: int
    at: float
    differing: float
    rate: float
    low: float
    high: float


def keep_point(connection: Connection, student: str, audits: Audits) -> None:
    """If it is due; `connection` is in the transaction that changes the evidence."""
    last = connection.execute(
        select(func.coalesce(func.max(AGREEMENT.c.compared), 0)).where(AGREEMENT.c.student == student)
    ).scalar_one()
    if audits.count - last < max(_FEWEST, last // _SHARE):
        return
    low, high = audits.interval()
    point = Point(audits.count, time.time(), audits.disagreements(), audits.rate(), low, high)
    connection.execute(AGREEMENT.insert().values(student=student, **point._asdict()))


def points(store: Store) -> dict[str, list[Point]]:
    """By student, the first one first."""
    asking = select(AGREEMENT).order_by(AGREEMENT.c.student, AGREEMENT.c.compared)
    found: dict[str, list[Point]] = {}
    with store.engine.connect().execution_options(**READING) as connection:
        for student, *rest in connection.execute(asking):
            found.setdefault(student, []).append(Point(*rest))
    return found


def keep_learned(store: Store, student: str, version: str, found: dict[str, Any]) -> None:
    """What a training found of a version; the same student trained again takes the former's place."""
    row = {"student": student, "version": version, "at": time.time(), "found": orjson.dumps(found).decode()}
    with store.engine.begin() as connection:
        connection.execute(delete(LEARNED).where(LEARNED.c.student == student))
        connection.execute(LEARNED.insert().values(**row))


def learned(store: Store) -> dict[str, dict[str, Any]]:
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

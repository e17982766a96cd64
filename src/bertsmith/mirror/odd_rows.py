"""What a store holds that Bertsmith doesn't write: looked for where a reading failed, to say what it is.

SQLite keeps any value in any column, so that a store which was edited by hand opens like any other.
"""

import math
from typing import Any

import orjson
from sqlalchemy import Column, Engine, Float, Integer, Table, inspect

from bertsmith.mirror.database import READING
from bertsmith.mirror.tables import METADATA

_LARGEST = 2.5e11  # seconds: the last year that a date can have is 9999
_JSON: dict[tuple[str, str], type] = {
    ("mirror_calls", "answer"): object,
    ("mirror_calls", "logprobs"): list,
    ("mirror_calls", "messages"): list,
    ("mirror_calls", "probabilities"): dict,
    ("mirror_evidence", "audits"): dict,
    ("mirror_evidence", "drift"): dict,
    ("mirror_learned", "found"): dict,
    ("mirror_versions", "parameters"): dict,
    ("mirror_versions", "schema"): dict,
    ("mirror_versions", "system"): list,
}
_OF_MESSAGES = ("messages", "system")


def odd_row(engine: Engine) -> str:
    """Where the first of them stands, and what was expected there; empty where there is none."""
    with engine.connect().execution_options(**READING) as connection:
        there = set(inspect(connection).get_table_names())
        for table in METADATA.sorted_tables:
            if table.name not in there:
                continue
            for row in connection.exec_driver_sql(f"SELECT * FROM {table.name}").mappings():
                for column in table.columns:
                    if column.name in row and (expected := _expected(table, column, row[column.name])):
                        key = next(iter(table.primary_key.columns)).name
                        name = str(row[key])[:60]
                        return f"{table.name}, {key} {name!r}: {column.name} is not {expected}"
    return ""


def _expected(table: Table, column: Column[Any], value: Any) -> str:
    """What should stand there; empty where it does."""
    if value is None and column.nullable:
        return ""
    if isinstance(column.type, Float):
        is_number = isinstance(value, int | float) and math.isfinite(value) and abs(value) < _LARGEST
        return "" if is_number else f"a number below {_LARGEST:g}"
    if isinstance(column.type, Integer):
        return "" if isinstance(value, int) else "a whole number"
    if not isinstance(value, str):
        return "a text"
    kind = _JSON.get((table.name, column.name))
    return "" if kind is None else _expected_json(column.name, value, kind)


def _expected_json(column: str, written: str, kind: type) -> str:
    try:
        value = orjson.loads(written)
    except ValueError:
        return "JSON"
    if kind is not object and type(value) is not kind:
        return "a JSON object" if kind is dict else "a JSON array"
    if column in _OF_MESSAGES and not all(map(_is_message, value)):
        return "a JSON array of messages, each [role, text, …]"
    return ""


def _is_message(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)

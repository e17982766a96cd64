"""The mirror's counting done a second time, by docs/mirror.md alone: from what clients saw, what the LLM was
asked and said, and the rows of the SQLite file. Nothing of Bertsmith is imported.

    a client's call        the LLM gave a value         a row
                           a student gave one           `answered`
                           neither                      `not mirrored`, for one reason
    an audit               the LLM gave a value         a row; `agrees` or `differs`
                           it refused this very call    `not mirrored`; `failed`
                           anything else                `void` alone
    a line of a log                                     a new row, a known one, or `not mirrored`
    a command's question   the LLM gave a value         a row; paid for
                           it didn't                    `Nothing to learn from`; paid for

`relayed` is another view: what a student left to the LLM, whatever came of it.
"""

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

# Answers with status 200 that hold no value, in the words of the three APIs.
_UNUSABLE = {
    "refusal": re.compile(rb'"refusal": ?"|"type": ?"refusal"|"stop_reason": ?"refusal"'),
    "truncated": re.compile(rb'"finish_reason": ?"length"|max_output_tokens"|"stop_reason": ?"max_tokens"'),
}
_ID = re.compile(rb'"id": ?"((?:chatcmpl|resp|msg)_\w+)"')


@dataclass(frozen=True)
class Reply:
    """What an LLM or a student said: all of `body`, unless it `is_cut`."""

    status: int
    body: bytes
    is_cut: bool = False

    @property
    def id(self) -> str:
        found = _ID.search(self.body)
        return found[1].decode() if found else ""

    @property
    def unusable(self) -> str:
        """Why nothing can be learned from it; empty where something can."""
        if self.status != 200:
            return f"status-{self.status}"
        if self.is_cut:
            return "cut"
        return next((reason for reason, words in _UNUSABLE.items() if words.search(self.body)), "")

    @property
    def is_refused(self) -> bool:
        """This very call, now and later: another status, such as 499, says nothing of it."""
        return bool(self.unusable) and self.status in (200, 400)

    @property
    def value(self) -> Any:
        """The object in it, whatever the API, whole or as a stream."""
        lines = [self.body] if self.body.startswith(b"{") else self.body.split(b"\n")
        objects = (json.loads(line[line.index(b"{") :]) for line in lines if b"{" in line)
        text = "".join(each for value in objects for each in _texts(value))
        return json.JSONDecoder().raw_decode(text[text.index("{") :])[0]


def _texts(value: Any, key: str = "") -> Iterator[str]:
    """What stands in an answer or an event as text or as a piece of it."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _texts(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, key)
    elif isinstance(value, str) and key in ("content", "text", "delta"):
        yield value


@dataclass(frozen=True)
class ClientCall:
    """As its client has it; `header` is x-bertsmith. `reply` is None where the client went away before it."""

    number: str
    protocol: str
    path: str
    request: dict[str, Any]
    began: float
    header: str = ""
    reply: Reply | None = None

    @property
    def by(self) -> str:
        """Who answered: recorded, relayed, answered, passthrough."""
        return self.header.partition(";")[0]

    def said(self, name: str) -> str:
        """A part of the header: site, student, reason."""
        return dict(part.split("=") for part in self.header.split("; ")[1:]).get(name, "")

    @property
    def not_mirrored(self) -> str:
        """Why; empty where it is recorded or a student answered."""
        if self.reply is None:
            return "client-gone"
        if self.by == "passthrough":
            return self.said("reason")
        return "" if self.by == "answered" else self.reply.unusable


@dataclass
class Journal:
    """All that happened outside of the mirror. `asked` has what the LLM replied, by the number of the
    client's call, '' for a command's question; `imported` the ids of the calls that logs added, and
    `passed` what they had beside them.
    """

    calls: list[ClientCall] = field(default_factory=list)
    asked: list[tuple[str, Reply]] = field(default_factory=list)
    imported: dict[str, Any] = field(default_factory=dict)
    passed: Counter[tuple[str, str]] = field(default_factory=Counter)


class SecondCount:
    """Of a journal and a store at one moment."""

    def __init__(self, journal: Journal, store: Path) -> None:
        self.journal = journal
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            tables = {name for (name,) in connection.execute("select name from sqlite_master")}

            def read(table: str) -> list[Any]:
                """One that nobody has needed yet has no rows."""
                return list(connection.execute(f"select * from {table}")) if table in tables else []

            self.rows, self.uses = read("mirror_calls"), read("mirror_uses")
            self.site_of = {row["id"]: row["site"] for row in read("mirror_versions")}
            self.merged_into = {row["version"]: row["into"] for row in read("mirror_merged")}

    @cached_property
    def audits(self) -> list[tuple[ClientCall, Reply]]:
        """Calls that a student answered and the LLM was asked about too, with what it replied at last."""
        last = dict(self.journal.asked)
        answered = [call for call in self.journal.calls if call.by == "answered"]
        return [(call, last[call.number]) for call in answered if call.number in last]

    def recorded(self) -> dict[str, Any]:
        """The value of each row that has to be there, by the id of the LLM's answer."""
        relayed = [call.reply for call in self.journal.calls if call.by in ("recorded", "relayed")]
        audited = [last for _, last in self.audits]
        again = [reply for number, reply in self.journal.asked if not number]
        replies = [reply for reply in (*relayed, *audited, *again) if reply and not reply.unusable]
        return self.journal.imported | {reply.id: reply.value for reply in replies}

    def not_mirrored(self) -> dict[tuple[str, str], int]:
        """By protocol and reason: clients' calls, lines of logs, and audits that the LLM refused."""
        calls = [(call.protocol, call.not_mirrored) for call in self.journal.calls if call.not_mirrored]
        audits = [(call.protocol, last.unusable) for call, last in self.audits if last.is_refused]
        return dict(Counter(calls) + Counter(audits) + self.journal.passed)

    def audit_outcomes(self, site: str) -> Counter[str]:
        """By the client's own answer and the LLM's."""
        outcomes = Counter[str]()
        for call, last in self.audits:
            if call.said("site") == site:
                assert call.reply is not None
                if last.unusable:
                    outcomes["failed" if last.is_refused else "void"] += 1
                else:
                    outcomes["agrees" if call.reply.value == last.value else "differs"] += 1
        return outcomes

    def group(self, version: str) -> list[Any]:
        """Rows of the versions that count as one with this."""
        into = self.merged_into.get(version, version)
        return [row for row in self.rows if self.merged_into.get(row["version"], row["version"]) == into]

    def account(self, stage: dict[str, Any], million_in: float, million_out: float) -> dict[str, Any]:
        """What `status` says of a version with a student, at these prices."""
        site = stage["site"]
        served = [call for call in self.journal.calls if call.said("site") == site and call.said("student")]
        answered = sum(call.by == "answered" for call in served)
        outcomes, rows = self.audit_outcomes(site), self.group(stage["version"])
        tokens_in, tokens_out = (_mean(rows, name) for name in ("input_tokens", "output_tokens"))
        price = (tokens_in * million_in + tokens_out * million_out) / 1e6
        traffic = [row for row in rows if row["source"] not in ("again", "label")]
        return {
            "answered": answered,
            "relayed": len(served) - answered,
            "audits": dict(outcomes),
            "void": outcomes["void"],
            "calls avoided": answered - outcomes.total(),
            "call price": round(price, 6),
            "saved": round(price * answered, 6),
            "audits paid": round(price * outcomes.total(), 6),
            "LLM's seconds": round(_mean(traffic, "seconds"), 9),
        }

    def differences(self, status: dict[str, Any], million_in: float, million_out: float) -> dict[Any, Any]:
        """Each figure of `bertsmith mirror status --json`, and each row, that isn't ours: (ours, theirs)."""
        recorded = self.recorded()
        ours = {"calls": len(recorded), "sites": set(self.site_of.values())}
        ours |= _named("answer", recorded) | _named("not mirrored", self.not_mirrored())
        ours |= _named("calls of", Counter(row["version"] for row in self.rows))
        theirs = {
            "calls": status["calls"],
            "sites": {each["site"] for each in status["versions"] if each["calls"]},
        }
        theirs |= _named("answer", {row["response_id"]: json.loads(row["answer"]) for row in self.rows})
        passed = {(each["protocol"], each["reason"]): each["calls"] for each in status["not_mirrored"]}
        theirs |= _named("not mirrored", passed)
        theirs |= _named("calls of", {each["version"]: each["calls"] for each in status["versions"]})
        for found in status["answering"]:
            site, money = found["stage"]["site"], found["money"]
            ours |= _named(site, self.account(found["stage"], million_in, million_out))
            account = {
                "answered": found["answered"],
                "relayed": sum(found["relayed"].values()),
                "audits": found["audits"],
                "void": sum(found["void"].values()),
                "calls avoided": found["calls_avoided"],
                "call price": round(found["call_price"], 6),
                "saved": round(money["saved"], 6),
                "audits paid": round(money["audits"], 6),
                "LLM's seconds": round(found["llm_seconds"], 9),
            }
            theirs |= _named(site, account)
        names = ours.keys() | theirs.keys()
        return {
            each: (ours.get(each), theirs.get(each)) for each in names if ours.get(each) != theirs.get(each)
        }

    def training(self, version: str, training: str) -> dict[str, Any]:
        """What a training used the version's calls for; those asked again have no use."""
        use_of = {use["call"]: use["use"] for use in self.uses if use["training"] == training}
        proved = {u["call"] for u in self.uses if u["training"] != training and u["use"] == "calibration"}
        rows = [row for row in self.group(version) if row["source"] != "again"]
        texts: dict[str, set[str]] = {}
        for row in rows:
            if row["id"] in use_of:
                texts.setdefault(use_of[row["id"]], set()).add(row["messages"])
        counts = Counter(use_of[row["id"]] for row in rows if row["id"] in use_of)
        proving = [row for row in rows if use_of.get(row["id"]) == "calibration"]
        return {
            "calls": counts["train"] + counts["dev"],
            "texts": len(texts["train"] | texts["dev"]),
            "proving": len(proving),
            "proving twice": len({row["id"] for row in proving} & proved),
            "texts in both": len(texts["train"] & texts["dev"]),
            "without a use": sum(row["id"] not in use_of for row in rows),
        }


def _named(name: str, figures: Mapping[Any, Any]) -> dict[Any, Any]:
    return {(name, key): value for key, value in figures.items()}


def _mean(rows: Sequence[Any], name: str) -> float:
    values = [row[name] for row in rows if row[name] is not None]
    return sum(values) / len(values)

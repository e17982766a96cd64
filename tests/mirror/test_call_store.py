"""The store, in SQLite and in PostgreSQL: the same calls, each once, whole, and by two replicas at a time."""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import llm_answers
import pytest
from running_mirror import running_mirror
from scripted_upstream import Upstream
from sqlalchemy import inspect, update

from bertsmith.errors import InputError
from bertsmith.mirror.call import Call, ChatMessage, Completion, CompletionRequest
from bertsmith.mirror.database import mask_password
from bertsmith.mirror.exchange import make_call
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.store import Store
from bertsmith.mirror.tables import META, METADATA
from bertsmith.mirror.template import find_template

NOTHING = Redactor((), {})


def call_of(number: int, source: str = "relay", **more: Any) -> Call:
    """`more` replaces parts of what was asked."""
    given: dict[str, Any] = {
        "protocol": "openai-chat", "model": "m", "schema_name": "x", "schema": llm_answers.SCHEMA,
        "way": "json-schema", "parameters": {"temperature": 0}, "subjects": (f"customer-{number % 3}", "all"),
        "messages": (ChatMessage("system", ("Classify.",)),
                     ChatMessage("user", (f"text {number} \0 ü 🙂", "more"))),
    }  # fmt: skip
    answered = Completion(
        {"intent": "card", "n": number, "tags": ["a", None]}, "m-1", "stop", f"id-{number}", 11, 7,
        {"$.intent": [("card", 0.9), (True, 0.1)]}, [["tok\0", -0.5, [["other", -1.5]]]],
    )  # fmt: skip
    return make_call(
        CompletionRequest(**given | more), answered, NOTHING, source=source, began=float(number), seconds=0.5
    )


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    opened = Store(address)
    yield opened
    opened.close()


def test_calls_come_back_as_they_were(store: Store) -> None:
    given = [call_of(number) for number in range(20)]
    assert store.add(given) == 20
    (version,) = store.versions()
    found = list(store.calls(version.version))
    for before, after in zip(given, found, strict=True):
        assert after.request.subjects == tuple(map(store.fingerprint, before.request.subjects))
        assert after.completion == before.completion
        assert after.request.messages == before.request.messages
        left = {"request": after.request, "completion": after.completion}
        assert vars(after) == vars(before) | left
    assert (version.calls, version.began, version.ended) == (20, 0.0, 19.0)
    tags = [("$.tags[]", "null"), ("$.tags[]", "string")]
    assert sorted(version.fields) == [("$.intent", "string"), ("$.n", "integer"), *tags]


def test_a_call_that_is_stored_again_is_there_once(store: Store) -> None:
    given = [call_of(number) for number in range(5)]
    assert store.add(given) == 5
    assert store.add(given) == 0
    assert store.add([*given, call_of(5)]) == 1
    assert store.count() == 6


def test_an_import_adds_no_call_that_was_recorded_or_imported(store: Store) -> None:
    recorded = [call_of(number) for number in range(3)]
    store.add(recorded)
    assert store.add([call_of(number, "import") for number in range(5)]) == 2
    assert store.add([call_of(number, "import") for number in range(5)]) == 0
    assert store.add([call_of(0)]) == 1  # asked once more, and recorded: the same question twice
    assert store.count() == 6


def test_a_changed_prompt_schema_or_model_opens_a_version(store: Store) -> None:
    schema = {"type": "object", "properties": {"intent": {"enum": ["new"]}, "urgent": {"type": "boolean"}}}
    changes: list[dict[str, Any]] = [
        {}, {"model": "m2"}, {"schema": schema},
        {"messages": (ChatMessage("system", ("Other.",)), ChatMessage("user", ("x",)))},
    ]  # fmt: skip
    store.add([call_of(number, **change) for number, change in enumerate(changes)])
    versions = store.versions()
    assert len({each.version for each in versions}) == 4
    assert len({each.site for each in versions}) == 1
    store.add([call_of(9, schema_name="another"), call_of(10, protocol="anthropic")])
    assert len({each.site for each in store.versions()}) == 3


def test_a_site_begins_with_its_first_call_in_whatever_order_calls_come(store: Store) -> None:
    def site(name: str, number: int) -> Call:
        return call_of(number, schema_name=name, parameters={"temperature": number})

    store.add([site("a", 1), site("b", 2), site("a", 3)])
    one, two = store.versions()
    assert (one.schema_name, two.schema_name) == ("a", "b")
    assert [each.request.parameters for each in store.calls(one.version)] == 2 * [{"temperature": 1}]


def test_a_template_of_stored_calls_fits_calls_as_they_come(store: Store) -> None:
    """A store has the system's messages first, wherever they stood."""
    system, texts = (
        ChatMessage("system", ("Classify.",)),
        [f"{number}: {number * 'a'}" for number in range(30)],
    )
    given = [call_of(n, messages=(ChatMessage("user", (text,)), system)) for n, text in enumerate(texts)]
    store.add(given)
    template = find_template([each.request.messages for each in store.calls(given[0].version)])
    assert template is not None
    stored = [template.input_of(each.request) for each in store.calls(given[0].version)]
    assert [template.input_of(each.request) for each in given] == stored
    assert None not in stored


def test_reasons_are_added_up(store: Store) -> None:
    for _ in range(3):
        store.add([], {("openai-chat", "no-schema"): 2, ("anthropic", "refusal"): 1})
    assert store.skipped() == {("openai-chat", "no-schema"): 6, ("anthropic", "refusal"): 3}


def test_forget_and_expire(store: Store) -> None:
    store.add([call_of(number) for number in range(30)])
    assert store.forget("nobody") == 0
    assert store.forget("customer-1") == 10
    assert store.expire(15.0) == 10
    assert store.add([call_of(1, subjects=("a b", "c"))]) == 1
    assert (store.forget("a"), store.forget("c"), store.forget("a b")) == (0, 1, 0)
    assert store.count() == 10
    assert store.expire(1000.0) == 10
    assert store.versions() == []
    assert store.add([call_of(1)]) == 1


def test_a_transaction_is_whole_or_absent(store: Store) -> None:
    good, bad = call_of(1), call_of(2, messages=(ChatMessage("user", ("x",)),))
    object.__setattr__(bad, "seconds", "no number" if "postgres" in str(store.engine.url) else [1])
    with pytest.raises(Exception, match=r"no number|type|float\(\)|adapt"):
        store.add([good, bad], {("a", "b"): 1})
    assert store.count() == 0
    assert store.versions() == []
    assert store.skipped() == {}


def test_many_writers_at_once_lose_and_double_nothing(address: str) -> None:
    """Each opens the store for itself, as replicas do, the first of them making the tables."""
    failures: list[BaseException] = []
    begin = threading.Barrier(4)

    def write(writer: int) -> None:
        try:
            begin.wait()
            store = Store(address)
            for batch in range(10):
                numbers = range(batch * 10, batch * 10 + 10)
                store.add(
                    [call_of(1000 * writer + each, model=f"m{each % 3}") for each in numbers]
                    + [call_of(each, "import") for each in numbers],
                    {("p", "r"): 1},
                )
            store.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    store = Store(address)
    own = [each for version in store.versions() for each in store.calls(version.version)]
    assert len({each.id for each in own}) == len(own)
    assert sum(each.source == "relay" for each in own) == 400
    assert {each.completion.value["n"] for each in own if each.source == "import"} <= set(range(100))
    assert store.skipped() == {("p", "r"): 40}
    store.close()


def test_a_version_that_is_deleted_while_a_call_of_it_comes_loses_none(address: str) -> None:
    """A replica deletes what is old, another records: the version goes and comes, the call is there."""
    writing, deleting = Store(address), Store(address)
    both = threading.Barrier(2)  # a deletion a call: who deletes all the time may keep the other from writing

    def delete() -> int:
        both.wait(60)
        return deleting.expire(1e9)

    gone = 0
    with ThreadPoolExecutor(1) as replica:
        for number in range(100):
            deleted = replica.submit(delete)
            both.wait(60)
            assert writing.add([call_of(number)]) == 1
            gone += deleted.result()
    gone += deleting.expire(1e9)
    assert gone == 100
    late = replace(call_of(1), id="late", began=2e9)
    assert writing.add([late]) == 1
    deleting.expire(1e9)
    assert writing.count() == 1
    writing.close()
    deleting.close()


def test_a_store_that_is_busy_is_said_when_it_cannot_be_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.mirror.database._WAIT_MS", 200)
    store = Store(str(tmp_path / "calls.sqlite"))
    store.add([call_of(1)])
    with closing(sqlite3.connect(tmp_path / "calls.sqlite", isolation_level=None)) as other:
        monkeypatch.setattr(store, "_delete", lambda which: other.execute("BEGIN IMMEDIATE") and 1)
        with pytest.raises(InputError, match="Run this again when that has ended"):
            store.forget("customer-1")
    store.close()


def test_two_mirrors_on_one_postgresql_count_together(
    server: str, upstream: Upstream, tmp_path: Path
) -> None:
    body = {
        "model": "m", "messages": [{"role": "user", "content": "my card"}],
        "response_format": {
            "type": "json_schema", "json_schema": {"name": "x", "schema": llm_answers.SCHEMA},
        },
    }  # fmt: skip
    with (
        running_mirror(tmp_path, upstream.url, store=server) as first,
        running_mirror(tmp_path, upstream.url, store=server) as second,
    ):
        for _ in range(15):
            assert first.ask("/v1/chat/completions", body).status == 200
            assert second.ask("/v1/chat/completions", body).status == 200
            second.ask("/v1/chat/completions", body | {"n": 2})
        first.settle()
        second.settle()
        assert first.store.count() == second.store.count() == 30
        assert len(first.store.versions()) == 1
        assert first.skipped() == second.skipped() == {("openai-chat", "several-choices"): 15}
        METADATA.drop_all(first.store.engine)


def test_a_reader_keeps_nobody_from_writing(store: Store) -> None:
    store.add([call_of(number) for number in range(1200)])
    (version,) = store.versions()
    reading = store.calls(version.version)
    next(reading)
    assert store.add([call_of(5000)]) == 1
    assert sum(1 for _ in reading) == 1199


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be looked at " * 50)
    with pytest.raises(InputError, match=r"notes\.txt can't be opened: file is not a database"):
        Store(str(text))
    assert text.read_text().startswith("not a database")
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE customers (id)")
    with pytest.raises(InputError, match=r"database of something else \(table customers\)"):
        Store(str(other))
    with closing(sqlite3.connect(other)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("customers",)]
    for address, said in (
        (str(tmp_path), "is no file"),
        (str(tmp_path / "missing" / "x.sqlite"), "is no folder"),
        ("mysql://x/y", "found mysql://"),
        ("sqlite://", "is no file"),
        ("://", "no URL"),
        ("postgresql://user:secret@127.0.0.1:1/x", "can't be opened"),
    ):
        with pytest.raises(InputError, match=said) as refused:
            Store(address)
        assert "secret" not in str(refused.value)
    with pytest.raises(InputError, match="is not there"):
        Store(str(tmp_path / "none.sqlite"), create=False)
    assert not (tmp_path / "none.sqlite").exists()


def test_another_layout_is_refused_and_left_alone(store: Store, address: str) -> None:
    with store.engine.begin() as connection:
        connection.execute(update(META).where(META.c.name == "layout").values(value="9"))
    with pytest.raises(InputError, match="has layout 9, and this version of Bertsmith reads and writes 8"):
        Store(address)
    assert {each.name for each in METADATA.sorted_tables} <= set(inspect(store.engine).get_table_names())


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("calls.sqlite", "calls.sqlite"),
        ("postgresql://u:s%40cret@h/db", "postgresql://u:***@h/db"),
        ("postgresql://h/db?user=u&password=s%40cret", "postgresql://h/db?password=***&user=u"),
        (
            "postgresql://u@h/db?sslmode=require&sslpassword=cret",
            "postgresql://u@h/db?sslmode=require&sslpassword=***",
        ),
        ("postgresql://u:cret@h/db?password=cret&password=cret2", "postgresql://u:***@h/db?password=***"),
        ("postgresql+psycopg://h/db?Password=cret", "postgresql+psycopg://h/db?Password=***"),
    ],
)
def test_an_address_is_shown_without_its_password_wherever_that_stands(address: str, shown: str) -> None:
    assert mask_password(address) == shown

"""Questions of ours to an LLM: each answer stored once, within a budget, and never a key kept."""

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import llm_answers
import pytest
from mirrored_calls import INTENT, NOTHING, calls_of, store_of
from scripted_upstream import Reply, Seen, Upstream, upstream_of

from bertsmith.errors import InputError
from bertsmith.mirror.call import AGAIN
from bertsmith.mirror.learning import asking
from bertsmith.mirror.learning.asking import (
    Budget,
    LabellingPrompt,
    ask_again,
    choose_version,
    find_other_version,
    label_texts,
    read_schema,
)
from bertsmith.mirror.learning.asking import Upstream as Asked
from bertsmith.mirror.learning.understand import LearningRecords, understand
from bertsmith.mirror.redaction import Redactor
from bertsmith.mirror.store import Store

QUESTION = LabellingPrompt("llm", "Which intent?", llm_answers.SCHEMA)
KEY = "sk-secret-of-a-test"
TEXTS = [f"{word} {n}" for n in range(10) for word in ("card", "transfer", "cash")]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        assert 0 <= seconds <= 60

    monkeypatch.setattr(asking.time, "sleep", sleep)


@pytest.fixture
def llm() -> Iterator[Upstream]:
    with upstream_of(llm_answers.script) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(str(tmp_path / "calls.sqlite"))
    yield opened
    opened.close()


def asked(llm: Upstream, protocol: str = "openai-chat") -> Asked:
    base = llm.url + ("/v1" if protocol == "openai-chat" else "")
    return Asked(base, protocol, "THE_KEY", {"THE_KEY": KEY})


def label(llm: Upstream, store: Store, texts: list[str] = TEXTS, **more: Any) -> Any:
    budget = Budget(**more.pop("budget", {}))
    with asked(llm) as upstream:
        return label_texts(texts, QUESTION, upstream, store, more.pop("redactor", NOTHING), budget, **more)


def answers(store: Store) -> dict[str, Any]:
    (version,) = store.versions()
    return {call.request.inputs[-1].parts[0]: call.completion.value for call in store.calls(version.version)}


def test_each_text_is_asked_once_and_its_answer_stored(llm: Upstream, store: Store, tmp_path: Path) -> None:
    found = label(llm, store)
    assert (found.added, found.known, found.left) == (30, 0, 0)
    assert answers(store) == {text: llm_answers.value_for(text) for text in TEXTS}
    assert {each.headers["authorization"] for each in llm.seen} == {f"Bearer {KEY}"}
    again = label(llm, store, [*TEXTS, "one more"])
    assert (again.added, again.known, len(llm.seen)) == (1, 30, 31)
    store.close()
    assert KEY.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_budget_of_calls_or_money_ends_it_and_another_goes_on(llm: Upstream, store: Store) -> None:
    first = label(llm, store, budget={"calls": 12})
    assert (first.added, first.left) == (12, 18)
    prices = {"money": 5e-5, "input_price": 1.0, "output_price": 2.0}  # a call is 11 and 7 tokens: 2.5e-5
    second = label(llm, store, budget=prices, at_once=1)
    assert (second.added, second.known, second.left) == (2, 12, 16)
    assert second.money == pytest.approx(5e-5)
    third = label(llm, store)
    assert (third.added, third.left, store.count()) == (16, 0, 30)
    with pytest.raises(InputError, match="prices of a million tokens"):
        Budget(money=1.0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"budget": {"calls": -5}}, "A budget's calls must be 0 or more, found -5"),
        ({"budget": {"money": -1.0, "input_price": 2.0}}, "A budget's money must be 0 or more"),
        ({"budget": {"input_price": float("nan")}}, "A budget's input price must be 0 or more, found nan"),
        ({"at_once": 0}, "at_once must be 1 or more, found 0"),
    ],
)
def test_a_limit_below_zero_asks_nothing(
    wrong: dict[str, Any], said: str, llm: Upstream, store: Store
) -> None:
    with pytest.raises(InputError, match=said):
        label(llm, store, **wrong)
    assert not llm.seen


def test_a_busy_llm_is_waited_for_and_one_that_refuses_is_named(store: Store) -> None:
    lock, count = threading.Lock(), [0]

    def script(seen: Seen) -> Reply:
        with lock:
            count[0] += 1
            busy = count[0] % 2
        if busy:
            wait = ("7", "nan", "-1", "Wed, 21 Oct 2026 07:28:00 GMT", "1e999")[count[0] // 2 % 5]
            return Reply([b'{"error":{"message":"slow down"}}'], 429, {"retry-after": wait})
        return llm_answers.script(seen)

    with upstream_of(script) as llm:
        assert label(llm, store, TEXTS[:5], at_once=1).added == 5
    with (
        upstream_of(lambda seen: Reply([b'{"error":{"message":"bad key"}}'], 401)) as llm,
        pytest.raises(InputError, match="refuses: status 401, bad key"),
    ):
        label(llm, store)
    with upstream_of(lambda seen: Reply([b"{}"], 503)) as llm:
        with pytest.raises(InputError, match="no answer in 6 attempts"):
            label(llm, store)
        assert store.count() == 5


def test_a_mirrors_own_address_is_refused(store: Store) -> None:
    """Its student may answer, which is no LLM; and what it relays would count as traffic."""

    def script(seen: Seen) -> Reply:
        reply = llm_answers.script(seen)
        reply.headers["x-bertsmith"] = "recorded; site=s"
        return reply

    with upstream_of(script) as mirror, pytest.raises(InputError, match="is a mirror, where a student may"):
        label(mirror, store, ["my card"])
    assert store.count() == 0


def test_what_is_being_asked_when_the_llm_refuses_another_is_stored(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_refused, keep = threading.Event(), LearningRecords.save_unanswered

    def save_unanswered(records: LearningRecords, questions: Iterable[str]) -> None:
        keep(records, some := list(questions))
        if some:  # the refusal has been seen
            is_refused.set()

    def script(seen: Seen) -> Reply:
        if "forbidden" in seen.body.decode():
            return Reply([b'{"error": {"message": "No."}}'], 400)
        assert is_refused.wait(60)
        return llm_answers.script(seen)

    monkeypatch.setattr(LearningRecords, "save_unanswered", save_unanswered)

    with upstream_of(script) as llm:
        with pytest.raises(InputError, match="refuses: status 400, No"):
            label(llm, store, ["card 1", "forbidden", "card 2"], at_once=2)
        assert answers(store) == {"card 1": llm_answers.value_for("card 1")}
        assert len(llm.seen) == 2


def test_answers_that_teach_nothing_are_counted_and_paid_for(store: Store) -> None:
    def script(seen: Seen) -> Reply:
        if "cash" in seen.json()["messages"][-1]["content"]:
            message = {"role": "assistant", "content": "I'd say it is cash."}
            usage = {"prompt_tokens": 11, "completion_tokens": 7}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            body = {"choices": choices, "usage": usage}
            return Reply([json.dumps(body).encode()])
        return llm_answers.script(seen)

    with upstream_of(script) as llm:
        found = label(llm, store, budget={"input_price": 1.0, "output_price": 2.0})
    assert (found.added, dict(found.skipped), found.left) == (20, {"answer-not-json": 10}, 0)
    assert found.money == pytest.approx(30 * 25e-6)  # they are paid for too


@pytest.mark.parametrize("status", [200, 400])
def test_a_text_without_an_answer_is_asked_last_the_next_time(store: Store, status: int) -> None:
    """Else a budget of as few calls is spent on the same texts each time, and a 400 ends it at the same."""

    def script(seen: Seen) -> Reply:
        if "cash" in seen.json()["messages"][-1]["content"]:
            message = {"role": "assistant", "content": "I'd rather not."}
            body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
            return Reply([json.dumps(body).encode()], status)
        return llm_answers.script(seen)

    texts = ["cash 1", "cash 2", "card 1", "card 2", "transfer 1"]
    with upstream_of(script) as llm:

        def run(calls: int) -> list[str]:
            before = len(llm.seen)
            with suppress(InputError):
                label(llm, store, texts, budget={"calls": calls}, at_once=1)
            return [each.json()["messages"][-1]["content"] for each in llm.seen[before:]]

        if status == 200:
            assert run(2) == ["cash 1", "cash 2"]
        else:
            assert (run(2), run(2)[:1]) == (["cash 1"], ["cash 2"])
        assert run(2) == ["card 1", "card 2"]
        assert run(3)[:2] == ["transfer 1", "cash 1"]
    store.close()
    held = Path(str(store.engine.url.database)).read_bytes()
    assert b"card 1" in held and b"cash 1" not in held


def test_texts_are_redacted_before_they_are_sent(llm: Upstream, store: Store) -> None:
    redactor = Redactor(("email",), {})
    label(llm, store, ["card of anna@example.com"], redactor=redactor)
    assert all(b"anna@example.com" not in each.body for each in llm.seen)
    assert label(llm, store, ["card of anna@example.com"], redactor=redactor).known == 1


def test_texts_that_are_the_same_once_redacted_are_asked_once(llm: Upstream, store: Store) -> None:
    redactor = Redactor(("email",), {})
    texts = [*(f"card of user{n}@example.com" for n in range(20)), "card 1"]
    found = label(llm, store, texts, redactor=redactor, at_once=1)
    assert (found.added, found.known, found.left, len(llm.seen)) == (2, 0, 0, 2)
    assert list(answers(store)) == ["card of [EMAIL_1]", "card 1"]
    again = label(llm, store, ["card of nobody@example.com"], redactor=redactor)
    assert (again.added, again.known) == (0, 1)


def test_labelled_texts_are_a_version_of_their_own_until_it_is_merged(llm: Upstream, tmp_path: Path) -> None:
    def apart() -> tuple[str, str] | None:
        with asked(llm) as upstream:
            return find_other_version(QUESTION, upstream, store, NOTHING, "desk")

    with store_of(tmp_path, [replace(each, site="desk") for each in calls_of(30)]) as store:
        ((traffic,),) = LearningRecords(store).groups()
        assert apart() is None  # nothing is labelled yet
        label(llm, store, site="desk")
        (own,) = {each.version for each in store.versions()} - {traffic.version}
        assert apart() == (traffic.version, own)
        assert [each.version for each in LearningRecords(store).group("desk", traffic.version)] == [
            traffic.version
        ]
        LearningRecords(store).merge("desk", [traffic.version, own])
        assert apart() is None
        assert sum(each.calls for each in LearningRecords(store).group("desk")) == 60


def test_a_prompt_with_a_gap_is_the_message(llm: Upstream) -> None:
    body = LabellingPrompt("llm", "Sort {text} now", {"properties": {}}).body("it")
    assert body["messages"] == [{"role": "user", "content": "Sort it now"}]


@pytest.mark.parametrize("protocol", ["openai-chat", "anthropic"])
def test_recorded_inputs_are_asked_again_as_they_were(protocol: str, llm: Upstream, tmp_path: Path) -> None:
    calls = calls_of(40, subject="anna", seed=2)
    if protocol == "anthropic":
        calls = [replace(each, request=replace(each.request, protocol=protocol)) for each in calls]
    with store_of(tmp_path, calls) as store:
        group = LearningRecords(store).group(None)
        version = choose_version(group).version
        with asked(llm, protocol) as upstream:
            with pytest.raises(InputError, match="count must be 1 or more inputs to ask again, found -3"):
                ask_again(store, version, upstream, -3, NOTHING, Budget())
            first = ask_again(store, version, upstream, 10, NOTHING, Budget())
            more = ask_again(store, version, upstream, 15, NOTHING, Budget())
        assert (first.added, first.known) == (10, 0)
        assert (more.added, more.known) == (5, 10)
        again = [each for each in store.calls(calls[0].version) if each.source == AGAIN]
        assert len(again) == 15 and {each.site for each in again} == {calls[0].site}
        texts = {each.request.inputs for each in calls}
        assert all(each.request.inputs in texts for each in again)
        assert understand(store, group).looked_at == 40
        assert store.forget("anna") == 55  # what was asked again is theirs too


def test_inputs_are_asked_again_as_often_as_they_came(llm: Upstream, tmp_path: Path) -> None:
    """A student is live: of the calls that it answers a twentieth is recorded, of the harder ones all."""
    calls = [replace(each, weight=1.0 if n < 10 else 0.05) for n, each in enumerate(calls_of(60, seed=2))]
    with store_of(tmp_path, calls) as store, asked(llm) as upstream:
        found = ask_again(store, calls[0].version, upstream, 60, NOTHING, Budget())
        again = {each.request.inputs for each in store.calls(calls[0].version) if each.source == AGAIN}
    assert again >= {each.request.inputs for each in calls[:10]}
    assert 10 <= found.added <= 16


def test_the_traffic_is_asked_again_and_not_the_labelled_file_that_was_merged_with_it(
    llm: Upstream, tmp_path: Path
) -> None:
    with store_of(tmp_path, [replace(each, site="desk") for each in calls_of(30)]) as store:
        ((traffic,),) = LearningRecords(store).groups()
        label(llm, store, site="desk")
        (labelled,) = {each.version for each in store.versions()} - {traffic.version}
        merged = LearningRecords(store).merge("desk", [traffic.version, labelled])
        assert max(merged, key=lambda each: each.ended).version == labelled
        assert choose_version(merged).version == traffic.version
        assert choose_version(merged, labelled).version == labelled
        with asked(llm) as upstream:
            ask_again(store, labelled, upstream, 5, NOTHING, Budget())
        assert choose_version(LearningRecords(store).group("desk")).version == traffic.version


def test_what_cannot_be_asked_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can be recorded but not asked"):
        Asked("http://127.0.0.1:1", "systemone")
    with pytest.raises(InputError, match="LLM's address"):
        Asked("127.0.0.1:1")
    with pytest.raises(InputError, match="no variable NOWHERE"):
        Asked("http://127.0.0.1:1", key_from="NOWHERE", environment={})
    (tmp_path / "schema.json").write_text("[]")
    with pytest.raises(InputError, match=r"schema\.json: expected a JSON schema"):
        read_schema(tmp_path / "schema.json")


def test_a_schema_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(INTENT))
    assert read_schema(tmp_path / "schema.json") == INTENT

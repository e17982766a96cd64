"""What the page's routes give and refuse: files, the state, moves; who is let in."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import page_states
import pytest
from made_student import make_student, put_in_mode, stage_of
from running_mirror import Answer, RunningMirror, running_mirror
from scripted_upstream import Upstream

from bertsmith.cli.main import main
from bertsmith.errors import InputError
from bertsmith.mirror.answering.judging import apply_move
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import EvidenceBatch, StudentComparison
from bertsmith.mirror.call import AGAIN, Completion
from bertsmith.mirror.learning.understand import LearningRecords
from bertsmith.mirror.page.state import StateReader, summarise_values
from bertsmith.mirror.settings import MirrorSettings
from bertsmith.mirror.store import Store

KEY, LOOKER = "operator-0123456789abcdef", "looker-0123456789abcdef"


@pytest.fixture
def calm(upstream: Upstream, tmp_path: Path) -> Iterator[RunningMirror]:
    with running_mirror(tmp_path, upstream.url) as mirror:
        yield mirror


def in_shadow(mirror: RunningMirror, folder: Path) -> str:
    """The version of some calls that have a student."""
    call = page_states.record(mirror, 60)[-1]
    page_states.serve(mirror, folder / "made", call, "shadow")
    return call.version


def move(mirror: RunningMirror, version: str, headers: Any = None, **said: Any) -> Answer:
    body = {"version": version, "revision": 1, "move": "promote"} | said
    return mirror.ask("/bertsmith/stages", body, headers)


def test_the_policy_lets_nothing_in_from_elsewhere(calm: RunningMirror) -> None:
    for path in ("", "page/mirror.js", "page/mirror.css", "page/paper.css", "page/request.js"):
        answer = calm.ask(f"/bertsmith/{path}")
        assert answer.status == 200
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert b"https://" not in answer.body
        assert b"<style" not in answer.body


@pytest.mark.parametrize(
    "path", ["page/nothing.js", "page/..%2Fpage.py", "page/%2Fetc%2Fpasswd", "page/", "elsewhere", "state/x"]
)
def test_no_other_path_below_is_there_or_relayed(path: str, calm: RunningMirror, upstream: Upstream) -> None:
    assert calm.ask(f"/bertsmith/{path}").status == 404
    assert calm.ask(f"/bertsmith/{path}", {}).status == 404
    assert calm.ask("/bertsmith").status == 307
    assert upstream.seen == []


def test_status_by_command_says_what_the_page_shows(
    calm: RunningMirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = page_states.record(calm, 100)[-1]
    student = page_states.serve(calm, tmp_path / "made", call, "live")
    page_states.compare(calm, student, 50, 0.1)
    page_states.learn(calm, call, student.id)
    assert main(["mirror", "status", "--json", "--store", str(calm.path)]) == 0
    said = json.loads(capsys.readouterr().out)
    shown = calm.ask("/bertsmith/state").json()
    assert {"running", "store", "may_act", "has_texts"} == shown.keys() - said.keys()
    said["at"] = shown["at"]
    assert said == {name: shown[name] for name in said}
    assert said["agreement"][student.id]["course"][-1]["compared"] == 50
    assert said["details"][call.version]["template"][1]["parts"] == [["Message:\n", "\n\nAnswer as JSON."]]


def test_values_that_may_be_texts_are_not_shown(calm: RunningMirror) -> None:
    from test_call_store import call_of

    calm.store.add([call_of(number) for number in range(40)])
    (details,) = calm.ask("/bertsmith/state").json()["details"].values()
    values = details["values"]
    assert values["$.intent"]["values"] == [["card", 40]]
    assert values["$.n"]["range"] == [0, 39]
    assert {name for name, _ in values["$.tags[]"]["values"]} == {"a", "null"}
    numbers = [
        replace(each, completion=Completion({"n": each.began % 2})) for each in map(call_of, range(10))
    ]
    whole = [replace(each, completion=Completion({"n": int(each.began) % 2})) for each in numbers]
    assert summarise_values([*numbers, *whole])["$.n"]["values"] == [["0", 10], ["1", 10]]
    (call,) = calm.store.latest(next(iter(calm.ask("/bertsmith/state").json()["details"])), 1)
    assert call.completion.value["n"] == 39


def test_what_is_to_be_trained_on_is_counted_as_the_training_counts_it(tmp_path: Path) -> None:
    """Of merged versions together, without what was asked again."""
    now, before, other = (page_states.calls_of(n, f"Prompt {n}.", seed=n) for n in (30, 20, 10))
    store = Store(str(tmp_path / "calls.sqlite"))
    store.add([*now, *before, *other, replace(now[0], id="again", source=AGAIN)])
    LearningRecords(store).merge(now[0].site, [now[0].version, before[0].version])
    versions = {each["version"]: each for each in StateReader(store, MirrorSettings()).state()["versions"]}
    found = [
        (versions[of[0].version]["calls"], versions[of[0].version]["to_train"]) for of in (now, before, other)
    ]
    assert found == [(31, 50), (20, 50), (10, 10)]
    store.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "OWN", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "OWN", "sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"content-type": "text/plain"}, 403),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"x-forwarded-for": "10.0.0.7"}, 403),
    ],
)
def test_a_mode_is_changed_from_our_own_page_only(
    headers: dict[str, str], status: int, calm: RunningMirror, tmp_path: Path
) -> None:
    version = in_shadow(calm, tmp_path)
    given = {name: calm.url if value == "OWN" else value for name, value in headers.items()}
    answer = move(calm, version, given)
    assert answer.status == status, answer.body
    assert stage_of(calm.stages, version).mode == ("canary" if status == 200 else "shadow")
    if set(headers) & {"host", "x-forwarded-for"}:  # nor may they look
        assert calm.ask("/bertsmith/state", headers=given).status == 403
        assert "takes a key" in calm.ask("/bertsmith/state", headers=given).json()["error"]["message"]


def test_http_1_0_as_proxies_speak_it_takes_a_key(calm: RunningMirror) -> None:
    def first_line(version: str) -> bytes:
        with socket.create_connection(("127.0.0.1", calm.port), timeout=60) as connection:
            head = f"GET /bertsmith/state HTTP/{version}\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
            connection.sendall(head.encode())
            return connection.makefile("rb").readline()

    assert b" 200 " in first_line("1.1")
    assert b" 403 " in first_line("1.0")


@pytest.mark.parametrize(
    ("said", "status", "sentence"),
    [
        ({"revision": 7}, 409, "was changed meanwhile"),
        ({"move": "fly"}, 422, "Expected a version, its revision, and a move: promote, demote"),
        ({"move": ["promote"]}, 422, "Expected a version, its revision, and a move"),
        ({"revision": True}, 422, "Expected a version, its revision, and a move"),
        ({"version": "nowhere"}, 422, "There is no version 'nowhere'"),
        ({"move": "roll-back"}, 422, "has no former student"),
        ({"move": "approve"}, 422, "has no candidate"),
        ({"version": "x" * 5000}, 413, "at most 4096 bytes"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(
    said: dict[str, Any], status: int, sentence: str, calm: RunningMirror, tmp_path: Path
) -> None:
    version = in_shadow(calm, tmp_path)
    answer = move(calm, said.pop("version", version), **said)
    assert answer.status == status
    assert sentence in answer.json()["error"]["message"]
    assert stage_of(calm.stages, version).revision == 1
    assert calm.ask("/bertsmith/stages", b"no json").status == 422


def test_a_candidate_that_the_evidence_is_against_is_not_approved(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "calls.sqlite"))
    call = page_states.calls_of(1)[0]
    store.add([call])
    stages = StageStore(store)
    student = put_in_mode(stages, make_student(tmp_path / "made", call, {"card": {}}, {}), call, "live")
    stages.fold(student, EvidenceBatch([StudentComparison(True, 1.0, 1.0)] * 60))
    stage = replace(stage_of(stages, call.version), candidate=student.id)
    with pytest.raises(InputError, match="The evidence is against student"):
        apply_move(stages, stage, "approve", 0.1)
    store.close()


def test_with_keys_nobody_looks_without_one_and_only_an_admin_acts(
    upstream: Upstream, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"operator {KEY} admin\nlooker {LOOKER}\n")
    with running_mirror(tmp_path, upstream.url, page_keys_file=keys) as mirror:
        version = in_shadow(mirror, tmp_path)
        assert mirror.ask("/bertsmith/state").status == 401
        assert move(mirror, version).status == 401
        looker, operator = ({"authorization": f"Bearer {key}"} for key in (LOOKER, KEY))
        assert mirror.ask("/bertsmith/state", headers=looker).json()["may_act"] is False
        assert move(mirror, version, looker).status == 403
        assert mirror.ask("/bertsmith/state", headers=operator | {"host": "mirror.example"}).status == 200
        assert move(mirror, version, operator).status == 200
        assert mirror.ask("/bertsmith/health").status == 200


def test_a_file_of_keys_that_cannot_be_read_stops_the_mirror(upstream: Upstream, tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="can't be read as a file of keys"),
        running_mirror(tmp_path, upstream.url, page_keys_file=tmp_path / "none"),
    ):
        pass


def test_a_candidate_is_approved_by_command(
    calm: RunningMirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = page_states.record(calm, 60)[-1]
    student = page_states.serve(calm, tmp_path / "made", call, "live")
    address = ["--store", str(calm.path)]
    assert main(["mirror", "promote", call.site, "--candidate", *address]) == 2
    assert "has no candidate" in capsys.readouterr().err
    other = page_states.candidate(calm, tmp_path / "other", call)
    assert main(["mirror", "promote", call.site, "--candidate", "--to", "live", *address]) == 2
    assert main(["mirror", "promote", call.site, "--candidate", *address]) == 0
    stage = stage_of(calm.stages, call.version)
    assert (stage.mode, stage.student, stage.former, stage.candidate) == ("live", other.id, student.id, "")


@pytest.mark.slow
def test_the_course_of_agreement_stays_short_and_its_parts_add_up(
    calm: RunningMirror, tmp_path: Path
) -> None:
    call = page_states.record(calm, 30)[-1]
    student = page_states.serve(calm, tmp_path / "made", call, "shadow")
    page_states.compare(calm, student, 3000, 0.02)
    course = calm.ask("/bertsmith/state").json()["agreement"][student.id]
    assert 30 < len(course["course"]) < 200
    assert course["course"][-1]["compared"] > 2900
    assert len(course["blocks"]) <= 12
    for before, block in zip([None, *course["blocks"]], course["blocks"], strict=False):
        start = 0 if before is None else before["compared"]
        assert block["compared"] - start == block["calls"]
        assert block["low"] <= block["rate"] <= block["high"]
    last = course["course"][-1]
    assert last["low"] <= last["rate"] <= last["high"]
    assert last["rate"] == pytest.approx(last["differing"] / last["compared"])

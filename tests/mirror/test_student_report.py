"""The page of a student, and what the commands print."""

import json
import random
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from mirrored_calls import (
    INTENT,
    as_exchange,
    at_random,
    by_rule,
    call_of,
    calls_of,
    intent_of,
    message,
    store_of,
)

from bertsmith.cli.main import main
from bertsmith.mirror.answering.stage_store import read_findings
from bertsmith.mirror.learning.proving import describe_claims
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.student_folder import choose_risk
from bertsmith.mirror.learning.train import train_student
from bertsmith.mirror.learning.understand import LearningRecords
from bertsmith.mirror.student import MirrorStudent
from bertsmith.mirror.student_file import read_student_file, student_id


def bertsmith(*arguments: object) -> None:
    assert main(list(map(str, arguments))) == 0


class Words(HTMLParser):
    """The page's text, and that its tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def handle_data(self, data: str) -> None:
        self.text += data


def imported(folder: Path, teacher: Any, count: int) -> Path:
    draw = random.Random(0)
    lines = [
        as_exchange(text, teacher(text, draw), n)
        for n, text in enumerate(message(draw) for _ in range(count))
    ]
    (folder / "calls.jsonl").write_text("".join(lines))
    bertsmith("mirror", "import", folder / "calls.jsonl", "--store", folder / "s.sqlite")
    return folder / "s.sqlite"


def test_from_a_log_to_a_student_by_commands_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = imported(tmp_path, by_rule, 600)
    bertsmith("mirror", "understand", "--store", store)
    said = capsys.readouterr().out
    assert "«text»" in said and "$.intent" in said and "enum" in said
    out = tmp_path / "my student"
    bertsmith("mirror", "train", "--store", store, "--tiers", "tf-idf", "--out", out)
    said = capsys.readouterr().out
    assert f"--student '{out}' --store {store}" in said
    assert "With 95 % confidence, the answers it gives differ from the LLM's in at most 5 %." in said
    page = Words()
    page.feed((out / "report.html").read_text())
    for expected in (
        "What is proven",
        "What this means",
        "at most 5 % differ from what the LLM would have said",
        "It no longer holds if",
        "whole answer",
        "«text»",
        "Agreement by texts learned from",
        "180 calls",
    ):
        assert expected in page.text, expected
    assert MirrorStudent.open(out).file.is_promotable


def test_an_odd_answer_of_quotes_is_one_line_of_what_was_understood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"name": {"type": "string"}, "role": {"type": "string"}}
    items = {"type": "object", "properties": names}
    schema = {"type": "object", "properties": {"who": {"type": "array", "items": items}}}
    roles: list[Any] = [*["host", "guest"] * 20, ["host", "guest"]]
    calls = [
        call_of(f"call {n}: anna{n} came", {"who": [{"name": f"anna{n}", "role": role}]}, n, schema=schema)
        for n, role in enumerate(roles)
    ]
    with store_of(tmp_path, calls):
        bertsmith("mirror", "understand", "--store", tmp_path / "calls.sqlite")
        assert "1 of 41, whose answers don't fit the fields" in capsys.readouterr().out
        bertsmith("mirror", "understand", "--store", tmp_path / "calls.sqlite", "--json")
    assert json.loads(capsys.readouterr().out)[0]["odd"] == 1


def test_that_each_call_begins_a_version_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Merging these versions would not help the next call."""
    calls = [
        call_of(f"my card {n}", {"intent": "card"}, n, prompt=f"If the user is {name}, greet. Which intent?")
        for n, name in enumerate(["Anna", "Bo", "Cy", "Dora"])
    ]
    with store_of(tmp_path, calls):
        bertsmith("mirror", "understand", "--store", tmp_path / "calls.sqlite")
        said = " ".join(capsys.readouterr().out.split())
    assert "in 3 versions" in said and "so nearly each call begins one" in said and "merge" not in said


def test_nothing_proven_is_said_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = imported(tmp_path, at_random, 300)
    capsys.readouterr()
    bertsmith(
        "mirror", "train", "--store", store, "--tiers", "tf-idf", "--out", tmp_path / "student", "--json"
    )
    said = json.loads(capsys.readouterr().out)
    assert said["is_promotable"] is False and said["why_not"] and said["claims"]["whole"] is None
    page = (tmp_path / "student" / "report.html").read_text()
    assert "Nothing is proven" in page and "Where it differs" in page


def test_texts_and_values_of_calls_are_escaped_in_the_page(tmp_path: Path) -> None:
    from mirrored_calls import call_of, store_of

    from bertsmith.mirror.learning.settings import LearnSettings
    from bertsmith.mirror.learning.train import train_student

    draw = random.Random(0)
    calls = [
        call_of(f"<script>alert({n})</script> {message(draw)}", at_random("", draw), n) for n in range(300)
    ]
    with store_of(tmp_path, calls) as store:
        train_student(store, tmp_path / "student", settings=LearnSettings(tiers=("tf-idf",)))
    page = (tmp_path / "student" / "report.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page


def noisy(share: float, intent: str = "") -> Any:
    """As by the rule, but this share of the answers is random, or of those with one intent."""

    def teacher(text: str, draw: random.Random) -> dict[str, Any]:
        answer = by_rule(text, draw)
        is_noisy = intent in ("", answer["intent"]) and draw.random() < share
        return at_random(text, draw) if is_noisy else answer

    return teacher


def test_a_risk_that_was_proven_too_is_chosen_afterwards_without_a_new_proof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, out = imported(tmp_path, noisy(0.6, "card"), 1500), tmp_path / "student"
    capsys.readouterr()
    bertsmith("mirror", "train", "--store", store, "--tiers", "tf-idf", "--out", out)
    said = " ".join(capsys.readouterr().out.split())
    assert "Forecast with 450 calls kept for the proof" in said and "5 % (wanted)" in said
    first = MirrorStudent.open(out).file
    larger = first.claims.others[-1]
    assert larger.epsilon == 0.2 and f"mirror set {out} --epsilon 0.1" in said  # the smallest larger one
    page = Words()
    page.feed((out / "report.html").read_text())
    for words in ("Forecast with 450 calls", "What to do next", "--epsilon 0.1", "at most 20 %"):
        assert words in page.text, words
    bertsmith("mirror", "promote", first.site, "--student", out, "--store", store)
    capsys.readouterr()
    bertsmith("mirror", "set", out, "--epsilon", 0.2, "--store", store)
    said = " ".join(capsys.readouterr().out.split())
    assert "differ from the LLM's in at most 20 %." in said
    # The mirror uses the first one, which stays.
    assert MirrorStudent.open(out).file == first
    second = MirrorStudent.open(tmp_path / "student-2").file
    assert second.claims.whole == larger and second.claims.epsilon == 0.2
    assert second.claims.at(0.05) == first.claims
    # Its report says first what is chosen; chosen back, it is the first student again.
    page = Words()
    page.feed((tmp_path / "student-2" / "report.html").read_text())
    chosen = describe_claims(second.claims)
    assert (
        page.text.index(chosen) < page.text.index("about the one before") < page.text.index("What is proven")
    )
    bertsmith("mirror", "set", tmp_path / "student-2", "--epsilon", 0.1, "--store", store)
    tenth = MirrorStudent.open(tmp_path / "student-2").file
    assert tenth.claims.epsilon == 0.1
    page.feed((tmp_path / "student-2" / "report.html").read_text())
    assert describe_claims(tenth.claims) in page.text
    bertsmith("mirror", "set", tmp_path / "student-2", "--epsilon", 0.05, "--store", store)
    assert MirrorStudent.open(tmp_path / "student-2").file == first
    assert main(["mirror", "set", str(out), "--epsilon", "0.15", "--store", str(store)]) == 2
    assert "found 0.15" in " ".join(capsys.readouterr().err.split())


def test_a_risk_is_chosen_where_merged_versions_have_another_student(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was found of the merged versions' student stands for each of them in the store."""
    prompts = ("Which intent has the message?", "What intent has the message?")
    both = [calls_of(250, seed=n, first=300 * n, prompt=prompt) for n, prompt in enumerate(prompts)]
    other = calls_of(1500, noisy(0.6, "card"), first=900, site="other")
    with store_of(tmp_path, [*both[0], *both[1], *other]) as store:
        (first, second) = (calls[0] for calls in both)
        LearningRecords(store).merge(first.site, [first.version, second.version])
        settings = LearnSettings(tiers=("tf-idf",))
        train_student(store, tmp_path / "merged", site=first.site, settings=settings)
        train_student(store, tmp_path / "student", site="other", settings=settings)
        file = read_student_file(tmp_path / "student")
        risk = next(claim.epsilon for claim in file.claims.ladder if claim.epsilon != file.claims.epsilon)
        _, chosen = choose_risk(store, tmp_path / "student", risk)
        findings = read_findings(store)[other[0].version]
        assert findings["student"] == student_id(tmp_path / "student")
        assert findings["claim"] == describe_claims(chosen.claims)


def test_a_proof_that_would_fail_is_not_begun_and_the_screen_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, out = imported(tmp_path, noisy(0.18), 1500), tmp_path / "student"
    capsys.readouterr()
    bertsmith("mirror", "train", "--store", store, "--tiers", "tf-idf", "--out", out)
    said = " ".join(capsys.readouterr().out.split())
    assert "The proof isn't begun, since it would fail: the calls kept for it stay unused" in said
    assert "If your application bears that: --epsilon 0.2" in said
    page = (out / "report.html").read_text()
    assert (
        "If your application bears that: --epsilon 0.2" in page and "Measured on the calls kept" not in page
    )
    # Its calls were kept: with the risk that was advised, they prove it.
    bertsmith("mirror", "train", "--store", store, "--tiers", "tf-idf", "--out", out, "--epsilon", 0.2)
    assert MirrorStudent.open(out).file.is_promotable
    assert "Measured on the calls kept" in (out / "report.html").read_text()


def test_a_field_that_cannot_be_learned_is_named_and_calls_for_the_other_alone_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mood is drawn by lot. Calls that ask for the intent alone are a version of their own."""
    monkeypatch.setattr("bertsmith.mirror.learning.report._draw_pictures", lambda *given: [])
    moods = {"type": "string", "enum": ["calm", "angry"]}
    both = INTENT | {"properties": INTENT["properties"] | {"mood": moods}, "required": ["intent", "mood"]}

    def teacher(text: str, draw: random.Random) -> dict[str, Any]:
        return by_rule(text, draw) | {"mood": draw.choice(["calm", "angry"])}

    calls = [
        *calls_of(900, teacher, schema=both, site="both"),
        *calls_of(900, seed=1, first=900, site="alone"),
    ]
    settings = LearnSettings(tiers=("tf-idf",))
    with store_of(tmp_path, calls) as store:
        learned, alone = (
            train_student(store, tmp_path / site, site=site, settings=settings) for site in ("both", "alone")
        )
    assert learned.file.claims.coverage == 0
    assert "It fails at $.mood (" in learned.why and "$.intent in 100 % of the calls" in learned.why
    assert "Ask for $.intent in calls of their own" in learned.why
    words = Words()
    words.feed((tmp_path / "both" / "report.html").read_text(encoding="utf-8"))
    assert learned.why in words.text
    kept = len(learned.parts.calibration)  # which a headline of 0 calls contradicted
    headline = f"<b>{kept}</b><span>calls kept for the proof, unused</span>"
    assert headline in (tmp_path / "both" / "report.html").read_text(encoding="utf-8")
    assert alone.file.claims.coverage > 0.9 and alone.why == ""
    text = message(random.Random(5))
    (answer,) = MirrorStudent.open(tmp_path / "alone").answer([text])
    assert answer.is_sure and answer.answer == {"intent": intent_of(text)}

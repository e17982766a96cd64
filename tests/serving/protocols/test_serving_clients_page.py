"""docs/serving.md: its Python and commands run against a service with the models that it names."""

import gc
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_service import Running, running

PAGE = Path(__file__).parents[3] / "docs" / "serving-clients.md"
NAMES = {
    "minilm": "encoder",
    "reranker": "reranking",
    "topics": "multi-label",
    "names": "tagging",
    "answers": "question-answering",
    "masked": "masked-language",
    "mood": "mood",
    "urgent": "urgent",
    "nli": "nli",
}


def blocks(language: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def documented(model_folders: dict[str, Path]) -> Iterator[Running]:
    with running({name: model_folders[kind] for name, kind in NAMES.items()}) as found:
        yield found


def test_the_page_begins_a_service_with_these_models() -> None:
    (command,) = re.findall(
        r"^```\n(bertsmith serve.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert {word.partition("=")[0] for word in command.split()[2:] if word != "\\"} == set(NAMES)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # clients that are left open
@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.split()[1])
def test_its_python_runs(documented: Running, capsys: pytest.CaptureFixture[str], block: str) -> None:
    assert "http://127.0.0.1:8000" in block
    exec(block.replace("http://127.0.0.1:8000", documented.url), {})
    gc.collect()  # here its warnings are expected
    printed = capsys.readouterr().out
    assert printed.strip()
    if "decisions" in block:
        assert printed.split() == ["predicate", "choice", "refusal"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("block", blocks("bash"))
def test_its_commands_run(documented: Running, block: str) -> None:
    command = block.replace("http://127.0.0.1:8000", documented.url)
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    if "/predict" in command:
        assert {each["label"] for each in found} == {"Bad", "Good", "Fair"}
    else:
        assert found["model"] == "mood" and set(found["results"]["probabilities"]) == {"Bad", "Good", "Fair"}

"""docs/files.md is followed to its end, and names every file and key that is written."""

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from law import write_articles, write_clauses
from page import DOCS, Page
from safetensors.torch import load_file

from bertsmith import PretrainingModel, preset, save_pretraining_model
from bertsmith.mirror.student_file import StudentFile
from bertsmith.training import finetune_recipe

TEXT = (DOCS / "files.md").read_text(encoding="utf-8")
SHORTER = {"hours=1 ": "steps=2 optimizer.warmup=0.5 model.size=tiny hardware.threads=1 "}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the page was followed."""
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(finetune_recipe, "_MINUTES", 0.0)
        patch.setattr(finetune_recipe, "_MINUTES_A_ROW", 0.0)
        write_articles(folder / "articles")
        write_clauses(folder / "clauses.csv")
        write_legacy_checkpoint(folder / "downloads" / "legal-bert")
        with Page("files.md", SHORTER) as page:
            names = page.follow_all()
    assert set(names["results"]["evaluations"]) == {"cross-validation"}
    assert len(names["tokens"]) == names["manifest"]["splits"]["train"]["tokens"]
    assert names["weights"]
    return folder


def write_legacy_checkpoint(folder: Path) -> None:
    """A pytorch_model.bin and its config.json."""
    save_pretraining_model(folder.parent / "safe", PretrainingModel(preset("tiny", vocab_size=40)), None, {})
    folder.mkdir()
    torch.save(load_file(folder.parent / "safe/model.safetensors"), folder / "pytorch_model.bin")
    (folder / "config.json").write_bytes((folder.parent / "safe/config.json").read_bytes())


def section(heading: str) -> str:
    found = re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##|\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert found, heading
    return found[1]


def named(text: str) -> list[str]:
    """What stands between backticks: files, with N and numbers for any, and keys."""
    return [re.sub(r"\bN\b|\d{5,}", "*", name) for name in re.findall(r"`([^`\n]+)`", text)]


def unnamed(files: set[str], text: str) -> list[str]:
    known = named(text)
    return sorted(file for file in files if not any(fnmatch(file, name) for name in known))


def entries(folder: Path) -> set[str]:
    return {f"{path.name}/" if path.is_dir() else path.name for path in folder.iterdir()}


def test_every_file_of_a_run_is_named(desk: Path) -> None:
    pretrained, _, fine_tuned = section("Run").partition("| file of `finetune`")
    assert unnamed(entries(desk / "runs/law") - {"checkpoints/"}, pretrained) == []
    assert unnamed(entries(desk / "runs/clauses") - {"restarts/"}, fine_tuned) == []
    (restart,) = [folder for folder in (desk / "runs/clauses/restarts").iterdir() if folder.is_dir()]
    assert unnamed(entries(restart), fine_tuned) == []


@pytest.mark.parametrize(
    ("folder", "heading"),
    [
        ("corpora/law", "Corpus"),
        ("tokenizers/law", "Tokenizer"),
        ("stores/law", "Token store"),
        ("stores/law/train", "Token store"),
        ("models/legal-bert", "Model"),
    ],
)
def test_every_file_of_a_folder_is_named(desk: Path, folder: str, heading: str) -> None:
    assert unnamed(entries(desk / folder), section(heading) + "`manifest.json`") == []


@pytest.mark.parametrize("run", ["law", "clauses"])
def test_every_file_of_a_model_is_named(desk: Path, run: str) -> None:
    parts = "`[2-9]_*/`"  # as 1_Pooling/
    assert unnamed(entries(desk / "runs" / run / "model"), section("Model") + parts) == []


@pytest.mark.parametrize(
    ("file", "heading"),
    [
        ("corpora/law/manifest.json", "Corpus"),
        ("stores/law/manifest.json", "Token store"),
        ("models/legal-bert/bertsmith.json", "Model"),
    ],
)
def test_every_key_of_a_manifest_is_named(desk: Path, file: str, heading: str) -> None:
    keys = set(json.loads((desk / file).read_text())) - {"format_version", "created_by"}
    assert unnamed(keys, section(heading)) == []


def test_every_kind_of_a_log_s_lines_is_named(desk: Path) -> None:
    lines = (json.loads(line) for line in (desk / "runs/law/log.jsonl").read_text().splitlines())
    found: dict[str, Any] = {line["kind"]: line for line in lines}
    assert {"start", "step", "evaluation", "checkpoint", "end"} <= set(found)
    assert unnamed(set(found), section("log.jsonl")) == []
    assert unnamed(set(found["start"]) - {"kind", "step"}, section("log.jsonl")) == []


def test_the_keys_of_a_student_that_are_named_are_there() -> None:
    assert {"tier", "claims", "site", "templates", "shape", "trained_on", "files"} <= set(
        StudentFile.model_fields
    )

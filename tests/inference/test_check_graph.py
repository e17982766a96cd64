"""`bertsmith check` finds what became of an exported graph, behind new hashes too."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from export_samples import gate_file, saved_model

from bertsmith.cli.main import main
from bertsmith.errors import InputError, ModelError
from bertsmith.files import sha256
from bertsmith.inference.checking.check import check_model
from bertsmith.inference.export.export import export_model
from bertsmith.inference.export.gate import ExportLimits

onnx: Any = pytest.importorskip("onnx", reason="needs the extra export")
pytest.importorskip("onnxruntime", reason="needs the extra export")
pytest.importorskip("onnxscript", reason="needs the extra export")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a task's graph, or of one in int8."""
    place = tmp_path_factory.mktemp("graphs")

    @cache
    def export(name: str) -> Path:
        task = "classification" if name == "int8" else name
        rows = gate_file(place, task, 120)
        model = saved_model(place / name, task, layers=1)
        limits = ExportLimits(agreement=0.5, change=1.0) if name == "int8" else None
        return export_model(model, rows, place / f"{name}-graph", int8=name == "int8", limits=limits).path

    return export


@pytest.mark.parametrize(
    "name",
    [
        "int8",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("question-answering", "classification", "tagging", "retrieval", "reranking")
        ),
    ],
)
def test_a_graph_is_found_as_it_was_written(exported: Callable[[str], Path], name: str) -> None:
    found = check_model(exported(name))
    assert found.agrees and found.comparisons["the graph"].texts >= 20
    assert main(["check", str(exported(name))]) == 0


def test_one_flipped_byte_of_any_file_is_found(exported: Callable[[str], Path], tmp_path: Path) -> None:
    out = Path(shutil.copytree(exported("classification"), tmp_path / "out"))
    for path in sorted(out.iterdir()):
        if path.name in ("README.md", "golden.json"):
            continue
        content = path.read_bytes()
        place = len(content) // 2
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(ModelError, match=f"{path.name} was changed since the model was exported"):
            check_model(out)
        path.write_bytes(content)
    (out / "more.json").write_text("{}")
    with pytest.raises(ModelError, match=r"more\.json was added or is missing"):
        check_model(out)


def changed_tensor(folder: Path, chosen: Callable[[Any], bool], change: Callable[[Any], Any]) -> None:
    graph = onnx.load(folder / "model.onnx")
    tensor = next(each for each in graph.graph.initializer if chosen(each))
    array = onnx.numpy_helper.to_array(tensor)
    tensor.CopyFrom(onnx.numpy_helper.from_array(change(array.copy()), tensor.name))
    onnx.save(graph, folder / "model.onnx")


def a_weight(folder: Path) -> None:
    changed_tensor(
        folder, lambda each: len(each.dims) == 2 and each.data_type == 1, lambda found: found * 1.01
    )


def a_scale(folder: Path) -> None:
    is_scale = lambda each: "scale" in each.name and each.data_type == 1  # noqa: E731
    changed_tensor(folder, is_scale, lambda found: np.asarray(found * 2, np.float32))


def small_letters(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"]["lowercase"] = not content["normalizer"]["lowercase"]
    (folder / "tokenizer.json").write_text(json.dumps(content))


def labels(folder: Path) -> None:
    facts = json.loads((folder / "decoding.json").read_text())
    facts["labels"].reverse()
    (folder / "decoding.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("classification", a_weight),
        ("int8", a_scale),
        ("classification", small_letters),
        ("classification", labels),
    ],
)
def test_a_damage_behind_new_hashes_is_found(
    exported: Callable[[str], Path], tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    out = Path(shutil.copytree(exported(name), tmp_path / "out"))
    damage(out)
    golden = json.loads((out / "golden.json").read_text())
    golden["files"] = {file: sha256(out / file) for file in golden["files"]}
    (out / "golden.json").write_text(json.dumps(golden))
    assert not check_model(out).agrees
    assert main(["check", str(out)]) == 1


def test_a_graph_without_golden_answers_and_other_wishes_are_refused(
    exported: Callable[[str], Path], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(exported("classification"), tmp_path / "out"))
    with pytest.raises(InputError, match="is an exported graph, which is checked by its own golden answers"):
        check_model(out, write=True)
    (out / "golden.json").unlink()
    with pytest.raises(InputError, match="without golden answers"):
        check_model(out)

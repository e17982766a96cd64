"""bench/embedding/latency.py with a tiny model."""

from pathlib import Path

import pytest
from bench_runs import RunScript

import latency


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts"
    file.write_text("red cat\nblue dog\nno bird\n")
    return file


@pytest.mark.slow
def test_vectors_and_classes_are_timed_and_what_is_missing_is_said(
    run_script: RunScript,
    tiny_model: Path,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(latency, "_minilm", lambda: str(tiny_model))
    sides = ("--sides", "embedder", "embedder_float32", "onnxruntime", "predictor")
    run_script(latency, "--quick", "--file", str(texts), "--peers", str(tmp_path), *sides)
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| a ")]
    rows = {(row[0].removeprefix("| "), row[1]): row[2:] for row in (line.split(" | ") for line in table)}
    assert set(rows) == {
        ("a vector", "Bertsmith, Embedder"),
        ("a vector", "Bertsmith, Embedder, products in float32"),
        ("a vector", "ONNX Runtime"),
        ("a class", "Bertsmith, Predictor"),
    }
    assert rows["a vector", "ONNX Runtime"][0] == "not installed"
    p50, p95, times, exact, cosine = rows["a vector", "Bertsmith, Embedder"]
    assert 0 < float(p50) <= float(p95)
    assert times.startswith("1.00 ")
    assert float(exact.split()[0]) > 0
    assert cosine == "1.000000 |"

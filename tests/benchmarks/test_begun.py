"""What a benchmark's folder notes of its model."""

from pathlib import Path

import pytest

from bertsmith.benchmarks.benchmark import hash_model

FILES = (
    *("modules.json", "config_sentence_transformers.json", "1_Pooling/config.json"),
    *("0_Transformer/config.json", "0_Transformer/model.safetensors", "0_Transformer/vocab.txt"),
    *("2_Dense/config.json", "2_Dense/model.safetensors"),
    *("0_StaticEmbedding/model.safetensors", "0_StaticEmbedding/tokenizer.json"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of sentence-transformers, with its encoder one deeper. What is in the files doesn't matter here."""
    for name in FILES:
        write(tmp_path / "model" / name, name)
    return tmp_path / "model"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("name", [*FILES, "tokenizer.json"])
def test_a_model_is_another_when_anything_that_it_is_opened_from_is(name: str, folder: Path) -> None:
    before = hash_model(folder)
    write(folder / name, "changed")
    assert hash_model(str(folder)) != before


def test_pages_and_what_is_written_below_the_model_dont_count(folder: Path) -> None:
    before = hash_model(folder)
    write(folder / "README.md", "changed")
    write(folder / "glue/benchmark.json", "{}")
    write(folder / "glue/RTE/seed-1/model/config.json", "{}")
    assert hash_model(folder) == before


def test_files_that_change_places_are_another_model(folder: Path) -> None:
    before = hash_model(folder)
    (folder / "vocab.txt").write_bytes((folder / "0_Transformer/vocab.txt").read_bytes())
    (folder / "0_Transformer/vocab.txt").unlink()
    assert hash_model(folder) != before

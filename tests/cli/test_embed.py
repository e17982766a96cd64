"""`bertsmith embed` as a user runs it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bertsmith.cli.main import main
from bertsmith.inference.embedding.vector_file import read_vectors
from bertsmith.text.tokens.tokenizer import Tokenizer


def test_vectors_are_written_and_their_speed_is_printed(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", "model", "texts.jsonl", "--out", "v.parquet", "--prefix", "red "]) == 0
    found = read_vectors(desk / "v.parquet")
    assert found.ids == ["d0", "d1", "d2", "d3"]
    assert (found.about.model, found.about.prefix) == ("model", "red ")
    printed = capsys.readouterr().out
    assert "4 texts, 18 tokens in" in printed
    assert "tokens/s" in printed
    assert "v.parquet: 4 vectors, 16 dimensions, float32" in printed


def test_a_task_s_prompt_stands_before_each_text(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "model" / "bertsmith.json").unlink(missing_ok=True)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (desk / "model" / "modules.json").write_text(json.dumps(modules))
    (desk / "model" / "1_Pooling").mkdir()
    (desk / "model" / "1_Pooling" / "config.json").write_text("{}")
    prompts = {"prompts": {"query": "old ", "clustering": "red "}, "default_prompt_name": "clustering"}
    (desk / "model" / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    embed = ["embed", "model", "texts.jsonl", "--overwrite", "--out", "v.parquet"]
    assert main([*embed, "--prompt-name", "clustering"]) == 0
    assert read_vectors(desk / "v.parquet").about.prefix == "red "
    by_name = read_vectors(desk / "v.parquet").vectors
    assert main([*embed, "--prefix", "red "]) == 0
    np.testing.assert_array_equal(read_vectors(desk / "v.parquet").vectors, by_name)
    capsys.readouterr()
    assert main([*embed, "--prompt-name", "cluster"]) == 2
    wanted = "prompt_name must be query or document or clustering, the prompts of model; found 'cluster'."
    assert wanted in " ".join(capsys.readouterr().err.split())
    assert main([*embed, "--prompt-name", "clustering", "--prefix", "x"]) == 2
    assert "both say what stands before a text" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("products", ["float32", "bfloat16"])
def test_the_file_notes_what_the_products_were_in(
    desk: Path, monkeypatch: pytest.MonkeyPatch, products: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["embed", "model", "texts.jsonl", "--out", "a.parquet", "--compute-dtype", products]) == 0
    assert read_vectors(desk / "a.parquet").about.products == products


def test_products_that_a_model_cannot_have_are_refused(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model's heads are 8 wide."""
    assert main(["embed", "model", "texts.jsonl", "--out", "a.parquet", "--compute-dtype", "int16"]) == 2
    assert "whose widths are multiples of 16: there are none for this model here. Use float32." in (
        " ".join(capsys.readouterr().err.split())
    )
    assert not list(desk.glob("a.parquet*"))


def test_smaller_vectors_say_what_they_cost(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    smaller = ["--dimensions", "8", "--store-dtype", "int8", "--shard-rows", "3"]
    assert main(["embed", "model", "texts.jsonl", "--out", "a.parquet", *smaller]) == 0
    assert "int8: cosines are off by 0.0" in capsys.readouterr().out
    again = ["--store-dtype", "int8", "--dimensions", "8", "--ranges", "a.parquet"]
    assert main(["embed", "model", "texts.jsonl", "--out", "b.parquet", *again]) == 0
    first, second = read_vectors(desk / "a.parquet"), read_vectors(desk / "b.parquet")
    assert first.about.ranges == second.about.ranges
    np.testing.assert_allclose(first.vectors, second.vectors, atol=1e-3)
    assert first.vectors.shape == (4, 8)


def test_ranges_of_another_model_are_refused(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "model", "texts.jsonl", "--out", "a.parquet", "--store-dtype", "int8"]) == 0
    shutil.copytree(desk / "model", desk / "other")
    tensors = load_file(desk / "other" / "model.safetensors")
    save_file({name: tensor + 0.01 for name, tensor in tensors.items()}, desk / "other" / "model.safetensors")
    (desk / "other" / "bertsmith.json").unlink()  # which says what the weights were
    ranges = ["--store-dtype", "int8", "--ranges", "a.parquet"]
    assert main(["embed", "other", "texts.jsonl", "--out", "b.parquet", *ranges]) == 2
    assert "a.parquet holds vectors of another model, model: its ranges" in capsys.readouterr().err
    assert not (desk / "b.parquet").exists()


def test_ranges_of_another_vocabulary_are_refused(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "model", "texts.jsonl", "--out", "a.parquet", "--store-dtype", "int8"]) == 0
    capsys.readouterr()
    pieces = list(Tokenizer.load("model").pieces)
    Tokenizer.from_pieces([*pieces[:-2], *reversed(pieces[-2:])], lowercase=True).save(Path("model"))
    (Path("model") / "bertsmith.json").unlink()
    ranges = ["--store-dtype", "int8", "--ranges", "a.parquet"]
    assert main(["embed", "model", "texts.jsonl", "--out", "b.parquet", *ranges]) == 2
    assert "a.parquet holds vectors of model with another vocabulary: its ranges" in capsys.readouterr().err


def test_a_finished_file_is_refused_and_left_with_resume(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", "model", "texts.jsonl", "--out", "v.parquet"]) == 0
    assert main(["embed", "model", "texts.jsonl", "--out", "v.parquet"]) == 2
    assert "Error: v.parquet already exists" in capsys.readouterr().err
    assert main(["embed", "model", "texts.jsonl", "--out", "v.parquet", "--resume"]) == 0
    assert "Nothing was left to compute." in capsys.readouterr().out


def test_fewer_dimensions_than_a_model_says_it_was_trained_for_get_a_note(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Path("model/config.json")
    for number, said in enumerate([{}, {"matryoshka_dimensions": [8]}, {"is_matryoshka": True}]):
        config.write_text(json.dumps(json.loads(config.read_text()) | said))
        Path("model/bertsmith.json").unlink(missing_ok=True)
        for wanted in ("8", "16"):
            out = f"{number}-{wanted}.parquet"
            assert main(["embed", "model", "texts.jsonl", "--dimensions", wanted, "--out", out]) == 0
            noted = (
                "Note: model doesn't say that it was trained for fewer dimensions" in capsys.readouterr().out
            )
            assert noted == (wanted == "8" and not said)


@pytest.mark.parametrize("name", ["v.csv", "v.JSONL", "v.npy", "v.csv.gz"])
def test_an_ending_that_promises_another_format_is_refused(
    desk: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["embed", "model", "texts.jsonl", "--out", name]) == 2
    assert f"Vectors are written as Parquet, but {name} ends in" in capsys.readouterr().err
    assert not list(desk.glob("v.*"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere", "texts.jsonl"], "There is no model 'nowhere'"),
        (["model", "none.csv"], "none.csv does not exist"),
        (["model", "texts.jsonl", "--text", "body"], "no column 'body'. There are: id, text"),
        (["model", "texts.jsonl", "--dimensions", "17"], "dimensions must be 1 to 16"),
        (["model", "texts.jsonl", "--store-dtype", "int4"], "See `bertsmith embed --help`"),
        (["model", "texts.jsonl", "--ranges", "texts.jsonl"], "is not a whole file of vectors"),
    ],
)
def test_mistakes_get_a_sentence(
    desk: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    before = sorted(desk.iterdir())
    assert main(["embed", *words, "--out", "v.parquet"]) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())
    assert sorted(desk.iterdir()) == before


def test_a_table_in_another_encoding(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (desk / "old.csv").write_bytes("id,text\n\u00e9,red cat\n".encode("latin-1"))
    assert main(["embed", "model", "old.csv", "--out", "o.parquet"]) == 2
    assert capsys.readouterr().err.endswith("UTF-8, or name its encoding (--encoding latin-1, for one).\n")
    assert main(["embed", "model", "old.csv", "--out", "o.parquet", "--encoding", "latin-1"]) == 0
    assert read_vectors(desk / "o.parquet").ids == ["\u00e9"]


def test_a_file_is_replaced_when_asked_and_an_input_never(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "v.parquet").write_text("old")
    assert main(["embed", "model", "texts.jsonl", "--out", "v.parquet", "--overwrite"]) == 0
    assert read_vectors(desk / "v.parquet").ids == ["d0", "d1", "d2", "d3"]
    for read in ("texts.jsonl", "model/model.safetensors"):
        before = (desk / read).read_bytes()
        assert main(["embed", "model", "texts.jsonl", "--out", read, "--overwrite"]) == 2
        assert f"reads {read}, and would overwrite it" in capsys.readouterr().err
        assert (desk / read).read_bytes() == before
    assert main(["embed", "model", "texts.jsonl", "--out", "/dev/stdout"]) == 2
    assert "/dev/stdout is not a file. Vectors are first written in parts" in capsys.readouterr().err
    assert not list(desk.glob("*.parts"))


def test_a_killed_job_that_replaces_a_file_goes_on(desk: Path) -> None:
    replace = ["embed", "model", "texts.jsonl", "--out", "v.parquet", "--overwrite", "--resume"]
    (desk / "v.parquet").write_text("old")
    (desk / "v.parquet.parts").mkdir()
    assert main(replace) == 0
    assert read_vectors(desk / "v.parquet").ids == ["d0", "d1", "d2", "d3"]

"""Token embeddings that stay in their file: the answers of those in memory, whatever happens to the file."""

import copy
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertsmith import Embedder, Predictor, finetune
from bertsmith.errors import ModelError
from bertsmith.model import file_table
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import encoder_of, load_encoder, read_checkpoint, save_checkpoint
from bertsmith.model.file_table import FileTable, find_table
from bertsmith.text.tokens.tokenizer import Tokenizer

TEXTS = ["red cat", "the old dogs sleeps", "a b c 1 2 3", "small - bird", ""]
WORDS = "bert.embeddings.word_embeddings.weight"
PRECISIONS = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture
def folder(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(file_table, "SMALLEST", 1)
    shutil.copytree(tiny_bert, tmp_path / "model")
    (tmp_path / "model" / "bertsmith.json").unlink()  # the tests change files
    return tmp_path / "model"


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Puts another file in the place of the weights, as our commands do."""
    tensors = load_file(folder / "model.safetensors")
    (name,) = (name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[WORDS] = tensors.pop(name)
    for other in [name for name in tensors if not name.startswith("bert.")]:
        tensors[f"bert.{other}"] = tensors.pop(other)
    change(tensors)
    save_file(tensors, folder / "new")
    (folder / "new").replace(folder / "model.safetensors")


def open_encoder(folder: Path) -> Bert:
    return encoder_of(read_checkpoint(folder, table_in_file=True), "here")


def vectors_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    with monkeypatch.context() as patch:
        patch.setattr(file_table, "SMALLEST", 1 << 40)
        embedder = Embedder(folder)
        assert type(embedder.encoder.embeddings.token) is torch.nn.Embedding
        return embedder.documents(TEXTS)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_vectors_are_those_of_a_table_in_memory(
    precision: torch.dtype, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrite(folder, lambda tensors: tensors.update({WORDS: tensors[WORDS].to(precision)}))
    embedder = Embedder(folder)
    table = embedder.encoder.embeddings.token
    assert isinstance(table, FileTable)
    assert table.weight.dtype == precision
    assert np.array_equal(embedder.documents(TEXTS), vectors_in_memory(folder, monkeypatch))
    for other in (copy.deepcopy(embedder.encoder), pickle.loads(pickle.dumps(embedder)).encoder):
        assert type(other.embeddings.token) is torch.nn.Embedding
        assert torch.equal(other.embeddings.token.weight, load_encoder(folder).embeddings.token.weight)


def test_a_predictor_answers_alike(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = tmp_path / "train.jsonl"
    train.write_text('{"text": "red cat", "label": "x"}\n{"text": "old dog", "label": "y"}\n' * 8)
    run = finetune(
        "classification",
        "epochs=2",
        "method=full",
        "max_length=64",
        model=str(folder),
        train=str(train),
        dev=str(train),
        out=str(tmp_path / "run"),
    )
    predictor = Predictor.load(run.model)
    assert isinstance(predictor.model.encoder.embeddings.token, FileTable)
    answers = predictor.predict(TEXTS)
    monkeypatch.setattr(file_table, "SMALLEST", 1 << 40)
    assert answers == Predictor.load(run.model).predict(TEXTS)


def test_an_open_model_stays_what_it_was_when_its_folder_is_saved_anew(folder: Path) -> None:
    """By our own saver into the same folder, from the open model itself; and when the folder is removed."""
    embedder = Embedder(folder)
    before = embedder.documents(TEXTS)
    encoder = load_encoder(folder)
    with torch.no_grad():
        encoder.embeddings.token.weight.mul_(2)
    tokenizer, config = Tokenizer.load(folder), encoder.config
    changed = {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
    save_checkpoint(folder, changed, config, "BertModel", task="test", tokenizer=tokenizer, overwrite=True)
    assert np.array_equal(embedder.documents(TEXTS), before)
    assert not np.array_equal(Embedder(folder).documents(TEXTS), before)

    opened = open_encoder(folder)
    assert isinstance(opened.embeddings.token, FileTable)
    tensors = {f"encoder.{name}": tensor for name, tensor in opened.state_dict().items()}
    save_checkpoint(folder, tensors, config, "BertModel", task="test", tokenizer=tokenizer, overwrite=True)
    assert torch.equal(load_encoder(folder).embeddings.token.weight, encoder.embeddings.token.weight)
    shutil.rmtree(folder)
    assert np.array_equal(embedder.documents(TEXTS), before)


@pytest.mark.parametrize("cut", [False, True])
def test_where_the_file_itself_is_written_to_no_row_is_read(cut: bool, folder: Path) -> None:
    embedder = Embedder(folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(100) if cut else file.write(b"\0")
    os.utime(folder / "model.safetensors", ns=(1, 1))
    with pytest.raises(ModelError, match="was written to while this model was open"):
        embedder.documents(TEXTS)


def test_what_is_written_to_a_row_stays_in_memory(folder: Path) -> None:
    encoder = open_encoder(folder)
    content = (folder / "model.safetensors").read_bytes()
    with torch.no_grad():
        encoder.embeddings.token.weight.zero_()
    assert not encoder.embeddings.token(torch.tensor([1])).any()
    assert (folder / "model.safetensors").read_bytes() == content


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_refused(value: float, precision: torch.dtype, folder: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[WORDS] = tensors[WORDS].to(precision)
        tensors[WORDS][-1, -1] = value

    rewrite(folder, change)
    with pytest.raises(ModelError, match="not finite"):
        Embedder(folder)


def test_other_files_are_read_as_ever(folder: Path) -> None:
    """A table in float64, one of another width, and one beside a second of so many rows."""
    weights = folder / "model.safetensors"
    rows, width = load_encoder(folder).embeddings.token.weight.shape
    assert find_table(weights, rows, width) is not None
    assert find_table(weights, rows, width + 1) is None
    rewrite(folder, lambda tensors: tensors.update({WORDS: tensors[WORDS].double()}))
    assert find_table(weights, rows, width) is None
    assert type(open_encoder(folder).embeddings.token) is torch.nn.Embedding
    rewrite(
        folder,
        lambda tensors: tensors.update({WORDS: tensors[WORDS].float(), "other": torch.zeros(rows, 2)}),
    )
    assert find_table(weights, rows, width) is None


def test_opening_takes_none_of_the_memory_of_the_rows(tmp_path: Path) -> None:
    """What the system counts of the file, in bytes: the pages of one row, not the whole table."""
    path = tmp_path / "model.safetensors"
    save_file({WORDS: torch.ones(70_000, 256, dtype=torch.float16)}, path)
    table = FileTable(path, WORDS)
    assert resident(path) < 1 << 20
    assert torch.equal(table(torch.tensor([69_999])), torch.ones(1, 256))
    assert 0 < resident(path) < 1 << 20


def resident(path: Path) -> int:
    lines = Path("/proc/self/smaps").read_text().splitlines()
    starts = [number for number, line in enumerate(lines) if line.endswith(str(path))]
    sizes = [
        line.split()[1] for start in starts for line in lines[start : start + 20] if line.startswith("Rss:")
    ]
    return 1024 * sum(map(int, sizes[: len(starts)]))


def test_tables_are_the_same_if_all_their_rows_are(folder: Path, tmp_path: Path) -> None:
    """Beside other tensors and in other files, until one is written to."""
    shutil.copytree(folder, tmp_path / "other")
    rewrite(tmp_path / "other", lambda tensors: tensors.pop("bert.pooler.dense.bias"))
    tables = [
        FileTable(path / "model.safetensors", name)
        for path, name in ((folder, find_table_of(folder)), (tmp_path / "other", WORDS))
    ]
    assert tables[0].has_rows_of(tables[1])
    rewrite(tmp_path / "other", lambda tensors: tensors[WORDS].view(-1)[-1].add_(1e-3))
    assert not tables[0].has_rows_of(FileTable(tmp_path / "other" / "model.safetensors", WORDS))
    assert tables[0].has_rows_of(tables[1])  # which reads the file that it opened
    with torch.no_grad():
        tables[1].weight[0, 0] += 1
    assert not tables[0].has_rows_of(tables[1])


def find_table_of(folder: Path) -> str:
    (name,) = (
        name for name in load_file(folder / "model.safetensors") if name.endswith("word_embeddings.weight")
    )
    return name

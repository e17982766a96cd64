"""Pre-training on a table's numbers as they are, against plain sums; that what is masked is hidden, and that
it learns what a table says.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertsmith.cli.main import main
from bertsmith.data.batch import PackedBatch, Sequences
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.sequences.building import SequenceSettings, build_sequences
from bertsmith.data.sequences.encoding import encode_sequences
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, PretrainingStream
from bertsmith.inference.masked_language import MaskedLanguageModel
from bertsmith.inference.predictor import Predictor
from bertsmith.model.config import BertConfig
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.reconstruction import TableReconstruction
from bertsmith.text.tokens.value_tokenizers import load_tokenizer

pytestmark = pytest.mark.thorough

SHORT = (
    *("steps=6", "data.sequence_lengths=[8]", "data.batch_size=8", "masking.mask_rate=0.5"),
    *("evaluation.every=3", "checkpoint.every=3", "model.hidden_size=32", "model.intermediate_size=64"),
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """y is twice x, and the sign of x is the category; some cells are blank."""
    chance, rows = np.random.default_rng(0), []
    for number in range(300):
        x = float(chance.normal())
        blank = {"y": None} if number % 9 == 0 else {"y": 2 * x + 5}
        rows.append({"x": x, **blank, "sign": "plus" if x > 0 else "minus", "label": int(x > 0.5)})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = SequenceSettings(kind="table", numbers="continuous", leave_out=("label",), heldout=0.2)
    build_sequences([tmp_path / "rows.jsonl"], tmp_path / "store", settings)
    return tmp_path / "store"


def make_task(store: Path, seed: int = 0, scale: float = 0.3) -> TableReconstruction:
    tokenizer = load_tokenizer(store / "tokenizer")
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    shape |= {"vocab_size": tokenizer.vocab_size, "hidden_dropout_prob": 0.0}
    config = BertConfig.model_validate(
        shape | {"model_type": "bert", "attention_probs_dropout_prob": 0.0, "pad_token_id": 0}
    )
    torch.manual_seed(seed)
    model = PretrainingModel(config, next_sentence=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, scale)
    stream = PretrainingStream(TokenStore.open(store / "train"), tokenizer, 0, False, 8, 60)
    masker = Masker(tokenizer, MaskingRates(mask_rate=0.5))
    return TableReconstruction(model, [stream], masker, stream, 400, torch.device("cpu"))


def first_sequences(task: TableReconstruction) -> Sequences:
    return next(iter(task.batches(Cursor()))).sequences


@torch.no_grad()
def test_losses_are_those_of_each_masked_cell_by_itself(store: Path) -> None:
    """Pieces by cross-entropy over the vocabulary, numbers by their squared error too."""
    task = make_task(store)
    sequences, model = first_sequences(task), task.model.eval()
    batch = PackedBatch.of(sequences)
    assert batch.values is not None
    masked = task.masker.draw(sequences, batch)
    hidden = masked.token_ids == task.masker.mask_id
    assert hidden.sum() == len(masked.positions)  # always [MASK]
    shown = replace(batch, token_ids=masked.token_ids, values=batch.values * ~hidden[:, None])
    states = model.masked_language(model.encoder(shown))
    weight, bias = model.encoder.embeddings.token.weight, model.masked_language.bias
    pieces, squares, numbers = 0.0, 0.0, 0
    tokenizer = load_tokenizer(store / "tokenizer")
    for row in masked.positions.tolist():
        logits, piece = weight @ states[row] + bias, int(batch.token_ids[row])
        pieces -= float(logits.log_softmax(0)[piece])
        if tokenizer.id_to_token(piece) in ("x:", "y:"):
            squares += float((logits[-1] - batch.values[row, 0]) ** 2)
            numbers += 1
    found, counts = task.loss(sequences), task.counts(sequences)
    assert float(found["mlm"]) == pytest.approx(pieces, rel=1e-4)
    assert float(found["reconstruction"]) == pytest.approx(squares, rel=1e-4)
    assert 0 < numbers < len(masked.positions)
    assert counts == {"mlm": len(masked.positions), "reconstruction": numbers}


@torch.no_grad()
def test_a_masked_number_does_not_reach_the_prediction(store: Path) -> None:
    task = make_task(store)
    task.model.eval()
    sequences = first_sequences(task)
    assert sequences.values is not None
    masked = task.masker.draw(sequences, PackedBatch.of(sequences))
    hidden = (masked.token_ids == task.masker.mask_id).numpy()
    before, *_ = task._encode_masked_cells(sequences, task.masker)
    for keep, same in ((~hidden, True), (hidden, False)):
        values = np.where(keep[:, None], sequences.values, 9).astype(np.float32)
        after, *_ = task._encode_masked_cells(replace(sequences, values=values), task.masker)
        assert torch.allclose(after, before) is same


def test_figures_are_sums_over_ranks_and_the_baselines_are_plain(store: Path) -> None:
    task = make_task(store)
    sums = task.sum_heldout(0, 1)
    halves = [task.sum_heldout(rank, 2) for rank in range(2)]
    assert sums == pytest.approx({name: halves[0][name] + halves[1][name] for name in sums})
    metrics = task.metrics(sums)
    assert metrics["explained"] == pytest.approx(1 - sums["error"] / sums["of_mean"])
    tokenizer = load_tokenizer(store / "tokenizer")
    assert tokenizer.id_to_token(task.most_frequent) in ("sign=plus", "sign=minus")
    assert 0.2 < metrics["mlm_majority"] < 0.8


def test_it_learns_what_one_number_says_of_another(store: Path) -> None:
    """y is twice x: half of the numbers can be told, those whose partner is seen."""
    task = make_task(store, scale=0.1)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=5e-3)
    batches = task.batches(Cursor())
    for _ in range(200):
        sequences = next(batches).sequences
        losses, counts = task.loss(sequences), task.counts(sequences)
        sum(losses[name] / counts[name] for name in losses).backward()  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()
    metrics = task.metrics(task.sum_heldout(0, 1))
    assert metrics["explained"] > 0.4
    assert metrics["mlm_accuracy"] > metrics["mlm_majority"] + 0.1


@pytest.mark.slow
def test_a_run_resumes_to_the_bit_is_measured_fine_tuned_and_asked_again(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["pretrain", "quickstart", *SHORT, "corpus=store", "out=run"]
    assert main(words) == 0
    assert main([*words[:-1], "out=other", "loss.decoder_layers=1"]) == 2
    assert "decoder_layers is for series and images" in capsys.readouterr().err
    whole = load_file("run/model/model.safetensors")
    shutil.rmtree("run/model")
    shutil.rmtree("run/checkpoints/step-00000006")
    assert main([*words, "--resume"]) == 0
    again = load_file("run/model/model.safetensors")
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    figures = MaskedLanguageModel.load("run/model").evaluate("store")
    assert {"reconstruction_error", "error_of_mean", "explained", "mlm_accuracy"} <= figures.keys()
    encode_sequences("rows.jsonl", "store", "train.jsonl")
    tuned = ["--model", "run/model", "--train", "train.jsonl", "--dev", "train.jsonl", "--out", "tuned"]
    short = ["epochs=2", "method=full", "max_length=8", "minutes=0"]
    assert main(["finetune", "classification", *tuned, *short]) == 0
    predictor = Predictor.load("tuned/model")
    confidences = [
        predictor.predict([f"x:{x} y:{2 * x + 5} sign=plus"])[0]["confidence"] for x in (0.1, 0.4, 2)
    ]
    assert len(set(confidences)) == 3  # what is read decides, within one category too

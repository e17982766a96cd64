"""Pre-training on patches against plain loops; what is saved of it, and what a resumed run repeats."""

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
from bertsmith.inference.predictor import Predictor
from bertsmith.model.config import BertConfig
from bertsmith.tasks.classification import Classification
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.reconstruction import PatchReconstruction, add_decoder
from bertsmith.text.tokens.value_tokenizers import RowEncoding, load_tokenizer

SHORT = (
    *("steps=6", "data.sequence_lengths=[12]", "data.batch_size=4", "masking.mask_rate=0.5"),
    *("evaluation.every=3", "checkpoint.every=3", "model.hidden_size=32", "model.intermediate_size=64"),
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Waves of several lengths, some longer than a sequence."""
    chance = np.random.default_rng(0)
    rows = [np.sin(np.arange(12 + number % 70) * 0.3 + chance.normal()).tolist() for number in range(60)]
    lines = [json.dumps({"series": row, "label": number % 2}) for number, row in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    settings = SequenceSettings(kind="series", patch=4, heldout=0.2)
    build_sequences([tmp_path / "rows.jsonl"], tmp_path / "store", settings)
    return tmp_path / "store"


def make_task(store: Path, model_type: str = "bert", decoder_layers: int = 0) -> PatchReconstruction:
    tokenizer = load_tokenizer(store / "tokenizer")
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    shape |= {"vocab_size": tokenizer.vocab_size, "hidden_dropout_prob": 0.0}
    config = BertConfig.model_validate(
        shape | {"model_type": model_type, "attention_probs_dropout_prob": 0.0, "pad_token_id": 0}
    )
    torch.manual_seed(0)
    model = PretrainingModel(config, next_sentence=False)
    add_decoder(model, decoder_layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    model.requires_grad_(False)
    stream = PretrainingStream(TokenStore.open(store / "train"), tokenizer, 0, False, 12, 60)
    masker = Masker(tokenizer, MaskingRates(mask_rate=0.5, masked=1.0, random=0.0))
    return PatchReconstruction(model, [stream], masker, stream, 400, torch.device("cpu"))


def first_sequences(task: PatchReconstruction) -> Sequences:
    return next(iter(task.batches(Cursor()))).sequences


def test_sequences_carry_the_values_of_their_tokens(store: Path) -> None:
    task = make_task(store)
    sequences = first_sequences(task)
    values, kept = sequences.values, TokenStore.open(store / "train").values
    assert values is not None and kept is not None
    special = np.isin(sequences.token_ids, list(load_tokenizer(store / "tokenizer").special_ids))
    assert not values[special].any()
    known = {row.tobytes() for row in kept}
    assert all(row.tobytes() in known for row in values[~special])
    last = sequences.take(np.array([len(sequences) - 1]))
    assert last.values is not None
    np.testing.assert_array_equal(last.values, values[-len(last.token_ids) :])


@pytest.mark.parametrize("model_type", ["bert", "nomic_bert", "modernbert"])
def test_a_patch_is_read_and_predicted_by_the_last_rows_of_the_embeddings(
    store: Path, model_type: str
) -> None:
    """Each value by itself: what is masked is zero, and the loss is summed value by value."""
    task = make_task(store, model_type)
    sequences, model = first_sequences(task), task.model.eval()
    batch = PackedBatch.of(sequences)
    masked = task.masker.draw(sequences, batch)
    weight, bias = model.encoder.embeddings.token.weight, model.masked_language.bias
    assert batch.values is not None
    size = batch.values.shape[1]
    hidden = masked.token_ids == task.masker.mask_id
    assert hidden.sum() == len(masked.positions) and not (hidden & (batch.token_ids < 5)).any()
    shown = batch.values * ~hidden[:, None]
    states = model.masked_language(model.encoder(replace(batch, token_ids=masked.token_ids, values=shown)))
    total = 0.0
    for row in masked.positions.tolist():
        for place in range(size):
            at = len(weight) - size + place
            total += float((states[row] @ weight[at] + bias[at] - batch.values[row, place]) ** 2)
    assert float(task.loss(sequences)["reconstruction"]) == pytest.approx(total, rel=1e-4)
    assert task.counts(sequences)["reconstruction"] == len(masked.positions) * size


def test_what_is_masked_does_not_reach_the_prediction(store: Path) -> None:
    for layers in (0, 1):
        task = make_task(store, decoder_layers=layers)
        task.model.eval()
        sequences = first_sequences(task)
        assert sequences.values is not None
        before, _ = task._predict(sequences, task.masker)
        masked = task.masker.draw(sequences, PackedBatch.of(sequences))
        hidden = (masked.token_ids == task.masker.mask_id).numpy()
        other = replace(
            sequences, values=np.where(hidden[:, None], 99.0, sequences.values).astype(np.float32)
        )
        torch.testing.assert_close(task._predict(other, task.masker)[0], before)
        shown = replace(sequences, values=np.where(hidden[:, None], sequences.values, 9).astype(np.float32))
        assert not torch.allclose(task._predict(shown, task.masker)[0], before)


@pytest.mark.parametrize("model_type", ["bert", "nomic_bert"])
def test_the_asymmetric_encoder_sees_visible_patches_in_their_places_alone(
    store: Path, model_type: str
) -> None:
    """One sequence after the other, without packing: encoder on the visible rows, decoder on all."""
    task = make_task(store, model_type, decoder_layers=2)
    model, sequences = task.model.eval(), first_sequences(task)
    found, _ = task._predict(sequences, task.masker)
    masked = task.masker.draw(sequences, PackedBatch.of(sequences))
    start, expected = 0, {}
    for row, length in enumerate(sequences.lengths.tolist()):
        one = PackedBatch.of(sequences.take(np.array([row])))
        ids = masked.token_ids[start : start + length]
        visible = ids != task.masker.mask_id
        assert one.values is not None
        count = int(visible.sum())
        part = PackedBatch(
            *(one.token_ids[visible], one.segment_ids[visible], one.position_ids[visible]),
            *(torch.tensor([0, count], dtype=torch.int32), (count,), one.values[visible]),
        )
        whole = replace(one, token_ids=ids, values=one.values * visible[:, None])
        states = model.encoder.embeddings(whole).clone()
        states[visible] = model.encoder(part)
        assert model.decoder is not None
        for layer in model.decoder:
            states = layer(states, one)
        transformed, size = model.masked_language(states), one.values.shape[1]
        outputs = transformed @ model.encoder.embeddings.token.weight[-size:].T
        outputs = outputs + model.masked_language.bias[-size:]
        expected |= {start + place: outputs[place] for place in range(length)}
        start += length
    torch.testing.assert_close(
        found, torch.stack([expected[row] for row in masked.positions.tolist()]), rtol=1e-4, atol=1e-4
    )


def test_metrics_are_those_of_a_plain_mean_over_all_masked_values(store: Path) -> None:
    task = make_task(store)
    sums = task.sum_heldout(0, 1)
    halves = [task.sum_heldout(rank, 2) for rank in range(2)]
    assert sums == pytest.approx({name: halves[0][name] + halves[1][name] for name in sums})
    metrics = task.metrics(sums)
    assert metrics["explained"] == pytest.approx(1 - sums["error"] / sums["of_mean"])
    assert task.metrics({"count": 0.0, "error": 0.0, "of_mean": 0.0}) == {}


@pytest.mark.parametrize("decoder", ["0", "1"])
def test_a_resumed_run_repeats_the_whole_one_to_the_bit(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["pretrain", "quickstart", *SHORT, f"loss.decoder_layers={decoder}", "corpus=store", "out=run"]
    assert main(words) == 0
    whole = load_file("run/model/model.safetensors")
    assert not any("decoder.0" in name for name in whole)
    shutil.rmtree("run/model")
    shutil.rmtree("run/checkpoints/step-00000006")
    assert main([*words, "--resume"]) == 0
    again = load_file("run/model/model.safetensors")
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


@pytest.mark.slow
def test_a_pretrained_encoder_is_fine_tuned_saved_and_asked_again(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    encode_sequences("rows.jsonl", "store", "train.jsonl")
    assert main(["pretrain", "quickstart", *SHORT, "corpus=store", "out=run"]) == 0
    tuned = ["--model", "run/model", "--train", "train.jsonl", "--dev", "train.jsonl"]
    short = ["epochs=1", "method=full", "max_length=12", "minutes=0"]
    assert main(["finetune", "classification", *tuned, "--out", "tuned", *short]) == 0
    predictor = Predictor.load("tuned/model")
    rows = [json.loads(line)["text"] for line in Path("train.jsonl").read_text().splitlines()]
    together = [each["confidence"] for each in predictor.predict(rows)]
    alone = [predictor.predict([row])[0]["confidence"] for row in rows]
    assert together == pytest.approx(alone, abs=1e-5)
    assert len(set(together)) > 10  # what is read decides
    capsys.readouterr()
    assert main(["predict", "tuned/model", "rows.jsonl", "--text", "label", "--out", "none.jsonl"]) == 2
    assert main(["finetune", "tagging", "--model", "run/model", "--train", "train.jsonl", "--out", "t"]) == 2
    refused = [
        ["fill-mask", "run/model", "1 2 [MASK]"],
        ["embed", "run/model", "train.jsonl", "--out", "vectors"],
        ["look", "tuned/model", "1 2 3 4", "--out", "page.html"],
    ]
    for words in refused:
        capsys.readouterr()
        assert main(words) == 2
        assert "reads series" in " ".join(capsys.readouterr().err.split())


def test_evaluate_measures_a_store_of_patches(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pretrain", "quickstart", *SHORT, "corpus=store", "out=run"]) == 0
    capsys.readouterr()
    words = ["evaluate", "run/model", "store", "--sequence-length", "12", "--json"]
    assert main(words) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["explained"] == pytest.approx(
        1 - figures["reconstruction_error"] / figures["error_of_mean"]
    )
    assert "mlm_accuracy" not in figures


def test_a_decoder_for_symbols_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", np.arange(400).reshape(40, 10) % 7)
    build_sequences(["rows.npy"], "store")
    words = ["pretrain", "quickstart", *SHORT, "loss.decoder_layers=1", "corpus=store", "out=run"]
    assert main(words) == 2
    assert "loss.decoder_layers is for series and images" in " ".join(capsys.readouterr().err.split())
    assert not Path("run/recipe.toml").exists()


def test_pairs_of_patches_are_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["pretrain", "budget", "steps=2", "data.next_sentence=true", "model.model_type=bert", "out=run"]
    assert main([*words, "model.size=tiny", "corpus=store"]) == 2
    assert not Path("run/recipe.toml").exists()


def test_a_row_longer_than_a_window_is_read_by_several(store: Path) -> None:
    """As long texts are: by `stride`, each window with the values of its own patches."""
    tokenizer = load_tokenizer(store / "tokenizer")
    row = " ".join(map(str, np.arange(40.0)))  # ten patches
    (pieces,) = tokenizer.encode_pieces([row])
    assert isinstance(pieces, RowEncoding)
    task = Classification(Classification.Settings(max_length=8, stride=2))
    encoded = task.encode(TextExample(row, None, None, "here"), [pieces], tokenizer)
    assert len(encoded.windows) == 2
    for window, start in zip(encoded.windows, (0, 4), strict=True):
        assert window.values is not None
        np.testing.assert_array_equal(window.values[1:-1], pieces.values[start : start + 6])
        assert not window.values[[0, -1]].any()
    cut = Classification(Classification.Settings(max_length=8))
    (window,) = cut.encode(TextExample(row, None, None, "here"), [pieces], tokenizer).windows
    assert window.values is not None and len(window.values) == 8

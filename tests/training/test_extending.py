"""A model gets rows for the words of a corpus: means of its own, opened elsewhere, and undone to the bit."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForMaskedLM, AutoTokenizer

from bertsmith.errors import BertsmithError, InputError, ModelError, TokenizerError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.model.checkpoint import read_checkpoint, save_checkpoint
from bertsmith.model.config import make_config
from bertsmith.model.manifest import update_file_entry
from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model, save_pretraining_model
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.extension import ExtensionSettings
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.extending import EXTENSION, extend_vocabulary, read_extension, undo_extension

SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
LETTERS = "abcdefghijklmnopqrstuvwxyz.,"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
ROWS = "bert.embeddings.word_embeddings.weight"
BIAS = "cls.predictions.bias"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("domain"), random.Random(0)
    words = ("hypersonic", "airfoil", "airfoils", "drag")
    texts = [" ".join(draw.choices(words, k=12)) + "." for _ in range(200)]
    (folder / "text.txt").write_text("\n\n".join(texts))
    settings = CorpusSettings(format="blank-lines", heldout=0.1, near_duplicates=False)
    build_corpus([str(folder / "text.txt")], folder / "corpus", settings=settings, workers=1)
    return folder / "corpus"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def write_model(folder: Path, spare: int = 0, **parts: Any) -> Path:
    """With `spare` rows more than its tokenizer has pieces."""
    torch.manual_seed(0)
    config = make_config({"vocab_size": len(PIECES) + spare, "max_position_embeddings": 64} | SHAPE, "test")
    model = PretrainingModel(config, **parts)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    save_pretraining_model(
        folder, model, Tokenizer.from_pieces(PIECES, lowercase=True), {"weights": "random"}
    )
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_new_rows_are_the_mean_of_those_of_the_pieces(tmp_path: Path, model: Path, corpus: Path) -> None:
    extension = extend_vocabulary(model, corpus, tmp_path / "out")
    assert {each.word for each in extension.words} == {"hypersonic", "airfoil", "airfoils", "drag"}
    old, new = load_file(model / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    base = len(PIECES)
    for name, rows in old.items():
        assert torch.equal(new[name][: len(rows)], rows)
        assert len(new[name]) == len(rows) + 4 * (name in (ROWS, BIAS))
    for number, word in enumerate(extension.pieces, start=base):
        letters = [PIECES.index(word[0]), *(PIECES.index(f"##{letter}") for letter in word[1:])]
        for name in (ROWS, BIAS):
            torch.testing.assert_close(new[name][number], old[name][letters].mean(0))


def test_transformers_opens_it_and_reads_the_same(tmp_path: Path, model: Path, corpus: Path) -> None:
    out = tmp_path / "out"
    extend_vocabulary(model, corpus, out)
    theirs, tokenizer = AutoModelForMaskedLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert theirs.config.vocab_size == len(tokenizer) == len(PIECES) + 4
    text = "drag, airfoils and hypersonics."
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert ids == Tokenizer.load(out).encode(text).ids
    assert ids[0] >= len(PIECES)
    assert tokenizer.decode(ids) == text
    assert theirs.get_output_embeddings().weight.shape == (len(PIECES) + 4, 16)


def test_old_text_is_understood_as_before(tmp_path: Path, model: Path, corpus: Path) -> None:
    extend_vocabulary(model, corpus, tmp_path / "out")
    folders = (model, tmp_path / "out")
    before, after = (AutoModelForMaskedLM.from_pretrained(each).eval() for each in folders)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer("words of the old kind", return_tensors="pt")
    assert inputs.input_ids.max() < len(PIECES)
    with torch.no_grad():
        old, new = before(**inputs).logits, after(**inputs).logits
    torch.testing.assert_close(new[..., : len(PIECES)], old, rtol=0, atol=1e-6)


@pytest.mark.parametrize("spare", [0, 3])
def test_undone_it_is_the_old_model_to_the_byte(tmp_path: Path, corpus: Path, spare: int) -> None:
    model = write_model(tmp_path / "model", spare)
    write_golden(model)
    extend_vocabulary(model, corpus, tmp_path / "out")
    undo_extension(tmp_path / "out", tmp_path / "again")
    old, again = contents(model), contents(tmp_path / "again")
    assert again.keys() == old.keys()
    assert {name for name in old if old[name] != again[name]} == set()


def test_rows_without_a_piece_stay_behind_all_pieces(tmp_path: Path, corpus: Path) -> None:
    """Ids go on without a hole, and what is spare is neither lost nor given to a word."""
    model = write_model(tmp_path / "model", spare=3)
    extend_vocabulary(model, corpus, tmp_path / "out")
    old, new = (load_file(each / "model.safetensors")[ROWS] for each in (model, tmp_path / "out"))
    assert torch.equal(new[-3:], old[-3:])
    assert Tokenizer.load(tmp_path / "out").vocab_size == len(new) - 3


def test_an_extension_on_top_of_another_is_undone_by_itself(
    tmp_path: Path, model: Path, corpus: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    extend_vocabulary(model, corpus, first, ExtensionSettings(words=1))
    extend_vocabulary(first, corpus, second, ExtensionSettings(words=2))
    undo_extension(second, tmp_path / "back")
    assert contents(tmp_path / "back").keys() == contents(first).keys() - {"report.html"}
    for name in ("model.safetensors", "tokenizer.json", "vocab.txt", EXTENSION):
        assert contents(tmp_path / "back")[name] == contents(first)[name]
    undo_extension(tmp_path / "back", tmp_path / "all")
    assert contents(tmp_path / "all")["model.safetensors"] == contents(model)["model.safetensors"]


def test_a_tokenizer_alone_is_extended_and_undone(tmp_path: Path, model: Path, corpus: Path) -> None:
    tokenizer = Tokenizer.load(model)
    tokenizer.save(tmp_path / "alone")
    extension = extend_vocabulary(tmp_path / "alone", corpus, tmp_path / "out")
    assert Tokenizer.load(tmp_path / "out").sha256 == extension.sha256
    undo_extension(tmp_path / "out", tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "alone")
    by_file = extend_vocabulary(model / "vocab.txt", corpus, tmp_path / "of-a-file")
    assert by_file.words == extension.words


@pytest.mark.parametrize(
    "name",
    [
        "model-00001-of-00002.safetensors",
        "adapter_model.safetensors",
        "tf_model.h5",
        "pytorch_model.bin",
        "bert_model.ckpt.index",
        "model.onnx",
    ],
)
def test_a_model_whose_weights_arent_read_is_no_tokenizer_alone(
    tmp_path: Path, model: Path, corpus: Path, name: str
) -> None:
    (model / "bertsmith.json").unlink()
    (model / "model.safetensors").rename(model / name)
    with pytest.raises(ModelError):
        extend_vocabulary(model, corpus, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_else_the_folder_holds_stays(tmp_path: Path, model: Path, corpus: Path) -> None:
    """Pooling of an embedding model, a classifier's labels, its task, a head of ours, the longest text."""
    checkpoint = read_checkpoint(model)
    tensors = {name: rows for name, rows in checkpoint.tensors.items() if name.startswith("encoder.")}

    def beside(folder: Path) -> None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
        (folder / "modules.json").write_text('[{"type": "Pooling", "path": "1_Pooling"}]')
        save_file({"x": torch.ones(2)}, folder / "head.safetensors")

    save_checkpoint(
        tmp_path / "classifier",
        tensors,
        checkpoint.config,
        "BertForSequenceClassification",
        task="classification",
        tokenizer=Tokenizer.load(model),
        settings={"labels": ["no", "yes"]},
        carried={"classifier.weight": torch.ones(2, 16), "classifier.bias": torch.zeros(2)},
        labels={"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}},
        write_extra_files=beside,
    )
    config = tmp_path / "classifier" / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_max_length": 40}))
    update_file_entry(tmp_path / "classifier", config.name)
    extend_vocabulary(tmp_path / "classifier", corpus, tmp_path / "out")
    assert json.loads((tmp_path / "out" / config.name).read_text())["model_max_length"] == 40
    new = read_checkpoint(tmp_path / "out")
    assert new.architecture == "BertForSequenceClassification"
    assert new.manifest is not None
    assert (new.manifest.task, new.manifest.settings) == ("classification", {"labels": ["no", "yes"]})
    assert torch.equal(new.carried["classifier.weight"], torch.ones(2, 16))
    assert json.loads((tmp_path / "out" / "config.json").read_text())["id2label"] == {"0": "no", "1": "yes"}
    for name in ("1_Pooling/config.json", "modules.json", "head.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "classifier" / name).read_bytes()
        assert name in new.manifest.files


def test_figures_of_another_vocabulary_are_not_the_models(tmp_path: Path, corpus: Path) -> None:
    """The card, and the hub by its model-index, showed those that were measured before."""
    model = write_model(tmp_path / "model")
    pretrained, _ = load_pretraining_model(model)
    origin = {"seed": 3, "metrics": {"mlm_accuracy": 0.75}}
    save_pretraining_model(tmp_path / "measured", pretrained, Tokenizer.load(model), origin)
    assert "0.75" in (tmp_path / "measured" / "README.md").read_text()
    extend_vocabulary(tmp_path / "measured", corpus, tmp_path / "out")
    manifest = read_checkpoint(tmp_path / "out").manifest
    assert manifest is not None and manifest.provenance == {"seed": 3}
    card = (tmp_path / "out" / "README.md").read_text()
    assert "0.75" not in card and "model-index" not in card


def test_an_embedding_model_keeps_its_last_product(tmp_path: Path, model: Path, corpus: Path) -> None:
    checkpoint, product = read_checkpoint(model), nn.Linear(16, 4)
    save_checkpoint(
        tmp_path / "embedding",
        {name: rows for name, rows in checkpoint.tensors.items() if name.startswith("encoder.")},
        checkpoint.config,
        "BertModel",
        task="encoder",
        tokenizer=Tokenizer.load(model),
        write_extra_files=lambda folder: write_sentence_folder(
            folder, checkpoint.config, "mean", 64, normalise=True, projection=product
        ),
    )
    extend_vocabulary(tmp_path / "embedding", corpus, tmp_path / "out")
    undo_extension(tmp_path / "out", tmp_path / "undone")
    assert (tmp_path / "out" / "3_Normalize").is_dir()
    old_words, *others = (
        Embedder(tmp_path / name).queries(["a flat text"]) for name in ("embedding", "out", "undone")
    )
    assert old_words.shape == (1, 4)
    for vectors in others:
        np.testing.assert_array_equal(vectors, old_words)


def test_the_page_shows_words_and_fit_without_believing_them(
    tmp_path: Path, model: Path, corpus: Path
) -> None:
    extension = extend_vocabulary(model, corpus, tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "hypersonic" in page and "h ##y ##p ##e ##r ##s" in page
    assert f"{extension.before.pieces_per_word:.3f} → {extension.after.pieces_per_word:.3f}" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("damage", "error", "said"),
    [
        (lambda out: (out / EXTENSION).unlink(), InputError, "was not extended"),
        (lambda out: (out / EXTENSION).write_text("{}"), TokenizerError, "the key 'base_pieces' is missing"),
        (lambda out: (out / EXTENSION).write_text("{"), InputError, "is not valid JSON"),
        (lambda out: shift(out / EXTENSION), TokenizerError, r"from id 60 on aren't the 4"),
    ],
)
def test_a_damaged_extension_is_refused(
    tmp_path: Path, model: Path, corpus: Path, damage: Any, error: type[BertsmithError], said: str
) -> None:
    extend_vocabulary(model, corpus, tmp_path / "out")
    (tmp_path / "out" / "bertsmith.json").unlink()  # whose hashes would say it before
    damage(tmp_path / "out")
    with pytest.raises(error, match=said):
        undo_extension(tmp_path / "out", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def shift(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_pieces": 60}))


def test_an_altered_extension_is_known_by_its_hash(tmp_path: Path, model: Path, corpus: Path) -> None:
    extend_vocabulary(model, corpus, tmp_path / "out")
    shift(tmp_path / "out" / EXTENSION)
    with pytest.raises(ModelError, match=r"extension\.json has"):
        undo_extension(tmp_path / "out", tmp_path / "again")


def test_what_exists_is_not_replaced(tmp_path: Path, model: Path, corpus: Path) -> None:
    with pytest.raises(InputError, match="already exists"):
        extend_vocabulary(model, corpus, model)
    assert read_extension(model) is None

"""Figures of a pre-trained model on held-out text: which part is measured, and that no other is read."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bertsmith.cli.main import main
from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.errors import StoreError
from bertsmith.inference.masked_language import MaskedLanguageModel, measured_split
from bertsmith.model.config import make_config
from bertsmith.model.cpu import kernels
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import save_pretraining_model
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus.corpus import Corpus, CorpusDocument
from bertsmith.text.corpus.manifest import Split
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer

WORDS = ("red", "blue", "cat", "dog", "runs")


@pytest.fixture(scope="module")
def model() -> MaskedLanguageModel:
    return model_of(16)


def model_of(width: int) -> MaskedLanguageModel:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "."]
    shape = {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape["intermediate_size"] = width
    config = make_config({"vocab_size": len(pieces), "max_position_embeddings": 32, **shape}, "test")
    return MaskedLanguageModel(PretrainingModel(config).eval(), Tokenizer.from_pieces(pieces, lowercase=True))


def corpus_with(heldout: float, folder: Path) -> Corpus:
    pairs = [(first, last) for first in WORDS for last in WORDS]
    documents = [f"{a} {b} {a}.\n{b} {b} {a}.".title() for a, b in pairs]
    (folder / "text.txt").write_text("\n\n".join(documents))
    settings = CorpusSettings(format="blank-lines", heldout=heldout, near_duplicates=False)
    return build_corpus([str(folder / "text.txt")], folder / "corpus", settings=settings, workers=1)


@pytest.mark.parametrize(("heldout", "read"), [(0.3, "heldout"), (0.04, "heldout"), (0.0, "train")])
def test_no_more_of_a_corpus_is_read_than_is_measured(
    model: MaskedLanguageModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    heldout: float,
    read: str,
) -> None:
    corpus = corpus_with(heldout, tmp_path)
    documents_held_out = corpus.manifest.splits["heldout"].counts.documents
    assert min(documents_held_out, 2) == {0.3: 2, 0.04: 1, 0.0: 0}[heldout]
    tokenize_corpus(corpus, model.tokenizer, tmp_path / "store")
    expected = model.evaluate(tmp_path / "store")
    begun, documents = list[str](), Corpus.documents

    def noted(self: Corpus, split: Split) -> Iterator[CorpusDocument]:
        begun.append(split)
        return documents(self, split)

    monkeypatch.setattr(Corpus, "documents", noted)
    assert model.evaluate(corpus.path) == expected
    assert begun == [read]
    assert measured_split(corpus.path) == measured_split(tmp_path / "store") == read


@pytest.mark.parametrize(("order", "pair"), [(False, "nsp"), (True, "sop")])
def test_of_one_document_no_figure_of_pairs_is_given(
    model: MaskedLanguageModel, tmp_path: Path, order: bool, pair: str
) -> None:
    """For no pair could be made of it, and the head would be right about nothing."""
    heads = PretrainingModel(model.model.config, True, order).eval()
    asked = MaskedLanguageModel(heads, model.tokenizer)
    figures = []
    for name, text in (("one", "Red cat.\nBlue dog."), ("two", "Red cat.\nBlue dog.\n\nDog runs.\nCat.")):
        (tmp_path / f"{name}.txt").write_text(text)
        settings = CorpusSettings(format="blank-lines", heldout=0, near_duplicates=False)
        build_corpus([str(tmp_path / f"{name}.txt")], tmp_path / name, settings=settings, workers=1)
        figures.append(asked.evaluate(tmp_path / name))
    assert f"{pair}_accuracy" in figures[1] and not any(name.startswith(pair) for name in figures[0])
    assert figures[0].keys() < figures[1].keys()


def test_the_command_measures_in_float32(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_of(64)  # which the kernels have
    with torch.no_grad():
        torch.manual_seed(0)
        for parameter in model.model.parameters():
            parameter.normal_(0, 0.3)
    folder, corpus = str(tmp_path / "model"), str(corpus_with(0.3, tmp_path).path)
    save_pretraining_model(tmp_path / "model", model.model, model.tokenizer, {})
    assert main(["evaluate", folder, corpus, "--json"]) == 0
    exact = MaskedLanguageModel.load(folder, compute_dtype=torch.float32).evaluate(corpus)
    assert json.loads(capsys.readouterr().out) == {"split": "heldout"} | exact
    if kernels.has_kernels():
        assert MaskedLanguageModel.load(folder, "cpu").evaluate(corpus)["mlm_loss"] != exact["mlm_loss"]


def test_the_command_says_when_it_measures_training_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of(16)
    save_pretraining_model(tmp_path / "model", model.model, model.tokenizer, {})
    asked = ["evaluate", str(tmp_path / "model"), str(corpus_with(0.0, tmp_path).path)]
    assert main(asked) == 0
    assert "its training text: nothing is held out" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["split"] == "train"


def test_a_store_without_its_heldout_part_is_damaged(model: MaskedLanguageModel, tmp_path: Path) -> None:
    tokenize_corpus(corpus_with(0.3, tmp_path), model.tokenizer, tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "heldout")
    with pytest.raises(StoreError, match=r"heldout.*no such file"):
        model.evaluate(tmp_path / "store")


def test_a_store_with_a_flipped_bit_is_not_measured(model: MaskedLanguageModel, tmp_path: Path) -> None:
    tokenize_corpus(corpus_with(0.3, tmp_path), model.tokenizer, tmp_path / "store")
    path = tmp_path / "store" / "heldout" / "tokens.bin"
    content = bytearray(path.read_bytes())
    content[-1] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"heldout/tokens\.bin was altered"):
        model.evaluate(tmp_path / "store")

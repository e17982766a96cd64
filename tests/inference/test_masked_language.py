"""Figures of a pre-trained model on held-out text: which part is measured, and that no other is read."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.errors import StoreError
from bertsmith.inference.masked_language import MaskedLanguageModel
from bertsmith.model.config import make_config
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.text.corpus.corpus import Corpus, Document, build_corpus
from bertsmith.text.corpus.manifest import Split
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer

WORDS = ("red", "blue", "cat", "dog", "runs")


@pytest.fixture(scope="module")
def model() -> MaskedLanguageModel:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "."]
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = make_config({"vocab_size": len(pieces), "max_position_embeddings": 32, **shape}, "test")
    return MaskedLanguageModel(PretrainingModel(config).eval(), Tokenizer.from_pieces(pieces, lowercase=True))


def corpus_with(heldout: float, folder: Path) -> Corpus:
    pairs = [(first, last) for first in WORDS for last in WORDS]
    documents = [f"{a} {b} {a}.\n{b} {b} {a}.".title() for a, b in pairs]
    (folder / "text.txt").write_text("\n\n".join(documents))
    settings = CorpusSettings(format="blank-lines", heldout=heldout, near_duplicates=False)
    return build_corpus([str(folder / "text.txt")], folder / "corpus", settings=settings, workers=1)


@pytest.mark.parametrize(("heldout", "read"), [(0.3, ["heldout"]), (0.0, ["heldout", "train"])])
def test_no_more_of_a_corpus_is_read_than_is_measured(
    model: MaskedLanguageModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    heldout: float,
    read: list[str],
) -> None:
    corpus = corpus_with(heldout, tmp_path)
    assert (corpus.manifest.splits["heldout"].counts.documents >= 2) == (heldout > 0)
    tokenize_corpus(corpus, model.tokenizer, tmp_path / "store")
    expected = model.evaluate(tmp_path / "store")
    begun, documents = list[str](), Corpus.documents

    def noted(self: Corpus, split: Split) -> Iterator[Document]:
        begun.append(split)
        return documents(self, split)

    monkeypatch.setattr(Corpus, "documents", noted)
    assert model.evaluate(corpus.path) == expected
    assert begun == read


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

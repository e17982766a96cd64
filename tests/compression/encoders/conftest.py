"""A small corpus, and a teacher of each kind."""

import random
from pathlib import Path

import pytest
from encoder_samples import WORDS, save_embedder, save_encoder, save_word_model, tiny_tokenizer

from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus.corpus import Corpus
from bertsmith.text.corpus_settings import CorpusSettings


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty documents of six sentences."""
    folder = tmp_path_factory.mktemp("text")
    draw = random.Random(3)
    for number in range(60):
        sentences = (" ".join(draw.choices(WORDS, k=draw.randint(3, 9))).capitalize() + "." for _ in range(6))
        (folder / f"{number}.txt").write_text("\n".join(sentences))
    out = folder / "corpus"
    build_corpus([str(folder)], out, settings=CorpusSettings(heldout=0.2), workers=1, progress=None)
    return out


@pytest.fixture(scope="session")
def store(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as tokens."""
    out = tmp_path_factory.mktemp("stores") / "store"
    tokenize_corpus(Corpus.open(corpus), tiny_tokenizer(), out)
    return out


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_embedder(tmp_path_factory.mktemp("teachers") / "embedder")


@pytest.fixture(scope="session")
def word_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_word_model(tmp_path_factory.mktemp("teachers") / "words")


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("teachers") / "encoder")

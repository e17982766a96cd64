"""A small text taken the whole way to a token store."""

import numpy as np
import pytest

from bertsmith.data.store import TokenStore
from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer

WORDS = [f"{first}{last}" for first in "bdfgklmnprst" for last in ("ano", "elo", "iru", "uma")]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_pieces(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ".", "##s"], lowercase=True
    )


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> TokenStore:
    """The training split of a corpus of 150 documents with a dozen sentences each."""
    folder = tmp_path_factory.mktemp("text")
    random = np.random.default_rng(0)
    for number in range(150):
        sentences = [" ".join(random.choice(WORDS, random.integers(3, 12))) + "." for _ in range(12)]
        (folder / f"{number}.txt").write_text("\n".join(sentence.capitalize() for sentence in sentences))
    settings = CorpusSettings(heldout=0.1, near_duplicates=False)
    corpus = build_corpus([str(folder)], folder / "corpus", settings=settings, workers=1)
    tokenize_corpus(corpus, tokenizer, folder / "store")
    return TokenStore.open(folder / "store" / "train", tokenizer)

"""The text that benchmarks run on: given, or Wikipedia of ../shared/data, or this machine's documentation."""

import argparse
from pathlib import Path
from typing import NamedTuple

from harness import end_without

_ROOT = Path(__file__).parents[1]
_WIKIPEDIA = _ROOT.parent / "shared" / "data" / "wikipedia_2014"
_MADE = _ROOT / "runs" / "bench"
_REPORTED = "wiki_50"  # one file of either folder, of some hundred: consecutive articles


def add_options(parser: argparse.ArgumentParser) -> None:
    """--store and --tokenizer; without them both are made once, under runs/bench/."""
    parser.add_argument("--store", help="a token store (bertsmith corpus tokenize)")
    parser.add_argument("--tokenizer", help="the tokenizer that made it")


def find(options: argparse.Namespace) -> tuple[str, str]:
    """The paths of store and tokenizer: BERT's uncased vocabulary, which is MiniLM's too."""
    if options.store and options.tokenizer:
        return options.store, options.tokenizer
    from bertsmith.data.tokenizing import tokenize_corpus
    from bertsmith.model.locate import locate_model
    from bertsmith.text.corpus.corpus import Corpus
    from bertsmith.text.tokens.tokenizer import Tokenizer

    corpus, tokenizer = find_corpus(), locate_model("minilm").folder
    store = corpus.with_name("store")
    if not store.exists():
        tokenize_corpus(Corpus.open(corpus), Tokenizer.load(tokenizer), store)
    return str(store), str(tokenizer)


def find_corpus() -> Path:
    """The corpus that the store is made of."""
    from bertsmith.text.corpus.building import build_corpus
    from bertsmith.text.corpus_settings import CorpusSettings

    source = str(_WIKIPEDIA) if _WIKIPEDIA.is_dir() else "pydocs:"
    corpus = _MADE / ("wikipedia" if _WIKIPEDIA.is_dir() else "pydocs") / "corpus"
    if not corpus.exists():
        build_corpus([source], corpus, settings=CorpusSettings())
    return corpus


class Parts(NamedTuple):
    """Paths: a token store to train on, its own held-out part to choose by, other documents for what is
    reported, and the vocabulary of all.
    """

    store: str
    development: str
    reported: str
    tokenizer: str


def parts(options: argparse.Namespace) -> Parts:
    """Of --store, --tokenizer and --reported, or of Wikipedia, where near-duplicates are dropped within each
    part. --pieces is the size of a vocabulary of its own for that, else it is BERT's uncased one.
    """
    given = (options.store, options.tokenizer, options.reported)
    if all(given):
        return Parts(given[0], f"{given[0]}/heldout", given[2], given[1])
    if any(given):
        raise SystemExit("Give --store, --tokenizer and --reported together, or none of them.")
    if not _WIKIPEDIA.is_dir():
        end_without(_WIKIPEDIA.name)
    return _parts_of_wikipedia(options.pieces)


def _parts_of_wikipedia(pieces: int | None) -> Parts:
    from bertsmith.data.tokenizing import tokenize_corpus
    from bertsmith.model.locate import locate_model
    from bertsmith.text.corpus.building import build_corpus
    from bertsmith.text.corpus.corpus import Corpus
    from bertsmith.text.corpus_settings import CorpusSettings
    from bertsmith.text.tokens.tokenizer import Tokenizer
    from bertsmith.text.tokens.vocabulary import VocabularySettings, train_tokenizer

    place = _MADE / "wikipedia-in-parts"
    settings = {
        "corpus": CorpusSettings(exclude=(_REPORTED,)),
        "reported": CorpusSettings(include=(_REPORTED,), heldout=0),
    }
    for name, chosen in settings.items():
        if not (place / name).exists():
            build_corpus([str(_WIKIPEDIA)], place / name, settings=chosen)
    tokenizer = place / f"tokenizer-{pieces}" if pieces else locate_model("minilm").folder
    if not tokenizer.exists():
        train_tokenizer(Corpus.open(place / "corpus"), tokenizer, VocabularySettings(vocab_size=pieces))
    stores = {name: place / f"{name}-{pieces or 'uncased'}" for name in settings}
    for name, store in stores.items():
        if not store.exists():
            tokenize_corpus(Corpus.open(place / name), Tokenizer.load(tokenizer), store)
    store = stores["corpus"]
    return Parts(str(store), f"{store}/heldout", f"{stores['reported']}/train", str(tokenizer))

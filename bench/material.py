"""The text that benchmarks run on: given, or Wikipedia of ../shared/data, or this machine's documentation."""

import argparse
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_WIKIPEDIA = _ROOT.parent / "shared" / "data" / "wikipedia_2014"
_MADE = _ROOT / "runs" / "bench"


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
    from bertsmith.text.corpus.corpus import build_corpus
    from bertsmith.text.corpus_settings import CorpusSettings

    source = str(_WIKIPEDIA) if _WIKIPEDIA.is_dir() else "pydocs:"
    corpus = _MADE / ("wikipedia" if _WIKIPEDIA.is_dir() else "pydocs") / "corpus"
    if not corpus.exists():
        build_corpus([source], corpus, settings=CorpusSettings())
    return corpus

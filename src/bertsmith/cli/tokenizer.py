"""`bertsmith tokenizer`: learn a vocabulary, see how well one fits, look at what it does to a text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from bertsmith.cli.options import Flag, Out
from bertsmith.cli.screen import console, print_facts, print_json, print_table, progress_bar
from bertsmith.text.tokens.vocabulary import VocabularySettings

if TYPE_CHECKING:
    from bertsmith.text.tokens.vocabulary_report import SplitWord, VocabularyReport

WORDS_SHOWN = 8
DEFAULTS = VocabularySettings()

app = App(name="tokenizer", help="A vocabulary from a corpus; a report on it.")


@app.command
def train(
    corpus: Path,
    *,
    out: Out,
    settings: Annotated[VocabularySettings, Parameter(name="*")] = DEFAULTS,
) -> None:
    """Learn a WordPiece vocabulary from the train split of CORPUS and report how well it fits.

    Pieces are byte-pair merges written with ##, as the tokenizers library makes them: Google never
    published BERT's own trainer. The same corpus and settings give the same files.

    Parameters
    ----------
    corpus
        The folder of a corpus.
    out
        The folder to make: tokenizer.json, vocab.txt, tokenizer_config.json, report.json.

    Examples
    --------
    bertsmith tokenizer train corpora/pydocs --out tokenizers/pydocs
    bertsmith tokenizer train corpora/mine --vocab-size 8192 --no-lowercase --out tokenizers/mine
    """
    from bertsmith.files import read_json
    from bertsmith.text.corpus.corpus import Corpus
    from bertsmith.text.tokens.vocabulary import train_tokenizer
    from bertsmith.text.tokens.vocabulary_report import VocabularyReport

    with progress_bar("Learning the vocabulary") as progress:
        train_tokenizer(Corpus.open(corpus), out, settings, progress=progress)
    print_report(VocabularyReport.model_validate(read_json(out / "report.json")))
    console.print(f"\nTokenizer written to {out}", markup=False)


@app.command
def report(tokenizer: Path, corpus: Path, *, json: Flag = False) -> None:
    """How well a vocabulary fits a corpus: pieces per word, what is unknown, which words cost most.

    Parameters
    ----------
    tokenizer
        A tokenizer's folder, vocab.txt or tokenizer.json.
    corpus
        The folder of a corpus; its held-out documents are measured, or its training text without them.
    json
        Print everything as JSON.

    Examples
    --------
    bertsmith tokenizer report tokenizers/pydocs corpora/pydocs
    bertsmith tokenizer report bert-base-uncased/vocab.txt corpora/law --json
    """
    from bertsmith.text.corpus.corpus import Corpus
    from bertsmith.text.tokens.tokenizer import Tokenizer
    from bertsmith.text.tokens.vocabulary_report import vocabulary_report

    with progress_bar("Measuring") as progress:
        measured = vocabulary_report(Tokenizer.load(tokenizer), Corpus.open(corpus), progress=progress)
    if json:
        print_json(measured.model_dump(mode="json"))
    else:
        print_report(measured)


@app.command
def encode(tokenizer: Path, text: str, *, read_special_tokens: Flag = False) -> None:
    """Show the pieces of TEXT with their ids and where they stand in it.

    Parameters
    ----------
    tokenizer
        A tokenizer's folder, vocab.txt or tokenizer.json.
    text
        Any text.
    read_special_tokens
        Take [MASK] and its like in the text for the special token, not for text.

    Examples
    --------
    bertsmith tokenizer encode tokenizers/pydocs "Tokenisation is easy."
    bertsmith tokenizer encode tokenizers/pydocs "Paris is [MASK]." --read-special-tokens
    """
    from bertsmith.text.tokens.tokenizer import Tokenizer

    pieces = Tokenizer.load(tokenizer).encode(text, read_special_tokens=read_special_tokens)
    rows = [
        (token, str(number), f"{start}–{end}", text[start:end])
        for token, number, (start, end) in zip(pieces.tokens, pieces.ids, pieces.offsets, strict=True)
    ]
    print_table(("piece", "id", "characters", "text"), rows)


def print_report(measured: "VocabularyReport") -> None:
    """A vocabulary report as facts and two tables of words."""
    size = f"{measured.vocab_size:,} pieces, {measured.alphabet:,} of them single characters"
    if measured.vocab_size < measured.asked_for:
        size += f"; {measured.asked_for:,} were asked for, but the corpus has no more"
    within = ", ".join(f"{share:.2%} within {length}" for length, share in measured.sentences_within.items())
    print_facts(
        f"Vocabulary on the {measured.split} split",
        {
            "size": size,
            "case": "uncased" if measured.lowercase else "cased",
            "measured on": f"{measured.sentences:,} sentences, {measured.words:,} words",
            "pieces per word": f"{measured.pieces_per_word:.3f}",
            "words in one piece": f"{measured.whole_words:.2%}",
            "unknown": f"{measured.unknown_words:.3%} of words, {measured.unknown_tokens:.3%} of tokens",
            "tokens per sentence": f"{measured.tokens_per_sentence:.1f} ({within})",
        },
    )
    _print_words("Words that cost most tokens", measured.costliest)
    _print_words("Words broken into most pieces", measured.most_broken)
    _print_words("Unknown words", measured.unknown)
    if measured.examples:
        console.print("\n[bold]Examples[/bold]")
    for example in measured.examples:
        console.print("  " + " ".join(example), markup=False)


def _print_words(title: str, words: "tuple[SplitWord, ...]") -> None:
    if words:
        console.print()
        rows = [(word.word, " ".join(word.pieces), word.count) for word in words[:WORDS_SHOWN]]
        print_table(("word", "pieces", "times"), rows, title=title)

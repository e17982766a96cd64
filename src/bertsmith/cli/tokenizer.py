"""`bertsmith tokenizer`: learns or extends a vocabulary, measures its fit, and shows a text's tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from bertsmith.cli.options import Flag, Out, ReadableText
from bertsmith.cli.screen import (
    console,
    print_facts,
    print_json,
    print_paths,
    print_table,
    print_warning,
    progress_bar,
)
from bertsmith.errors import InputError
from bertsmith.reporting import formatting
from bertsmith.text.tokens.extension import ExtensionSettings
from bertsmith.text.tokens.vocabulary import VocabularySettings

if TYPE_CHECKING:
    from bertsmith.text.tokens.extension import Extension
    from bertsmith.text.tokens.vocabulary_report import ScriptFit, SourceFit, SplitWord, VocabularyReport

WORDS_SHOWN = 8
SCRIPTS_SHOWN, WORDS_OF_SCRIPT = 12, 3
MOST_SAVING_SHOWN = 15
# Scripts whose vowels, tones or consonants are marks to Unicode, as accents are.
_OF_MARKS = frozenset(
    {
        *(
            "Chinese and kana",
            "Thai",
            "Lao",
            "Burmese",
            "Khmer",
            "Tibetan",
            "Devanagari",
            "Bengali",
            "Gujarati",
        ),
        *("Gurmukhi", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala"),
    }
)
DEFAULTS = VocabularySettings()
EXTENSION_DEFAULTS = ExtensionSettings()

app = App(name="tokenizer", help="Train or extend a vocabulary, and measure how well it fits.")


@app.command
def train(
    corpus: Path,
    *,
    out: Out,
    settings: Annotated[VocabularySettings, Parameter(name="*")] = DEFAULTS,
) -> None:
    """Learn a vocabulary from a corpus's train split, and report how well it fits.

    Google never published the trainer of BERT's WordPiece. Pieces are byte-pair merges written with ##, as
    the tokenizers library makes them. Unigram is SentencePiece's, for any script, also without blanks between
    words. The same corpus and settings give the same files.

    Parameters
    ----------
    corpus
        The corpus's folder.
    out
        The tokenizer's folder: tokenizer.json, tokenizer_config.json, report.json; vocab.txt of WordPiece.

    Examples
    --------
    bertsmith tokenizer train corpora/pydocs --out tokenizers/pydocs
    bertsmith tokenizer train corpora/mine --vocab-size 8192 --no-lowercase --out tokenizers/mine
    bertsmith tokenizer train corpora/thai --kind unigram --vocab-size 8192 --out tokenizers/thai
    """
    from bertsmith.files import read_json
    from bertsmith.text.corpus.corpus import Corpus
    from bertsmith.text.tokens.vocabulary import train_tokenizer
    from bertsmith.text.tokens.vocabulary_report import VocabularyReport

    with progress_bar("Learning the vocabulary") as progress:
        tokenizer = train_tokenizer(Corpus.open(corpus), out, settings, progress=progress)
    measured = VocabularyReport.model_validate(read_json(out / "report.json"))
    print_report(measured)
    if scripts := _list_scripts_without_marks(measured, tokenizer.pieces):
        print_warning(
            f"An uncased WordPiece strips accents, and in {' and '.join(scripts)} these are letters or "
            "change one (が becomes か, ที่ becomes ท): learn with --no-lowercase, or with --kind unigram."
        )
    console.print(f"\nTokenizer written to {out}", markup=False)


@app.command
def extend(
    model: str,
    corpus: Path | None = None,
    *,
    out: Out,
    settings: Annotated[ExtensionSettings, Parameter(name="*")] = EXTENSION_DEFAULTS,
    undo: Flag = False,
) -> None:
    """Add a corpus's words to a model's vocabulary as pieces: those that save the most pieces.

    Old pieces keep their ids. Each new piece gets a row of its own in the model, the mean of the rows of the
    pieces that it replaces. Then train the model further: pretrain adapt init=OUT. How well the vocabulary
    fits is measured before and after, on the corpus's held-out part.

    Parameters
    ----------
    model
        A model's folder, minilm or a name on the hub; or a tokenizer's folder, vocab.txt or tokenizer.json.
    corpus
        The corpus's folder.
    out
        The folder to write: all that MODEL has, extension.json, report.html.
    undo
        Take the added words out of MODEL again instead. It needs no CORPUS.

    Examples
    --------
    bertsmith tokenizer extend minilm corpora/law --out models/minilm-law
    bertsmith tokenizer extend runs/mine/model corpora/law --words 5000 --min-count 20 --out models/law
    bertsmith tokenizer extend models/law --undo --out models/mine-again
    """
    from bertsmith.training.extending import extend_vocabulary, undo_extension

    if undo:
        if corpus is not None:
            raise InputError("--undo needs MODEL alone. Leave CORPUS out.")
        if settings != EXTENSION_DEFAULTS:
            (option, *_) = (name for name, value in settings if value != getattr(EXTENSION_DEFAULTS, name))
            raise InputError(
                f"--undo takes all added words out: leave out --{option.replace('_', '-')}, for adding some."
            )
        extension = undo_extension(model, out)
        console.print(f"{len(extension.words):,} added words are gone", markup=False)
        print_paths(out=out)
        return
    if corpus is None:
        raise InputError("Name the CORPUS whose words to add, or give --undo to take added words out again.")
    with progress_bar("Extending the vocabulary") as progress:
        extension = extend_vocabulary(model, corpus, out, settings, progress=progress)
    print_extension(extension, settings)
    print_paths(out=out, report=out / "report.html")


@app.command
def report(tokenizer: str, corpus: Path, *, json: Flag = False) -> None:
    """Measure how well a vocabulary fits a corpus: pieces per word, unknown words, costliest words.

    Parameters
    ----------
    tokenizer
        A tokenizer's or a model's folder, vocab.txt or tokenizer.json; minilm, or a model's name on the hub.
    corpus
        The corpus's folder. Its held-out documents are measured, or its training text if it has none.
    json
        Print everything as JSON.

    Examples
    --------
    bertsmith tokenizer report tokenizers/pydocs corpora/pydocs
    bertsmith tokenizer report bert-base-uncased/vocab.txt corpora/law --json
    """
    from bertsmith.model.locate import locate_tokenizer
    from bertsmith.text.corpus.corpus import Corpus
    from bertsmith.text.tokens.tokenizer import Tokenizer
    from bertsmith.text.tokens.vocabulary_report import measure_vocabulary

    with progress_bar("Measuring") as progress:
        loaded = Tokenizer.load(locate_tokenizer(tokenizer))
        measured = measure_vocabulary(loaded, Corpus.open(corpus), progress=progress)
    if json:
        print_json(measured.model_dump(mode="json"))
    else:
        print_report(measured)


@app.command
def encode(
    tokenizer: str, text: ReadableText, *, read_special_tokens: Flag = False, json: Flag = False
) -> None:
    """Show the pieces of a text, with their ids and where they stand in it.

    Parameters
    ----------
    tokenizer
        A tokenizer's or a model's folder, vocab.txt or tokenizer.json; minilm, or a model's name on the hub.
    text
        Any text.
    read_special_tokens
        Read [MASK] and the like as special tokens instead of plain text.
    json
        Print one JSON object instead of a table: `tokens`, `ids`, and `offsets` in characters.

    Examples
    --------
    bertsmith tokenizer encode tokenizers/pydocs "Tokenization is easy."
    bertsmith tokenizer encode tokenizers/pydocs "Paris is [MASK]." --read-special-tokens
    """
    from bertsmith.model.locate import locate_tokenizer
    from bertsmith.text.tokens.tokenizer import Tokenizer

    pieces = Tokenizer.load(locate_tokenizer(tokenizer)).encode(text, read_special_tokens=read_special_tokens)
    if json:
        offsets = [list(offset) for offset in pieces.offsets]
        print_json({"tokens": list(pieces.tokens), "ids": list(map(int, pieces.ids)), "offsets": offsets})
        return
    rows = [
        (token, str(number), f"{start}–{end}", text[start:end])
        for token, number, (start, end) in zip(pieces.tokens, pieces.ids, pieces.offsets, strict=True)
    ]
    print_table(("piece", "id", "characters", "text"), rows)


def print_extension(extension: "Extension", settings: ExtensionSettings) -> None:
    """Prints the added words that save most tokens, and how well the vocabulary fits before and after."""
    from bertsmith.training.extending import format_fit_rows

    rows = [
        (word.word, " ".join(word.pieces), word.count, word.saved)
        for word in extension.words[:MOST_SAVING_SHOWN]
    ]
    added = f"{len(extension.words):,} words added"
    if len(extension.pieces) > len(extension.words):
        added += f", with {len(extension.pieces) - len(extension.words):,} pieces on the way to them"
    if len(extension.words) < settings.words:
        added += f"; {settings.words:,} were asked for, but no other is in pieces and frequent enough"
    print_table(("word", "was", "times", "pieces saved"), rows, title=added)
    after = extension.after
    print_table(
        ("", "before", "after", "change"),
        format_fit_rows(extension),
        title=f"On {after.sentences:,} sentences of the {after.split} split",
    )


def print_report(measured: "VocabularyReport") -> None:
    """Prints a vocabulary report: facts, then tables of the words that it fits worst, and examples."""
    size = f"{measured.vocab_size:,} pieces, {measured.alphabet:,} of them single characters"
    if measured.vocab_size < measured.asked_for:
        more = "has no more" if not measured.dropped else "has no more of the characters that were kept"
        size += f"; {measured.asked_for:,} were asked for, but the corpus {more}"
    if measured.dropped:
        size += (
            f"; {measured.dropped_characters:,} rarer characters, {measured.dropped_share:.3%} of the text, "
            f"have no piece ({' '.join(measured.dropped)} ...): keep more with --alphabet-coverage 1"
        )
    within = ", ".join(f"{share:.2%} within {length}" for length, share in measured.sentences_within.items())
    print_facts(
        f"Vocabulary on the {measured.split} split",
        {
            "size": size,
            "case": "uncased" if measured.lowercase else "cased",
            "measured on": f"{measured.sentences:,} sentences, {measured.words:,} words",
            "pieces per word": formatting.mean(measured.pieces_per_word),
            "words in one piece": formatting.percent(measured.whole_words),
            "unknown": f"{measured.unknown_words:.3%} of words, {measured.unknown_tokens:.3%} of tokens",
            "tokens per character": f"{measured.tokens_per_character:.4f}",
            "tokens per sentence": f"{measured.tokens_per_sentence:.1f} ({within})",
        },
    )
    _print_scripts(measured.scripts)
    _print_sources(measured.sources)
    _print_words("Words that cost most tokens", measured.costliest)
    _print_words("Words broken into most pieces", measured.most_broken)
    _print_words("Unknown words", measured.unknown)
    if measured.examples:
        console.print("\n[bold]Examples[/bold]")
    for example in measured.examples:
        console.print("  " + " ".join(example), markup=False)


def _list_scripts_without_marks(measured: "VocabularyReport", pieces: Sequence[str]) -> list[str]:
    """The scripts of at least 1 % of the text whose letters an uncased WordPiece strips as accents."""
    if not measured.lowercase:
        return []
    scripts = [fit.script for fit in measured.scripts if fit.share >= 0.01 and fit.script in _OF_MARKS]
    has_kana = any("\u3041" <= piece <= "\u30ff" for piece in pieces if len(piece) == 1)
    return [script for script in scripts if has_kana or script != "Chinese and kana"]


def _print_scripts(scripts: "tuple[ScriptFit, ...]") -> None:
    if len(scripts) > 1 or any(fit.pieces_per_word is None for fit in scripts):
        rows = [
            (
                fit.script,
                f"{fit.share:.2%}",
                formatting.mean(fit.pieces_per_word),
                f"{fit.characters_per_piece:.2f}",
                f"{fit.unknown_words:.3%}",
                " ".join(word.word for word in fit.costliest[:WORDS_OF_SCRIPT]),
            )
            for fit in scripts[:SCRIPTS_SHOWN]
        ]
        columns = ("script", "of the text", "pieces per word", "characters per piece", "unknown", "costliest")
        console.print()
        print_table(columns, rows, title="By script (– where words stand without blanks)")


def _print_sources(sources: "tuple[SourceFit, ...]") -> None:
    if sources:
        rows = [
            (
                fit.source,
                f"{fit.share:.2%}",
                formatting.mean(fit.pieces_per_word),
                f"{fit.characters_per_piece:.2f}",
                f"{fit.unknown_words:.3%}",
            )
            for fit in sources
        ]
        columns = ("source", "of the text", "pieces per word", "characters per piece", "unknown")
        console.print()
        print_table(columns, rows, title="By source")


def _print_words(title: str, words: "tuple[SplitWord, ...]") -> None:
    if words:
        console.print()
        rows = [(word.word, " ".join(word.pieces), word.count) for word in words[:WORDS_SHOWN]]
        print_table(("word", "pieces", "times"), rows, title=title)

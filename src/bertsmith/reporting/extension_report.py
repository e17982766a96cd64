"""report.html of an extended vocabulary: how well it fitted before and after, and which words were added."""

from bertsmith.reporting import formatting
from bertsmith.reporting.page import render_page
from bertsmith.reporting.tables import Table
from bertsmith.text.tokens.extension import Extension
from bertsmith.text.tokens.vocabulary_report import VocabularyReport

_WORDS_SHOWN = 200
_BROKEN_SHOWN = 20


def extension_page(extension: Extension, source: str, corpus: str) -> str:
    """The page as text; `source` and `corpus` are what the command was given."""
    before, after = extension.before, extension.after
    return render_page(
        "extension.html.jinja",
        title="Extended vocabulary",
        status=f"{source}, by the words of {corpus}",
        headline=[
            ("words added", formatting.count(len(extension.words))),
            ("pieces per word", f"{before.pieces_per_word:.3f} → {after.pieces_per_word:.3f}"),
            (
                "tokens per character",
                f"{before.tokens_per_character:.4f} → {after.tokens_per_character:.4f}",
            ),
            ("tokens for the same text", change(before.tokens, after.tokens)),
        ],
        warnings=[],
        fit=Table("", ["", "before", "after", "change"], fit_rows(extension)),
        words=_words(extension),
        broken=_broken(after),
        measured=f"{after.sentences:,} sentences of the {after.split} split",
    )


def fit_rows(extension: Extension) -> list[list[str]]:
    """Figure, before, after, change: what page and terminal show."""
    before, after = extension.before, extension.after
    figures = [
        ("pieces", before.vocab_size, after.vocab_size, "{:,}"),
        ("pieces per word", before.pieces_per_word, after.pieces_per_word, "{:.4f}"),
        ("tokens per character", before.tokens_per_character, after.tokens_per_character, "{:.4f}"),
        ("tokens per sentence", before.tokens_per_sentence, after.tokens_per_sentence, "{:.2f}"),
        ("words in one piece", before.whole_words, after.whole_words, "{:.2%}"),
        ("unknown words", before.unknown_words, after.unknown_words, "{:.3%}"),
    ]
    return [[name, form.format(old), form.format(new), change(old, new)] for name, old, new, form in figures]


def change(before: float, after: float) -> str:
    """'-7.5 %' of what was before; a dash where that was nothing."""
    return f"{100 * (after / before - 1):+.1f} %" if before else formatting.UNKNOWN


def _words(extension: Extension) -> Table:
    rows = [
        [each.word, " ".join(each.pieces), formatting.count(each.count), formatting.count(each.saved)]
        for each in extension.words[:_WORDS_SHOWN]
    ]
    more = len(extension.words) - len(rows)
    return Table("", ["word", "was", "times", "pieces saved"], rows, more, frozenset({0, 1}))


def _broken(after: VocabularyReport) -> Table | None:
    rows = [
        [each.word, " ".join(each.pieces), formatting.count(each.count)]
        for each in after.costliest[:_BROKEN_SHOWN]
    ]
    return Table("", ["word", "pieces", "times"], rows, 0, frozenset({0, 1})) if rows else None

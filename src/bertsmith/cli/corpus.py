"""`bertsmith corpus`: build one, look at it, take test rows out of it, make tokens of it, verify it."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from bertsmith.cli.options import Flag, Out, as_typed
from bertsmith.cli.screen import (
    console,
    print_facts,
    print_json,
    print_note,
    print_paths,
    print_table,
    print_warning,
    progress_bar,
)
from bertsmith.errors import InputError
from bertsmith.reporting import formatting
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.workers import Engine

if TYPE_CHECKING:
    from bertsmith.text.corpus.corpus import Corpus

app = App(name="corpus", help="Build a corpus from raw text, look at it, check it, and tokenize it.")
DEFAULTS = CorpusSettings()
Several = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")]
# Layouts of plain text, recognised by the content; a table's format follows from the file's ending.
_LAYOUTS = {
    "file": "a file is one document",
    "lines": "a sentence per line, blank lines between documents",
    "blank-lines": "blank lines between documents",
    "wikiextractor": "articles between <doc> and </doc>",
}
_BIGGEST_SOURCES = 15
_SHOWN_DOCUMENTS, _SHOWN_CHARACTERS = 3, 500  # of a corpus, and of each document
# Of 5,000 words 750 are masked, and an accuracy on these has a standard error of one to two points.
_MIN_HELDOUT_WORDS = 5000
_SHOWN_ROWS, _SHOWN_ROW_CHARACTERS = 3, 70  # of the rows of a test file that were found


@app.command
def build(
    *sources: str,
    out: Out,
    settings: Annotated[CorpusSettings, Parameter(name="*")] = DEFAULTS,
    workers: int | None = None,
    engine: Engine = "local",
) -> None:
    """Read text from SOURCES, clean it, drop duplicates, hold a part out, and write a corpus.

    The format of each file is recognised: plain text, WikiExtractor's output, JSON lines, CSV, TSV or
    Parquet. Files may be compressed (.gz, .zst).

    Parameters
    ----------
    sources
        Files, folders with all that is in them, addresses such as s3://bucket/texts, or pydocs: for the
        documentation of the installed Python packages (pydocs:numpy,torch for some of them).
    out
        The corpus's folder.
    workers
        Processes of the local engine. By default one per core; for small inputs a single one.
    engine
        ray cleans and splits on a Ray cluster: the one that RAY_ADDRESS names, or that this machine belongs
        to. Without a cluster it uses this machine alone.

    Examples
    --------
    bertsmith corpus build pydocs: --out corpora/pydocs
    bertsmith corpus build articles/ notes.txt.gz --out corpora/mine
    bertsmith corpus build rows.parquet --text-column body --out corpora/rows
    bertsmith corpus build texts.txt --format blank-lines --out corpora/texts
    bertsmith corpus build dumps/ --out corpora/dumps --engine ray
    """
    from bertsmith.text.corpus.building import build_corpus

    if not sources:
        raise InputError("Name at least one SOURCE: files, folders, addresses, or pydocs:.")
    with progress_bar("Building the corpus") as progress:
        corpus = build_corpus(
            sources, out, settings=settings, workers=workers, engine=engine, progress=progress
        )
    _print_summary(corpus)
    (first, *others), used_settings = corpus.manifest.sources, corpus.manifest.settings
    # the guess about blank lines may have been wrong
    if first.format == "file" and not others and used_settings.format == "auto":
        console.print(
            f"\n{first.name} was read as one document. If blank lines separate documents in it, "
            "build again with --format blank-lines.",
            markup=False,
        )
    heldout = corpus.manifest.splits["heldout"].counts
    if used_settings.heldout and heldout.words < _MIN_HELDOUT_WORDS:
        print_warning(
            f"{heldout.words:,} words are held out: too few for figures on them to be trusted. Build with a "
            "larger --heldout."
        )


def _print_summary(corpus: "Corpus") -> None:
    manifest = corpus.manifest
    rows = [
        (split, counts.documents, counts.sentences, counts.words, formatting.bytes(counts.bytes))
        for split, counts in [
            *((split, entry.counts) for split, entry in manifest.splits.items()),
            ("both", manifest.kept),
        ]
    ]
    print_table(("split", "documents", "sentences", "words", "text"), rows, title=f"Corpus {corpus.path}")
    formats = Counter(source.format for source in manifest.sources if source.format in _LAYOUTS)
    if manifest.settings.format == "auto" and formats:
        layouts = {
            name: f"{formatting.counted(formats[name], 'file')}: {layout}"
            for name, layout in _LAYOUTS.items()
            if formats[name]
        }
        print_facts("Read as, by their looks (--format names another)", layouts)
    dropped, skipped = manifest.dropped, manifest.skipped
    print_facts(
        "Left out",
        {
            "documents": f"{dropped['exact_duplicates']:,} exact duplicates, "
            f"{dropped['near_duplicates']:,} near duplicates, {dropped['empty']:,} without text",
            "files": f"{skipped.hidden:,} hidden, {skipped.binary:,} binary, {skipped.excluded:,} excluded",
        },
    )
    console.print(f"  licence    {manifest.licence or 'not stated (--licence)'}", markup=False)
    for check in manifest.decontaminations:
        names = ", ".join(file.name for file in check.against)
        removed = formatting.counted(check.removed.sentences, "sentence")
        console.print(f"  checked    against {names}: {removed} removed", markup=False)


@app.command
def info(corpus: Path, *, seed: int = 0, json: Flag = False) -> None:
    """Show what a corpus holds: counts, the biggest sources, a few random documents.

    Of a token store it shows the counts.

    Parameters
    ----------
    corpus
        The folder of a corpus or of a token store.
    seed
        Another seed shows other documents.
    json
        Print the manifest as one JSON object.

    Examples
    --------
    bertsmith corpus info corpora/pydocs
    bertsmith corpus info corpora/pydocs --json
    """
    from bertsmith.data.store import SPLITS, TokenStore, is_store
    from bertsmith.text.corpus.corpus import Corpus, sample_documents

    if json:
        manifest = (
            TokenStore.open(corpus / "train").manifest if is_store(corpus) else Corpus.open(corpus).manifest
        )
        print_json(manifest.model_dump(mode="json"))
        return
    if is_store(corpus):
        stores = [TokenStore.open(corpus / split) for split in SPLITS]
        rows = []
        for store in stores:
            counts = store.manifest.splits[store.split]
            rows.append((store.split, counts.documents, counts.sentences, counts.tokens))
        print_table(("split", "documents", "sentences", "tokens"), rows, title=f"Token store {corpus}")
        print_facts("Made of", {"vocabulary": f"{stores[0].manifest.vocab_size:,} pieces"})
        return
    opened = Corpus.open(corpus)
    _print_summary(opened)
    _print_sources(opened)
    for document in sample_documents(opened, _SHOWN_DOCUMENTS, seed):
        text = " ".join(document.sentences)
        shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + " …"
        console.print(f"\n[{document.id}]", style="dim", markup=False)
        console.print(shown, markup=False)


def _print_sources(corpus: "Corpus") -> None:
    sources = sorted(corpus.manifest.sources, key=lambda source: -source.kept.words)
    rows = [
        (
            source.name,
            source.format,
            source.kept.documents,
            source.kept.words,
            source.exact_duplicates,
            source.near_duplicates,
            source.empty,
        )
        for source in sources[:_BIGGEST_SOURCES]
    ]
    header = ("source", "format", "documents", "words", "exact duplicates", "near duplicates", "empty")
    print_table(header, rows, title=f"Biggest of {len(sources):,} sources")


@app.command
def decontaminate(
    corpus: Path,
    *,
    against: Several,
    out: Out | None = None,
    page: Path | None = None,
    column: Several = (),
    format: str | None = None,
    encoding: str = "utf-8",
    workers: int | None = None,
) -> None:
    """Find rows of test files in a corpus, and write the corpus without them.

    A row is found even if case or punctuation differs, or if one word in ten was replaced. With --out, the
    sentences that hold such rows are left out, and the new corpus's manifest names the test files.

    Parameters
    ----------
    corpus
        The corpus's folder.
    against
        Test files: CSV, TSV, JSON lines, Parquet, CoNLL, SQuAD's JSON or plain lines; or folders in the
        layout of BEIR or TREC.
    out
        The folder for the cleaned corpus and the page.
    page
        The page's file. By default decontamination.html in --out.
    column
        Columns of the test files whose texts to look for. By default all with running text.
    format
        csv, tsv, jsonl, json, parquet, lines, conll, conllu, squad, reqa, beir or trec. By default the file's
        ending and content decide.
    encoding
        The test files' encoding.
    workers
        Processes. By default one per core; for a small corpus a single one.

    Examples
    --------
    bertsmith corpus decontaminate corpora/law --against test.csv

    bertsmith corpus decontaminate corpora/law --against dev.tsv test.tsv squad.json --out corpora/clean

    bertsmith corpus decontaminate corpora/law --against beir/scifact --column query --page found.html
    """
    from bertsmith.files import atomic_write, refuse_existing, require_new_folder, require_writable
    from bertsmith.reporting.decontamination import (
        EXAMPLE_COLUMNS,
        FILE_COLUMNS,
        example_row,
        file_rows,
        render_contamination,
    )
    from bertsmith.text.corpus.corpus import Corpus
    from bertsmith.text.decontamination.contamination import find_contamination
    from bertsmith.text.decontamination.removal import write_decontaminated

    if out is not None:
        require_new_folder(out)
    if page is not None:
        refuse_existing(page)
        require_writable(page)
    removed = None
    with progress_bar("Looking for test rows") as progress:
        contamination = find_contamination(
            Corpus.open(corpus),
            against,
            columns=column,
            format=format,
            encoding=encoding,
            workers=workers,
            progress=progress,
        )
        if out is not None:
            _, removed = write_decontaminated(contamination, out, progress=progress)
            page = page or out / "decontamination.html"
    if page is not None:
        options = {"against": against, "out": out, "column": column, "format": format, "encoding": encoding}
        command = as_typed(decontaminate, "corpus decontaminate", corpus, **options)
        atomic_write(page, render_contamination(contamination, removed, command))
    print_table(
        FILE_COLUMNS,
        file_rows(contamination),
        title=f"What {contamination.corpus.path} holds of the test files",
    )
    for findings in contamination.files:
        name = findings.file.name
        if findings.examples:
            rows = [
                example_row(example, _SHOWN_ROW_CHARACTERS) for example in findings.examples[:_SHOWN_ROWS]
            ]
            print_table(EXAMPLE_COLUMNS, rows, title=f"Of {name}")
        if len(findings.columns) > 1 and findings.found:
            counted = ", ".join(f"{count:,} in {heading!r}" for heading, count in findings.columns.items())
            print_note(f"{name}: rows found {counted}")
    if removed is not None:
        sentences, words = (
            formatting.counted(*pair) for pair in ((removed.sentences, "sentence"), (removed.words, "word"))
        )
        documents = formatting.counted(contamination.documents, "document")
        console.print(
            f"Removed: {sentences}, {words}. Of {documents} concerned {removed.documents:,} went whole.",
            markup=False,
            soft_wrap=True,
        )
    elif contamination.documents:
        documents = formatting.counted(contamination.documents, "document")
        print_note(
            f"{documents} of the corpus concerned. --out FOLDER writes the corpus without what was found"
        )
    written = {"corpus": out, "page": page}
    print_paths(**{name: path for name, path in written.items() if path is not None})


@app.command
def tokenize(corpus: Path, tokenizer: str, *, out: Out, engine: Engine = "local") -> None:
    """Tokenize a corpus once, into a token store that many runs can train on.

    Parameters
    ----------
    corpus
        The corpus's folder.
    tokenizer
        A tokenizer's or a model's folder, vocab.txt or tokenizer.json; minilm, or a model's name on the hub.
    out
        The token store's folder.
    engine
        As for `bertsmith corpus build`.

    Examples
    --------
    bertsmith corpus tokenize corpora/pydocs tokenizers/pydocs --out stores/pydocs
    """
    from bertsmith.data.tokenizing import tokenize_corpus
    from bertsmith.model.locate import locate_tokenizer
    from bertsmith.text.corpus.corpus import Corpus
    from bertsmith.text.tokens.tokenizer import Tokenizer

    with progress_bar("Tokenizing") as progress:
        loaded = Tokenizer.load(locate_tokenizer(tokenizer))
        tokenize_corpus(Corpus.open(corpus), loaded, out, engine=engine, progress=progress)
    console.print(f"Tokens written to {out}", markup=False)


@app.command
def verify(path: Path) -> None:
    """Check every file of a corpus or a token store against its hash in the manifest.

    Parameters
    ----------
    path
        The folder of a corpus or of a token store.

    Examples
    --------
    bertsmith corpus verify corpora/pydocs
    """
    from bertsmith.data.store import SPLITS, TokenStore, is_store
    from bertsmith.text.corpus.corpus import Corpus

    with progress_bar("Verifying") as progress:
        if is_store(path):
            for split in SPLITS:
                TokenStore.open(path / split).verify(progress)
        else:
            Corpus.open(path).verify(progress)
    console.print(f"{path} is whole: every file has the size and hash of the manifest.", markup=False)

"""`bertsmith corpus`: build one, look at it, check it against test files, make tokens of it, verify it."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from bertsmith.cli.decontaminate import decontaminate
from bertsmith.cli.options import Flag, Out
from bertsmith.cli.screen import console, print_facts, print_json, print_table, print_warning, progress_bar
from bertsmith.reporting import formatting
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.ray_engine import Engine

if TYPE_CHECKING:
    from bertsmith.data.store_manifest import StoreManifest
    from bertsmith.text.corpus.corpus import Corpus, Document
    from bertsmith.text.corpus.manifest import CorpusManifest

BIGGEST_SOURCES = 15
EXAMPLES = 3
EXAMPLE_CHARACTERS = 500
LAYOUTS = {  # of text, which is looked at; a table's ending names its format
    "file": "a file is one document",
    "lines": "a sentence per line, blank lines between documents",
    "blank-lines": "blank lines between documents",
    "wikiextractor": "articles between <doc> and </doc>",
}
FEW_WORDS = 5000  # held out: of 750 masked ones the share told right moves by a point by chance

app = App(name="corpus", help="Build a corpus from raw text, look at it, check it, and tokenize it.")
DEFAULTS = CorpusSettings()


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
    from bertsmith.errors import InputError
    from bertsmith.text.corpus.corpus import build_corpus

    if not sources:
        raise InputError("Name at least one SOURCE: files, folders, addresses, or pydocs:.")
    with progress_bar("Building the corpus") as progress:
        corpus = build_corpus(
            sources, out, settings=settings, workers=workers, engine=engine, progress=progress
        )
    _print_summary(corpus)
    _print_hints(corpus)


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
    from bertsmith.text.corpus.corpus import Corpus

    if json:
        print_json(_manifest(corpus).model_dump(mode="json"))
        return
    if _is_store(corpus):
        _print_store(corpus)
        return
    opened = Corpus.open(corpus)
    _print_summary(opened)
    _print_sources(opened)
    for document in _sample(opened, seed):
        text = " ".join(document.sentences)
        shown = text if len(text) <= EXAMPLE_CHARACTERS else text[:EXAMPLE_CHARACTERS] + " …"
        console.print(f"\n[{document.id}]", style="dim", markup=False)
        console.print(shown, markup=False)


app.command(decontaminate)


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
    from bertsmith.data.store import TokenStore
    from bertsmith.data.store_manifest import SPLITS
    from bertsmith.text.corpus.corpus import Corpus

    with progress_bar("Verifying") as progress:
        if _is_store(path):
            for split in SPLITS:
                TokenStore.open(path / split).verify(progress)
        else:
            Corpus.open(path).verify(progress)
    console.print(f"{path} is whole: every file has the size and hash of the manifest.", markup=False)


def _is_store(path: Path) -> bool:
    from bertsmith.data.store_manifest import SPLITS

    return any((path / split).is_dir() for split in SPLITS)


def _manifest(path: Path) -> "CorpusManifest | StoreManifest":
    from bertsmith.data.store import TokenStore
    from bertsmith.text.corpus.corpus import Corpus

    return TokenStore.open(path / "train").manifest if _is_store(path) else Corpus.open(path).manifest


def _print_store(path: Path) -> None:
    from bertsmith.data.store import TokenStore
    from bertsmith.data.store_manifest import SPLITS

    stores = [TokenStore.open(path / split) for split in SPLITS]
    rows = []
    for store in stores:
        counts = store.manifest.splits[store.split]
        rows.append((store.split, counts.documents, counts.sentences, counts.tokens))
    print_table(("split", "documents", "sentences", "tokens"), rows, title=f"Token store {path}")
    manifest = stores[0].manifest
    print_facts("Made of", {"vocabulary": f"{manifest.vocab_size:,} pieces"})


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
    formats = Counter(source.format for source in manifest.sources if source.format in LAYOUTS)
    if manifest.settings.format == "auto" and formats:
        layouts = {
            name: f"{formatting.counted(formats[name], 'file')}: {layout}"
            for name, layout in LAYOUTS.items()
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
        for source in sources[:BIGGEST_SOURCES]
    ]
    header = ("source", "format", "documents", "words", "exact duplicates", "near duplicates", "empty")
    print_table(header, rows, title=f"Biggest of {len(sources):,} sources")


def _print_hints(corpus: "Corpus") -> None:
    """Says so where the guess about blank lines may have been wrong, and where little is held out."""
    whole = [source for source in corpus.manifest.sources if source.format == "file"]
    if corpus.manifest.settings.format == "auto" and len(whole) == len(corpus.manifest.sources) == 1:
        console.print(
            f"\n{whole[0].name} was read as one document. If blank lines separate documents in it, "
            "build again with --format blank-lines.",
            markup=False,
        )
    heldout = corpus.manifest.splits["heldout"].counts
    if corpus.manifest.settings.heldout and heldout.words < FEW_WORDS:
        print_warning(
            f"{heldout.words:,} words are held out: too few for figures on them to be trusted. Build with a "
            "larger --heldout."
        )


def _sample(corpus: "Corpus", seed: int) -> "list[Document]":
    """Documents at random places of the training split, in order."""
    import random
    from itertools import islice

    count = corpus.manifest.splits["train"].counts.documents
    places = sorted(random.Random(seed).sample(range(count), min(EXAMPLES, count)))
    documents, at = corpus.documents("train"), 0
    found: list[Document] = []
    for place in places:
        found += islice(documents, place - at, place - at + 1)
        at = place + 1
    return found

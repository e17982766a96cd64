"""`bertsmith index`: builds an index, adds and removes documents, and shows what an index holds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from bertsmith.cli.options import ComputeDtype, Flag, Out, continues_when_repeated
from bertsmith.cli.screen import console, print_facts, print_json, print_note, progress_bar
from bertsmith.errors import InputError
from bertsmith.reporting import formatting
from bertsmith.text.retrieval.documents import DocumentSettings
from bertsmith.text.workers import Engine

if TYPE_CHECKING:
    from bertsmith.inference.embedding.embedder import Embedder
    from bertsmith.inference.index.build import Changes
    from bertsmith.inference.index.index import Index


app = App(name="index", help="Build an index of documents for search, and keep it up to date.")
DOCUMENTS = DocumentSettings()


@app.command
@continues_when_repeated
def build(
    *sources: str,
    out: Out,
    model: str | None = None,
    documents: Annotated[DocumentSettings, Parameter(name="*")] = DOCUMENTS,
    passage_tokens: int | None = None,
    passage_overlap: int | None = None,
    language: str | None = None,
    approximate_from: int | None = None,
    compute_dtype: ComputeDtype | None = None,
    engine: Engine = "local",
) -> None:
    """Cut documents into passages, embed them and write an index, or bring an index up to date.

    A second call embeds what is new or changed, and removes what the sources no longer have. An interrupted
    build resumes.

    Parameters
    ----------
    sources
        Files, folders with all that is in them, and addresses such as s3://bucket/docs. In CSV, TSV, JSON
        lines and Parquet each row is a document; any other text file is one document. HTML is read as a
        browser shows it.
    out
        The index's folder.
    model
        The model that embeds: minilm, a folder such as runs/NAME/model, or a name on the hub. Needed for a
        new index, and if the index's model has moved.
    passage_tokens
        Tokens per passage, at most. Default: 200, or four fifths of what the model reads if that is less.
    passage_overlap
        Tokens that a passage repeats from the one before, at most. Default: 40, or a fifth of a shorter
        passage.
    language
        Two-letter code, for sentences, words, stems and stop words; mul for several languages in one index,
        which have no stems then. Default: en.
    approximate_from
        Number of passages from which search is approximate; its recall is measured. Default: 100,000. The
        index remembers the number, and another build may change it.
    compute_dtype
        Precision of the matrix products, as for `bertsmith embed`.
    engine
        ray embeds on a Ray cluster: the one that RAY_ADDRESS names, or that this machine belongs to. Without
        a cluster it uses this machine alone.

    Examples
    --------
    bertsmith index build handbook/ --model minilm --out indexes/handbook

    bertsmith index build articles.parquet --id doi --text abstract --model minilm --out indexes/papers

    bertsmith index build handbook/ --out indexes/handbook

    bertsmith index build archive/ --model minilm --out indexes/archive --compute-dtype float32

    bertsmith index build archive/ --model minilm --out indexes/archive --engine ray
    """
    from bertsmith.inference.index.index import Index

    if not sources:
        raise InputError("Name at least one SOURCE: files, folders, or addresses.")
    passages = {"tokens": passage_tokens, "overlap": passage_overlap, "language": language}
    with progress_bar("Indexing") as progress:
        index = Index.build(
            sources,
            out,
            model,
            embedder=_open_embedder(compute_dtype, model, out),
            documents=documents,
            passages={name: value for name, value in passages.items() if value is not None},
            approximate_from=approximate_from,
            engine=engine,
            progress=progress,
        )
    if index.changes is not None:
        _print_changes(index.changes, index)
    _print_info(index)


@app.command
@continues_when_repeated
def add(
    index: Path,
    *sources: str,
    documents: Annotated[DocumentSettings, Parameter(name="*")] = DOCUMENTS,
    compute_dtype: ComputeDtype | None = None,
    engine: Engine = "local",
) -> None:
    """Add documents to an index. A document replaces the one with the same id.

    They stay when the index is built again from its own sources, until you remove them.

    Parameters
    ----------
    index
        The index's folder.
    sources
        As for `bertsmith index build`.
    compute_dtype
        As for `bertsmith index build`.
    engine
        As for `bertsmith index build`.

    Examples
    --------
    bertsmith index add indexes/handbook notes.md minutes/

    bertsmith index add indexes/papers new.csv --id doi --text abstract
    """
    from bertsmith.inference.index.index import Index

    if not sources:
        raise InputError("Name at least one SOURCE to add: files, folders, or addresses.")
    with progress_bar("Indexing") as progress:
        opened = Index.open(index, _open_embedder(compute_dtype, None, index))
        changes = opened.add(sources, documents=documents, engine=engine, progress=progress)
    _print_changes(changes, opened)


@app.command
def remove(index: Path, *ids: str) -> None:
    """Remove documents from an index. If one of them isn't there, none is removed.

    Parameters
    ----------
    index
        The index's folder.
    ids
        Ids of documents, as search shows them. An id that ends in / is a folder, with all that is in it.

    Examples
    --------
    bertsmith index remove indexes/handbook handbook/old.md handbook/drafts/
    """
    from bertsmith.inference.index.index import Index

    if not ids:
        raise InputError("Name at least one document to remove, by its id.")
    count = Index.open(index).remove(ids)
    console.print(f"{formatting.counted(count, 'document')} removed", markup=False)


@app.command
def info(index: Path, *, verify: Flag = False, json: Flag = False) -> None:
    """Show what an index holds, how it was made, and which columns a filter may use.

    Parameters
    ----------
    index
        The index's folder.
    verify
        Compare every file with its hash and read every row, to find what was damaged or lost.
    json
        Print one JSON object, as the index's own manifest has it.

    Examples
    --------
    bertsmith index info indexes/handbook --verify
    bertsmith index info indexes/handbook --json
    """
    from bertsmith.inference.index.index import Index

    opened = Index.open(index)
    if json:
        verified = {"verified": opened.verify()} if verify else {}
        print_json(opened.info.model_dump(mode="json") | verified)
        return
    _print_info(opened)
    if verify:
        console.print(f"\nall {opened.verify():,} passages are as they were committed", markup=False)


def _open_embedder(compute_dtype: ComputeDtype | None, model: str | None, index: Path) -> "Embedder | None":
    """Opens the embedder of `model`, or of the index's own model, for this precision of matrix products.

    None without a precision, and for a new index without a model: `Index` then opens its own or refuses.
    """
    if compute_dtype is None:
        return None
    import torch

    from bertsmith.inference.embedding.embedder import Embedder
    from bertsmith.inference.index.manifest import MANIFEST, read_index_manifest

    if model is None and not (index / MANIFEST).exists():
        return None
    name = model or read_index_manifest(index).model.name
    embedder = Embedder(name, compute_dtype=getattr(torch, compute_dtype))
    if embedder.int8_choice is not None:
        print_note(str(embedder.int8_choice))
    return embedder


def _print_changes(changes: "Changes", index: "Index") -> None:
    counts = f"{changes.new:,} new, {changes.changed:,} changed, {changes.removed:,} removed"
    console.print(f"Documents: {counts}, {changes.unchanged:,} unchanged", markup=False)
    console.print(f"{formatting.counted(changes.passages, 'passage')} embedded", markup=False)
    for sentence in filter(None, (changes.left_out, getattr(index.embedder, "caveat", ""))):
        console.print(sentence, markup=False)


def _print_info(index: "Index") -> None:
    from bertsmith.inference.index.metadata import OWN

    manifest = index.info
    passages = formatting.counted(manifest.rows, "passage")
    size = sum(path.stat().st_size for path in index.path.rglob("*") if path.is_file())
    tokens, overlap, language = (
        manifest.passages.tokens,
        manifest.passages.overlap,
        manifest.passages.language,
    )
    search = "exact: every vector is compared"
    if (approximate := manifest.approximate) is not None:
        search = (
            f"approximate: it finds {approximate.recall:.1%} of the 10 best passages of an exact search "
            f"(recall@10), measured on {approximate.queries} vectors when it had "
            f"{formatting.counted(approximate.rows, 'passage')} ({approximate.probes} groups looked at)"
        )
    columns = [f"{name} ({kind})" for name, kind in manifest.metadata.items()]
    columns += [name for name in OWN if name != "vector"]
    facts = {
        "documents": f"{manifest.documents:,}, {passages}, {formatting.bytes(size)} on disk",
        "model": f"{manifest.model.name}, {manifest.model.dimension} dimensions",
        "passages": f"{tokens} tokens at most, overlap {overlap}, language {language}",
        "search": search,
        "filters on": ", ".join(columns),
        "sources": ", ".join(manifest.sources) or "none: documents were added",
    }
    if manifest.to_repeat:
        facts["interrupted"] = (
            f"yes, or running still: repeat {manifest.to_repeat}; it continues where it stopped"
        )
    print_facts(f"Index {index.path}", facts)

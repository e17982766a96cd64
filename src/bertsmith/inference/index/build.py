"""Documents → passages → vectors → the index, some thousand passages at a time, each time committed.

E passages. An update embeds what is new or changed and nothing else. Killed, it goes on behind its last
commit when it is called again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertsmith.errors import InputError, did_you_mean
from bertsmith.inference.index.columns import MetadataColumns
from bertsmith.inference.index.document_shards import embedded_shards
from bertsmith.inference.index.golden_queries import QUERIES
from bertsmith.inference.index.manifest import FOLDED_TEXT, IndexManifest
from bertsmith.inference.index.plan import IndexUpdate, survey
from bertsmith.inference.index.text_embedder import TextEmbedder
from bertsmith.inference.index.writer import IndexWriter
from bertsmith.progress import Progress
from bertsmith.text.retrieval.documents import Document, Documents, part_of
from bertsmith.text.retrieval.passages import Passage
from bertsmith.text.workers import Engine

PASSAGES_AT_A_TIME = 2048  # of a commit, about: some ten megabytes, some ten seconds of embedding


@dataclass(frozen=True)
class Changes:
    """What an update did, in documents; `passages`: how many were embedded; `left_out`: a sentence, or ''."""

    new: int
    changed: int
    removed: int
    unchanged: int
    passages: int
    left_out: str = ""


def update(
    writer: IndexWriter,
    sources: Sequence[str],
    documents: Documents,
    embedder: TextEmbedder,
    *,
    added: bool,
    settled: Mapping[str, Any],
    engine: Engine = "local",
    progress: Progress | None = None,
) -> Changes:
    """Makes the index hold `documents`: instead of all that earlier builds took in, or with `added` besides.

    `settled`: what index.json is to say from now on, besides. An `add` doesn't complete what an interrupted
    build left to do, nor what an interrupted `add` of other sources did. With `engine` "ray" a cluster cuts
    and embeds them; whatever is written is written here.
    Raises InputError, having changed nothing, when the sources hold no document or one that can't be read.
    """
    columns = MetadataColumns(writer.manifest.metadata)
    plan = survey(documents, writer.known, columns, added, progress)
    built = not added or writer.manifest.complete or writer.manifest.adding
    left = tuple(source for source in writer.manifest.to_add if source not in sources)
    if not plan.wanted and not plan.unchanged:
        raise InputError(f"No document was found in {', '.join(sources)}. {plan.skipped.sentence()}".rstrip())
    embedded = 0
    if plan.wanted or plan.vanished or plan.adopted:
        writer.add_columns(columns.kinds)
        writer.remove(plan.vanished)
        writer.keep(plan.adopted)
        pending = (*left, *sources) if added else writer.manifest.to_add
        writer.commit(complete=False, adding=added and built, to_add=pending, **settled)
        embedded = _embed(writer, documents, plan, embedder, engine, progress)
    noted = {"complete": built and not left, "adding": built and bool(left), "to_add": left, **settled}
    noted |= {} if added else {"sources": tuple(sources)}
    _settle(writer, noted, embedder)
    return Changes(*plan.counts(), embedded, plan.skipped.sentence())


def remove_documents(writer: IndexWriter, ids: Sequence[str]) -> int:
    """Takes documents out, with all their parts; an id that ends in '/' is a folder. Returns how many.

    What an interrupted build left to do is still to be done.
    Raises InputError for an id that isn't in the index; nothing has changed then.
    """
    found = _meant(ids, writer)
    writer.remove(found)
    writer.finish(complete=writer.manifest.complete, adding=writer.manifest.adding)
    return len({part_of(id) for id in found})


def _settle(writer: IndexWriter, noted: Mapping[str, Any], embedder: TextEmbedder) -> None:
    """An index that was complete, and of which nothing has changed, isn't touched."""
    manifest = writer.manifest
    if not (manifest.complete and manifest.golden) or manifest != manifest.model_copy(update=noted):
        writer.finish(embedder.queries(QUERIES), **noted)


def _embed(
    writer: IndexWriter,
    documents: Documents,
    plan: IndexUpdate,
    embedder: TextEmbedder,
    engine: Engine,
    progress: Progress | None,
) -> int:
    """Passes over the files that hold something new; returns how many passages were embedded."""
    wanted, done, count = plan.wanted, 0, 0
    found = (document for document in documents.of_files(plan.files.__contains__) if document.id in wanted)
    settings = writer.manifest.passages
    for cut, shard in embedded_shards(found, PASSAGES_AT_A_TIME, embedder, settings, engine):
        cuts = zip(shard, cut.passages, strict=True)
        manifest = writer.manifest
        rows = [row for document, passages in cuts for row in _rows(document, passages, plan, manifest)]
        writer.replace(shard, rows, cut.vectors, plan.lasting)
        writer.commit()
        count, done = count + len(rows), done + len(shard)
        if progress is not None:
            progress(done, len(wanted), "documents")
    return count


def _rows(
    document: Document, passages: Sequence[Passage], plan: IndexUpdate, manifest: IndexManifest
) -> Iterator[dict[str, Any]]:
    """What the table holds of each passage, in order. Places are those of the text as it came."""
    # Once a document: its hash is that of the whole text, which may have a thousand passages.
    shared = {
        "document_id": document.id,
        "source": document.source,
        "title": document.title,
        "sha256": document.sha256,
        "added": document.id in plan.lasting,
        **plan.columns.values(document),
    }
    for passage in passages:
        lines_before = document.text.count("\n", 0, passage.start)
        yield shared | {
            "id": f"{document.id}@{document.start + passage.start}",
            "start": document.start + passage.start,
            "end": document.start + passage.end,
            "line": None if document.line is None else document.line + lines_before,
            "text": manifest.shown_text(passage.text),
            FOLDED_TEXT: manifest.words_of(passage.text),
        }


def _meant(ids: Sequence[str], writer: IndexWriter) -> set[str]:
    """All parts of these documents, and of those in these folders. A document whose own id ends in '/', as
    an address may, is that document.
    """
    parts: dict[str, set[str]] = {}
    for known in writer.known:
        parts.setdefault(part_of(known), set()).add(known)
    found = set[str]()
    for id in ids:
        meant = parts.get(id, set()) | ({id} & writer.known.keys())
        if not meant and id.endswith("/"):
            meant = {known for known in writer.known if known.startswith(id)}
        if not meant:
            near = did_you_mean(id, writer.known)
            raise InputError(f"{writer.folder} holds no document {id!r}.{near} Nothing was removed.")
        found |= meant
    return found

"""Documents → passages → vectors → the index, some thousand passages at a time, each time committed.

Every document is read and hashed before any is embedded. So whatever can be refused (an id that stands twice,
a broken encoding, a column of another kind) is refused before anything is written, and the time that is left
can be told. An update embeds what is new or changed and nothing else. Killed, it goes on behind its last
commit when it is called again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertsmith.errors import InputError, did_you_mean
from bertsmith.inference.index.integrity import QUERIES
from bertsmith.inference.index.manifest import FOLDED_TEXT, IndexManifest
from bertsmith.inference.index.metadata import MetadataColumns
from bertsmith.inference.index.passage_table import IndexedDocument
from bertsmith.inference.index.text_embedder import TextEmbedder, embed_shards
from bertsmith.inference.index.writer import IndexWriter
from bertsmith.progress import Progress
from bertsmith.text.retrieval.documents import Document, Documents, Skipped, part_of
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


@dataclass
class IndexUpdate:
    """Ids of documents: what becomes of them. A part of a large document is one here."""

    columns: MetadataColumns
    new: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    vanished: set[str] = field(default_factory=set)
    unchanged: set[str] = field(default_factory=set)
    lasting: set[str] = field(default_factory=set)  # put there by `add`, now or before
    adopted: set[str] = field(default_factory=set)  # unchanged, but lasting from now on
    files: set[str] = field(default_factory=set)  # that hold documents to be embedded
    skipped: Skipped = field(default_factory=Skipped)

    def sort(self, document: Document, held: IndexedDocument | None, added: bool) -> None:
        """Notes what is to be done with a document."""
        if added or (held is not None and held.added):
            self.lasting.add(document.id)
        if held is not None and held.sha256 == document.sha256:
            self.unchanged.add(document.id)
            if added and not held.added:
                self.adopted.add(document.id)
            return
        (self.new if held is None else self.changed).add(document.id)
        self.files.add(document.source)

    @property
    def wanted(self) -> set[str]:
        """Documents to be embedded."""
        return self.new | self.changed

    def counts(self) -> tuple[int, int, int, int]:
        """Whole documents: new, changed, removed, unchanged. One has changed if any part of it has."""
        new, changed, vanished, unchanged = (
            {part_of(id) for id in ids} for ids in (self.new, self.changed, self.vanished, self.unchanged)
        )
        touched = new | changed | vanished
        appeared = new - changed - vanished - unchanged
        gone = vanished - new - changed - unchanged
        return len(appeared), len(touched - appeared - gone), len(gone), len(unchanged - touched)


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
        embedded = _embed_documents(writer, documents, plan, embedder, engine, progress)
    noted = {"complete": built and not left, "adding": built and bool(left), "to_add": left, **settled}
    noted |= {} if added else {"sources": tuple(sources)}
    manifest = writer.manifest  # an index that was complete, and of which nothing has changed, isn't touched
    if not (manifest.complete and manifest.golden) or manifest != manifest.model_copy(update=noted):
        writer.finish(embedder.queries(QUERIES), **noted)
    return Changes(*plan.counts(), embedded, plan.skipped.sentence())


def survey(
    documents: Documents,
    known: Mapping[str, IndexedDocument],
    columns: MetadataColumns,
    added: bool,
    progress: Progress | None = None,
) -> IndexUpdate:
    """Reads everything once. Raises InputError for two documents of one id, naming both places.

    Without `added` the index is to hold these documents and no other, but for those that `add` put there.
    """
    plan = IndexUpdate(columns)
    places: dict[str, str] = {}
    for document in documents.of_files(lambda name: True, progress):
        if document.id in places:
            raise InputError(
                f"Two documents have the id {document.id!r}: {places[document.id]} and {document.where}. "
                "Rename one of them, or name a column of ids that differ with --id."
            )
        places[document.id] = document.where
        columns.observe(document)
        plan.sort(document, known.get(document.id), added)
    plan.vanished = {
        id
        for id, held in known.items()
        if id not in places and (part_of(id) in places or not (added or held.added))
    }
    plan.skipped = documents.skipped
    return plan


def remove_documents(writer: IndexWriter, ids: Sequence[str]) -> int:
    """Takes documents out, with all their parts; an id that ends in '/' is a folder, unless it is one's
    own, as addresses may be. Returns how many.

    What an interrupted build left to do is still to be done.
    Raises InputError for an id that isn't in the index; nothing has changed then.
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
    writer.remove(found)
    writer.finish(complete=writer.manifest.complete, adding=writer.manifest.adding)
    return len({part_of(id) for id in found})


def _embed_documents(
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
    for cut, shard in embed_shards(found, PASSAGES_AT_A_TIME, embedder, settings, engine):
        cuts = zip(shard, cut.passages, strict=True)
        manifest = writer.manifest
        rows = [row for document, passages in cuts for row in _table_rows(document, passages, plan, manifest)]
        writer.replace(shard, rows, cut.vectors, plan.lasting)
        writer.commit()
        count, done = count + len(rows), done + len(shard)
        if progress is not None:
            progress(done, len(wanted), "documents")
    return count


def _table_rows(
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

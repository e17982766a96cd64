"""Builds and updates an index: documents → passages → vectors → table, committed every 2,048 passages or so.

`survey` reads and hashes every document before any is embedded. So an id that stands twice, a broken encoding
or a column of another kind is refused before anything is written, and the remaining time is known. `update`
embeds only new and changed documents. An update that was killed resumes after its last commit when it is
called again.
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
from bertsmith.text.retrieval.documents import Documents, SearchDocument, SkippedDocuments, strip_part
from bertsmith.text.retrieval.passages import Passage
from bertsmith.text.workers import Engine

PASSAGES_AT_A_TIME = 2048  # of a commit, roughly: some ten megabytes, some ten seconds of embedding


@dataclass(frozen=True)
class Changes:
    """What an update did: numbers of documents, and of `passages` embedded. `left_out` is a sentence about
    files that were skipped, or ''.
    """

    new: int
    changed: int
    removed: int
    unchanged: int
    passages: int
    left_out: str = ""


@dataclass
class IndexUpdate:
    """What an update will do with each document, by id. A part of a large document counts as a document."""

    columns: MetadataColumns
    new: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    vanished: set[str] = field(default_factory=set)
    unchanged: set[str] = field(default_factory=set)
    lasting: set[str] = field(default_factory=set)  # put there by `add`, now or before
    adopted: set[str] = field(default_factory=set)  # unchanged, but lasting from now on
    files: set[str] = field(default_factory=set)  # that hold documents to be embedded
    skipped: SkippedDocuments = field(default_factory=SkippedDocuments)

    def sort(self, document: SearchDocument, indexed: IndexedDocument | None, added: bool) -> None:
        """Decides what to do with a document; `indexed` is what the index holds of it, if anything."""
        if added or (indexed is not None and indexed.added):
            self.lasting.add(document.id)
        if indexed is not None and indexed.sha256 == document.sha256:
            self.unchanged.add(document.id)
            if added and not indexed.added:
                self.adopted.add(document.id)
            return
        (self.new if indexed is None else self.changed).add(document.id)
        self.files.add(document.source)

    @property
    def to_embed(self) -> set[str]:
        """The ids of documents that must be embedded: the new and the changed ones."""
        return self.new | self.changed

    def counts(self) -> tuple[int, int, int, int]:
        """Counts whole documents: new, changed, removed, unchanged. A document has changed if any of its
        parts has.
        """
        new, changed, vanished, unchanged = (
            {strip_part(id) for id in ids} for ids in (self.new, self.changed, self.vanished, self.unchanged)
        )
        touched = new | changed | vanished
        appeared = new - changed - vanished - unchanged
        disappeared = vanished - new - changed - unchanged
        return (
            len(appeared),
            len(touched - appeared - disappeared),
            len(disappeared),
            len(unchanged - touched),
        )


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
    """Updates the index to hold `documents`: in place of those of earlier builds, or with `added` beside
    them.

    `settled` are further changes to index.json. An `add` doesn't complete an interrupted build, nor an
    interrupted `add` of other sources. With `engine` "ray" a cluster divides documents into passages and
    embeds them, and this process writes. Raises InputError, having changed nothing, when the sources hold no
    document, or one that can't be read.
    """
    columns = MetadataColumns(writer.manifest.metadata)
    plan = survey(documents, writer.known, columns, added, progress)
    completes_build = not added or writer.manifest.complete or writer.manifest.adding
    unfinished_adds = tuple(source for source in writer.manifest.to_add if source not in sources)
    if not plan.to_embed and not plan.unchanged:
        raise InputError(f"No document was found in {', '.join(sources)}. {plan.skipped.sentence()}".rstrip())
    passage_count = 0
    if plan.to_embed or plan.vanished or plan.adopted:
        writer.add_columns(columns.kinds)
        writer.remove(plan.vanished)
        writer.keep(plan.adopted)
        pending = (*unfinished_adds, *sources) if added else writer.manifest.to_add
        writer.commit(complete=False, adding=added and completes_build, to_add=pending, **settled)
        passage_count = _embed_documents(writer, documents, plan, embedder, engine, progress)
    manifest_changes = {
        "complete": completes_build and not unfinished_adds,
        "adding": completes_build and bool(unfinished_adds),
        "to_add": unfinished_adds,
        **settled,
    }
    manifest_changes |= {} if added else {"sources": tuple(sources)}
    manifest = writer.manifest  # an index that was complete, and of which nothing has changed, isn't touched
    if not (manifest.complete and manifest.golden) or manifest != manifest.model_copy(
        update=manifest_changes
    ):
        writer.finish(embedder.queries(QUERIES), **manifest_changes)
    return Changes(*plan.counts(), passage_count, plan.skipped.sentence())


def survey(
    documents: Documents,
    known: Mapping[str, IndexedDocument],
    columns: MetadataColumns,
    added: bool,
    progress: Progress | None = None,
) -> IndexUpdate:
    """Reads every document once and plans the update; `known` is what the index holds.

    Without `added`, documents of the index that aren't among `documents` will be removed, except those that
    `add` put there. Raises InputError for two documents with one id, naming both places.
    """
    plan = IndexUpdate(columns)
    where_seen: dict[str, str] = {}
    for document in documents.read_files(lambda name: True, progress):
        if document.id in where_seen:
            raise InputError(
                f"Two documents have the id {document.id!r}: {where_seen[document.id]} and {document.where}. "
                "Rename one of them, or name a column of ids that differ with --id."
            )
        where_seen[document.id] = document.where
        columns.observe(document)
        plan.sort(document, known.get(document.id), added)
    plan.vanished = {
        id
        for id, indexed in known.items()
        if id not in where_seen and (strip_part(id) in where_seen or not (added or indexed.added))
    }
    plan.skipped = documents.skipped
    return plan


def remove_documents(writer: IndexWriter, ids: Sequence[str]) -> int:
    """Removes documents with all their parts, and returns their number. An id that ends in '/' is a folder,
    unless a document has this very id, as a URL may.

    An interrupted build stays incomplete. Raises InputError for an id that isn't in the index; then nothing
    has changed.
    """
    parts: dict[str, set[str]] = {}
    for indexed_id in writer.known:
        parts.setdefault(strip_part(indexed_id), set()).add(indexed_id)
    to_remove = set[str]()
    for id in ids:
        matches = parts.get(id, set()) | ({id} & writer.known.keys())
        if not matches and id.endswith("/"):
            matches = {indexed_id for indexed_id in writer.known if indexed_id.startswith(id)}
        if not matches:
            suggestion = did_you_mean(id, writer.known)
            raise InputError(f"{writer.folder} holds no document {id!r}.{suggestion} Nothing was removed.")
        to_remove |= matches
    writer.remove(to_remove)
    writer.finish(complete=writer.manifest.complete, adding=writer.manifest.adding)
    return len({strip_part(id) for id in to_remove})


def _embed_documents(
    writer: IndexWriter,
    documents: Documents,
    plan: IndexUpdate,
    embedder: TextEmbedder,
    engine: Engine,
    progress: Progress | None,
) -> int:
    """Embeds the planned documents, shard by shard, with commits. Returns the number of passages."""
    wanted_ids, documents_done, passage_count = plan.to_embed, 0, 0
    pending = (
        document for document in documents.read_files(plan.files.__contains__) if document.id in wanted_ids
    )
    settings = writer.manifest.passages
    for embedded, shard in embed_shards(pending, PASSAGES_AT_A_TIME, embedder, settings, engine):
        passages_of_documents = zip(shard, embedded.passages, strict=True)
        manifest = writer.manifest
        rows = [
            row
            for document, passages in passages_of_documents
            for row in _table_rows(document, passages, plan, manifest)
        ]
        writer.replace(shard, rows, embedded.vectors, plan.lasting)
        writer.commit()
        passage_count, documents_done = passage_count + len(rows), documents_done + len(shard)
        if progress is not None:
            progress(documents_done, len(wanted_ids), "documents")
    return passage_count


def _table_rows(
    document: SearchDocument, passages: Sequence[Passage], plan: IndexUpdate, manifest: IndexManifest
) -> Iterator[dict[str, Any]]:
    """The table's row for each passage, in order. Offsets are those of the text as the source has it."""
    # Computed once for a document: its hash is of the whole text, which may have a thousand passages.
    document_fields = {
        "document_id": document.id,
        "source": document.source,
        "title": document.title,
        "sha256": document.sha256,
        "added": document.id in plan.lasting,
        **plan.columns.values(document),
    }
    for passage in passages:
        lines_before = document.text.count("\n", 0, passage.start)
        yield document_fields | {
            "id": f"{document.id}@{document.start + passage.start}",
            "start": document.start + passage.start,
            "end": document.start + passage.end,
            "line": None if document.line is None else document.line + lines_before,
            "text": manifest.shown_text(passage.text),
            FOLDED_TEXT: manifest.searchable_text(passage.text),
        }

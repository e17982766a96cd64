"""What an update has to do: every document is read and hashed before any is embedded.

So whatever can be refused (an id that stands twice, a broken encoding, a column of another kind) is refused
before anything is written, and the time that is left can be told.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bertsmith.errors import InputError
from bertsmith.inference.index.columns import MetadataColumns
from bertsmith.inference.index.passage_table import Known
from bertsmith.progress import Progress
from bertsmith.text.retrieval.documents import Document, Documents, Skipped, part_of


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

    def sort(self, document: Document, held: Known | None, added: bool) -> None:
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


def survey(
    documents: Documents,
    known: Mapping[str, Known],
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

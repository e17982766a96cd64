"""What an update has to do: every document is read and hashed before any is embedded.

So whatever can be refused (an id that stands twice, a broken encoding, a column of another kind) is refused
before anything is written, and the time that is left can be told.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bertsmith.errors import InputError
from bertsmith.inference.index_columns import MetadataColumns
from bertsmith.inference.passage_table import Known
from bertsmith.text.documents import Document, Documents, Skipped

Progress = Callable[[int, int | None, str], None]


@dataclass
class Plan:
    """Ids of documents that are new, that changed, and that the sources no longer have."""

    columns: MetadataColumns
    new: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    vanished: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)  # that hold documents to be embedded
    unchanged: int = 0
    skipped: Skipped = field(default_factory=Skipped)

    def sort(self, document: Document, held: Known | None) -> None:
        """Notes what is to be done with a document."""
        if held is not None and held.sha256 == document.sha256:
            self.unchanged += 1
            return
        (self.new if held is None else self.changed).add(document.id)
        self.files.add(document.source)

    @property
    def wanted(self) -> set[str]:
        """Documents to be embedded."""
        return self.new | self.changed


def survey(
    documents: Documents,
    known: Mapping[str, Known],
    columns: MetadataColumns,
    whole: bool,
    progress: Progress | None = None,
) -> Plan:
    """Reads everything once. Raises InputError for two documents of one id, naming both places.

    `whole`: the index is to hold these documents and no other, but for those that `add` put there.
    """
    plan = Plan(columns)
    places: dict[str, str] = {}
    for document in documents.of_files(lambda name: True, progress):
        if document.id in places:
            raise InputError(
                f"Two documents have the id {document.id!r}: {places[document.id]} and {document.where}. "
                "Rename one of them, or name a column of ids that differ with --id."
            )
        places[document.id] = document.where
        columns.observe(document)
        plan.sort(document, known.get(document.id))
    if whole:
        plan.vanished = {id for id, held in known.items() if not held.added and id not in places}
    plan.skipped = documents.skipped
    return plan

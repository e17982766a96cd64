"""The one writer of an index: what stands, what is committed, and how a killed build is taken up again."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.files import atomic_folder
from bertsmith.inference.approximate import LEAST_ROWS, build_approximate
from bertsmith.inference.index_lock import sole_writer
from bertsmith.inference.index_manifest import (
    MANIFEST,
    IndexManifest,
    IndexModel,
    Kind,
    read_index_manifest,
    write_index_manifest,
)
from bertsmith.inference.passage_table import Known, PassageTable, Vectors
from bertsmith.text.documents import Document
from bertsmith.text.passages import PassageSettings

_RETRAINED_AT = 2  # times the rows that the approximate index was trained on


def create_index(folder: Path, model: IndexModel, settings: PassageSettings) -> None:
    """An empty index, whole or not there. Raises InputError when the folder holds something else."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is no index. Choose another name for --out.")
    with atomic_folder(folder, replace=True) as partial:
        table = PassageTable.create(partial, model.dimension, {}, settings.language)
        manifest = IndexManifest(model=model, passages=settings, version=table.version)
        write_index_manifest(partial, manifest)


class IndexWriter:
    """Changes documents, then commits. Made by `writing`, which holds the lock."""

    def __init__(self, folder: Path, manifest: IndexManifest, table: PassageTable) -> None:
        self.folder = folder
        self.manifest = manifest
        self.table = table
        self.known: dict[str, Known] = table.documents()
        self.rows = table.rows()

    def add_columns(self, kinds: Mapping[str, Kind]) -> None:
        """The kinds of all columns of metadata, those that are there among them."""
        self.table.add_columns(
            {name: kind for name, kind in kinds.items() if name not in self.manifest.metadata}
        )
        self.manifest = self.manifest.model_copy(update={"metadata": dict(kinds)})

    def replace(
        self, documents: Sequence[Document], rows: Sequence[Mapping[str, Any]], vectors: Vectors, added: bool
    ) -> None:
        """These documents with these passages, instead of what stood under their ids."""
        self.remove({document.id for document in documents} & self.known.keys())
        if rows:
            self.table.add(rows, vectors)
        self.known |= {document.id: Known(document.sha256, added) for document in documents}

    def remove(self, ids: Collection[str]) -> None:
        """Their passages, if there are any."""
        if ids:
            self.table.remove(ids)
            for id in ids:
                self.known.pop(id, None)

    def commit(self, **changes: Any) -> None:
        """From here on readers see what was done, and a kill no longer takes it away."""
        counts = {"documents": len(self.known), "rows": self.table.rows(), "version": self.table.version}
        self.manifest = self.manifest.model_copy(update=counts | changes)
        write_index_manifest(self.folder, self.manifest)

    def finish(self, approximate_from: int, **changes: Any) -> None:
        """Takes new rows into the indexes, commits, and removes what no reader needs any more."""
        self.table.optimise()
        self.commit(approximate=self._approximate(approximate_from), complete=True, **changes)
        self.table.forget_old_versions()
        if self.table.version != self.manifest.version:
            self.commit()

    def _approximate(self, at_least: int) -> Any:
        """Trained when there are rows enough, and again when they have doubled."""
        rows, old = self.table.rows(), self.manifest.approximate
        if old is None:
            return build_approximate(self.table, rows) if rows >= max(at_least, LEAST_ROWS) else None
        return build_approximate(self.table, rows) if rows >= _RETRAINED_AT * old.rows else old


@contextmanager
def writing(folder: Path) -> Iterator[IndexWriter]:
    """Opens an index to change it. What an interrupted writer did after its last commit is undone.

    Raises InputError when the folder is no index, is damaged, or is being written to.
    """
    read_index_manifest(folder)  # before a lock is left in a folder that is something else
    with sole_writer(folder):
        manifest = read_index_manifest(folder)
        for left in folder.glob(f".{MANIFEST}.partial-*"):
            left.unlink(missing_ok=True)
        table = PassageTable.open(folder)
        if table.version != manifest.version:
            table.roll_back(manifest.version)
        yield IndexWriter(folder, manifest, table)

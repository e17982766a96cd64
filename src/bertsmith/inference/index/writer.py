"""The one writer of an index: what stands, what is committed, and how a killed build is taken up again."""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from bertsmith.errors import InputError
from bertsmith.files import atomic_folder, flush, sha256
from bertsmith.inference.index.integrity import (
    GOLDEN,
    HASHES,
    read_golden_queries,
    read_hashes,
    remove_others,
    write_golden_queries,
    write_hashed,
)
from bertsmith.inference.index.manifest import (
    MANIFEST,
    ColumnKind,
    IndexManifest,
    IndexModel,
    folds_first,
    read_index_manifest,
    write_index_manifest,
)
from bertsmith.inference.index.passage_table import (
    LEAST_ROWS,
    TABLE,
    IndexedDocument,
    PassageTable,
    Vectors,
    build_approximate,
    index_errors,
)
from bertsmith.inference.lock import sole_maker, sole_writer
from bertsmith.text.retrieval.documents import Document, part_of
from bertsmith.text.retrieval.passages import PassageSettings

HINT = "latest_version_hint.json"
_RETRAINED_AT = 2  # times the rows that the approximate index was trained on


def create_index(folder: Path, model: IndexModel, settings: PassageSettings) -> None:
    """An empty index, whole or not there; one that another process has made meanwhile stays as it is.

    Raises InputError when the folder holds something else.
    """
    with sole_maker(folder):
        if (folder / MANIFEST).exists():
            return
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} exists and is no index. Choose another name for --out.")
        with atomic_folder(folder, overwrite=True) as partial:
            table = PassageTable.create(partial, model.dimension, {}, settings.language)
            manifest = IndexManifest(
                id=uuid4().hex,
                model=model,
                passages=settings,
                version=table.version,
                composed=True,
                folded=folds_first(settings.language),
            )
            write_index_manifest(partial, manifest)


class IndexWriter:
    """Changes documents, then commits. Made by `writing`, which holds the lock."""

    def __init__(self, folder: Path, manifest: IndexManifest) -> None:
        """What an interrupted writer did after its last commit is undone."""
        self.folder = folder
        self.manifest = manifest
        self.table = PassageTable.open(folder)
        with index_errors(folder):
            self._on_disk = _scan_files(str(folder))  # before anything is written, the undoing too
        if self.table.version != manifest.version:
            self.table.roll_back(manifest.version)
        self._hashes = read_hashes(folder, manifest.hashes)
        self._golden = [query.vector for query in read_golden_queries(folder, manifest)]
        self.known: dict[str, IndexedDocument] = self.table.documents()
        self._later_parts = Counter[str]()  # of each document: how many `known` has behind the first one
        self._count_parts(self.known, 1)

    def add_columns(self, kinds: Mapping[str, ColumnKind]) -> None:
        """The kinds of all columns of metadata, those that are there among them."""
        self.table.add_columns(
            {name: kind for name, kind in kinds.items() if name not in self.manifest.metadata}
        )
        self.manifest = self.manifest.model_copy(update={"metadata": dict(kinds)})

    def replace(
        self,
        documents: Sequence[Document],
        rows: Sequence[Mapping[str, Any]],
        vectors: Vectors,
        lasting: Collection[str] = (),
    ) -> None:
        """These documents with these passages, instead of what stood under their ids. `lasting`: see Plan."""
        self.remove({document.id for document in documents} & self.known.keys())
        if rows:
            self.table.add(rows, vectors)
        put = {
            document.id: IndexedDocument(document.sha256, document.id in lasting) for document in documents
        }
        self._count_parts(put, 1)
        self.known |= put

    def keep(self, ids: Collection[str]) -> None:
        """Documents that stand outlast builds from now on, as those do that `add` embedded."""
        if ids:
            self.table.keep(ids)
            self.known |= {id: self.known[id]._replace(added=True) for id in ids}

    def remove(self, ids: Collection[str]) -> None:
        """Their passages, if there are any."""
        if ids:
            self.table.remove(ids)
            gone = [id for id in ids if self.known.pop(id, None) is not None]
            self._count_parts(gone, -1)

    def commit(self, **changes: Any) -> None:
        """From here on readers see what was done, and a kill no longer takes it away."""
        # Documents are counted by the way: all anew at each of many commits would take longer than embedding.
        parts = self._later_parts
        documents = len(self.known) - parts.total() + sum(id not in self.known for id in parts)
        counts = {"documents": documents, "rows": self.table.rows(), "version": self.table.version}
        self.manifest = self.manifest.model_copy(update=counts | {"golden": ""} | changes)
        self._force_to_disk()
        digest = write_hashed(self.folder, HASHES, self._hashes)
        self.manifest = self.manifest.model_copy(update={"hashes": digest})
        write_index_manifest(self.folder, self.manifest)
        remove_others(self.folder, HASHES, digest)
        remove_others(self.folder, GOLDEN, self.manifest.golden)

    def finish(self, queries: Vectors | None = None, **changes: Any) -> None:
        """Takes new rows into the indexes, commits, and removes what no reader needs any more.

        The index is complete then, unless `changes` say that it isn't. `queries`: the vectors (E, D) of the
        golden queries, by default those that the index has.
        """
        self.manifest = self.manifest.model_copy(update=changes)
        self.table.optimise()
        rows, approximate = self.table.rows(), self.manifest.approximate
        if rows < max(self.manifest.approximate_from, LEAST_ROWS):
            approximate = None
        elif approximate is None or rows >= _RETRAINED_AT * approximate.rows:
            approximate = build_approximate(self.table, rows)
        self.commit(**{"approximate": approximate, "complete": True, "adding": False} | changes)
        self.table.forget_old_versions()
        vectors = self._golden if queries is None else queries
        golden = write_golden_queries(self.folder, self.table, self.manifest, vectors) if len(vectors) else ""
        self.commit(golden=golden)  # and without the hashes of what went

    def _count_parts(self, ids: Iterable[str], change: int) -> None:
        for id in ids:
            if "#part" in id and (whole := part_of(id)) != id:
                self._later_parts[whole] += change
                if not self._later_parts[whole]:
                    del self._later_parts[whole]

    def _force_to_disk(self) -> None:
        """LanceDB doesn't: after a power cut a commit would name files that are empty. The table's files that
        are new or changed are hashed anew.
        """
        with index_errors(self.folder):
            now = _scan_files(str(self.folder))
            changed = {Path(path) for path, state in now.items() if self._on_disk.get(path) != state}
            for path in changed | {path.parent for path in changed}:
                flush(path)
            # LanceDB's hint at the latest version has no hash: it changes without a commit, and readers name
            # the version they want.
            table = self.folder / f"{TABLE}.lance"
            files = [path for path in map(Path, now) if path.is_relative_to(table) and path.name != HINT]
            known, self._hashes = self._hashes, {}
            for path in filter(Path.is_file, files):
                name = path.relative_to(self.folder).as_posix()
                is_known = name in known and path not in changed
                self._hashes[name] = known[name] if is_known else sha256(path)
        self._on_disk = now


def _scan_files(folder: str) -> dict[str, tuple[int, int]]:
    """Paths of all that a folder holds, with size and time of change. As strings, since LanceDB makes files
    by the thousand.
    """
    found = dict[str, tuple[int, int]]()
    for entry in os.scandir(folder):
        is_folder = entry.is_dir(follow_symlinks=False)
        state = entry.stat(follow_symlinks=False)
        found[entry.path] = (0, 0) if is_folder else (state.st_size, state.st_mtime_ns)
        if is_folder:
            found |= _scan_files(entry.path)
    return found


@contextmanager
def writing(folder: Path) -> Iterator[IndexWriter]:
    """Opens an index to change it.

    Raises InputError when the folder is no index, is damaged, or is being written to.
    """
    read_index_manifest(folder)  # before a lock is left in a folder that is something else
    with sole_writer(folder):
        manifest = read_index_manifest(folder)
        for left in folder.glob(f".{MANIFEST}.partial-*"):
            left.unlink(missing_ok=True)
        yield IndexWriter(folder, manifest)

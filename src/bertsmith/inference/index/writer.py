"""IndexWriter: changes an index and commits the changes, and takes up a build that was killed.

Only one process writes at a time: `writing` holds the lock.
"""

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
from bertsmith.text.retrieval.documents import SearchDocument, strip_part
from bertsmith.text.retrieval.passages import PassageSettings

HINT = "latest_version_hint.json"
_RETRAINED_AT = 2  # times the rows that the approximate index was trained on


def create_index(folder: Path, model: IndexModel, settings: PassageSettings) -> None:
    """Creates an empty index atomically; keeps an index that another process has created meanwhile.

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
    """Changes documents, then commits. Open one by `writing`, which holds the lock."""

    def __init__(self, folder: Path, manifest: IndexManifest) -> None:
        """Undoes what an interrupted writer did after its last commit."""
        self.folder = folder
        self.manifest = manifest
        self.table = PassageTable.open(folder)
        with index_errors(folder):
            self._on_disk = _scan_files(str(folder))  # before anything is written, the roll-back included
        if self.table.version != manifest.version:
            self.table.roll_back(manifest.version)
        self._hashes = read_hashes(folder, manifest.hashes)
        self._golden = [query.vector for query in read_golden_queries(folder, manifest)]
        self.known: dict[str, IndexedDocument] = self.table.documents()
        self._later_parts = Counter[str]()  # per document: how many parts `known` has besides the first
        self._count_parts(self.known, 1)

    def add_columns(self, kinds: Mapping[str, ColumnKind]) -> None:
        """Adds the columns of metadata that the table lacks; `kinds` are those of all columns."""
        self.table.add_columns(
            {name: kind for name, kind in kinds.items() if name not in self.manifest.metadata}
        )
        self.manifest = self.manifest.model_copy(update={"metadata": dict(kinds)})

    def replace(
        self,
        documents: Sequence[SearchDocument],
        rows: Sequence[Mapping[str, Any]],
        vectors: Vectors,
        lasting: Collection[str] = (),
    ) -> None:
        """Replaces documents: removes what the index holds under their ids, then adds `rows` with their
        vectors. `lasting` are the ids of documents that `add` put there.
        """
        self.remove({document.id for document in documents} & self.known.keys())
        if rows:
            self.table.add(rows, vectors)
        documents_now = {
            document.id: IndexedDocument(document.sha256, document.id in lasting) for document in documents
        }
        self._count_parts(documents_now, 1)
        self.known |= documents_now

    def keep(self, ids: Collection[str]) -> None:
        """Marks documents of the index as put there by `add`, so that builds no longer remove them."""
        if ids:
            self.table.keep(ids)
            self.known |= {id: self.known[id]._replace(added=True) for id in ids}

    def remove(self, ids: Collection[str]) -> None:
        """Removes documents with their passages, if the index has them."""
        if ids:
            self.table.remove(ids)
            removed_ids = [id for id in ids if self.known.pop(id, None) is not None]
            self._count_parts(removed_ids, -1)

    def commit(self, **changes: Any) -> None:
        """Commits: readers see the changes from now on, and a kill no longer loses them. `changes` are
        further fields of index.json.
        """
        # Documents are counted incrementally: a recount at each commit would take longer than embedding.
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
        """Takes new rows into the indexes, commits, and deletes what no reader needs any more.

        The index is then complete, unless `changes` say otherwise. `queries` are the vectors (E, D) of the
        golden queries, by default those that the index holds.
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
        self.commit(golden=golden)  # once more, without the hashes of deleted files

    def _count_parts(self, ids: Iterable[str], change: int) -> None:
        for part_id in ids:
            if "#part" in part_id and (document_id := strip_part(part_id)) != part_id:
                self._later_parts[document_id] += change
                if not self._later_parts[document_id]:
                    del self._later_parts[document_id]

    def _force_to_disk(self) -> None:
        """Flushes new and changed files to disk, and hashes those of the table anew. LanceDB doesn't flush:
        after a power cut a commit would name empty files.
        """
        with index_errors(self.folder):
            files_now = _scan_files(str(self.folder))
            changed = {Path(path) for path, state in files_now.items() if self._on_disk.get(path) != state}
            for path in changed | {path.parent for path in changed}:
                flush(path)
            # LanceDB's hint at the latest version is not hashed: it changes without a commit, and no reader
            # uses it.
            table = self.folder / f"{TABLE}.lance"
            table_files = [
                path for path in map(Path, files_now) if path.is_relative_to(table) and path.name != HINT
            ]
            hashes_before, self._hashes = self._hashes, {}
            for path in filter(Path.is_file, table_files):
                name = path.relative_to(self.folder).as_posix()
                is_unchanged = name in hashes_before and path not in changed
                self._hashes[name] = hashes_before[name] if is_unchanged else sha256(path)
        self._on_disk = files_now


def _scan_files(folder: str) -> dict[str, tuple[int, int]]:
    """Size and time of change of everything in a folder, by path. Paths are strings, which are faster:
    LanceDB makes files by the thousand.
    """
    states = dict[str, tuple[int, int]]()
    for entry in os.scandir(folder):
        is_folder = entry.is_dir(follow_symlinks=False)
        state = entry.stat(follow_symlinks=False)
        states[entry.path] = (0, 0) if is_folder else (state.st_size, state.st_mtime_ns)
        if is_folder:
            states |= _scan_files(entry.path)
    return states


@contextmanager
def writing(folder: Path) -> Iterator[IndexWriter]:
    """Opens an index for changes, under the lock that keeps other writers out.

    Raises InputError when the folder is no index, is damaged, or is being written to.
    """
    read_index_manifest(folder)  # first, so that no lock file is left in a folder that is no index
    with sole_writer(folder):
        manifest = read_index_manifest(folder)
        for left in folder.glob(f".{MANIFEST}.partial-*"):
            left.unlink(missing_ok=True)
        yield IndexWriter(folder, manifest)

"""Index: a folder of passages that is searched by meaning and by words, and kept in step with its sources.

`Index.build` makes or updates one (build.py), `Index.search` queries it (search.py). The passages are rows of
a LanceDB table (passage_table.py); index.json (manifest.py) says which version of the table is committed.
"""

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertsmith.argument_checks import (
    any_of,
    check_arguments,
    check_function,
    check_path,
    check_text,
    instance_of,
    integer_from,
    list_of,
    optional,
)
from bertsmith.errors import InputError
from bertsmith.inference.index.build import Changes, remove_documents, update
from bertsmith.inference.index.integrity import GoldenQuery, ask_golden, read_golden_queries, verify_hashes
from bertsmith.inference.index.manifest import MANIFEST, IndexManifest, IndexModel, read_index_manifest
from bertsmith.inference.index.passage_table import PassageTable, require_lancedb
from bertsmith.inference.index.search import MOST_HITS, Hit, IndexQuery, Mode, check_query, find_passages
from bertsmith.inference.index.text_embedder import (
    TextEmbedder,
    identify,
    lasting_name,
    open_embedder,
    require_same_model,
    tokens_for_text,
)
from bertsmith.inference.index.writer import create_index, writing
from bertsmith.inference.ranking.reranker import Reranker, open_reranker
from bertsmith.progress import Progress
from bertsmith.text.retrieval.documents import Documents, DocumentSettings, strip_part
from bertsmith.text.retrieval.passages import PassageSettings
from bertsmith.text.tokens.tokenizer import replace_surrogates
from bertsmith.text.workers import Engine, require_engine

Result = TypeVar("Result")
PassageChoices = PassageSettings | Mapping[str, Any]  # all settings, or some of them by name


class _Commit(NamedTuple):
    """One committed state of an index. Manifest and table are read together, so that a reader never has the
    table of one commit and the columns of another.
    """

    manifest: IndexManifest
    table: PassageTable


class Index:
    """An index on disk, open for searches and changes.

    >>> index = Index.build(["handbook/"], "indexes/handbook", model="minilm")
    >>> index.search("how do I book a day off?")[0].place
    'handbook/leave.md:12'

    Any number of processes may search while one writes. A search reads what was committed when it began.
    """

    def __init__(
        self, path: Path, embedder: TextEmbedder | None = None, identity: IndexModel | None = None
    ) -> None:
        """Called by `open` and `build`, which are the ways to make one. `identity` describes the embedder, if
        it was computed already.
        """
        self.path = path
        self.changes: Changes | None = None  # by the last build or add
        self._embedder, self._identity = embedder, identity
        self._committed = _read_last_commit(path)
        self._rerankers: dict[str, Reranker] = {}

    @classmethod
    @check_arguments(path=check_path)
    def open(cls, path: Path | str, embedder: TextEmbedder | None = None) -> "Index":
        """Opens an index. `embedder` is your own embedder, if the index was built with one.

        Raises InputError when the folder is no index or is damaged, MissingExtra without lancedb.
        """
        require_lancedb()
        return cls(Path(path).expanduser(), embedder)

    @classmethod
    @check_arguments(
        sources=list_of(check_path),
        out=check_path,
        model=optional(check_path),
        documents=optional(instance_of(DocumentSettings)),
        passages=optional(instance_of(PassageSettings, Mapping)),
        approximate_from=optional(integer_from(0)),
        progress=optional(check_function),
    )
    def build(
        cls,
        sources: Sequence[str | Path],
        out: Path | str,
        model: str | None = None,
        *,
        embedder: TextEmbedder | None = None,
        documents: DocumentSettings | None = None,
        passages: PassageChoices | None = None,
        approximate_from: int | None = None,
        engine: Engine = "local",
        progress: Progress | None = None,
    ) -> "Index":
        """Builds an index of files, folders and tables, or updates the one at `out` to match them.

        Only new and changed documents are embedded. Documents that the sources no longer have are removed,
        except those that `add` took in. An interrupted build resumes. The first build fixes `model` and
        `passages` (all settings, or some of them by name); if the model's folder moves, a later build may
        name its new place. `embedder` replaces the model. An approximate index is trained and measured once
        there are `approximate_from` passages, by default 100,000. With `engine` "ray" a cluster divides
        documents into passages and embeds them. Files in `out` are never documents.

        Raises InputError for sources that can't be read and for settings that differ from those of the index.
        """
        require_lancedb()
        require_engine(engine)
        out, source_names = Path(out).expanduser(), [str(source) for source in sources]
        source_documents = Documents(source_names, documents, leave_out=out)
        model = None if model is None else lasting_name(model)
        is_new = not (out / MANIFEST).exists()
        index = cls(out, *_create_new(out, model, embedder, passages)) if is_new else cls(out, embedder)
        index._require_settings(model, passages)
        manifest_changes: dict[str, Any] = {}  # what a build says of the whole index, as index.json notes it
        if model is not None:
            manifest_changes["model"] = index._committed.manifest.model.model_copy(update={"name": model})
        if approximate_from is not None:
            manifest_changes["approximate_from"] = approximate_from
        index._update(source_names, source_documents, False, manifest_changes, engine, progress, is_new)
        return index

    @check_arguments(
        sources=list_of(check_path),
        documents=optional(instance_of(DocumentSettings)),
        progress=optional(check_function),
    )
    def add(
        self,
        sources: Sequence[str | Path],
        *,
        documents: DocumentSettings | None = None,
        engine: Engine = "local",
        progress: Progress | None = None,
    ) -> Changes:
        """Adds documents, replacing any with the same ids. Later builds keep them; only `remove` takes them
        out. Raises InputError for sources that can't be read.
        """
        require_engine(engine)
        source_names = [str(source) for source in sources]
        source_documents = Documents(source_names, documents, leave_out=self.path)
        return self._update(source_names, source_documents, True, {}, engine, progress)

    @check_arguments(ids=list_of(check_text))
    def remove(self, ids: Sequence[str]) -> int:
        """Removes documents by their ids; an id that ends in '/' is a folder. Returns the number removed.

        Raises InputError for an unknown id; then nothing is removed.
        """
        with writing(self.path) as writer:
            count = remove_documents(writer, ids)
        self.refresh()
        return count

    @check_arguments(
        query=check_text,
        k=integer_from(1, MOST_HITS),
        where=optional(check_text),
        reranker=optional(any_of(check_text, check_function)),
    )
    def search(
        self,
        query: str,
        k: int = 10,
        mode: Mode = "hybrid",
        where: str | None = None,
        reranker: str | Reranker | None = None,
        per_document: bool = False,
    ) -> list[Hit]:
        """Returns the k best passages, best first; fewer if the index, or what the filter leaves, has fewer.

        per_document: return the k best documents instead, each by its best passage.

        mode: vector (meaning), text (words, BM25) or hybrid (both, by reciprocal rank fusion). where: an SQL
        filter on the columns of `info`, such as "year >= 2015 AND source LIKE 'docs/%'". reranker: a model
        trained on pairs, or a callable (query, passages) -> scores, which reorders the 50 best.

        Warns if a build or an `add` was interrupted, because only committed documents are searched. Raises
        InputError for an empty query, a filter that can't be used, and a damaged index.
        """
        query = replace_surrogates(query)  # what a terminal makes of bytes that are no UTF-8
        check_query(query, k, mode)
        self.refresh()
        vector = None if mode == "text" else self.embedder.queries([query])[0]
        if isinstance(reranker, str):
            if reranker not in self._rerankers:
                self._rerankers[reranker] = open_reranker(reranker)
            reranker = self._rerankers[reranker]
        return self.find(IndexQuery(query, vector, k, mode, where, per_document), reranker)

    def find(self, question: IndexQuery, reranker: Reranker | None = None) -> list[Hit]:
        """Searches by a query whose vector `embedder` has made already; otherwise as `search` does."""
        self.warn_if_unfinished()
        return self._read(lambda commit: find_passages(commit.table, commit.manifest, question, reranker))

    def texts(self) -> dict[str, str]:
        """The text of each document's first passage, by the document's id, in the order of ids. The parts of
        a long document count as one.
        """

        def first_passages(commit: _Commit) -> dict[str, str]:
            first: dict[str, tuple[int, str]] = {}
            for batch in commit.table.scan(["document_id", "start", "text"]):
                for row in batch.to_pylist():
                    id, passage = strip_part(row["document_id"]), (row["start"], row["text"])
                    first[id] = min(first.get(id, passage), passage)
            return {id: text for id, (_, text) in sorted(first.items())}

        self.refresh()
        return self._read(first_passages)

    @property
    def embedder(self) -> TextEmbedder:
        """The index's model, opened at first use. Raises InputError if it is no longer the same model."""
        return self._open_checked_embedder()

    def require_same_model(self) -> None:
        """Raises InputError unless the model is the one that embedded the index's passages. Compares with the
        commit that was read last: call `refresh` first to compare with the latest.
        """
        self._open_checked_embedder()

    def refresh(self) -> bool:
        """Reads the latest commit; every search does so. Returns whether there was a newer one."""
        before = self._committed
        self._committed = _read_last_commit(self.path, before)
        return self._committed is not before

    def warn_if_unfinished(self) -> None:
        """Warns if documents may be missing or outdated, naming the command that finishes the index."""
        if to_repeat := self._committed.manifest.to_repeat:
            warnings.warn(
                f"The index {self.path} isn't complete: what made or changed it was interrupted, or runs"
                " still, and documents may be missing. Only what was committed is searched. Repeat "
                f"{to_repeat}: it continues where it stopped.",
                stacklevel=1,  # this line: a command prints our own warnings as one line, and once
            )

    @property
    def info(self) -> IndexManifest:
        """Model, settings, columns of metadata, counts, and the approximate index with its recall."""
        self.refresh()
        return self._committed.manifest

    def verify(self) -> int:
        """Compares every file with the hash stored at its commit, and reads every row. Returns the number of
        rows. Raises InputError when the index is damaged.
        """

        def verify(commit: _Commit) -> int:
            verify_hashes(self.path, commit.manifest)
            read_golden_queries(self.path, commit.manifest)
            rows: int = sum(batch.num_rows for batch in commit.table.scan(commit.table.table.schema.names))
            if rows != commit.manifest.rows:
                raise InputError(
                    f"The index {self.path} is damaged: index.json counts {commit.manifest.rows:,} passages, "
                    f"the table has {rows:,}. Take it from a copy, or remove the folder and build it again."
                )
            return rows

        self.refresh()
        return self._read(verify)

    def golden_queries(self) -> list[tuple[GoldenQuery, GoldenQuery]]:
        """Pairs of golden queries: with the hits stored at the last change of the index, and with the hits
        found now. Empty for an index of an older Bertsmith. Raises InputError if either is damaged.
        """

        def ask_again(commit: _Commit) -> list[tuple[GoldenQuery, GoldenQuery]]:
            golden = read_golden_queries(self.path, commit.manifest)
            return [
                (query, ask_golden(commit.table, commit.manifest, query.text, query.vector, query.words))
                for query in golden
            ]

        self.refresh()
        return self._read(ask_again)

    def _read(self, read: Callable[[_Commit], Result]) -> Result:
        """Calls `read` with the last commit; once more with the latest, if a writer has deleted the version
        meanwhile.
        """
        commit = self._committed
        try:
            return read(commit)
        except InputError:
            self.refresh()
            if self._committed is commit:
                raise
            return read(self._committed)

    def _update(
        self,
        source_names: Sequence[str],
        documents: Documents,
        added: bool,
        manifest_changes: Mapping[str, Any],
        engine: Engine,
        progress: Progress | None,
        is_new: bool = False,
    ) -> Changes:
        with writing(self.path) as writer:
            self.refresh()  # under the lock: nobody can rebuild the index with another model now
            embedder = self._open_checked_embedder()
            try:
                self.changes = update(
                    writer,
                    source_names,
                    documents,
                    embedder,
                    added=added,
                    settled=manifest_changes,
                    engine=engine,
                    progress=progress,
                )
            except BaseException:
                # Under the lock, so that no other process can have begun to write to the new index.
                if is_new and not writer.manifest.documents and not writer.manifest.complete:
                    shutil.rmtree(self.path)
                raise
        self.refresh()
        return self.changes

    def _open_checked_embedder(self) -> TextEmbedder:
        recorded = self._committed.manifest.model
        if self._embedder is None:
            self._embedder = open_embedder(recorded.name)
        if self._identity is None:
            self._identity = identify(recorded.name, self._embedder)
        require_same_model(self.path, recorded, self._identity)
        return self._embedder

    def _require_settings(self, model: str | None, passages: PassageChoices | None) -> None:
        manifest = self._committed.manifest
        if model is not None and model != manifest.model.name and self._identity is None:
            self._embedder = self._embedder or open_embedder(model)
            self._identity = identify(model, self._embedder)
        if passages is not None and _apply_choices(manifest.passages, passages) != manifest.passages:
            raise InputError(
                f"{self.path} was built with other passages ({manifest.passages.tokens} tokens, overlap "
                f"{manifest.passages.overlap}, language {manifest.passages.language}). Leave these settings "
                "out, or build another index."
            )


def _read_last_commit(path: Path, before: _Commit | None = None) -> _Commit:
    """Opens the last commit; returns `before` itself if there is no newer one. Tries again if a writer
    commits and deletes the version before it is opened.
    """
    manifest = read_index_manifest(path)
    if before is not None and manifest.commit == before.manifest.commit:
        return before if manifest == before.manifest else before._replace(manifest=manifest)
    try:
        table = PassageTable.open(path, manifest.version)
        table.require_columns(manifest.metadata)
        return _Commit(manifest, table)
    except InputError:
        if read_index_manifest(path).commit == manifest.commit:
            raise
        return _read_last_commit(path)


def _apply_choices(defaults: PassageSettings, choices: PassageChoices | None) -> PassageSettings:
    if isinstance(choices, PassageSettings):
        return choices
    return defaults.changed(choices) if choices else defaults


def _create_new(
    out: Path, model: str | None, embedder: TextEmbedder | None, passages: PassageChoices | None
) -> tuple[TextEmbedder, IndexModel]:
    if model is None and embedder is None:
        raise InputError("A new index needs a model: --model minilm, or the folder of another one.")
    name = model or type(embedder).__name__
    embedder = embedder or open_embedder(name)
    settings = _apply_choices(PassageSettings().within(tokens_for_text(embedder)), passages)
    if settings.checked().tokens > (most_tokens := tokens_for_text(embedder)):
        raise InputError(
            f"Passages of {settings.tokens} tokens are longer than the {most_tokens} that {name} reads. "
            "Choose a smaller --passage-tokens."
        )
    identity = identify(name, embedder)
    create_index(out, identity, settings)
    return embedder, identity

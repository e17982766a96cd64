"""Index: a folder of passages to be searched by meaning and by words, kept in step with its sources."""

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertsmith.door import door, either, function, kind, optional, place, several, text, whole
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
from bertsmith.text.retrieval.documents import Documents, DocumentSettings, part_of
from bertsmith.text.retrieval.passages import PassageSettings
from bertsmith.text.tokens.tokenizer import without_surrogates
from bertsmith.text.workers import Engine, require_engine

Result = TypeVar("Result")
PassageChoices = PassageSettings | Mapping[str, Any]  # all settings, or some of them by name


class _Commit(NamedTuple):
    """What one commit left, so that no reader has the table of one and the columns of another."""

    manifest: IndexManifest
    table: PassageTable


class Index:
    """An index on disk, opened to be searched and changed.

    >>> index = Index.build(["handbook/"], "indexes/handbook", model="minilm")
    >>> index.search("how do I book a day off?")[0].place
    'handbook/leave.md:12'

    Any number of processes may search while one writes: a search sees what was committed when it began.
    """

    def __init__(
        self, path: Path, embedder: TextEmbedder | None = None, identity: IndexModel | None = None
    ) -> None:
        """Use `open` or `build`. `identity`: of the embedder, where it is known already."""
        self.path = path
        self.changes: Changes | None = None  # what the last build or add did
        self._embedder, self._identity = embedder, identity
        self._committed = _read_last_commit(path)
        self._rerankers: dict[str, Reranker] = {}

    @classmethod
    @door(path=place)
    def open(cls, path: Path | str, embedder: TextEmbedder | None = None) -> "Index":
        """Opens an index; `embedder`: your own, where it was built with one.

        Raises InputError when the folder is no index or is damaged, MissingExtra without lancedb.
        """
        require_lancedb()
        return cls(Path(path), embedder)

    @classmethod
    @door(
        sources=several(place),
        out=place,
        model=optional(place),
        documents=optional(kind(DocumentSettings)),
        passages=optional(kind(PassageSettings, Mapping)),
        approximate_from=optional(whole(0)),
        progress=optional(function),
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
        """Makes an index of files, folders and tables, or brings the one at `out` in step with them.

        Only new and changed documents are embedded; those that the sources no longer have are removed, but
        for those that `add` put in. An interrupted build goes on. `model` and `passages` (all settings, or
        some of them by name) are settled by the first build; a model may have moved, and is then named anew.
        `embedder` is used in the model's place. From `approximate_from` passages on an approximate index is
        trained and measured, 100,000 until a build says otherwise. With `engine` "ray" a cluster cuts and
        embeds. What lies in `out` is no document.
        Raises InputError for sources that can't be read and for settings that differ from those of the index.
        """
        require_lancedb()
        require_engine(engine)
        out, named = Path(out), [str(source) for source in sources]
        found = Documents(named, documents, leave_out=out)
        model = None if model is None else lasting_name(model)
        is_new = not (out / MANIFEST).exists()
        index = cls(out, *_create_new(out, model, embedder, passages)) if is_new else cls(out, embedder)
        index._require_settings(model, passages)
        settled: dict[str, Any] = {}  # what a build says of the whole index, as index.json notes it
        if model is not None:
            settled["model"] = index._committed.manifest.model.model_copy(update={"name": model})
        if approximate_from is not None:
            settled["approximate_from"] = approximate_from
        index._update(named, found, False, settled, engine, progress, is_new)
        return index

    @door(sources=several(place), documents=optional(kind(DocumentSettings)), progress=optional(function))
    def add(
        self,
        sources: Sequence[str | Path],
        *,
        documents: DocumentSettings | None = None,
        engine: Engine = "local",
        progress: Progress | None = None,
    ) -> Changes:
        """Takes in more documents, instead of those of the same ids; they stay until they are removed."""
        require_engine(engine)
        named = [str(source) for source in sources]
        found = Documents(named, documents, leave_out=self.path)
        return self._update(named, found, True, {}, engine, progress)

    @door(ids=several(text))
    def remove(self, ids: Sequence[str]) -> int:
        """Takes documents out by their ids; one that ends in '/' is a folder. Returns how many.

        Raises InputError for an id that isn't there; nothing is removed then.
        """
        with writing(self.path) as writer:
            count = remove_documents(writer, ids)
        self.refresh()
        return count

    @door(query=text, k=whole(1, MOST_HITS), where=optional(text), reranker=optional(either(text, function)))
    def search(
        self,
        query: str,
        k: int = 10,
        mode: Mode = "hybrid",
        where: str | None = None,
        reranker: str | Reranker | None = None,
        per_document: bool = False,
    ) -> list[Hit]:
        """The k best passages, best first; fewer when the index or the filter has fewer.

        per_document: the k best documents instead, each by its best passage.

        mode: vector (meaning), text (words, BM25), hybrid (both, by reciprocal rank fusion). where: SQL on
        the columns of `info`, such as "year >= 2015 AND source LIKE 'docs/%'". reranker: a model trained on
        pairs, or a callable (query, passages) -> scores, that orders the 50 best anew.
        Warns where a build or an `add` was interrupted: only what was committed is searched.
        Raises InputError for an empty query, a filter that can't be used, and a damaged index.
        """
        query = without_surrogates(query)  # what a terminal makes of bytes that are no UTF-8
        check_query(query, k, mode)
        self.refresh()
        vector = None if mode == "text" else self.embedder.queries([query])[0]
        if isinstance(reranker, str):
            if reranker not in self._rerankers:
                self._rerankers[reranker] = open_reranker(reranker)
            reranker = self._rerankers[reranker]
        return self.find(IndexQuery(query, vector, k, mode, where, per_document), reranker)

    def find(self, question: IndexQuery, reranker: Reranker | None = None) -> list[Hit]:
        """As `search`, of a question whose vector was made by `embedder` already."""
        self.warn_if_unfinished()
        return self._read(lambda seen: find_passages(seen.table, seen.manifest, question, reranker))

    def texts(self) -> dict[str, str]:
        """Every document by its id, the parts of a long one as one, with the text of its first passage."""

        def first_passages(seen: _Commit) -> dict[str, str]:
            first: dict[str, tuple[int, str]] = {}
            for batch in seen.table.scan(["document_id", "start", "text"]):
                for row in batch.to_pylist():
                    id, passage = part_of(row["document_id"]), (row["start"], row["text"])
                    first[id] = min(first.get(id, passage), passage)
            return {id: text for id, (_, text) in sorted(first.items())}

        self.refresh()
        return self._read(first_passages)

    @property
    def embedder(self) -> TextEmbedder:
        """The model behind the index, opened at the first use. Raises InputError where it is another now."""
        return self._checked_embedder()

    def require_same_model(self) -> None:
        """Raises InputError where the model behind the index isn't the one that its passages were embedded
        by. `refresh` before sees what is committed now.
        """
        self._checked_embedder()

    def refresh(self) -> bool:
        """Sees what was committed since; every search does it. Returns whether there was anything."""
        before = self._committed
        self._committed = _read_last_commit(self.path, before)
        return self._committed is not before

    def warn_if_unfinished(self) -> None:
        """Warns that documents are missing or old, and says which command finishes the index."""
        if to_repeat := self._committed.manifest.to_repeat:
            warnings.warn(
                f"The index {self.path} isn't complete: what made or changed it was interrupted, or runs"
                " still, and documents may be missing. Only what was committed is searched. Repeat "
                f"{to_repeat}: it goes on.",
                stacklevel=1,  # this line: a command prints our own warnings as one line, and once
            )

    @property
    def info(self) -> IndexManifest:
        """Model, settings, columns of metadata, counts, and the approximate index with its recall."""
        self.refresh()
        return self._committed.manifest

    def verify(self) -> int:
        """Compares every file with the hash that was kept when it was committed, and reads every row; returns
        how many. Raises InputError when the index is damaged.
        """

        def verified(seen: _Commit) -> int:
            verify_hashes(self.path, seen.manifest)
            read_golden_queries(self.path, seen.manifest)
            rows: int = sum(batch.num_rows for batch in seen.table.scan(seen.table.table.schema.names))
            if rows != seen.manifest.rows:
                raise InputError(
                    f"The index {self.path} is damaged: index.json counts {seen.manifest.rows:,} passages, "
                    f"the table has {rows:,}. Take it from a copy, or remove the folder and build it again."
                )
            return rows

        self.refresh()
        return self._read(verified)

    def golden_queries(self) -> list[tuple[GoldenQuery, GoldenQuery]]:
        """The golden queries as they were answered when the index was changed last, each beside what it finds
        now; none in an index of an older Bertsmith. Raises InputError where they or the index are damaged.
        """

        def asked_again(seen: _Commit) -> list[tuple[GoldenQuery, GoldenQuery]]:
            kept = read_golden_queries(self.path, seen.manifest)
            return [
                (query, ask_golden(seen.table, seen.manifest, query.text, query.vector, query.words))
                for query in kept
            ]

        self.refresh()
        return self._read(asked_again)

    def _read(self, read: Callable[[_Commit], Result]) -> Result:
        """Once more where a writer has cleaned up meanwhile behind the version that was read."""
        seen = self._committed
        try:
            return read(seen)
        except InputError:
            self.refresh()
            if self._committed is seen:
                raise
            return read(self._committed)

    def _update(
        self,
        named: Sequence[str],
        documents: Documents,
        added: bool,
        settled: Mapping[str, Any],
        engine: Engine,
        progress: Progress | None,
        is_new: bool = False,
    ) -> Changes:
        with writing(self.path) as writer:
            self.refresh()  # here, where the index that is written to can't be built anew with another model
            embedder = self._checked_embedder()
            try:
                self.changes = update(
                    writer,
                    named,
                    documents,
                    embedder,
                    added=added,
                    settled=settled,
                    engine=engine,
                    progress=progress,
                )
            except BaseException:
                # Here, while no other process can have begun to write to it.
                if is_new and not writer.manifest.documents and not writer.manifest.complete:
                    shutil.rmtree(self.path)
                raise
        self.refresh()
        return self.changes

    def _checked_embedder(self) -> TextEmbedder:
        noted = self._committed.manifest.model
        if self._embedder is None:
            self._embedder = open_embedder(noted.name)
        if self._identity is None:
            self._identity = identify(noted.name, self._embedder)
        require_same_model(self.path, noted, self._identity)
        return self._embedder

    def _require_settings(self, model: str | None, passages: PassageChoices | None) -> None:
        noted = self._committed.manifest
        if model is not None and model != noted.model.name and self._identity is None:
            self._embedder = self._embedder or open_embedder(model)
            self._identity = identify(model, self._embedder)
        if passages is not None and _apply_choices(noted.passages, passages) != noted.passages:
            raise InputError(
                f"{self.path} was built with other passages ({noted.passages.tokens} tokens, overlap "
                f"{noted.passages.overlap}, language {noted.passages.language}). Leave these settings out, "
                "or build another index."
            )


def _read_last_commit(path: Path, before: _Commit | None = None) -> _Commit:
    """`before` itself where nothing was committed since. A writer may commit and clean up between the reading
    of the version and its opening: then there is a newer one.
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


def _apply_choices(usual: PassageSettings, said: PassageChoices | None) -> PassageSettings:
    if isinstance(said, PassageSettings):
        return said
    return usual.changed(said) if said else usual


def _create_new(
    out: Path, model: str | None, embedder: TextEmbedder | None, passages: PassageChoices | None
) -> tuple[TextEmbedder, IndexModel]:
    if model is None and embedder is None:
        raise InputError("A new index needs a model: --model minilm, or the folder of another one.")
    name = model or type(embedder).__name__
    embedder = embedder or open_embedder(name)
    settings = _apply_choices(PassageSettings().within(tokens_for_text(embedder)), passages)
    if settings.checked().tokens > (room := tokens_for_text(embedder)):
        raise InputError(
            f"Passages of {settings.tokens} tokens are longer than the {room} that {name} reads. "
            "Choose a smaller --passage-tokens."
        )
    identity = identify(name, embedder)
    create_index(out, identity, settings)
    return embedder, identity

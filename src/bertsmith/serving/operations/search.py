"""The operation of an index: the passages that match a query."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from bertsmith.errors import BertsmithError, FilterError, InputError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.search import IndexQuery, Mode, check_query
from bertsmith.serving import LOG
from bertsmith.serving.operations.embed import EmbedOperation
from bertsmith.serving.operations.operation import Options, PreparedRequest
from bertsmith.serving.refusals import IndexUnreadable, RequestTooLarge
from bertsmith.tasks.task import Outputs

_MOST_HITS = 1000  # of a query
_MOST_IN_ANSWER = 10_000  # hits of all queries of a request, each with its passage


class SearchOperation:
    """The `k` best hits for each input, a query; by default 10. `mode` is hybrid, vector or text; `where` is
    an SQL filter on the passages.
    """

    option_names: frozenset[str] = frozenset({"k", "mode", "where"})

    def __init__(self, index: Index, embed: EmbedOperation) -> None:
        self.index, self.embed = index, embed

    @classmethod
    def open(cls, folder: Path, embedder: Embedder, embed: EmbedOperation) -> "SearchOperation":
        """Opens the index of a folder. Raises InputError as `Index.open` does, and if another model built
        it.
        """
        index = Index.open(folder, embedder)
        index.require_same_model()
        index.warn_if_unfinished()
        return cls(index, embed)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that a filter may use."""
        return tuple(self.index.info.metadata)

    def prepare(self, inputs: Sequence[Any], options: Options) -> PreparedRequest:
        k, mode = options.more.get("k", 10), options.more.get("mode", "hybrid")
        where = options.more.get("where")
        if type(k) is not int or not 1 <= k <= _MOST_HITS:
            raise InputError(f"k must be 1 to {_MOST_HITS}, found {k!r}.")
        if mode not in get_args(Mode):
            raise InputError(f"mode must be {', '.join(get_args(Mode))}, found {mode!r}.")
        if where is not None and not isinstance(where, str):
            raise InputError(f"where must be a text, found {where!r}.")
        if len(inputs) * k > _MOST_IN_ANSWER:
            raise RequestTooLarge(
                f"{len(inputs):,} queries with k = {k:,} would bring {len(inputs) * k:,} hits; at most "
                f"{_MOST_IN_ANSWER:,} are sent at a time. Send fewer queries at a time, or a smaller k."
            )
        for number, query in enumerate(inputs, 1):
            if not isinstance(query, str):
                raise InputError(f"input {number}: expected a text, found {type(query).__name__}.")
            check_query(query, k, mode)
        prepared = self.embed.prepare(inputs, replace(options, more={"kind": "query"}))

        def finish(outputs: Sequence[Outputs]) -> list[list[dict[str, Any]]]:
            vectors = prepared.finish(list(outputs))
            queries = [
                IndexQuery(text, vector, k, mode, where) for text, vector in zip(inputs, vectors, strict=True)
            ]
            try:
                self.index.refresh()
                self.index.require_same_model()
                return [[asdict(hit) for hit in self.index.find(query)] for query in queries]
            except FilterError:
                raise
            except BertsmithError as error:  # its message names folders, which clients shouldn't see
                LOG.error("an index that is served can't be searched: %s", error)
                raise IndexUnreadable(
                    "The index can't be searched now: it is gone, damaged, or built anew with another model. "
                    "The service's log says more."
                ) from None

        return replace(prepared, finish=finish, is_slow=True)

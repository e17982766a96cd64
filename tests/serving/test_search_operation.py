"""A search in a service: bounded, and never with the vectors of another model than the index has now."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bertsmith.errors import FilterError, InputError
from bertsmith.serving.operations.operation import Options, PreparedRequest
from bertsmith.serving.operations.search import SearchOperation
from bertsmith.serving.refusals import IndexUnreadable, RequestTooLarge


class _Index:
    """`is_another`: built again with another model; `is_gone`: its folder isn't there."""

    is_another = is_gone = False

    def refresh(self) -> bool:
        if self.is_gone:
            raise InputError("/srv/private does not exist.")
        return True

    def require_same_model(self) -> None:
        if self.is_another:
            raise InputError("The index was built with other weights.")

    def find(self, question: Any) -> list[Any]:
        if question.where is not None:
            raise FilterError("The filter can't be used.")
        return []


def search_of(index: _Index) -> SearchOperation:
    made: Any = SimpleNamespace(encoded=[], tokens=0)
    embed: Any = SimpleNamespace(
        prepare=lambda inputs, options: PreparedRequest(
            made, [], lambda outputs: np.zeros((len(inputs), 2)), [1] * len(inputs), [False] * len(inputs)
        )
    )
    return SearchOperation(index, embed)  # type: ignore[arg-type]


def test_an_index_that_was_built_with_another_model_meanwhile_is_not_searched() -> None:
    """Its vectors and the query's would be compared all the same."""
    index = _Index()
    prepared = search_of(index).prepare(["red cat"], Options(None, {}))
    assert prepared.finish([]) == [[]]
    index.is_another = True
    with pytest.raises(IndexUnreadable, match="built anew with another model"):
        prepared.finish([])


def test_an_index_that_is_gone_is_the_services_fault_and_its_path_is_told_to_the_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    index = _Index()
    prepared = search_of(index).prepare(["red cat"], Options(None, {}))
    index.is_gone = True
    with pytest.raises(IndexUnreadable) as caught:
        prepared.finish([])
    assert (caught.value.status, caught.value.code) == (503, "index_unreadable")
    assert "/srv/private" not in str(caught.value)
    assert "/srv/private does not exist" in caplog.text


def test_a_filter_that_is_none_is_the_clients_fault() -> None:
    prepared = search_of(_Index()).prepare(["red cat"], Options(None, {"where": "("}))
    with pytest.raises(FilterError):
        prepared.finish([])


def test_many_queries_with_many_hits_are_too_much_at_a_time() -> None:
    search = search_of(_Index())
    search.prepare(["q"] * 10, Options(None, {"k": 1000}))
    with pytest.raises(RequestTooLarge, match="11 queries with k = 1,000 would bring 11,000 hits"):
        search.prepare(["q"] * 11, Options(None, {"k": 1000}))

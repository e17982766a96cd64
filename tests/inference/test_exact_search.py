"""The best of each row, ties included, equal a full sort; nothing depends on how queries are divided."""

from collections.abc import Sequence

import numpy as np
import pytest

from bertsmith.inference.ranking import search as exact_search
from bertsmith.inference.ranking.search import DenseSearch, Vectors, search_among, search_exactly, top_k
from bertsmith.progress import Progress


class LetterVectors:
    """A text's vector says which of the letters a to e it holds."""

    def queries(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        found = np.array([[letter in text for letter in "abcde"] for text in texts], np.float32)
        return found / np.sqrt(found.sum(axis=1, keepdims=True))

    documents = queries


@pytest.mark.parametrize("values", [2, 3, 8, 1000])
def test_top_k_equals_a_stable_sort_of_everything(values: int) -> None:
    """Of few values there are many ties, at the last place too."""
    generator = np.random.default_rng(values)
    for _ in range(200):
        shape = generator.integers(1, 30, 2)
        scores = generator.integers(values, size=shape).astype(np.float32)
        k = int(generator.integers(0, 35))
        assert np.array_equal(top_k(scores, k), np.argsort(-scores, axis=1, kind="stable")[:, :k])


def test_dense_search_gives_the_highest_cosines() -> None:
    texts = ["a", "abc", "de", "abcde", "ab", "ab"]
    (found,) = search_exactly(DenseSearch(LetterVectors(), texts), ["ab"], len(texts), 4)
    assert found[0].tolist() == [4, 5, 1, 0]
    assert found[1] == pytest.approx([1, 1, np.sqrt(2 / 3), np.sqrt(1 / 2)])


def test_queries_in_parts_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    texts = ["".join(generator.choice(list("abcde"), 3)) for _ in range(40)]
    search = DenseSearch(LetterVectors(), texts[:30])
    whole = list(search_exactly(search, texts, 30, 7))
    monkeypatch.setattr(exact_search, "_SCORES_AT_ONCE", 3 * 30)
    heard: list[int] = []
    parts = list(search_exactly(search, texts, 30, 7, heard.append))
    assert [places.tolist() for places, _ in parts] == [places.tolist() for places, _ in whole]
    assert heard == [3 * part for part in range(1, 14)] + [40]


def test_queries_are_embedded_together_though_few_of_them_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time costs the batches of like length."""
    monkeypatch.setattr(exact_search, "_SCORES_AT_ONCE", 2 * 5)
    monkeypatch.setattr(exact_search, "_QUERIES_AT_ONCE", 3)
    lots: list[int] = []

    class Counted(LetterVectors):
        def queries(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
            lots.append(len(texts))
            return super().queries(texts)

    found = search_exactly(DenseSearch(Counted(), ["a", "b", "c", "d", "e"]), list("abcdeab"), 5, 1)
    assert [each.positions.tolist() for each in found] == [[0], [1], [2], [3], [4], [0], [1]]
    assert lots == [3, 3, 1]


def test_among_candidates_only_they_are_ranked_and_all_of_them() -> None:
    search = DenseSearch(LetterVectors(), ["a", "abc", "de", "ab", "ab"])
    found = list(search_among(search, ["ab", "d"], 5, [np.array([4, 2, 3, 0]), np.array([1])]))
    assert [each.positions.tolist() for each in found] == [[3, 4, 0, 2], [1]]
    assert found[0].scores == pytest.approx([1, 1, np.sqrt(1 / 2), 0])


def test_fewer_documents_than_asked_for() -> None:
    (found,) = search_exactly(DenseSearch(LetterVectors(), ["a", "b"]), ["b"], 2, 10)
    assert found[0].tolist() == [1, 0]
    assert top_k(np.empty((3, 0), np.float32), 5).shape == (3, 0)

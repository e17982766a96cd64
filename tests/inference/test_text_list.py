"""What iterates over something else than its texts is refused by whatever reads lists of texts."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_predictor import saved_model

from bertsmith.errors import InputError
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.engine import require_texts
from bertsmith.inference.features import Features
from bertsmith.inference.predictor import Predictor
from served_models import save_encoder

TEXTS = ["bano delo", "firu", "guma kano lelo"]


class Lying:
    """A list that has three texts, whatever its length says."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[str]:
        return iter(TEXTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("lists") / "model", "classification", ["no", "yes"])


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("lists") / "encoder")


@pytest.fixture(scope="module")
def readers(folder: Path, encoder: Path) -> list[Callable[[Any], Any]]:
    embedder = Embedder(encoder)
    of_all = embedder.documents, embedder.queries, Predictor.load(folder).predict, Features(folder).encode
    return [*of_all]


@pytest.fixture(scope="module")
def table() -> Any:
    return pytest.importorskip("pandas").DataFrame({"text": TEXTS, "label": [1, 2, 3]})


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ("bano", "found one text: 'bano'. Put it in a list"),
        (np.array([TEXTS]), r"found a table \(ndarray\)"),
        (dict.fromkeys(TEXTS), "found dict"),
        (set(TEXTS), "found set"),
        (b"bano", "found bytes"),
        (None, "found NoneType"),
        (7, "found int"),
        (iter(TEXTS), "found list_iterator, whose length is not known"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(
    readers: list[Callable[[Any], Any]], texts: Any, complaint: str
) -> None:
    for read in readers:
        with pytest.raises(InputError, match=f"Expected a list of texts, {complaint}"):
            read(texts)


def test_a_table_is_refused_with_the_way_to_its_texts(
    readers: list[Callable[[Any], Any]], table: Any
) -> None:
    for read in readers:
        with pytest.raises(
            InputError, match=r"a table \(DataFrame\)\. Give .* such as list\(table\['text'\]\)"
        ):
            read(table)


@pytest.mark.parametrize(
    ("length", "complaint"), [(2, "Expected 2 texts, .* gave more"), (5, "Expected 5 texts, .* gave 3")]
)
def test_a_list_that_gives_more_or_fewer_than_it_says_is_refused(
    readers: list[Callable[[Any], Any]], length: int, complaint: str
) -> None:
    for read in readers[:3]:
        with pytest.raises(InputError, match=complaint):
            read(Lying(length))


def test_a_column_of_a_table_and_an_array_are_lists(readers: list[Callable[[Any], Any]], table: Any) -> None:
    *vectors, predict, encode = readers
    for texts in (table["text"], table["text"].to_numpy(), tuple(TEXTS)):
        for read in (*vectors, encode):
            np.testing.assert_array_equal(read(texts), read(TEXTS))
        assert predict(texts) == predict(TEXTS)


def test_batches_of_vectors_are_made_of_any_stream_of_texts_but_of_no_table(
    encoder: Path, table: Any
) -> None:
    embedder = Embedder(encoder)
    (found,) = embedder.embed_batches(iter(TEXTS))
    np.testing.assert_array_equal(found.vectors, embedder.documents(TEXTS))
    for texts in ("bano", table):
        with pytest.raises(InputError, match="Expected a list of texts, found"):
            next(embedder.embed_batches(texts))
    require_texts(iter(TEXTS))

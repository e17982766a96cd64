"""The approximate index: when there is one, how it is measured, and that it answers as well as it says."""

from pathlib import Path

import numpy as np
import pytest
from index_samples import SETTINGS, WordEmbedder, sentences, write_files

pytest.importorskip("lancedb")

from bertsmith.inference.index import passage_table
from bertsmith.inference.index.index import Index
from bertsmith.inference.index.passage_table import RECALL, PassageTable


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = {f"{seed}.txt": sentences(seed, 6) for seed in range(160)}
    return write_files(tmp_path_factory.mktemp("large") / "docs", texts)


def build(docs: Path, out: Path, approximate_from: int | None = None) -> Index:
    return Index.build(
        [docs], out, embedder=WordEmbedder(), passages=SETTINGS, approximate_from=approximate_from
    )


def test_a_large_index_is_searched_approximately_as_well_as_was_measured(
    docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups so small that the first number tried can't do."""
    monkeypatch.setattr(passage_table, "_ROWS_IN_A_GROUP", 256)
    monkeypatch.setattr(passage_table, "_PROBES", (1, 2, 3))
    index = build(docs, tmp_path / "index", approximate_from=300)
    noted = index.info.approximate
    assert noted is not None
    assert noted.rows == index.info.rows >= 300
    assert noted.probes > 1, "one group of three doesn't hold all neighbours"
    assert noted.recall >= RECALL
    index.add([write_files(tmp_path, {"new.txt": "a small red zebra"}) / "new.txt"])
    assert index.info.approximate == noted, "a few more rows don't train it anew"
    (hit,) = index.search("small red zebra", k=1, mode="vector")
    assert hit.document_id == str(tmp_path / "new.txt")
    vectors = np.concatenate(
        [np.stack(batch.column("vector").to_pylist()) for batch in index._committed.table.scan(["vector"])]
    )
    shares = []
    for seed in range(20):
        query = " ".join(sentences(1000 + seed, 1).rstrip(".").lower().split())
        exact = np.sort(vectors @ WordEmbedder().queries([query])[0])[::-1][:10]
        found = [hit.score for hit in index.search(query, k=10, mode="vector")]
        shares.append(np.mean(np.array(found) >= exact[-1] - 1e-5))
    assert np.mean(shares) >= 0.9


@pytest.mark.slow
def test_from_when_on_it_is_approximate_is_kept_until_a_build_says_otherwise(
    docs: Path, tmp_path: Path
) -> None:
    index = build(docs, tmp_path / "index", approximate_from=10**9)
    assert index.remove(["docs/1.txt"]) == 1
    index.add([docs / "2.txt"])
    assert build(docs, tmp_path / "index").info.approximate is None
    index = build(docs, tmp_path / "index", approximate_from=10)
    assert index.changes is not None and index.changes.passages == 0, "nothing else has changed"
    assert index.info.approximate is not None
    assert build(docs, tmp_path / "index").info.approximate is not None
    assert build(docs, tmp_path / "index", approximate_from=10**9).info.approximate is None


def test_rows_that_are_equal_are_equally_good_answers(tmp_path: Path) -> None:
    """Of equal passages it is chance which are found, and no fault of the index."""
    rng = np.random.default_rng(0)
    kinds = rng.normal(size=(6, 16)).astype(np.float32)
    vectors = np.repeat(kinds, 50, axis=0)
    table = PassageTable.create(tmp_path, 16, {}, "en")
    rows = [{"id": f"p{number}", "document_id": "d", "text": "", "added": False} for number in range(300)]
    table.add(rows, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    assert passage_table.build_approximate(table, 300, queries=20).recall == 1.0


def test_neighbours_that_are_missed_lower_the_recall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the share of the ten nearest, counted by their ids here, that one group of two gives."""
    drawn: list[tuple[str, passage_table.Vectors]] = []
    draw = passage_table._draw_passages

    def noted(*arguments: object) -> list[tuple[str, passage_table.Vectors]]:
        drawn[:] = draw(*arguments)  # type: ignore[arg-type]
        return drawn

    monkeypatch.setattr(passage_table, "_ROWS_IN_A_GROUP", 256)  # as few as LanceDB allows
    monkeypatch.setattr(passage_table, "_PROBES", (1,))
    monkeypatch.setattr(passage_table, "_draw_passages", noted)
    vectors = np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    table = PassageTable.create(tmp_path, 16, {}, "en")
    rows = [{"id": str(number), "document_id": "d", "text": "", "added": False} for number in range(600)]
    table.add(rows, vectors)
    measured = passage_table.build_approximate(table, 600, queries=50).recall
    shares = []
    for own, vector in drawn:
        cosines = vectors @ vector
        cosines[int(own)] = -2
        nearest = set(map(str, np.argsort(-cosines)[:10]))
        search = table.table.search(vector, vector_column_name="vector").distance_type("cosine")
        found = search.nprobes(1).refine_factor(10).limit(11).select(["id", "_distance"]).to_arrow()
        others = [id for id in found.column("id").to_pylist() if id != own][:10]
        shares.append(len(nearest & set(others)) / 10)
    assert len(shares) == 50 and measured == pytest.approx(np.mean(shares), abs=1e-3)
    assert 0.1 < measured < 0.95


def made_of(vectors: passage_table.Vectors, folder: Path) -> PassageTable:
    """A passage for each vector, 128 a year."""
    table = PassageTable.create(folder, vectors.shape[1], {"year": "whole numbers"}, "en")
    rows = [
        {"id": str(number), "document_id": "d", "text": "", "added": False, "year": number // 128}
        for number in range(len(vectors))
    ]
    table.add(rows, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return table


def test_a_filter_finds_rows_of_groups_that_are_far_from_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A year is a cloud of its own, and most lie outside the one group that is looked at."""
    monkeypatch.setattr(passage_table, "_ROWS_IN_A_GROUP", 128)
    monkeypatch.setattr(passage_table, "_PROBES", (1,))
    rng = np.random.default_rng(0)
    clouds = np.repeat(rng.normal(size=(32, 16)), 128, axis=0) + 0.1 * rng.normal(size=(4096, 16))
    vectors = clouds.astype(np.float32)
    table = made_of(vectors, tmp_path)
    noted = passage_table.build_approximate(table, 4096, queries=5)

    def hits(year: int, filtered: bool) -> int:
        search = table.table.search(vectors[0], vector_column_name="vector").distance_type("cosine")
        search = passage_table.with_settings(search, noted, filtered).where(f"year = {year}", prefilter=True)
        return int(search.limit(10).select(["id", "_distance"]).to_arrow().num_rows)

    assert [hits(year, filtered=True) for year in range(32)] == [10] * 32
    assert 0 in [hits(year, filtered=False) for year in range(32)], "it takes more than the nearest group"


@pytest.mark.parametrize("dimension", [6, 50, 17])
def test_any_width_can_be_shortened(dimension: int, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, dimension)).astype(np.float32)
    assert passage_table.build_approximate(made_of(vectors, tmp_path), 300, queries=5).recall >= 0.9

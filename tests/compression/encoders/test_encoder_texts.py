"""The texts that an embedding model is distilled on, and what is kept of its teacher."""

from pathlib import Path

import numpy as np
import pytest
import torch
from encoder_samples import tiny_tokenizer

from bertsmith.arrays import Ints
from bertsmith.compression.distilling.encoders.objective import TextStream, texts_of
from bertsmith.compression.distilling.encoders.teacher import VectorCache, principal_directions
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor
from bertsmith.inference.embedding.vectors import Vectors, normalised


def stream_of(store: Path, prefixes: tuple[list[int], ...] = ([],)) -> TextStream:
    opened = TokenStore.open(store / "train")
    return TextStream(opened, tiny_tokenizer(), 0, False, 24, 240, prefixes=prefixes)


def test_every_sentence_is_in_one_text_and_none_is_longer_than_there_is_room(store: Path) -> None:
    opened = TokenStore.open(store / "train")
    singles, several = 0, 0
    for document in range(len(opened)):
        first, last = opened.document_starts[document : document + 2].tolist()
        texts = texts_of(opened, document, 22)
        assert [start for start, _, _ in texts] == [
            int(opened.sentence_starts[sentence]) for _, _, sentence in texts
        ]
        assert texts[0][2] == first
        for (start, end, sentence), following in zip(texts, [*(t[2] for t in texts[1:]), last], strict=True):
            assert end == min(int(opened.sentence_starts[following]), start + 22)
            singles += following == sentence + 1
            several += following > sentence + 1
    assert singles > 20
    assert several > 20


def test_a_text_has_the_same_number_and_tokens_in_every_epoch(store: Path) -> None:
    found: dict[int, list[tuple[int, ...]]] = {}
    for batch in stream_of(store).batches(Cursor(), last_epoch=2):
        sequences = batch.sequences
        ends = np.cumsum(sequences.lengths)
        for number, end, length in zip(sequences.labels, ends, sequences.lengths, strict=True):
            found.setdefault(int(number), []).append(tuple(sequences.token_ids[end - length : end].tolist()))
    assert all(len(texts) == 3 and len(set(texts)) == 1 for texts in found.values())


def test_prefixes_stand_behind_cls_by_turns(store: Path) -> None:
    tokenizer = tiny_tokenizer()
    plain = next(stream_of(store).batches(Cursor())).sequences
    with_them = next(stream_of(store, ([7, 8], [9])).batches(Cursor())).sequences
    texts = {}
    for sequences in (plain, with_them):
        ends = np.cumsum(sequences.lengths)
        for number, end, length in zip(sequences.labels, ends, sequences.lengths, strict=True):
            texts.setdefault(int(number), []).append(sequences.token_ids[end - length : end].tolist())
    compared = 0
    for number, both in texts.items():
        if len(both) == 2 and len(both[0]) < 20:  # neither is cut
            prefix = [9] if number % 2 else [7, 8]
            assert both[1] == [tokenizer.cls_id, *prefix, *both[0][1:]]
            compared += 1
    assert compared > 3


def vectors_of(numbers: Ints) -> Vectors:
    return normalised(np.random.default_rng(1).normal(size=(100, 8)).astype(np.float32)[numbers])


def test_a_vector_is_computed_once_and_the_same_afterwards(tmp_path: Path) -> None:
    asked: list[int] = []

    def compute(numbers: Ints) -> Vectors:
        asked.extend(numbers.tolist())
        return vectors_of(numbers)

    cache = VectorCache(tmp_path, 0, 100, 8)
    numbers = np.array([4, 7, 9])
    first = cache.get(numbers, lambda places: compute(numbers[places]))
    np.testing.assert_allclose(first, vectors_of(numbers), atol=1e-3)
    again = VectorCache(tmp_path, 0, 100, 8)
    more = np.array([9, 4, 11])
    second = again.get(more, lambda places: compute(more[places]))
    assert asked == [4, 7, 9, 11]
    assert np.array_equal(second[:2], first[[2, 0]])


def test_a_half_written_vector_is_computed_again(tmp_path: Path) -> None:
    cache = VectorCache(tmp_path, 0, 4, 8)
    numbers = np.array([2])
    whole = cache.get(numbers, lambda places: vectors_of(numbers))
    file = np.memmap(tmp_path / "rank-0.f16", np.float16, "r+", shape=(4, 8))
    file[2, 3:] = 0
    assert np.array_equal(VectorCache(tmp_path, 0, 4, 8).get(numbers, lambda _: vectors_of(numbers)), whole)


def test_directions_keep_the_products_of_vectors_that_lie_in_few_dimensions() -> None:
    generator = np.random.default_rng(0)
    vectors = normalised(
        (generator.normal(size=(200, 3)) @ generator.normal(size=(3, 12))).astype(np.float32)
    )
    directions = principal_directions(vectors, 3).numpy()
    small = vectors @ directions.T
    np.testing.assert_allclose(small @ small.T, vectors @ vectors.T, atol=1e-5)
    np.testing.assert_allclose(directions @ directions.T, np.eye(3), atol=1e-5)


def test_directions_are_those_of_the_largest_singular_values() -> None:
    vectors = normalised(
        np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32) * [5, 4, 3, 2, 1, 1]
    )
    wanted = torch.linalg.svd(torch.from_numpy(vectors)).Vh[:2]
    found = principal_directions(vectors, 2)
    torch.testing.assert_close((found @ wanted.T).abs(), torch.eye(2), atol=1e-3, rtol=0)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_has_a_file_of_its_own(tmp_path: Path, rank: int) -> None:
    VectorCache(tmp_path, rank, 4, 8)
    assert (tmp_path / f"rank-{rank}.f16").stat().st_size == 4 * 8 * 2

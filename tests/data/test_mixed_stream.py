"""Text of two kinds in every batch: the order of each is its own, and a cursor names the place in both."""

import json
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from stores import FIRST_ID, numbered_store, random_lengths, words

from bertsmith.data import stream as module
from bertsmith.data.batch import Sequences
from bertsmith.data.stream import Cursor, GlobalBatch, MixedStream, PretrainingStream, divide_batch_size


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MixedStream:
    """Main text of 23 documents and a shorter one, which comes round more often; blocks of five documents."""
    monkeypatch.setattr(module, "_BLOCK_DOCUMENTS", 5)
    main, general = (
        PretrainingStream(
            numbered_store(tmp_path / name, random_lengths(documents, seed)),
            words(10),
            seed,
            False,
            40,
            tokens,
        )
        for name, documents, seed, tokens in (("main", 23, 1, 120), ("general", 4, 2, 40))
    )
    return MixedStream(main, general)


def first_batches(stream: MixedStream | PretrainingStream, count: int, cursor: Cursor) -> list[GlobalBatch]:
    return list(islice(stream.batches(cursor), count))


def test_from_any_recorded_cursor_the_rest_follows(mixed: MixedStream) -> None:
    batches = first_batches(mixed, 60, Cursor())
    last = batches[-1].end
    assert last.mixed_in is not None and last.mixed_in.epoch > last.epoch >= 1
    for number in range(0, 60, 7):
        saved = Cursor.of(json.loads(json.dumps(asdict(batches[number].start))))
        assert saved == batches[number].start
        for again, expected in zip(first_batches(mixed, 4, saved), batches[number:], strict=False):
            assert (again.start, again.end) == (expected.start, expected.end)
            for field in fields(Sequences):
                found, known = (getattr(each.sequences, field.name) for each in (again, expected))
                np.testing.assert_array_equal(found, known)


def test_each_batch_is_one_of_either_in_their_own_order(mixed: MixedStream) -> None:
    both = first_batches(mixed, 30, Cursor(phase=1))
    main = first_batches(mixed.main, 30, Cursor(phase=1))
    general = first_batches(mixed.mixed_in, 30, Cursor(phase=1))
    for batch, first, second in zip(both, main, general, strict=True):
        ids = np.concatenate([first.sequences.token_ids, second.sequences.token_ids])
        np.testing.assert_array_equal(batch.sequences.token_ids, ids)
        assert batch.sequences.lengths.sum() <= 160
        assert batch.start.phase == 1 and batch.start.mixed_in == second.start


def test_every_token_of_the_main_text_is_used_once_an_epoch(mixed: MixedStream) -> None:
    seen: list[int] = []
    for batch in mixed.main.batches(Cursor(), last_epoch=0):
        seen += [token - FIRST_ID for token in batch.sequences.token_ids.tolist() if token >= FIRST_ID]
    assert sorted(seen) == list(range(len(mixed.store.tokens)))


def test_masks_of_the_two_differ(mixed: MixedStream) -> None:
    (batch,) = first_batches(mixed, 1, Cursor())
    assert len(set(batch.sequences.keys.tolist())) == len(batch.sequences.keys)


@pytest.mark.parametrize(
    ("size", "share", "parts"),
    [(32, 0.25, (24, 8)), (2, 0.01, (1, 1)), (2, 0.9, (1, 1)), (10, 0.5, (5, 5)), (16, 0.99, (1, 15))],
)
def test_a_batch_has_at_least_one_sequence_of_each(size: int, share: float, parts: tuple[int, int]) -> None:
    assert divide_batch_size(size, share) == parts


def test_the_cursor_of_an_older_checkpoint_has_nothing_mixed_in() -> None:
    assert Cursor.of({"phase": 1, "epoch": 2, "block": 3, "offset": 4}) == Cursor(1, 2, 3, 4)

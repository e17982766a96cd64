"""The order of pre-training data: a function of (seed, cursor), everything once an epoch, within budget."""

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from stores import FIRST_ID, numbered_store, random_lengths, words

from bertsmith.data import stream as module
from bertsmith.data.batch import Sequences
from bertsmith.data.store import TokenStore
from bertsmith.data.stream import Cursor, GlobalBatch, PretrainingStream
from bertsmith.errors import RecipeError, StoreError

LENGTHS = random_lengths(23, seed=1)
BLOCK = 5  # documents; an epoch has five blocks, the last one not full
with_and_without_pairs = pytest.mark.parametrize("next_sentence", [True, False], ids=["pairs", "full"])


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_DOCUMENTS", BLOCK)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return numbered_store(tmp_path_factory.mktemp("store") / "store", LENGTHS)


def stream_of(store: TokenStore, next_sentence: bool = True, **settings: int | float) -> PretrainingStream:
    values = {"seed": 7, "max_length": 40, "batch_tokens": 160} | settings
    tokenizer = words(10)  # its special ids are all that a stream uses
    return PretrainingStream(store, tokenizer, next_sentence=next_sentence, **values)  # type: ignore[arg-type]


def first_batches(stream: PretrainingStream, count: int, cursor: Cursor | None = None) -> list[GlobalBatch]:
    return list(islice(stream.batches(cursor or Cursor()), count))


def assert_same(left: GlobalBatch, right: GlobalBatch) -> None:
    assert (left.start, left.end) == (right.start, right.end)
    for field in fields(Sequences):
        found, expected = getattr(left.sequences, field.name), getattr(right.sequences, field.name)
        if found is None or expected is None:  # values, which only patches have
            assert found is expected
            continue
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected, field.name)


def split_up(batches: list[GlobalBatch]) -> Iterator[tuple[list[int], list[int], int, int]]:
    """(token ids, segment ids, key, label) of each sequence in order."""
    for batch in batches:
        sequences = batch.sequences
        ends = np.cumsum(sequences.lengths)
        for row, (start, end) in enumerate(zip(ends - sequences.lengths, ends, strict=True)):
            span = slice(start, end)
            ids, segments = sequences.token_ids[span].tolist(), sequences.segment_ids[span].tolist()
            yield ids, segments, int(sequences.keys[row]), int(sequences.labels[row])


def text_of(batches: list[GlobalBatch]) -> list[int]:
    """Places in the store, in order, of all first segments and true next ones."""
    return [
        token - FIRST_ID
        for ids, segments, _, label in split_up(batches)
        for token, segment in zip(ids, segments, strict=True)
        if token >= FIRST_ID and not (segment and label)
    ]


@with_and_without_pairs
def test_from_any_recorded_cursor_the_rest_follows(store: TokenStore, next_sentence: bool) -> None:
    """Over many borders of blocks and of epochs: nothing but the cursor carries over."""
    stream = stream_of(store, next_sentence)
    batches = first_batches(stream, 90)
    assert batches[-1].end.epoch >= 3 and {batch.start.block for batch in batches} == set(range(5))
    crossing = [batch for batch in batches if (batch.start.epoch, batch.start.block) != place(batch.end)]
    assert len(crossing) >= 10
    for number, batch in enumerate(batches):
        resumed = first_batches(stream_of(store, next_sentence), min(3, 90 - number), batch.start)
        for found, expected in zip(resumed, batches[number:], strict=False):
            assert_same(found, expected)


def place(cursor: Cursor) -> tuple[int, int]:
    return cursor.epoch, cursor.block


@with_and_without_pairs
@pytest.mark.parametrize("batch_tokens", [160, 10_000], ids=["many", "one"])
def test_up_to_an_epochs_end_is_that_epoch_and_nothing_of_the_next(
    store: TokenStore, next_sentence: bool, batch_tokens: int
) -> None:
    """The last batch is cut there, also when the whole epoch is smaller than one batch."""
    stream = stream_of(store, next_sentence, batch_tokens=batch_tokens)
    finite = list(stream.batches(Cursor(), last_epoch=0))
    assert finite[-1].end == Cursor(epoch=1)
    first_epoch = list(split_up(finite))
    endless = list(split_up(first_batches(stream, len(finite) + 1)))
    second_epoch = split_up(first_batches(stream, len(finite) + 1, Cursor(epoch=1)))
    assert len(first_epoch) < len(endless)
    assert endless == [*first_epoch, *islice(second_epoch, len(endless) - len(first_epoch))]


@with_and_without_pairs
def test_each_batch_begins_where_the_one_before_ended(store: TokenStore, next_sentence: bool) -> None:
    batches = first_batches(stream_of(store, next_sentence), 60)
    assert batches[0].start == Cursor()
    assert all(before.end == after.start for before, after in pairwise(batches))
    assert len({batch.start for batch in batches}) == 60


@with_and_without_pairs
@pytest.mark.parametrize("batch_tokens", [40, 41, 97, 500])
def test_batches_are_as_full_as_the_budget_allows(
    store: TokenStore, next_sentence: bool, batch_tokens: int
) -> None:
    """No batch is above the budget, and none had room for the sequence that the next one begins with."""
    batches = first_batches(stream_of(store, next_sentence, batch_tokens=batch_tokens), 50)
    totals = [int(batch.sequences.lengths.sum()) for batch in batches]
    assert min(totals) > 0 and max(totals) <= batch_tokens
    for total, after in zip(totals, batches[1:], strict=False):
        assert total + after.sequences.lengths[0] > batch_tokens


def test_the_batch_size_changes_where_batches_end_and_nothing_else(store: TokenStore) -> None:
    small = list(split_up(first_batches(stream_of(store, batch_tokens=40), 80)))
    large = list(split_up(first_batches(stream_of(store, batch_tokens=900), 20)))
    assert len(small) > 60 and small == large[: len(small)]


@with_and_without_pairs
def test_sequences_are_cls_first_sep_second_sep_with_their_segments(
    store: TokenStore, next_sentence: bool
) -> None:
    """Each segment is an unbroken span of the store; places say whether the second one really follows."""
    stream = stream_of(store, next_sentence)
    cls, sep = stream.tokenizer.cls_id, stream.tokenizer.sep_id
    document_of = np.repeat(np.arange(len(LENGTHS)), list(map(sum, LENGTHS)))
    labels = set()
    for ids, segments, _, label in split_up(first_batches(stream, 80)):
        assert len(ids) == len(segments) <= 40
        marks = [at for at, token in enumerate(ids) if token < FIRST_ID]
        assert ids[0] == cls and [ids[at] for at in marks[1:]] == [sep] * (1 + next_sentence)
        assert marks[-1] == len(ids) - 1
        assert segments == [0] * (marks[1] + 1) + [1] * (len(ids) - marks[1] - 1)
        parts = [ids[start + 1 : end] for start, end in pairwise(marks)]
        documents = []
        for part in parts:
            assert part == list(range(part[0], part[0] + len(part)))  # non-empty, in the store's order
            documents.append({int(document_of[token - FIRST_ID]) for token in part})
        if next_sentence:
            (first,), (second,) = documents
            assert label == (first != second)
        assert next_sentence or label == 0
        labels.add(label)
    assert labels == ({0, 1} if next_sentence else {0})


def test_an_epoch_of_full_segments_uses_every_token_once(store: TokenStore) -> None:
    total = len(store.tokens)
    text = text_of(first_batches(stream_of(store, next_sentence=False), 60))
    assert len(text) > 2 * total
    assert sorted(text[:total]) == sorted(text[total : 2 * total]) == list(range(total))


def test_an_epoch_of_pairs_uses_every_token_once(tmp_path: Path) -> None:
    """With sentences of one token no pair is above the limit, so that truncation hides nothing."""
    lengths = [[1] * count for count in range(1, 40)]
    store, total = numbered_store(tmp_path / "store", lengths), sum(map(sum, lengths))
    text = text_of(first_batches(stream_of(store), 60))
    assert len(text) > 2 * total
    assert sorted(text[:total]) == sorted(text[total : 2 * total]) == list(range(total))


@with_and_without_pairs
def test_seed_epoch_and_phase_each_give_another_order(store: TokenStore, next_sentence: bool) -> None:
    def order(seed: int, cursor: Cursor) -> list[int]:
        return text_of(first_batches(stream_of(store, next_sentence, seed=seed), 5, cursor))

    places = [Cursor(phase, epoch) for phase in (0, 1) for epoch in (0, 1)]
    orders = [order(seed, cursor) for seed in (0, 1) for cursor in places]
    assert all(orders[i] != orders[j] for i in range(len(orders)) for j in range(i))


def test_documents_of_all_blocks_are_shuffled_each_epoch(store: TokenStore) -> None:
    """Otherwise a block would hold the same neighbours for ever."""
    starts = np.cumsum([0, *map(sum, LENGTHS)])
    blocks = []
    for epoch in range(3):
        batches = first_batches(stream_of(store, next_sentence=False), 3, Cursor(epoch=epoch))
        blocks.append({int(np.searchsorted(starts, token, "right")) for token in text_of(batches)[:100]})
    assert blocks[0] != blocks[1] != blocks[2] != blocks[0]


@with_and_without_pairs
def test_neighbours_in_a_batch_are_seldom_neighbours_in_the_text(
    store: TokenStore, next_sentence: bool
) -> None:
    """In a block of five documents one pair of neighbours in four or so shares its document by chance."""
    document_of = np.repeat(np.arange(len(LENGTHS)), list(map(sum, LENGTHS)))
    batches = first_batches(stream_of(store, next_sentence), 80)
    documents = [int(document_of[ids[1] - FIRST_ID]) for ids, *_ in split_up(batches)]
    shared = np.mean([before == after for before, after in pairwise(documents)])
    assert 0.05 < shared < 0.4


@pytest.mark.parametrize(("documents", "blocks"), [(3, 8), (0, 23)])
def test_blocks_of_long_documents_hold_fewer(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch, documents: int, blocks: int
) -> None:
    """What is made again on resuming, and held in memory, is bounded by tokens; each is still used once."""
    total = len(store.tokens)
    monkeypatch.setattr(module, "_BLOCK_TOKENS", documents * total // len(LENGTHS) + 1)
    batches = first_batches(stream_of(store, next_sentence=False, batch_tokens=40), 150)
    assert {batch.start.block for batch in batches} == set(range(blocks))
    text = text_of(batches)
    assert sorted(text[:total]) == list(range(total)) and len(text) > total


def test_no_two_sequences_of_a_run_have_the_same_key(store: TokenStore) -> None:
    """Masks are drawn from it: a key used twice would mask the same places."""
    runs = [
        split_up(first_batches(stream_of(store, seed=seed), 100, Cursor(phase)))
        for seed in (0, 1)
        for phase in (0, 1)
    ]
    keys = [key for run in runs for _, _, key, _ in run]
    assert len(keys) > 1000 and len(set(keys)) == len(keys)
    assert max(keys) > 2**63 > min(keys)


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        pytest.param([[4, 5, 6]], "1 document", id="one document"),
        pytest.param([[4]] * 40, "0 of the first 40", id="every sentence a document of its own"),
        pytest.param([[4]] * 96 + [[4, 4]] * 4, "4 of the first 100", id="hardly any next sentence"),
    ],
)
def test_text_without_document_structure_is_refused_for_pairs_with_a_way_on(
    tmp_path: Path, lengths: list[list[int]], found: str
) -> None:
    store = numbered_store(tmp_path / "store", lengths)
    with pytest.raises(StoreError) as error:
        stream_of(store)
    assert found in str(error.value) and str(store.path) in str(error.value)
    assert "blank lines between documents" in str(error.value)
    assert "next_sentence=false" in str(error.value)
    assert len(text_of(first_batches(stream_of(store, next_sentence=False), 3))) > 0  # the way on


def test_a_store_without_text_is_refused(tmp_path: Path) -> None:
    """It would search for a first sequence for ever."""
    store = numbered_store(tmp_path / "store", [])
    for next_sentence in (True, False):
        with pytest.raises(StoreError, match=str(store.path)):
            stream_of(store, next_sentence)


@pytest.mark.parametrize(("next_sentence", "shortest"), [(True, 5), (False, 3)])
def test_a_length_without_room_for_text_is_refused(
    store: TokenStore, next_sentence: bool, shortest: int
) -> None:
    with pytest.raises(RecipeError, match=f"sequence length of {shortest - 1} leaves no room"):
        stream_of(store, next_sentence, max_length=shortest - 1)
    for ids, *_ in split_up(first_batches(stream_of(store, next_sentence, max_length=shortest), 20)):
        assert len(ids) == shortest


def test_a_budget_below_one_sequence_is_refused(store: TokenStore) -> None:
    with pytest.raises(RecipeError, match="39 tokens can't hold a sequence of 40"):
        stream_of(store, batch_tokens=39)


def test_the_short_share_reaches_the_pairs(store: TokenStore) -> None:
    def mean_length(short: float) -> float:
        batches = first_batches(stream_of(store, short_seq_prob=short), 100)
        return float(np.concatenate([batch.sequences.lengths for batch in batches]).mean())

    assert mean_length(0.0) > mean_length(0.5) + 2 > mean_length(1.0) + 3


def test_what_was_asked_before_changes_nothing(store: TokenStore) -> None:
    """A stream that has run far, and elsewhere, gives the same first batch as a new one."""
    stream = stream_of(store)
    fresh = first_batches(replace(stream), 1)[0]
    first_batches(stream, 100)
    first_batches(stream, 3, Cursor(phase=1, epoch=5, block=2, offset=1))
    assert_same(first_batches(stream, 1)[0], fresh)

"""Windows packed end to end: every row that a head reads is the token it should be."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tasks import WORDS

from bertsmith.data.batch import PackedBatch
from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.tasks.examples.encoding import (
    EncodedExample,
    Layout,
    Window,
    join_segments,
    pack_examples,
    pair_windows,
    single_windows,
    special_tokens,
)
from bertsmith.text.tokens.tokenizer import Tokenizer


def window(first: int, length: int, rows: list[int], text: int = 0) -> Window:
    """Tokens first, first + 1, …, so that each is known by its number."""
    ids = np.arange(first, first + length)
    return Window(ids, ids % 2, np.array(rows, np.int64), text)


@st.composite
def encodings(draw: st.DrawFn) -> list[EncodedExample]:
    made, number = [], 0
    for _ in range(draw(st.integers(1, 5))):
        windows = []
        for text in sorted(draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))):
            length = draw(st.integers(1, 7))
            rows = sorted(draw(st.sets(st.integers(0, length - 1))))
            windows.append(window(number, length, rows, text))
            number += length
        made.append(EncodedExample(tuple(windows)))
    return made


def test_a_pair_is_read_by_a_roberta_with_a_wordpiece_vocabulary() -> None:
    """Two segments in the batch, one in the model."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer.from_pieces([*special, *WORDS], lowercase=True)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    known = {"vocab_size": tokenizer.vocab_size, "model_type": "roberta", "type_vocab_size": 1}
    model = Bert(make_config(known | shape, "test")).eval()
    ids, segments = join_segments(tokenizer, [7, 8], [9, 10])
    assert segments.max() == 1
    found = model(PackedBatch.pack(ids, segments, np.array([len(ids)])))
    torch.testing.assert_close(found, model(PackedBatch.pack(ids, 0 * segments, np.array([len(ids)]))))


@settings(deadline=None)
@given(encodings())
def test_rows_of_the_packed_batch_are_the_windows_own(encoded: list[EncodedExample]) -> None:
    packed, layout = pack_examples(encoded, range(len(encoded))), Layout(encoded)
    texts = [(e, text) for e, one in enumerate(encoded) for text in sorted({w.text for w in one.windows})]
    wanted = [
        (int(each.token_ids[row]), number, texts.index((example, each.text)), example)
        for number, (example, each) in enumerate(
            (example, each) for example, one in enumerate(encoded) for each in one.windows
        )
        for row in each.rows
    ]
    rows = torch.arange(len(packed.token_ids)) if layout.rows is None else layout.rows
    windows = layout.window_of_row
    found = zip(
        torch.from_numpy(packed.token_ids)[rows].tolist(),
        windows.tolist(),
        layout.text_of_window[windows].tolist(),
        layout.example_of_window[windows].tolist(),
        strict=True,
    )
    assert list(found) == wanted
    assert layout.rows_of_example == tuple(sum(len(w.rows) for w in each.windows) for each in encoded)
    assert layout.texts_of_example == tuple(len({w.text for w in each.windows}) for each in encoded)
    assert layout.windows == len(packed) == sum(len(each.windows) for each in encoded)


def test_a_batch_is_known_by_the_numbers_of_its_examples() -> None:
    encoded = [EncodedExample((window(0, 3, [0]), window(3, 2, [0]))), EncodedExample((window(5, 4, [1]),))]
    packed = pack_examples(encoded, [7, 2])
    assert packed.keys.tolist() == [7, 7, 2]
    assert packed.lengths.tolist() == [3, 2, 4]
    assert packed.token_ids.tolist() == list(range(9))


def test_a_text_and_a_pair_are_framed_as_in_the_paper(tokenizer: Tokenizer) -> None:
    """Devlin et al. 2019, figure 2."""
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    ids, segments = join_segments(tokenizer, [8, 9])
    assert (ids.tolist(), segments.tolist()) == ([cls, 8, 9, sep], [0, 0, 0, 0])
    ids, segments = join_segments(tokenizer, [8, 9], [10])
    assert (ids.tolist(), segments.tolist()) == ([cls, 8, 9, sep, 10, sep], [0, 0, 0, 0, 1, 1])
    assert (special_tokens(tokenizer, 1), special_tokens(tokenizer, 2)) == (2, 3)


@settings(deadline=None)
@given(
    first=st.integers(0, 60),
    second=st.integers(0, 60),
    room=st.integers(4, 40),
    stride=st.none() | st.integers(0, 50),
)
def test_windows_of_a_pair_keep_to_the_room_and_show_all_of_the_second_text(
    first: int, second: int, room: int, stride: int | None
) -> None:
    ids, others = list(range(first)), list(range(100, 100 + second))
    made = pair_windows(ids, others, room, stride)
    assert all(len(a) + len(b) <= room for a, b in made)
    assert all(list(a) == ids[: len(a)] for a, _ in made)
    if first + second <= room:
        assert [(list(a), list(b)) for a, b in made] == [(ids, others)]
    elif stride is None:
        assert len(made) == 1
        assert len(made[0][0]) + len(made[0][1]) == room, "room is left though both texts were cut"
    else:
        assert {token for _, b in made for token in b} == set(others)


@pytest.mark.parametrize(("first", "second", "kept"), [(30, 4, (12, 4)), (4, 30, (4, 12)), (30, 30, (8, 8))])
def test_of_a_pair_the_longer_text_is_cut(first: int, second: int, kept: tuple[int, int]) -> None:
    ((a, b),) = pair_windows(range(first), range(second), 16, None)
    assert (len(a), len(b)) == kept


def test_an_empty_text_is_one_window_of_special_tokens_alone() -> None:
    assert [list(each) for (each,) in single_windows([], 10, 3)] == [[]]


def test_words_of_the_fixture_are_single_pieces(tokenizer: Tokenizer) -> None:
    assert all(len(tokenizer.encode(word).ids) == 1 for word in WORDS)

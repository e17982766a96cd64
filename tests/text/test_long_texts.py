"""Long texts tokenised part by part have the ids and offsets of the whole, in a fraction of its memory."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tokenizers import AddedToken, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from bertsmith.text.tokens.long_texts import PART, CompactEncoding
from bertsmith.text.tokens.tokenizer import Tokenizer

SAMPLES = [
    "red",
    "cat",
    "unbelievably",
    "caf\u00e9",
    "\u4e2d\u6587",
    "it's",
    "x,y",
    "...",
    "\U0001f389",
    "\u0301a",
    "don't've!",
    "!\u0301y",
    "x<\u0338\u226e",
    "1.5e-3",
]
BLANKS = [" ", " ", " ", "  ", "\n", "\n\n", "\t", " \n", "\u00a0", "\u2003 ", "", "\r\n"]
LETTERS = "abcdefghijklmnopqrstuvwxyz,.'\u00e9"


def wordpiece(lowercase: bool) -> Tokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *LETTERS, *[f"##{letter}" for letter in LETTERS], "red", "cat", "\u4e2d", "\u6587"]
    return Tokenizer.from_pieces(pieces, lowercase=lowercase)


def byte_level(prefix: bool, processor: bool = False) -> Tokenizer:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    special = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([" ".join(SAMPLES)] * 5, trainer)
    if processor:
        backend.post_processor = processors.RobertaProcessing(
            ("</s>", 3), ("<s>", 2), add_prefix_space=prefix
        )
    return Tokenizer(backend, dict(zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True)))


def text_of(characters: int, seed: int, blanks: Sequence[str] = BLANKS) -> str:
    draw, parts, size = random.Random(seed), list[str](), 0
    while size < characters:
        parts += [draw.choice(SAMPLES), draw.choice(blanks)]
        size += len(parts[-1]) + len(parts[-2])
    return "".join(parts)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda: wordpiece(True), lambda: wordpiece(False), lambda: byte_level(True)),
        *(lambda: byte_level(False), lambda: byte_level(True, True), lambda: byte_level(False, True)),
    ],
)
def test_parts_have_the_ids_and_offsets_of_the_whole(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    texts = [text_of(size, size) for size in (PART - 1, 30, 3 * PART)]
    texts.insert(0, text_of(3 * PART, 9, [""]))  # no blank
    wholes = tokenizer.backend.encode_batch(texts, add_special_tokens=False)
    for whole, pieces, ids in zip(
        wholes, tokenizer.encode_pieces(texts), tokenizer.encode_batch(texts), strict=True
    ):
        assert list(pieces.ids) == list(ids) == whole.ids
        np.testing.assert_array_equal(np.array(pieces.offsets), np.array(whole.offsets))
    assert isinstance(tokenizer.encode_pieces(texts)[-1], CompactEncoding)


@pytest.mark.parametrize("sides", [{"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}])
def test_an_added_token_that_takes_the_blank_beside_it_does_so_in_a_long_text(sides: dict[str, bool]) -> None:
    tokenizer, text = byte_level(False), "red <nl> cat <nl>" * PART
    tokenizer.backend.add_tokens([AddedToken("<nl>", normalized=False, **sides)])
    whole = tokenizer.backend.encode(text, add_special_tokens=False)
    assert list(tokenizer.encode_batch([text])[0]) == whole.ids


@pytest.mark.parametrize("blanks", [BLANKS, [""]], ids=["blanks", "none"])
@pytest.mark.parametrize("make", [lambda: wordpiece(True), lambda: byte_level(False)])
@pytest.mark.parametrize("enough", [1, 100, 5000])
def test_a_text_is_read_no_further_than_enough(
    enough: int, make: Callable[[], Tokenizer], blanks: list[str]
) -> None:
    tokenizer, text = make(), text_of(8 * PART, 1, blanks)
    whole = tokenizer.backend.encode(text, add_special_tokens=False)
    for some in (tokenizer.encode_batch([text], enough)[0], tokenizer.encode_pieces([text], enough)[0].ids):
        assert list(some)[:enough] == whole.ids[:enough]
        assert len(some) < len(whole.ids) / 2


@pytest.mark.parametrize("letters", ["a", "\u4e2d"])
def test_what_has_no_blank_is_one_word_or_many(letters: str) -> None:
    tokenizer, text = wordpiece(True), letters * (2 * PART)
    whole = tokenizer.backend.encode(text, add_special_tokens=False)
    (pieces,) = tokenizer.encode_pieces([text])
    assert list(pieces.ids) == whole.ids
    np.testing.assert_array_equal(np.array(pieces.offsets), np.array(whole.offsets))


def test_half_of_a_utf16_pair_in_a_long_text() -> None:
    tokenizer, text = wordpiece(True), text_of(2 * PART, 3) + " \ud83d cat"
    (pieces,) = tokenizer.encode_pieces([text])
    assert tuple(np.array(pieces.offsets)[-1]) == (len(text) - 3, len(text))


@pytest.mark.parametrize("make", [lambda: wordpiece(True), lambda: byte_level(True)])
def test_many_words_have_the_ids_of_each_by_itself(make: Callable[[], Tokenizer]) -> None:
    tokenizer, draw = make(), random.Random(1)
    words = ["", "\u0301", *(draw.choice(SAMPLES) for _ in range(9000)), "red" * PART]
    pieces = tokenizer.encode_words(words)
    expected = [list(ids) for ids in tokenizer.encode_batch(words)]
    assert [list(each.ids) for each in pieces] == expected
    assert [list(each.ids) for each in pieces[4000:4100][10:]] == expected[4010:4100]
    assert list(pieces[-1].ids) == expected[-1]
    assert len(pieces[5:]) == len(words) - 5
    assert not tokenizer.encode_words([])

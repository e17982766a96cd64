"""Fewer pieces: the same ones for the texts that were counted, and nothing unknown for others."""

import string
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors, trainers

from bertsmith.text.tokens.pruning import count_pieces, prune
from bertsmith.text.tokens.tokenizer import Tokenizer

COUNTED = ["The cat's motions were granted; 12 pages!", "smaller and smaller cats", "Émile & friends"]


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Merges learned from this file's own text, and RoBERTa's special tokens in front."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator([*COUNTED, *Path(__file__).read_text().splitlines()] * 3, trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    folder = tmp_path_factory.mktemp("byte-level")
    backend.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def wordpiece() -> Tokenizer:
    """Every letter, and the beginnings and ends of this file's words, longer and shorter ones."""
    words = sorted({word for text in [*COUNTED, Path(__file__).read_text()] for word in text.split()})
    letters = sorted(set(string.printable) - set(string.whitespace) | set("Éé☃"))
    pieces = [*letters, *(f"##{letter}" for letter in letters)]
    pieces += [word[:end] for word in words for end in (2, 4, 6)]
    pieces += [f"##{word[-end:]}" for word in words for end in (2, 3)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return Tokenizer.from_pieces([*special, *dict.fromkeys(pieces)], lowercase=False)


@pytest.fixture(params=["wordpiece", "byte_level"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Tokenizer)
    return found


def test_counted_texts_have_the_same_pieces_and_ids_go_round(tokenizer: Tokenizer) -> None:
    small, kept = prune(tokenizer, count_pieces(tokenizer, COUNTED))
    assert small.vocab_size == len(kept) < tokenizer.vocab_size / 2
    for text in COUNTED:
        before, after = tokenizer.encode(text), small.encode(text)
        assert after.tokens == before.tokens and after.offsets == before.offsets
        assert kept[after.ids].tolist() == before.ids
        assert small.decode(after.ids) == tokenizer.decode(before.ids)
    assert [small.token_to_id(piece) for piece in small.pieces] == list(range(len(kept)))
    assert [tokenizer.id_to_token(old) for old in kept] == list(small.pieces)


def test_special_tokens_keep_their_parts_around_texts(tokenizer: Tokenizer) -> None:
    small, kept = prune(tokenizer, count_pieces(tokenizer, COUNTED))
    for name in ("before", "between", "behind"):
        assert kept[list(getattr(small.template, name))].tolist() == list(getattr(tokenizer.template, name))
    assert kept[list(small.special_ids)].tolist() == list(tokenizer.special_ids)


def test_a_new_word_is_spelled_and_not_unknown(tokenizer: Tokenizer) -> None:
    small, _ = prune(tokenizer, count_pieces(tokenizer, COUNTED))
    found = small.encode("Zyzzyva QUIXOTIC 9876 granted")
    assert small.unk_id not in found.ids
    assert len(found.ids) > len(tokenizer.encode("Zyzzyva QUIXOTIC 9876 granted").ids)


def test_saved_and_opened_it_is_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    small, _ = prune(tokenizer, count_pieces(tokenizer, COUNTED))
    small.save(tmp_path)
    opened = Tokenizer.load(tmp_path)
    assert opened.sha256 == small.sha256
    assert [opened.encode(text).ids for text in COUNTED] == [small.encode(text).ids for text in COUNTED]
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    for text in COUNTED:
        assert theirs(text, add_special_tokens=False)["input_ids"] == small.encode(text).ids


def test_any_text_of_kept_words_reads_as_before(wordpiece: Tokenizer) -> None:
    """Words in an order that was not counted."""
    small, kept = prune(wordpiece, count_pieces(wordpiece, COUNTED))
    random = np.random.default_rng(0)
    words = " ".join(COUNTED).split()
    for _ in range(50):
        text = " ".join(random.choice(words, 12))
        assert kept[small.encode(text).ids].tolist() == wordpiece.encode(text).ids

"""What of a held-out part can be measured on: decided before a run begins, by what a stream of it needs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.errors import StoreError
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.inputs import _load_tokenizer, _select_evaluation_text, open_stores
from bertsmith.training.machine import Ranks
from bertsmith.training.recipe import Recipe


class Store(SimpleNamespace):
    """Documents of so many sentences."""

    def __init__(self, *sentences: int) -> None:
        super().__init__(path=Path("heldout"), document_starts=np.cumsum([0, *sentences]))

    def __len__(self) -> int:
        return len(self.document_starts) - 1


@pytest.mark.parametrize(
    ("sentences", "pairs", "usable"),
    [
        ([3, 2], True, True),
        ([1, 1, 1], True, False),  # no sentence has a next one
        ([3], True, False),  # nor another document
        ([], True, False),
        ([1], False, True),
        ([], False, False),
    ],
)
def test_a_held_out_part_that_makes_no_sequences_is_told_and_left_out(
    sentences: list[int], pairs: bool, usable: bool
) -> None:
    store: Any = Store(*sentences)
    measured, notes = _select_evaluation_text(store, pairs)
    assert (measured is store) is usable
    assert [note.startswith("nothing is measured on the held-out part") for note in notes] == (
        [] if usable else [True]
    )


@pytest.mark.parametrize("part", ["train", "heldout"])
@pytest.mark.parametrize("name", ["tokens.bin", "sentences.bin", "documents.bin"])
def test_a_flipped_bit_is_found_before_anything_is_trained(part: str, name: str, tmp_path: Path) -> None:
    text = "\n\n".join(f"Red cat {word} runs.\nBlue dog sleeps {word}." for word in "abcdefghijklmnop")
    (tmp_path / "text.txt").write_text(text)
    settings = CorpusSettings(format="blank-lines", heldout=0.3, near_duplicates=False)
    corpus = build_corpus([str(tmp_path / "text.txt")], tmp_path / "corpus", settings=settings, workers=1)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer.from_pieces([*special, *"abcdefghijklmnop"], lowercase=True)
    tokenize_corpus(corpus, tokenizer, tmp_path / "store")
    given = str(tmp_path / "store"), tokenizer, tmp_path / "run", Ranks(), None
    open_stores(*given)
    path = tmp_path / "store" / part / name
    content = bytearray(path.read_bytes())
    content[-2] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(StoreError, match=rf"{part}/{name} was altered"):
        open_stores(*given)


def test_a_models_short_name_is_its_tokenizer() -> None:
    assert _load_tokenizer(Recipe(steps=20_000, tokenizer="minilm"), None).vocab_size == 30_522

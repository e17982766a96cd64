"""Text that the vocabulary doesn't know: refused before training, or told of."""

import random
from pathlib import Path

import pytest

from bertsmith.errors import CorpusError
from bertsmith.text.corpus.corpus import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.log import RunLog
from bertsmith.training.pretrain import pretrain

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LATIN, GREEK = ("cat", "dog", "sits", "runs"), ("γάτα", "σκύλος", "τρέχει", "κάθεται")
FAST = ["steps=1", "data.next_sentence=false", "data.sequence_lengths=[16]", "data.sequence_shares=[1.0]"]
FAST += [
    "optimizer.warmup=0",
    "data.batch_size=4",
    "evaluation.tokens=200",
    "hardware.threads=1",
    "model.hidden_size=16",
]
FAST += ["model.num_hidden_layers=1", "model.num_attention_heads=1", "model.intermediate_size=16"]


def corpus(folder: Path, latin: int, greek: int) -> Path:
    """Of texts that have so many words of each."""
    draw = random.Random(0)
    documents = [" ".join(draw.choices(LATIN, k=latin) + draw.choices(GREEK, k=greek)) for _ in range(60)]
    folder.mkdir()
    (folder / "text.txt").write_text("\n\n".join(documents))
    settings = CorpusSettings(format="blank-lines", heldout=0.3, near_duplicates=False)
    build_corpus([str(folder / "text.txt")], folder / "corpus", settings=settings, workers=1)
    return folder / "corpus"


def warnings(text: Path, *more: str) -> list[str]:
    """Those of a run by a Latin vocabulary."""
    folder = text.parent
    Tokenizer.from_pieces([*SPECIAL, *LATIN], lowercase=True).save(folder / "tokenizer")
    given = f"corpus={text}", f"tokenizer={folder / 'tokenizer'}", f"out={folder / 'run'}"
    pretrain("bert-base", *given, *FAST, *more)
    return [event["message"] for event in RunLog.read(folder / "run") if event["kind"] == "warning"]


def test_text_of_which_the_vocabulary_knows_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"train holds nothing that the vocabulary knows: every token is"):
        warnings(corpus(tmp_path / "greek", 0, 10))


def test_general_text_of_which_it_knows_nothing_is_refused_too(tmp_path: Path) -> None:
    general = corpus(tmp_path / "greek", 0, 10)
    with pytest.raises(CorpusError, match=r"tokens-general.heldout holds nothing that the vocabulary knows"):
        warnings(corpus(tmp_path / "latin", 10, 0), f"general={general}")


def test_text_that_is_partly_unknown_is_told_of(tmp_path: Path) -> None:
    told = "of the tokens in "
    assert [note for note in warnings(corpus(tmp_path / "latin", 10, 0)) if told in note] == []
    (note,) = (note for note in warnings(corpus(tmp_path / "mixed", 4, 6)) if told in note)
    assert note.startswith("60% of the tokens in ") and "are [UNK], of which nothing is learned" in note

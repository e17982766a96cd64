"""Text that the vocabulary doesn't know: refused before training, or told of."""

import random
from pathlib import Path

import pytest

from bertsmith.errors import CorpusError
from bertsmith.text.corpus.building import build_corpus
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


def test_a_run_whose_batches_have_nothing_to_mask_is_refused(tmp_path: Path) -> None:
    """One text of a thousand is known: too little to be seen, and too much to be none."""
    draw = random.Random(0)
    greek = [" ".join(draw.choices(GREEK, k=30)) for _ in range(1_000)]
    (tmp_path / "text.txt").write_text("\n\n".join(["cat dog", *greek]))
    settings = CorpusSettings(format="blank-lines", heldout=0, near_duplicates=False)
    build_corpus([str(tmp_path / "text.txt")], tmp_path / "corpus", settings=settings, workers=1)
    with pytest.raises(CorpusError, match="first 8 batches have no token that could be masked"):
        warnings(tmp_path / "corpus")


@pytest.mark.parametrize("masking", ["masking.whole_words=true", "masking.spans=true"])
def test_text_without_blanks_is_learned_from(tmp_path: Path, masking: str) -> None:
    draw = random.Random(0)
    pages = ["".join(draw.choices("abcdefgh", k=90)) for _ in range(60)]
    (tmp_path / "text.txt").write_text("\n\n".join(pages))
    settings = CorpusSettings(format="blank-lines", heldout=0.3, near_duplicates=False)
    build_corpus([str(tmp_path / "text.txt")], tmp_path / "corpus", settings=settings, workers=1)
    pieces = [*SPECIAL, *(f"{before}{letter}" for letter in "abcdefgh" for before in ("", "##"))]
    Tokenizer.from_pieces(pieces, lowercase=True).save(tmp_path / "tokenizer")
    given = f"corpus={tmp_path / 'corpus'}", f"tokenizer={tmp_path / 'tokenizer'}", f"out={tmp_path / 'run'}"
    pretrain("bert-base", *given, *FAST, masking)
    losses = [event["mlm_loss"] for event in RunLog.read(tmp_path / "run") if "mlm_loss" in event]
    assert losses and all(loss > 1 for loss in losses), "ln 21 is 3.0; nothing masked is 0"

"""What the library that made a folder does of two texts and of capitals, whatever tokenizer.json says."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from bertsmith.model.own_tokenizer import read_own_tokenizer
from bertsmith.tasks.examples.encoding import join_segments
from bertsmith.text.tokens.pruning import prune
from bertsmith.text.tokens.tokenizer import Tokenizer
from sentence_folders import CLASSIFIER, rewrite, save_foreign, save_sentence_folder

transformers = pytest.importorskip("transformers")
TEXTS = "red cat", "old dog"


def our_segments(tokenizer: Tokenizer) -> list[int]:
    first, second = (tokenizer.encode(text).ids for text in TEXTS)
    return join_segments(tokenizer, first, second)[1].tolist()


def their_segments(folder: Path) -> list[int]:
    encoded = transformers.AutoTokenizer.from_pretrained(folder)(*TEXTS)
    return encoded.get("token_type_ids") or [0] * len(encoded["input_ids"])


WITHOUT, WITH = ["input_ids", "attention_mask"], ["input_ids", "token_type_ids", "attention_mask"]


@pytest.mark.parametrize("names", [None, WITHOUT, WITH])
@pytest.mark.parametrize(
    "name", ["BertTokenizer", "ElectraTokenizerFast", "DistilBertTokenizer", "PreTrainedTokenizerFast", None]
)
def test_the_second_text_of_a_pair_has_the_segment_that_transformers_gives_it(
    tmp_path: Path, name: str | None, names: list[str] | None
) -> None:
    folder = save_foreign(tmp_path / "model", 2, CLASSIFIER)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    said = settings | {"tokenizer_class": name, "model_input_names": names}
    text = json.dumps({key: value for key, value in said.items() if value is not None})
    (folder / "tokenizer_config.json").write_text(text)
    tokenizer = read_own_tokenizer(folder)
    assert our_segments(tokenizer) == their_segments(folder)
    assert our_segments(pickle.loads(pickle.dumps(tokenizer))) == their_segments(folder)
    kept = prune(tokenizer, np.ones(tokenizer.vocab_size, np.int64)).tokenizer
    assert our_segments(kept) == their_segments(folder)
    tokenizer.save(folder)
    assert our_segments(read_own_tokenizer(folder)) == their_segments(folder) == our_segments(tokenizer)


@pytest.mark.parametrize("config", ["config.json", "bert_config.json"])
def test_a_bert_of_before_there_were_kinds_of_models_tells_two_texts_apart(
    tmp_path: Path, config: str
) -> None:
    """Google's, and those of transformers before 2.3: the folder holds weights, a shape and a vocabulary."""
    folder = save_foreign(tmp_path / "model", 2, CLASSIFIER)
    shape = json.loads((folder / "config.json").read_text())
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    shape = {key: value for key, value in shape.items() if key not in ("model_type", "architectures")}
    (folder / config).write_text(json.dumps(shape))
    theirs = transformers.BertTokenizer.from_pretrained(folder)(*TEXTS)["token_type_ids"]
    assert our_segments(read_own_tokenizer(folder)) == theirs == [0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_saved_tokenizer_without_a_class_of_its_own_keeps_its_segments_in_transformers(
    tmp_path: Path, is_ours: bool
) -> None:
    """Folders of version 0.3 listed no token_type_ids, and their models were trained with them."""
    folder = save_foreign(tmp_path / "model", 2, CLASSIFIER)
    content = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"normalizer": {"type": "Lowercase"}}))
    Tokenizer.load(tmp_path).save(folder)
    assert their_segments(folder) == our_segments(read_own_tokenizer(folder)) == [0, 0, 0, 0, 1, 1, 1]
    rewrite(folder / "tokenizer_config.json", model_input_names=None)
    if is_ours:
        (folder / "bertsmith.json").write_text("{}")
    assert (our_segments(read_own_tokenizer(folder)) == [0] * 7) is not is_ours


def test_small_letters_before_a_cased_tokenizer_leave_added_tokens_as_they_are(tmp_path: Path) -> None:
    """By sentence-transformers: its tokenizer lowers what lies between them."""
    library = pytest.importorskip("sentence_transformers")
    folder = save_sentence_folder(tmp_path / "model")
    rewrite(folder / "tokenizer_config.json", do_lower_case=False, strip_accents=None)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    new = {"id": 10, "content": "BIRD", "special": True, "normalized": False}
    usual = {"lstrip": False, "rstrip": False, "single_word": False}
    vocabulary = content["model"]["vocab"]
    spelt = next(piece for piece, number in vocabulary.items() if number == 10)
    vocabulary["BIRD"] = vocabulary.pop(spelt)
    content["added_tokens"].append(new | usual)
    path.write_text(json.dumps(content))
    (folder / "vocab.txt").unlink()
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    model = library.SentenceTransformer(str(folder), device="cpu")
    for text in ("RED Cat BIRD ΟΔΟΣ", "bird BIRD Bird", "Old"):
        wanted = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert read_own_tokenizer(folder).encode(text).ids == wanted

"""`check --against` holds a folder against transformers and sentence-transformers, and names what differs."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from test_check import (
    ENCODER,
    POOLING,
    PROMPTS,
    TOKENIZER,
    flip,
    no_segments,
    roll_positions,
    scale_norm,
    set_to,
    settings,
    shift_half,
    swap_layers,
    tensors,
    transpose,
    without_sep,
)

from bertsmith.cli.main import main
from bertsmith.errors import InputError
from bertsmith.inference.checking import oracles
from bertsmith.inference.checking.check import check_model
from bertsmith.inference.checking.oracles import Oracle, their_answers
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import load_encoder, save_checkpoint
from bertsmith.model.config import make_config
from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder
from bertsmith.tasks.golden.comparison import compare
from bertsmith.tasks.golden.records import answers_of
from bertsmith.tasks.golden.subject import GoldenSubject, open_subject
from bertsmith.text.tokens.tokenizer import Tokenizer
from random_encoder import randomise
from served_models import save_encoder, save_fine_tuned, save_pretrained
from text.tokenizer_samples import TABLE, unigram_json

pytest.importorskip("transformers")

HEADS = ["classification", "multi-label", "regression", "tagging", "question-answering", "reranking"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    made = {name: save_fine_tuned(place / name, name) for name in HEADS}
    made["masked-language"] = save_pretrained(place / "masked-language")
    made["embedding"] = save_encoder(place / "embedding")
    return made


@pytest.fixture(scope="module")
def subjects(sound: dict[str, Path]) -> Callable[[str], GoldenSubject]:
    """The sound models opened, each once."""
    return cache(lambda kind: open_subject(sound[kind]))


@pytest.mark.parametrize("kind", [*HEADS, "masked-language", "embedding"])
def test_transformers_makes_the_same_of_every_stage(sound: dict[str, Path], kind: str) -> None:
    found = check_model(sound[kind], against="transformers").comparisons["float32"]
    assert found.agrees, found.differences
    assert found.texts >= 3
    assert 0 < found.largest.size < 1e-4


def test_sentence_transformers_makes_the_same_vectors(sound: dict[str, Path]) -> None:
    pytest.importorskip("sentence_transformers")
    found = check_model(sound["embedding"], against="sentence-transformers").comparisons["float32"]
    assert found.agrees, found.differences
    assert found.texts >= 20


@pytest.mark.parametrize(
    ("kind", "file", "said"),
    [
        ("embedding", "tokenizer_config.json", {"truncation_side": "left"}),
        ("masked-language", "tokenizer_config.json", {"truncation_side": "left"}),
        ("embedding", PROMPTS, {"truncate_dim": 5}),
        ("embedding", "tokenizer_config.json", {"padding_side": "left"}),  # moves positions in their batches
    ],
)
def test_the_same_end_of_texts_and_vectors_is_compared(
    sound: dict[str, Path], tmp_path: Path, kind: str, file: str, said: dict[str, Any]
) -> None:
    oracle: Oracle = "sentence-transformers" if kind == "embedding" else "transformers"
    pytest.importorskip(oracle.replace("-", "_"))
    folder = Path(shutil.copytree(sound[kind], tmp_path / "model"))
    settings(file, lambda content: content | said)(folder)
    (folder / "bertsmith.json").unlink()
    found = check_model(folder, against=oracle).comparisons["float32"]
    assert found.agrees, found.differences


@pytest.mark.parametrize(
    ("kind", "dtype"), [("embedding", torch.float16), ("masked-language", torch.bfloat16)]
)
def test_weights_of_half_precision_are_computed_in_float32_by_both(
    sound: dict[str, Path], tmp_path: Path, kind: str, dtype: torch.dtype
) -> None:
    oracle: Oracle = "sentence-transformers" if kind == "embedding" else "transformers"
    pytest.importorskip(oracle.replace("-", "_"))
    folder = Path(shutil.copytree(sound[kind], tmp_path / "model"))
    tensors(lambda found: found.update({name: tensor.to(dtype) for name, tensor in found.items()}))(folder)
    (folder / "bertsmith.json").unlink()
    found = check_model(folder, against=oracle).comparisons["float32"]
    assert found.agrees, found.differences


def test_where_no_text_is_read_as_the_other_tool_reads_it_nothing_agrees(
    sound: dict[str, Path], subjects: Callable[[str], GoldenSubject]
) -> None:
    with pytest.raises(InputError, match="nothing to compare"):
        their_answers("transformers", sound["tagging"], subjects("tagging"), [])


def change(name: str, by: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A damage of one tensor."""
    return tensors(lambda found: found.update({name: by(found[name])}))


def config(key: str, value: Any) -> Any:
    return settings("config.json", set_to(key, value=value))


def rolled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.roll(1, 0)


# Of what their copy of the folder is damaged, how, and the stage at which ours differs from it.
DAMAGES: dict[str, tuple[str, Any, str]] = {
    "half the vocabulary shifted": ("classification", settings(TOKENIZER, shift_half), "token ids"),
    "capitals kept": (
        "classification",
        settings("tokenizer_config.json", set_to("do_lower_case", value=False)),
        "normalised text",
    ),
    "no [SEP]": ("masked-language", without_sep, "pieces"),
    "pairs without segments": (
        "classification",
        settings("tokenizer_config.json", set_to("model_input_names", value=["input_ids"])),
        "segments",
    ),
    "pieces' vectors moved": (
        "tagging",
        change("bert.embeddings.word_embeddings.weight", rolled),
        "embeddings",
    ),
    "positions moved by one": ("classification", tensors(roll_positions), "embeddings"),
    "segments without embeddings": ("question-answering", tensors(no_segments), "embeddings"),
    "the embeddings' norm": (
        "regression",
        change("bert.embeddings.LayerNorm.bias", lambda found: found + 0.01),
        "embeddings",
    ),
    "epsilon of the norms": ("multi-label", config("layer_norm_eps", 1e-2), "embeddings"),
    "a value's sign": ("classification", tensors(flip), "layer 1"),
    "layers swapped": ("reranking", tensors(swap_layers), "layer 1"),
    "another activation": ("tagging", config("hidden_act", "relu"), "layer 1"),
    "another number of heads": ("classification", config("num_attention_heads", 4), "layer 1"),
    "queries as keys": (
        "masked-language",
        change("bert.encoder.layer.0.attention.self.query.weight", rolled),
        "layer 1",
    ),
    "a square weight transposed": ("classification", tensors(transpose), "layer 2"),
    "the last norm": ("question-answering", tensors(scale_norm), "layer 2"),
    "the pooler": ("classification", change("bert.pooler.dense.weight", rolled), "head"),
    "classes moved": ("classification", change("classifier.weight", rolled), "head"),
    "tags moved": ("tagging", change("classifier.bias", rolled), "head"),
    "start and end swapped": ("question-answering", change("qa_outputs.weight", rolled), "head"),
    "the masked words' norm": (
        "masked-language",
        change("cls.predictions.transform.LayerNorm.weight", lambda found: found * 1.01),
        "head",
    ),
}
OF_VECTORS: dict[str, tuple[Any, str]] = {
    "another pooling": (settings(POOLING, set_to("pooling_mode", value="cls")), "pooled"),
    "prompts dropped": (settings(PROMPTS, set_to("prompts", value={})), "normalised text"),
    "a smaller longest text": (settings(ENCODER, set_to("max_seq_length", value=16)), "pieces"),
}


@pytest.mark.parametrize("damage", [*DAMAGES, *OF_VECTORS])
def test_the_stage_at_which_another_tool_differs_is_named(
    sound: dict[str, Path], subjects: Callable[[str], GoldenSubject], tmp_path: Path, damage: str
) -> None:
    oracle: Oracle = "sentence-transformers" if damage in OF_VECTORS else "transformers"
    pytest.importorskip(oracle.replace("-", "_"))
    kind, make, stage = DAMAGES.get(damage) or ("embedding", *OF_VECTORS[damage])
    folder = Path(shutil.copytree(sound[kind], tmp_path / "model"))
    make(folder)
    subject = subjects(kind)
    inputs = subject.inputs()
    theirs = their_answers(oracle, folder, subject, [inputs[0], *inputs[-9:]])
    found = compare(
        theirs, answers_of(subject, [record.input for record in theirs.records]), 1e-4, told=False
    )
    assert found.differences[0].stage == stage


def test_a_tool_that_is_missing_is_named_with_its_install_command(
    sound: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(oracles, "import_module", missing)
    with pytest.raises(InputError, match="pip install sentence-transformers"):
        check_model(sound["embedding"], against="sentence-transformers")


def test_the_command_says_with_what_it_compares(
    sound: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(sound["tagging"]), "--against", "transformers"]) == 0
    assert "beside transformers 5" in capsys.readouterr().out


def save_unigram(folder: Path) -> Path:
    """An encoder of XLM-RoBERTa's kind, as another tool leaves it."""
    letters = "abcdefghijklmnopqrstuvwxyz.,"
    tokenizer = Tokenizer.load(unigram_json(folder.with_name("tokenizer"), letters, normalizer=TABLE))
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    names = {"model_type": "xlm-roberta", "vocab_size": tokenizer.vocab_size, "max_position_embeddings": 130}
    config = make_config(names | shape, "test")
    model = Bert(config)
    randomise(model)
    states = {f"encoder.{name}": tensor for name, tensor in model.state_dict().items()}
    save_checkpoint(folder, states, config, "XLMRobertaModel", task="encoder", tokenizer=tokenizer)
    settings("tokenizer_config.json", lambda content: content | {"tokenizer_class": "XLMRobertaTokenizer"})(
        folder
    )
    (folder / "bertsmith.json").unlink()
    return folder


@pytest.mark.parametrize("oracle", ["transformers", "sentence-transformers"])
def test_a_unigram_tokenizer_is_that_of_its_file_whatever_class_is_named(
    tmp_path: Path, oracle: Oracle
) -> None:
    """transformers' XLMRobertaTokenizer would build other rules around the pieces."""
    pytest.importorskip(oracle.replace("-", "_"))
    folder = save_unigram(tmp_path / "model")
    found = check_model(folder, against=oracle).comparisons["float32"]
    assert found.agrees, found.differences
    assert found.texts >= 15


def test_a_unigram_model_s_texts_are_cut_where_its_sentence_folder_says(tmp_path: Path) -> None:
    """As paraphrase-multilingual-MiniLM's, at 128 tokens, where the tokenizer's own settings name 512."""
    pytest.importorskip("sentence_transformers")
    folder = save_unigram(tmp_path / "model")
    write_sentence_folder(folder, load_encoder(folder).config, "mean", 20)
    found = check_model(folder, against="sentence-transformers").comparisons["float32"]
    assert found.agrees, found.differences


@pytest.mark.parametrize("oracle", ["transformers", "sentence-transformers"])
def test_jinas_bert_is_not_compared_with_a_tool_that_takes_it_for_a_plain_one(
    tmp_path: Path, oracle: Oracle
) -> None:
    tokenizer = Tokenizer.from_pieces(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"], lowercase=True
    )
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = make_config({"model_type": "jina_bert", "vocab_size": 7, **shape}, "test")
    states = {f"encoder.{name}": tensor for name, tensor in Bert(config).state_dict().items()}
    save_checkpoint(tmp_path / "model", states, config, "JinaBertModel", task="encoder", tokenizer=tokenizer)
    with pytest.raises(InputError, match=r"would take it for a bert\. Only its authors' code opens it"):
        check_model(tmp_path / "model", against=oracle)

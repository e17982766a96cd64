"""What the tables of a folder's keys promise, key by key: a tiny folder with another value of the key gives
sentence-transformers' or transformers' numbers, or is refused with a sentence; harmless keys change nothing.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import jina_bert  # noqa: F401  transformers lacks it
from bertsmith.errors import BertsmithError
from bertsmith.inference.checking.check import check_model
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.predictor import Predictor
from bertsmith.model import folder_keys
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import make_config
from bertsmith.model.config_json import config_keys
from bertsmith.model.families import find_family
from bertsmith.model.folder_keys import FileKeys
from bertsmith.model.static_table import save_static
from bertsmith.text.tokens.tokenizer import Tokenizer
from random_encoder import SPECIAL, randomise
from sentence_folders import (
    POOLING,
    READER,
    TEXTS,
    TRANSFORMER,
    WIDTH,
    WORDS,
    rewrite,
    save_foreign,
    save_sentence_folder,
    write,
)
from served_models import save_pretrained

transformers = pytest.importorskip("transformers")
sentence_transformers = pytest.importorskip("sentence_transformers")
FAMILIES = (
    *(
        "bert",
        "jina_bert",
        "roberta",
        "xlm-roberta",
        "camembert",
        "distilbert",
        "electra",
        "modernbert",
        "nomic_bert",
    ),
    *("gte", "deberta-v2", "mpnet", "albert"),
)
PAIRS = [("red cat", text) for text in TEXTS]
DENSE = ("Dense", {"in_features": WIDTH, "out_features": 12, "activation_function": "torch.nn.Identity"})
NORMALIZE = ("Normalize", {})


def save_family(folder: Path, family: str) -> Path:
    """A plain encoder."""
    special = SPECIAL if family != "mpnet" else [SPECIAL[1], SPECIAL[0], *SPECIAL[2:]]  # padding is 1
    tokenizer = Tokenizer.from_pieces([*special, *WORDS], lowercase=True)
    shape = {"hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    sizes = {"max_position_embeddings": 64, "pad_token_id": tokenizer.pad_id}
    sizes["vocab_size"] = tokenizer.vocab_size
    more = {"local_attention": 8} if family == "modernbert" else {}
    config = make_config({"model_type": family} | shape | sizes | more, "test")
    model = Bert(config)
    randomise(model)
    tensors = {f"encoder.{name}": tensor for name, tensor in model.state_dict().items()}
    architecture = f"{config.family.class_prefix}Model"
    save_checkpoint(folder, tensors, config, architecture, task="encoder", tokenizer=tokenizer)
    (folder / "bertsmith.json").unlink()
    return folder


def save_cross_encoder(folder: Path) -> Path:
    """As version 6 saves it."""
    plain = save_foreign(folder.with_name("plain"), 1, num_labels=1)
    sentence_transformers.CrossEncoder(str(plain), device="cpu").save(str(folder))
    return folder


def our_vectors(folder: Path) -> Any:
    return Embedder(folder, compute_dtype=torch.float32).documents(TEXTS)


def their_vectors(folder: Path) -> Any:
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    return np.asarray(model.encode_document(list(TEXTS), normalize_embeddings=True), np.float32)


def our_scores(folder: Path) -> Any:
    found = Predictor.load(folder, compute_dtype=torch.float32).predict(PAIRS)
    return np.array([each["score"] for each in found])


def their_scores(folder: Path) -> Any:
    return sentence_transformers.CrossEncoder(str(folder), device="cpu").predict(PAIRS)


# Another value of each key that is honoured or accepted: JSON's usual ones where it doesn't matter which.
PROBES: dict[str, list[Any]] = {
    "model_type": ["roberta", "t5", "SparseEncoder"],
    "hidden_act": ["relu"],
    "activation": ["relu", "gelu_new"],
    "hidden_activation": ["relu", "gelu_pytorch_tanh"],
    "num_attention_heads": [1, 4],
    "n_heads": [1],
    "n_head": [1],
    "layer_norm_eps": [0.1],
    "norm_eps": [0.1],
    "pad_token_id": [1, 0],
    "local_attention": [4, 2],
    "global_attn_every_n_layers": [2, 1],
    "layer_types": [["full_attention"] * 3, ["sliding_attention", "full_attention", "full_attention"]],
    "rope_theta": [100.0],
    "global_rope_theta": [100.0],
    "local_rope_theta": [100.0],
    "rope_scaling": [{"type": "linear", "factor": 2.0}],
    "rope_parameters": [{"rope_type": "default", "rope_theta": 50.0}, {"rope_type": "linear", "factor": 2.0}],
    "head_dim": [4],
    "is_encoder_decoder": [True],
    "attn_implementation": ["eager", "somebody/kernel"],
    "position_embedding_type": ["relative_key"],
    "pruned_heads": [{"0": [1]}],
    "auto_map": [{"AutoModel": "somebody--code.Model"}],
    "architectures": [["BertForMaskedLM"], []],
    "per_layer_config": [{"0": {"hidden_act": "relu"}}],
    "model_max_length": [12, 9, 1000000000000000019884624838656],
    "max_len": [12],
    "truncation_side": ["left"],
    "split_special_tokens": [True],
    "do_lower_case": [False, True],
    "strip_accents": [True],
    "tokenize_chinese_chars": [False],
    "max_seq_length": [12, 9],
    "pooling_mode": ["cls", "max", ["mean"], ["mean", "cls"], "lasttoken", "weightedmean"],
    "include_prompt": [False],
    "truncate_dim": [3, 100],
    "prompts": [{"document": "red "}, {"query": "red "}, {}],
    "default_prompt_name": ["document", "nothing"],
    "similarity_fn_name": ["dot", "euclidean"],
    "activation_fn": ["torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"],
    "activation_function": ["torch.nn.modules.activation.Tanh", "torch.nn.Identity"],
    "module_output_name": ["token_embeddings", "elsewhere"],
    "module_input_name": ["token_embeddings"],
    "type": ["sentence_transformers.models.WordWeights", "custom_st.Transformer"],
    "path": ["../elsewhere"],
    "kwargs": [["task"]],
    "bias": [False],
    "tokenizer_class": ["BertTokenizerFast", "DistilBertTokenizer", "PreTrainedTokenizerFast", "Nobodys"],
    "added_tokens_decoder": [
        {"5": {"content": "red", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}}
    ],
    "extra_special_tokens": [["red"]],
    "cls_token": ["red"],
    "model_input_names": [["input_ids", "attention_mask"], ["input_ids", "token_type_ids"]],
}
# As saved, classes are LABEL_0 and so on.
PROBES |= {
    "num_labels": [2, 3],
    "id2label": [{"0": "a", "1": "b", "2": "c"}, {"0": "a", "1": "b"}],
    "label2id": [{"a": 0, "b": 1, "c": 2}],
    "problem_type": ["regression", "multi_label_classification"],
    "normalize": [False],
    "embedding_dtype": ["float16"],
}
USUAL_PROBES = [3, "other"]


def probes(table: FileKeys) -> list[tuple[str, Any]]:
    return [
        (key, value) for key in (*table.honoured, *table.accepted) for value in PROBES.get(key, USUAL_PROBES)
    ]


def attempt(compute: Callable[[Path], Any], folder: Path) -> Any:
    """Its numbers, or the error."""
    try:
        return compute(folder)
    except Exception as error:
        return error


def are_same(found: Any, wanted: Any) -> bool:
    return found.shape == wanted.shape and bool(np.allclose(found, wanted, atol=2e-5))


def violations(
    tmp_path: Path,
    save: Callable[[Path], Path],
    file: str,
    table: FileKeys,
    ours: Callable[[Path], Any],
    theirs: Callable[[Path], Any],
) -> list[tuple[str, Any, str]]:
    """Of a table's keys, tried one by one in a file of a folder that is otherwise as it was saved."""
    folder = save(tmp_path / "model")
    usual, path = ours(folder), folder / file
    before = json.loads(path.read_text()) if path.exists() else {}
    found = []
    for key, value in probes(table):
        write(path, before | {key: value})
        mine = attempt(ours, folder)
        if isinstance(mine, BertsmithError):
            continue
        wanted = attempt(theirs, folder)  # where the oracle fails, the key may mean nothing here
        if isinstance(mine, Exception) or not are_same(
            mine, usual if isinstance(wanted, Exception) else wanted
        ):
            found.append((key, value, str(mine if isinstance(mine, Exception) else type(wanted).__name__)))
    return found


@pytest.mark.filterwarnings("ignore:.*never compared with a published checkpoint")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_key_of_config_is_honoured_as_by_transformers_or_refused(tmp_path: Path, family: str) -> None:
    table = config_keys(find_family(family))
    if family != "bert":  # the others have these alike
        shared = folder_keys.CONFIG.known
        table = FileKeys(
            table.file,
            {key: why for key, why in table.honoured.items() if key not in shared},
            accepted={key: values for key, values in table.accepted.items() if key not in shared},
        )
    save = lambda folder: save_family(folder, family)  # noqa: E731
    assert violations(tmp_path, save, "config.json", table, our_vectors, their_vectors) == []


def save_modules(folder: Path) -> Path:
    modules = (TRANSFORMER, POOLING, DENSE, NORMALIZE)
    return save_sentence_folder(folder, modules, {"prompts": {"document": "new "}})


@pytest.mark.parametrize(
    ("file", "table"),
    [
        ("tokenizer_config.json", folder_keys.TOKENIZER_CONFIG),
        ("sentence_bert_config.json", folder_keys.TRANSFORMER),
        ("1_Pooling/config.json", folder_keys.POOLING),
        ("2_Dense/config.json", folder_keys.DENSE),
        ("3_Normalize/config.json", folder_keys.NORMALIZE),
        ("config_sentence_transformers.json", folder_keys.SENTENCE_TRANSFORMERS),
    ],
)
def test_a_key_of_an_embedding_model_is_honoured_as_by_sentence_transformers_or_refused(
    tmp_path: Path, file: str, table: FileKeys
) -> None:
    assert violations(tmp_path, save_modules, file, table, our_vectors, their_vectors) == []


@pytest.mark.parametrize(
    ("file", "table"),
    [
        ("config_sentence_transformers.json", folder_keys.SENTENCE_TRANSFORMERS),
        ("sentence_bert_config.json", folder_keys.TRANSFORMER),
        ("tokenizer_config.json", folder_keys.TOKENIZER_CONFIG),
    ],
)
def test_a_key_of_a_cross_encoder_is_honoured_or_refused(tmp_path: Path, file: str, table: FileKeys) -> None:
    assert violations(tmp_path, save_cross_encoder, file, table, our_scores, their_scores) == []


def save_masked(folder: Path) -> Path:
    save_pretrained(folder)
    (folder / "bertsmith.json").unlink()
    return folder


# Where a folder with a head may differ from an encoder.
OF_HEADS = (
    *("architectures", "model_type", "num_labels", "id2label", "label2id", "problem_type", "hidden_act"),
    *("layer_norm_eps", "is_decoder", "add_cross_attention", "pruned_heads"),
)
HEADS: dict[str, Callable[[Path], Path]] = {
    "classification": lambda folder: save_foreign(folder, 3, num_labels=3),
    "tagging": lambda folder: save_foreign(folder, 4, "BertForTokenClassification", num_labels=4),
    "question-answering": lambda folder: save_foreign(folder, 2, READER),
    "masked-language": save_masked,
}


def our_agreement(folder: Path) -> Any:
    """Ids, hidden states and outputs beside transformers', and of classes the names as its pipeline says."""
    agrees = check_model(folder, against="transformers").agrees
    if (folder / "config.json").read_text().count("ForSequenceClassification"):
        (answer,) = Predictor.load(folder, compute_dtype=torch.float32).predict(["red"])
        pipeline = transformers.pipeline("text-classification", str(folder), top_k=None, device="cpu")
        agrees &= set(answer["probabilities"]) == {each["label"] for each in pipeline(["red"])[0]}
    return np.array([agrees])


@pytest.mark.parametrize("kind", HEADS)
def test_a_key_of_a_head_s_folder_is_honoured_as_by_transformers_or_refused(
    tmp_path: Path, kind: str
) -> None:
    table = config_keys(find_family("bert"))
    assert set(OF_HEADS) <= table.known  # a line that is taken out of the table fails
    table = FileKeys(table.file, dict.fromkeys(OF_HEADS, ""))
    theirs = lambda folder: np.array([True])  # noqa: E731
    assert violations(tmp_path, HEADS[kind], "config.json", table, our_agreement, theirs) == []


def save_table(folder: Path) -> Path:
    """A static table, whose special pieces have no vector."""
    tokenizer = Tokenizer.from_pieces([*SPECIAL, *WORDS], lowercase=True)
    torch.manual_seed(4)
    table = torch.randn(tokenizer.vocab_size, WIDTH)
    table[: len(SPECIAL)] = 0
    save_static(folder, table, tokenizer, provenance={})
    (folder / "bertsmith.json").unlink()
    return folder


def model2vecs_vectors(folder: Path) -> Any:
    found = pytest.importorskip("model2vec").StaticModel.from_pretrained(folder).encode(list(TEXTS))
    return found / np.linalg.norm(found, axis=1, keepdims=True)


# Not max_length: model2vec cuts a text by characters first, as many as so many tokens usually have.
MODEL2VEC = FileKeys(
    "config.json", dict.fromkeys(("normalize", "hidden_dim", "seq_length", "embedding_dtype"), "")
)


@pytest.mark.parametrize(
    ("file", "table", "theirs"),
    [
        ("config.json", MODEL2VEC, model2vecs_vectors),
        ("config_sentence_transformers.json", folder_keys.SENTENCE_TRANSFORMERS, their_vectors),
        ("tokenizer_config.json", folder_keys.TOKENIZER_CONFIG, their_vectors),
    ],
)
def test_a_key_of_a_static_table_is_honoured_or_refused(
    tmp_path: Path, file: str, table: FileKeys, theirs: Callable[[Path], Any]
) -> None:
    assert violations(tmp_path, save_table, file, table, our_vectors, theirs) == []


def harmless_values(table: FileKeys) -> Mapping[str, Any]:
    """All of them at once, with values that nobody would choose."""
    odd = {"dtype": "float32", "torch_dtype": "float32", "requirements": {}, "__version__": {}}
    named = {"padding_side": "left", "auto_map": None, "keep_in_fp32_modules": [], "chat_template": "{{ x }}"}
    left_out = ("init_inputs", "vocab_file", "merges_file", "tokenizer_file", "idx", "name", "bad_words_ids")
    return {key: (odd | named).get(key, 1) for key in table.harmless if key not in left_out}


@pytest.mark.filterwarnings("ignore:.*never compared with a published checkpoint")
@pytest.mark.parametrize("family", FAMILIES)
def test_harmless_keys_of_config_change_nothing(tmp_path: Path, family: str) -> None:
    folder = save_family(tmp_path / "model", family)
    before = our_vectors(folder)
    rewrite(folder / "config.json", **harmless_values(config_keys(find_family(family))))
    np.testing.assert_array_equal(our_vectors(folder), before)


@pytest.mark.parametrize(
    ("file", "table"),
    [
        ("tokenizer_config.json", folder_keys.TOKENIZER_CONFIG),
        ("sentence_bert_config.json", folder_keys.TRANSFORMER),
        ("config_sentence_transformers.json", folder_keys.SENTENCE_TRANSFORMERS),
    ],
)
def test_harmless_keys_of_an_embedding_model_change_nothing(
    tmp_path: Path, file: str, table: FileKeys
) -> None:
    folder = save_modules(tmp_path / "model")
    before = our_vectors(folder)
    path = folder / file
    write(path, (json.loads(path.read_text()) if path.exists() else {}) | dict(harmless_values(table)))
    np.testing.assert_array_equal(our_vectors(folder), before)

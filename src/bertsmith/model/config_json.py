"""How Hugging Face's config.json spells the shape of a model, for reading and for writing.

Reading is an allow-list: a key that is neither a setting of ours nor known to be harmless is refused, since
it could mean something that we do not compute.
"""

import reprlib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig, make_config
from bertsmith.validation import first_problem

# DistilBERT's own spelling of the same axes.
_DISTILBERT_NAMES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}

# What transformers assumes of a config.json that leaves a key out; not always what was published.
_UNWRITTEN: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12},
    "distilbert": {},
}

# Other names of activations we have.
_ACTIVATIONS = {"gelu_python": "gelu", "gelu_pytorch_tanh": "gelu_new"}

# Keys that Hugging Face and Google write and that do not change the numbers of an encoder, or whose one
# supported value is checked below. Any other key is refused: it could mean something we do not compute.
_HARMLESS = frozenset(
    (
        *("_attn_implementation_autoset", "_name_or_path", "architectures", "dtype", "torch_dtype"),
        *("transformers_version", "torchscript", "return_dict", "output_attentions", "output_hidden_states"),
        *("output_past", "use_cache", "use_bfloat16", "gradient_checkpointing", "chunk_size_feed_forward"),
        *("tie_word_embeddings", "tie_weights_", "initializer_factor", "language", "language_adapters"),
        # heads and tasks
        *("_num_labels", "num_labels", "id2label", "label2id", "problem_type", "finetuning_task"),
        *("task_specific_params", "classifier_dropout", "qa_dropout", "seq_classif_dropout"),
        # special tokens: the tokenizer knows them
        *("bos_token_id", "cls_token_id", "eos_token_id", "eos_token_ids", "mask_token_id", "sep_token_id"),
        # Google's multilingual and Chinese models
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
        *("pooler_size_per_head", "pooler_type"),
        # generation, as transformers of 2020 wrote it for every model
        *("bad_words_ids", "do_sample", "early_stopping", "length_penalty", "max_length", "min_length"),
        *("num_beams", "num_return_sequences", "repetition_penalty", "temperature", "top_k", "top_p"),
    )
)
# The attention is here because a value may be the address of code on the hub (CVE-2026-4372).
_SUPPORTED_VALUES: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "sinusoidal_pos_embds": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({},),
    "attn_implementation": ("eager", "sdpa", "flash_attention_2"),
}


def config_from_hugging_face(values: dict[str, Any], where: str) -> BertConfig:
    """Reads the content of a config.json.

    A file without `model_type` (transformers before 2.3, Google's bert_config.json) is taken for BERT.
    Raises ModelError for code references, unknown keys, and settings we do not compute.
    """
    if "auto_map" in values:
        raise ModelError(
            f"{where} asks to run code of its own (auto_map). Bertsmith never does; use another checkpoint."
        )
    family = values.get("model_type", "bert")
    if not isinstance(family, str) or family not in _UNWRITTEN:
        raise ModelError(
            f"{where}: model_type is {reprlib.repr(family)}; expected one of {', '.join(_UNWRITTEN)}."
        )
    for key, supported in _SUPPORTED_VALUES.items():
        if values.get(key) is not None and values[key] not in supported:
            raise ModelError(
                f"{where}: {key} is {reprlib.repr(values[key])}; only {supported[0]!r} is supported."
            )
    names = _DISTILBERT_NAMES if family == "distilbert" else {}
    ignored = _HARMLESS | _SUPPORTED_VALUES.keys()
    kept = {
        names.get(key, key): value
        for key, value in values.items()
        if value is not None and key not in ignored
    }
    activation = kept.get("hidden_act", "gelu")
    kept["hidden_act"] = _ACTIVATIONS.get(str(activation), activation)
    return make_config(_UNWRITTEN[family] | {"model_type": family} | kept, where)


def config_to_hugging_face(config: BertConfig, architecture: str) -> dict[str, Any]:
    """The content of a config.json that transformers opens as `architecture`."""
    values = config.model_dump()
    if config.model_type == "distilbert":
        spelling = {ours: theirs for theirs, ours in _DISTILBERT_NAMES.items()}
        values = {spelling.get(key, key): value for key, value in values.items()}
        del values["type_vocab_size"], values["layer_norm_eps"]
    return {"architectures": [architecture], **values, "tie_word_embeddings": True}


class Labels(BaseModel):
    """What a head's outputs mean: the keys that travel with the head."""

    id2label: dict[Annotated[str, Field(pattern="^[0-9]{1,6}$")], str] | None = None
    label2id: dict[str, Annotated[int, Field(ge=0)]] | None = None
    num_labels: Annotated[int, Field(ge=1)] | None = None
    problem_type: str | None = None


def read_labels(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The keys of config.json that belong to a head, as they are. Raises ModelError for a wrong type."""
    given = {key: values[key] for key in Labels.model_fields if key in values}
    try:
        return Labels.model_validate(given, strict=True).model_dump(exclude_none=True)
    except ValidationError as error:
        raise ModelError(f"the settings of {where}: {first_problem(error, Labels)}") from error

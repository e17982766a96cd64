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
from bertsmith.model.cross_encoder import KEYS as OF_CROSS_ENCODERS
from bertsmith.model.cross_encoder import refuse_activations
from bertsmith.model.families import find_family
from bertsmith.validation import first_problem

# Other names of activations we have.
_ACTIVATIONS = {"gelu_python": "gelu", "gelu_pytorch_tanh": "gelu_new"}

# Which of an embedding model's first dimensions may stand alone.
MATRYOSHKA = ("is_matryoshka", "matryoshka_dimensions")

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
        *OF_CROSS_ENCODERS,
        # special tokens: the tokenizer knows them
        *("bos_token_id", "cls_token_id", "eos_token_id", "eos_token_ids", "mask_token_id", "sep_token_id"),
        # Google's multilingual and Chinese models
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
        *("pooler_size_per_head", "pooler_type"),
        *MATRYOSHKA,
        # generation, as transformers of 2020 wrote it for every model
        *("bad_words_ids", "do_sample", "early_stopping", "length_penalty", "max_length", "min_length"),
        *("num_beams", "num_return_sequences", "repetition_penalty", "temperature", "top_k", "top_p"),
    )
)
# What every family must have, if it is said at all. The attention is here because a value may be the address
# of code on the hub (CVE-2026-4372).
_REQUIRED: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,),
    "pruned_heads": ({},),
    "attn_implementation": ("eager", "sdpa", "flash_attention_2"),
}


def config_from_hugging_face(values: dict[str, Any], where: str) -> BertConfig:
    """Reads the content of a config.json.

    A file without `model_type` (transformers before 2.3, Google's bert_config.json) is taken for BERT.
    Raises ModelError for code references, unknown keys, keys that contradict each other, and settings we do
    not compute.
    """
    if "auto_map" in values:
        raise ModelError(
            f"{where} asks to run code of its own (auto_map). Bertsmith never does; use another checkpoint."
        )
    try:
        family = find_family(values.get("model_type", "bert"))
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    model_type = family.model_type
    required = _REQUIRED | dict(family.required)
    for key, supported in required.items():
        if values.get(key) is not None and values[key] not in supported:
            only = f"only {supported[0]!r} is supported" if supported else "it is not supported"
            raise ModelError(f"{where}: {key} is {reprlib.repr(values[key])}; {only}.")
    refuse_activations(values, where)
    more = family.rotary
    ignored = _HARMLESS | family.harmless | required.keys() | (more.keys if more else set())
    names = family.config_keys()
    kept = {"model_type": model_type} | dict(family.assumed)
    given: dict[str, str] = {}
    for key, value in values.items():
        if value is None or key in ignored or key == "model_type":
            continue
        if key not in names and key in BertConfig.model_fields:
            raise ModelError(f"{where}: a config.json of {model_type} has no key {key}.")
        ours = names.get(key, key)
        value = _ACTIVATIONS.get(value, value) if ours.endswith("_act") and isinstance(value, str) else value
        if ours in given and kept[ours] != value:
            raise ModelError(
                f"{where}: {given[ours]} = {kept[ours]!r} and {key} = {value!r} say different things. "
                "Remove the one that is wrong."
            )
        kept[ours], given[ours] = value, key
    return make_config(kept | (more.read(values, where) if more else {}), where)


def config_to_hugging_face(config: BertConfig, architecture: str) -> dict[str, Any]:
    """The content of a config.json that transformers opens as `architecture`."""
    family, values = config.family, config.model_dump() | {"embedding_size": config.embedding_width}
    spelled = {theirs: values[ours] for ours, theirs in family.spelling.items()}
    if family.rotary is not None:
        spelled |= family.rotary.write(values)
    kept = {key: value for key, value in spelled.items() if value is not None}
    head = {"architectures": [architecture], "model_type": config.model_type}
    return {**head, **kept, **family.written, "tie_word_embeddings": True}


class Labels(BaseModel):
    """What a head's outputs mean, and what a cross-encoder makes of them: keys that travel with it."""

    id2label: dict[Annotated[str, Field(pattern="^[0-9]{1,6}$")], str] | None = None
    label2id: dict[str, Annotated[int, Field(ge=0)]] | None = None
    num_labels: Annotated[int, Field(ge=1)] | None = None
    problem_type: str | None = None
    sentence_transformers: dict[str, Any] | None = None
    sbert_ce_default_activation_function: str | None = None


def read_labels(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The keys of config.json that belong to a head, as they are. Raises ModelError for a wrong type."""
    given = {key: values[key] for key in Labels.model_fields if key in values}
    try:
        return Labels.model_validate(given, strict=True).model_dump(exclude_none=True)
    except ValidationError as error:
        raise ModelError(f"the settings of {where}: {first_problem(error, Labels)}") from error

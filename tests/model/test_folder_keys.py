"""The tables of a folder's keys know every key that the installed libraries read or write, and no other.

So a line that is taken out of a table fails here, and so does a key that a new version brings.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from bertsmith.errors import ModelError
from bertsmith.model.config_json import config_keys
from bertsmith.model.families import FAMILIES, find_family
from bertsmith.model.folder_keys import (
    CONFIG,
    DENSE,
    MODULES,
    NORMALIZE,
    POOLING,
    SENTENCE_TRANSFORMERS,
    SPECIAL_TOKENS_MAP,
    TABLES,
    TOKENIZER_CONFIG,
    TRANSFORMER,
    FileKeys,
)

transformers = pytest.importorskip("transformers")
sentence_transformers = pytest.importorskip("sentence_transformers")

OURS = (
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
# What is in no installed version: written by transformers 2 to 4.57 (`PretrainedConfig.to_dict`), by Google,
# by sentence-transformers before its version 6, and by authors of embedding models.
OLDER_CONFIG = {
    *("_attn_implementation_autoset", "_name_or_path", "_num_labels", "add_cross_attention", "auto_map"),
    *("cross_attention_hidden_size", "decoder_start_token_id", "eos_token_ids", "finetuning_task"),
    *("gradient_checkpointing", "initializer_factor", "is_decoder", "language", "language_adapters"),
    *("mask_token_id", "output_past", "prefix", "pruned_heads", "qa_dropout", "quantization_config"),
    *("sep_token_id", "cls_token_id", "task_specific_params", "tf_legacy_loss", "tie_encoder_decoder"),
    *("tie_weights_", "tokenizer_class", "torchscript", "transformers_weights", "use_bfloat16", "xla_device"),
    *("classifier_dropout", "seq_classif_dropout", "tie_word_embeddings"),
    *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
    *("pooler_size_per_head", "pooler_type"),
    *("is_matryoshka", "matryoshka_dimensions"),
    *("sentence_transformers", "sbert_ce_default_activation_function"),
}
# What a family's authors wrote beside it, or transformers 4 read.
OF_AUTHORS: dict[str, set[str]] = {
    "bert": {"position_embedding_type"},
    "jina_bert": {"position_embedding_type", "feed_forward_type", "emb_pooler", "model_max_length"},
    "roberta": {"position_embedding_type"},
    "mpnet": set(),
    "xlm-roberta": {"position_embedding_type"},
    "camembert": {"position_embedding_type"},
    "electra": {"position_embedding_type", "summary_first_dropout", "summary_proj_to_labels"},
    "distilbert": {
        *("position_embedding_type", "intermediate_size", "hidden_act", "layer_norm_eps", "type_vocab_size"),
        *("hidden_dropout_prob", "attention_probs_dropout_prob"),
    },
    "albert": {
        *("position_embedding_type", "down_scale_factor", "gap_size", "net_structure_type"),
        "num_memory_blocks",
    },
    "modernbert": {
        *("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta", "rope_scaling"),
        *("layer_norm_eps", "position_embedding_type", "reference_compile", "repad_logits_with_grad"),
        "sliding_window",
    },
    "nomic_bert": {
        *("n_embd", "n_layer", "n_head", "n_inner", "n_positions", "resid_pdrop", "attn_pdrop", "embd_pdrop"),
        *("layer_norm_epsilon", "rotary_emb_base", "rope_theta", "rope_scaling", "activation_function"),
        *("causal", "mlp_fc1_bias", "mlp_fc2_bias", "parallel_block", "prenorm", "qkv_proj_bias"),
        *("reorder_and_upcast_attn", "rotary_emb_fraction", "rotary_emb_interleaved"),
        *("rotary_emb_scale_base", "rotary_scaling_factor", "scale_attn_by_inverse_layer_idx"),
        *("scale_attn_weights", "use_rms_norm", "dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln"),
        *("max_trained_positions", "pad_vocab_size_multiple", "use_flash_attn", "use_xentropy"),
        *("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type"),
        "summary_use_proj",
    },
    "gte": {
        *("rope_theta", "rope_scaling", "layer_norm_type", "logn_attention_scale", "logn_attention_clip1"),
        *("pack_qkv", "position_embedding_type", "unpad_inputs", "use_memory_efficient_attention"),
    },
    "deberta-v2": {
        *("attention_head_size", "cls_dropout", "conv_act", "conv_groups", "conv_kernel_size"),
        *("embedding_size", "norm_rel_ebd", "pooler_hidden_size", "position_buckets", "share_att_key"),
    },
}
# Of transformers 2 to 4.57, whose slow tokenizers had their rules in the settings.
OLDER_TOKENIZER = {
    *("do_basic_tokenize", "never_split", "wordpieces_prefix", "special_tokens_map_file", "use_fast"),
    *("full_tokenizer_file", "slow_tokenizer_class", "device_map", "is_local", "local_files_only"),
    *("padding", "pad_to_max_length", "spaces_between_special_tokens", "auto_map", "added_tokens_decoder"),
    *("tokenizer_type", "merges_file", "trim_offsets", "errors", "add_prefix_space"),
}
# What a call says, not a file: hub, paths, and parts of the library's own.
OF_CALLS = {
    *("_spm_precompiled_charsmap", "_json_padding", "_json_truncation", "tokenizer_object", "gguf_file"),
    *("tokenizer_padding", "tokenizer_truncation", "post_processor", "vocab", "merges", "kwargs", "args"),
    *("proxies", "subfolder", "_from_pipeline", "_from_auto", "self", "config", "trust_remote_code"),
    *("code_revision", "mistral_format", "commit_message", "repo_id", "max_target_length", "tokenizer"),
    "use_source_tokenizer",
    *("truncation",),
}


def popped(source: object, *names: str) -> set[str]:
    """Keys that a source takes out of dictionaries of these names."""
    return set(
        re.findall(rf"\b(?:{'|'.join(names)})\.(?:pop|setdefault)\(\s*\"(\w+)\"", inspect.getsource(source))
    )  # type: ignore[arg-type]


def of_every_config() -> set[str]:
    base = transformers.PretrainedConfig
    fields = {each.name for each in dataclasses.fields(base)}
    internal = {"_attn_implementation_internal", "_experts_implementation_internal"}
    read = popped(base.__post_init__, "kwargs") | {"num_labels"}
    generation = set(transformers.GenerationConfig._get_default_generation_params())
    return (fields | internal | read | generation | {"model_type", "bos_token_id", "eos_token_id"}) - {
        "rope_scaling"
    }


def of_a_family(name: str) -> set[str]:
    kind = transformers.CONFIG_MAPPING["bert" if name == "jina_bert" else name]
    known = {each.name for each in dataclasses.fields(kind)} | set(kind.attribute_map)
    return known | OF_AUTHORS[name] | of_every_config() | OLDER_CONFIG


def of_tokenizers() -> set[str]:
    from transformers import tokenization_utils_base, tokenization_utils_tokenizers

    classes = (
        *(transformers.BertTokenizer, transformers.RobertaTokenizer, transformers.DistilBertTokenizer),
        *(transformers.ElectraTokenizer, transformers.PreTrainedTokenizerFast),
        transformers.BertJapaneseTokenizer,
    )
    arguments = {name for kind in classes for name in inspect.signature(kind.__init__).parameters}
    read = popped(tokenization_utils_base, "kwargs", "init_kwargs", "tokenizer_config")
    read |= popped(tokenization_utils_tokenizers.TokenizersBackend, "kwargs", "local_kwargs")
    roles = set(transformers.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)
    listed = {"tokenizer_class", "vocab_file", "pad_token_type_id"}
    return (arguments | read | roles | listed | OLDER_TOKENIZER) - OF_CALLS


def of_transformer_modules() -> set[str]:
    from sentence_transformers.base.modules.transformer import Transformer

    arguments = set(inspect.signature(inspect.unwrap(Transformer.__init__)).parameters)
    older = {"model_args", "tokenizer_args", "config_args"}
    return (arguments | set(Transformer.config_keys) | older) - {"self", "model_name_or_path", "backend"}


def of_pooling() -> set[str]:
    from sentence_transformers.sentence_transformer.modules import pooling

    kind = pooling.Pooling
    return {*kind.config_keys, *kind.config_key_renames, *pooling._LEGACY_POOLING_MODE_KWARGS}


def of_dense() -> set[str]:
    from sentence_transformers.base.modules.dense import Dense

    return set(Dense.config_keys)


def of_normalize() -> set[str]:
    from sentence_transformers.base.modules.normalize import Normalize

    return set(Normalize.config_keys)


def of_modules() -> set[str]:
    from sentence_transformers.base.model import BaseModel

    return set(re.findall(r'module_config(?:\.get\(|\[)"(\w+)"', inspect.getsource(BaseModel))) | {"idx"}


def of_models() -> set[str]:
    source = "".join(
        inspect.getsource(kind)
        for kind in (
            sentence_transformers.base.model.BaseModel,
            sentence_transformers.SentenceTransformer,
            sentence_transformers.CrossEncoder,
        )
    )
    read = set(re.findall(r'model_config(?:\.get\(|\[)"(\w+)"', source))
    return read | {"model_type", "__version__", "activation_fn"}


FILES: dict[str, tuple[FileKeys, Callable[[], set[str]]]] = {
    "tokenizer_config": (TOKENIZER_CONFIG, of_tokenizers),
    "transformer": (TRANSFORMER, of_transformer_modules),
    "pooling": (POOLING, of_pooling),
    "dense": (DENSE, of_dense),
    "normalize": (NORMALIZE, of_normalize),
    "modules": (MODULES, of_modules),
    "sentence_transformers": (SENTENCE_TRANSFORMERS, of_models),
}


@pytest.mark.parametrize(("table", "theirs"), FILES.values(), ids=FILES)
def test_a_table_has_the_libraries_keys_and_no_other(table: FileKeys, theirs: Callable[[], set[str]]) -> None:
    assert sorted(theirs() - table.known) == []
    assert sorted(table.known - theirs()) == []


@pytest.mark.parametrize("family", OURS)
def test_a_family_s_config_has_transformers_keys_and_no_other(family: str) -> None:
    known = config_keys(find_family(family)).known
    assert sorted(of_a_family(family) - known) == []
    assert sorted(known - of_a_family(family)) == []


def test_the_names_of_special_tokens_are_those_of_the_tokenizer() -> None:
    roles = set(transformers.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)
    extra = {"extra_special_tokens", "additional_special_tokens"}
    assert SPECIAL_TOKENS_MAP.known == roles | extra


def test_every_family_of_ours_is_compared() -> None:
    assert set(OURS) <= set(FAMILIES)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.file)
def test_a_key_has_one_meaning(table: FileKeys) -> None:
    kinds: list[set[str]] = [set(table.honoured), set(table.harmless), set(table.accepted)]
    assert sum(map(len, kinds)) == len(table.known)


@pytest.mark.parametrize("family", OURS)
def test_so_has_one_of_a_family(family: str) -> None:
    keys = config_keys(find_family(family))
    assert len(keys.honoured) + len(keys.harmless) + len(keys.accepted) == len(keys.known)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"is_decoder": 1}, "is_decoder is 1; only False is supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}; it is not supported"),
        ({"num_lables": 2}, "unknown key 'num_lables'. Did you mean 'num_labels'"),
    ],
)
def test_what_is_refused_says_the_value_that_would_be_accepted(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=re.escape(sentence)):
        CONFIG.require(values, "here")

"""The meaning of each key in the files of a model folder: one table for each file.

A key that transformers or sentence-transformers reads or writes is *honoured*, or *harmless*, since it
changes no number here, or *refused* unless it has a value that Bertsmith computes. A value of null means
nothing, as in these libraries. The keys of a family's config.json are in its record in `model/families`.
The reference of the site is made from these tables, and tests compare them with the installed libraries.
"""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bertsmith.errors import ModelError, did_you_mean


@dataclass(frozen=True)
class FileKeys:
    """The keys of one file: the effect of each honoured key, the reason why others are harmless, and the
    accepted values of the rest, the usual one first; none for a key that may only be null.

    In an `open` file the libraries save whatever a caller passed, and read only these keys: any other key is
    ignored, as they do. In another file an unknown key is refused.
    """

    file: str
    honoured: Mapping[str, str]
    harmless: Mapping[str, str] = field(default_factory=dict)
    accepted: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    open: bool = False

    @property
    def known(self) -> frozenset[str]:
        return frozenset(self.honoured) | frozenset(self.harmless) | frozenset(self.accepted)

    def require(self, values: Mapping[str, Any], where: str) -> None:
        """Raises ModelError for a value that Bertsmith doesn't compute, and for an unknown key."""
        for key, value in values.items():
            if value is None or key in self.honoured or key in self.harmless:
                continue
            if key in self.accepted:
                # true isn't 1 in JSON, though it is in Python
                accepted, is_truth = self.accepted[key], isinstance(value, bool)
                if any(value == known and is_truth == isinstance(known, bool) for known in accepted):
                    continue
                only = f"only {' or '.join(map(repr, accepted))} is supported"
                problem = only if accepted else "it is not supported"
                raise ModelError(f"{where}: {key} is {reprlib.repr(value)}; {problem}.")
            if not self.open:
                raise ModelError(
                    f"{where}: unknown key {reprlib.repr(key)}.{did_you_mean(key, [*self.known])} It may "
                    "change what the model computes: remove it only if it means nothing."
                )


def _keys(meaning: str, *keys: str) -> dict[str, str]:
    return dict.fromkeys(keys, meaning)


#: What transformers says of generated text, and wrote into every config.json before its version 5.
GENERATION = (
    *("assistant_confidence_threshold", "assistant_lookbehind", "bad_words_ids", "begin_suppress_tokens"),
    *("decoder_start_token_id", "diversity_penalty", "do_sample", "early_stopping"),
    *("encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff"),
    *("exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "length_penalty"),
    *("max_length", "min_length", "no_repeat_ngram_size", "num_assistant_tokens"),
    *("num_assistant_tokens_schedule", "num_beam_groups", "num_beams", "num_return_sequences"),
    *("output_scores", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate"),
    *("suppress_tokens", "target_lookbehind", "temperature", "top_k", "top_p", "typical_p", "use_cache"),
)

#: Which of an embedding model's first dimensions may stand alone.
MATRYOSHKA = ("is_matryoshka", "matryoshka_dimensions")
#: What a cross-encoder does with its outputs, before version 6 of sentence-transformers.
ACTIVATIONS = ("sentence_transformers", "sbert_ce_default_activation_function")
#: The activations of a Dense by the names of torch's classes, which a file may name. No name is imported.
DENSE_ACTIVATIONS = (
    *("CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "LeakyReLU"),
    *("LogSigmoid", "Mish", "PReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink"),
    *("Softsign", "Tanh", "Tanhshrink", "LogSoftmax", "Softmax", "Softmin"),
)

#: Of every family; a family's own keys come on top (`Family`).
CONFIG = FileKeys(
    "config.json",
    honoured={
        "model_type": "the family",
        "architectures": "which head the folder is for",
        **_keys(
            "number and names of a head's outputs, which must agree", "num_labels", "id2label", "label2id"
        ),
        "tokenizer_class": "who reads the tokenizer's files, where they name none",
        "problem_type": "whether outputs are classes, labels of their own, or a number",
        **_keys("what a cross-encoder's outputs are put through", *ACTIVATIONS),
        **_keys("`embed --dimensions` prints no note", *MATRYOSHKA),
        "output_hidden_states": "whether a WeightedLayerPooling has any effect",
    },
    harmless={
        **_keys(
            "who wrote the file, and how",
            *("_commit_hash", "_name_or_path", "name_or_path", "transformers_version", "finetuning_task"),
            *("language", "_num_labels"),
        ),
        **_keys(
            "all is computed in float32, or as --compute-dtype says", "dtype", "torch_dtype", "use_bfloat16"
        ),
        **_keys("what a call returns", "output_attentions", "return_dict"),
        **_keys(
            "how it is computed, with the same numbers",
            *("_attn_implementation_autoset", "_attn_implementation_internal"),
            *("_experts_implementation_internal", "experts_implementation", "chunk_size_feed_forward"),
            *("gradient_checkpointing", "torchscript", "tf_legacy_loss", "xla_device"),
        ),
        **_keys("an output layer of other weights is refused by its tensors", "tie_word_embeddings"),
        **_keys("of decoders, which no encoder has", "output_past", "tie_encoder_decoder", "tie_weights_"),
        **_keys(
            "for training alone",
            *("classifier_dropout", "initializer_factor", "qa_dropout", "seq_classif_dropout"),
        ),
        **_keys("of adapters that lie in files of their own", "language_adapters"),
        **_keys("for generated text alone", "prefix", "task_specific_params"),
        **_keys(
            "the tokenizer's files say which",
            *("bos_token_id", "cls_token_id", "eos_token_id", "eos_token_ids", "mask_token_id"),
            "sep_token_id",
        ),
        **_keys(
            "of Google's pooling for other tasks, which no code reads",
            *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
            *("pooler_size_per_head", "pooler_type"),
        ),
        **_keys("for generated text alone", *GENERATION),
    },
    accepted={
        "auto_map": (),  # code of its own
        "is_encoder_decoder": (False,),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "cross_attention_hidden_size": (),
        "pruned_heads": ({},),
        # A value may be the address of code on the hub (CVE-2026-4372).
        "attn_implementation": ("eager", "sdpa", "flash_attention_2"),
        "quantization_config": (),
        "per_layer_config": (),
        "transformers_weights": (),
    },
)

#: Its tokens and rules are read by text/tokens.
TOKENIZER_CONFIG = FileKeys(
    "tokenizer_config.json",
    honoured={
        "tokenizer_class": "whose rules win over tokenizer.json",
        **_keys("the longest text", "model_max_length", "max_len"),
        **_keys(
            "small letters, accents, Chinese characters",
            *("do_lower_case", "strip_accents", "tokenize_chinese_chars"),
        ),
        **_keys(
            "how a Japanese text is divided into words, and these into tokens",
            *("word_tokenizer_type", "subword_tokenizer_type", "mecab_kwargs"),
            *("do_word_tokenize", "do_subword_tokenize"),
        ),
        "truncation_side": "the end at which a longer text is cut",
        "model_input_names": "whether the second text of a pair has a segment of its own: token_type_ids",
        "add_prefix_space": "a blank before a text, of byte-level tokenizers",
        "trim_offsets": "whether pieces leave out the blank before them, of byte-level ones",
        **_keys(
            "which token has which role",
            *("cls_token", "mask_token", "pad_token", "sep_token", "unk_token"),
        ),
        **_keys(
            "tokens that are found in a text as a whole",
            *("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"),
            *("model_specific_special_tokens", "bos_token", "eos_token"),
        ),
    },
    harmless={
        **_keys(
            "who wrote the file, and how",
            *("_commit_hash", "auto_map", "backend", "device_map", "files_loaded", "init_inputs"),
            *("is_local", "local_files_only", "name_or_path", "processor_class", "slow_tokenizer_class"),
            *("special_tokens_map_file", "tokenizer_file", "use_fast", "verbose", "vocab_file"),
            *("merges_file", "full_tokenizer_file", "tokenizer_type"),
        ),
        **_keys(
            "nothing is padded here",
            *("padding", "padding_side", "pad_to_multiple_of", "pad_token_type_id", "pad_to_max_length"),
        ),
        **_keys("a caller's, which a call doesn't read", "max_length", "stride", "truncation_strategy"),
        **_keys("of ids → text", "clean_up_tokenization_spaces", "errors", "spaces_between_special_tokens"),
        **_keys("of ids → text", "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"),
        **_keys("the template of tokenizer.json holds", "add_bos_token", "add_eos_token"),
        **_keys("of other dictionaries than MeCab's", "sudachi_kwargs", "jumanpp_kwargs"),
        "spm_file": "of Japanese tokens by SentencePiece, which are refused",
        **_keys("of chats", "chat_template", "chat_control_tokens", "response_schema", "response_template"),
    },
    accepted={
        "split_special_tokens": (False,),
        "do_basic_tokenize": (True,),
        "never_split": ([],),
        "wordpieces_prefix": ("##",),
        "fix_mistral_regex": (False,),
    },
    open=True,
)

#: The settings of an encoder as a module of sentence-transformers.
TRANSFORMER = FileKeys(
    "sentence_bert_config.json",
    honoured={
        "max_seq_length": "the longest text, before model_max_length",
        "do_lower_case": "small letters before the tokenizer",
    },
    harmless=_keys("how it is computed, with the same numbers", "unpad_inputs"),
    accepted={
        "transformer_task": ("feature-extraction", "sequence-classification"),
        "modality_config": (
            {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            {"text": {"method": "forward", "method_output_name": "logits"}},
        ),
        "module_output_name": ("token_embeddings", "scores"),
        "processing_kwargs": ({},),
        "query_length": (),
        "document_length": (),
        "query_expansion": (),
        "model_args": ({},),
        "tokenizer_args": ({},),
        "config_args": ({},),
        "model_kwargs": ({},),
        "processor_kwargs": ({},),
        "config_kwargs": ({},),
        "tokenizer_name_or_path": (),
    },
)

POOLING = FileKeys(
    "1_Pooling/config.json",
    honoured={
        "pooling_mode": "one of mean, cls and max",
        **_keys(
            "the same as flags",
            *("pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_mean_tokens"),
        ),
        "include_prompt": "whether a prompt's own tokens are pooled too",
    },
    harmless=_keys("the encoder's width", "word_embedding_dimension", "embedding_dimension"),
    accepted={
        "pooling_mode_mean_sqrt_len_tokens": (False,),
        "pooling_mode_weightedmean_tokens": (False,),
        "pooling_mode_lasttoken": (False,),
    },
)

DENSE = FileKeys(
    "2_Dense/config.json",
    honoured={
        "activation_function": "the class of torch's activations; no other code's",
        **_keys("the shape, which the tensors must have", "in_features", "out_features", "bias"),
        "use_residual": "whether the input is added to the result",
    },
    accepted={
        "module_input_name": ("sentence_embedding",),
        "module_output_name": ("sentence_embedding",),
    },
)

WEIGHTED_LAYER_POOLING = FileKeys(
    "1_WeightedLayerPooling/config.json",
    honoured=_keys("the layers that have a weight", "layer_start", "num_hidden_layers"),
    harmless=_keys("the encoder's width", "word_embedding_dimension", "embedding_dimension"),
)

LAYER_NORM = FileKeys(
    "2_LayerNorm/config.json", honoured={"dimension": "the width, which the tensors must have"}
)

DROPOUT = FileKeys("2_Dropout/config.json", honoured={"dropout": "the share of values, in training alone"})

NORMALIZE = FileKeys(
    "2_Normalize/config.json",
    honoured={},
    accepted={
        "module_input_name": ("sentence_embedding",),
        "module_output_name": ("sentence_embedding",),
    },
)

MODULES = FileKeys(
    "modules.json, of each module",
    honoured={"type": "what the module is", "path": "its folder"},
    harmless=_keys("its place is its number", "idx", "name"),
    accepted={"kwargs": ([],)},
)

SENTENCE_TRANSFORMERS = FileKeys(
    "config_sentence_transformers.json",
    honoured={
        "prompts": "what stands before queries, documents and other texts",
        "default_prompt_name": "what stands before a text that is no query or document, and before each pair",
        "similarity_fn_name": "a note where vectors were trained for dot products",
        "truncate_dim": "how many of the first dimensions are kept",
        "activation_fn": "what a cross-encoder's outputs are put through",
    },
    harmless={
        **_keys("who wrote the file, and how", "__version__", "requirements"),
        **_keys("all heads compute in float32", "keep_in_fp32_modules"),
    },
    # sentence-transformers opens folders of its other kinds without their modules
    accepted={"model_type": ("SentenceTransformer", "CrossEncoder")},
    open=True,
)

#: The names of special tokens, as transformers wrote them before version 5.
SPECIAL_TOKENS_MAP = FileKeys(
    "special_tokens_map.json",
    honoured={
        key: TOKENIZER_CONFIG.honoured[key]
        for key in (
            *("cls_token", "mask_token", "pad_token", "sep_token", "unk_token"),
            *("additional_special_tokens", "extra_special_tokens", "bos_token", "eos_token"),
        )
    },
    open=True,
)

#: By the page's headings; files that hold tokens alone have no keys of their own.
TABLES = (
    *(CONFIG, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, MODULES, TRANSFORMER, POOLING, DENSE, NORMALIZE),
    *(LAYER_NORM, DROPOUT, WEIGHTED_LAYER_POOLING, SENTENCE_TRANSFORMERS),
)

"""BERT, and the families that differ from it little: jina's, RoBERTa and its copies, DistilBERT, MPNet and
ALBERT.
"""

from dataclasses import replace

from bertsmith.model.families.family import (
    CLASSIFIER,
    MASKED_LANGUAGE,
    TOKENS,
    AuthorsFiles,
    Family,
    HeadNames,
    ModuleNames,
    Size,
    layer_rows,
    register,
)

# The spelling of BERT's config.json, which is BertConfig's.
BERT_SPELLING = {
    name: name
    for name in (
        *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
        *("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings"),
        *("type_vocab_size", "initializer_range", "layer_norm_eps", "pad_token_id"),
    )
}
BERT_REQUIRED = {"position_embedding_type": ("absolute",)}

EMBEDDINGS = (
    ModuleNames("encoder.embeddings.token", ("embeddings.word_embeddings",)),
    ModuleNames("encoder.embeddings.position", ("embeddings.position_embeddings",)),
    ModuleNames("encoder.embeddings.norm", ("embeddings.LayerNorm",)),
)
SEGMENT = ModuleNames("encoder.embeddings.segment", ("embeddings.token_type_embeddings",))
POOLER = ModuleNames("encoder.pooler", ("pooler.dense",))


_SELF = "encoder.layer.{}.attention.self"
_BERT_LAYER = layer_rows(
    attention=(f"{_SELF}.query", f"{_SELF}.key", f"{_SELF}.value"),
    output="encoder.layer.{}.attention.output.dense",
    attention_norm="encoder.layer.{}.attention.output.LayerNorm",
    up=("encoder.layer.{}.intermediate.dense",),
    down="encoder.layer.{}.output.dense",
    norm="encoder.layer.{}.output.LayerNorm",
)

# Devlin et al. 2019.
BERT = register(
    Family(
        model_type="bert",
        class_prefix="Bert",
        prefix="bert",
        encoder=(*EMBEDDINGS, SEGMENT, POOLER),
        layer=_BERT_LAYER,
        heads=(
            ModuleNames("masked_language.dense", ("cls.predictions.transform.dense",)),
            ModuleNames("masked_language.norm", ("cls.predictions.transform.LayerNorm",)),
            ModuleNames("masked_language", ("cls.predictions",)),
            ModuleNames("next_sentence", ("cls.seq_relationship",)),
        ),
        tied={
            "cls.predictions.decoder.weight": TOKENS,
            "cls.predictions.decoder.bias": "masked_language.bias",
        },
        classes={
            "Model": frozenset(),
            "ForPreTraining": frozenset({"masked_language", "next_sentence"}),
            "ForMaskedLM": MASKED_LANGUAGE,
            "ForNextSentencePrediction": frozenset({"next_sentence"}),
            "ForSequenceClassification": CLASSIFIER,
            "ForTokenClassification": CLASSIFIER,
            "ForMultipleChoice": CLASSIFIER,
            "ForQuestionAnswering": frozenset({"qa_outputs"}),
        },
        sequence_head=HeadNames("classifier", pooled=True),
        token_head=HeadNames("classifier"),
        span_head=HeadNames("qa_outputs"),
        spelling=BERT_SPELLING,
        required=BERT_REQUIRED,
    )
)

# Günther et al. 2023 (arXiv 2310.19923): jina-embeddings-v2, BERT with ALiBi and a gated feed-forward part,
# whose files call themselves BERT's. transformers opens them only by the authors' code, of which the saved
# files name the place too; TEI knows them by `_name_or_path`.
_JINA = "jinaai/jina-bert-implementation"
_JINA_CLASSES = {
    "AutoConfig": "configuration_bert.JinaBertConfig",
    "AutoModel": "modeling_bert.JinaBertModel",
    **{
        f"AutoModel{name}": f"modeling_bert.JinaBert{name}"
        for name in (
            *("ForPreTraining", "ForMaskedLM", "ForNextSentencePrediction", "ForSequenceClassification"),
            *("ForTokenClassification", "ForMultipleChoice", "ForQuestionAnswering"),
        )
    },
}
JINA_BERT = register(
    replace(
        BERT,
        model_type="jina_bert",
        class_prefix="JinaBert",
        encoder=(EMBEDDINGS[0], EMBEDDINGS[2], SEGMENT, POOLER),
        layer=layer_rows(
            attention=(f"{_SELF}.query", f"{_SELF}.key", f"{_SELF}.value"),
            output="encoder.layer.{}.attention.output.dense",
            attention_norm="encoder.layer.{}.attention.output.LayerNorm",
            up=("encoder.layer.{}.mlp.gated_layers",),
            down="encoder.layer.{}.mlp.wo",
            norm="encoder.layer.{}.mlp.layernorm",
        ),
        published={
            "vocab_size": 30528,
            "max_position_embeddings": 8192,
            "attention_probs_dropout_prob": 0.0,
            "dropout_places": "first output and inside",
            "position_bias": "alibi",
            "position_biased_input": False,
            "feed_forward": "gated",
            "up_bias": False,
            "head_act": "gelu",
        },
        assumed={"vocab_size": 30522, "max_position_embeddings": 512, "attention_probs_dropout_prob": 0.1},
        # their `hidden_act` is the masked-language head's alone
        spelling={**BERT_SPELLING, "hidden_act": "feed_forward_type", "head_act": "hidden_act"},
        renamed={"feed_forward_type": {"geglu": "gelu", "reglu": "relu"}},
        declared={"model_type": "bert", "position_embedding_type": "alibi"},
        required={
            "position_embedding_type": ("alibi",),
            "emb_pooler": ("mean",),
            "attn_implementation": ("torch", "eager", "sdpa"),
        },
        harmless={"model_max_length": "the tokenizer's files say how long a text may be"},
        written={
            "_name_or_path": _JINA,
            "auto_map": {auto: f"{_JINA}--{name}" for auto, name in _JINA_CLASSES.items()},
            "emb_pooler": "mean",
        },
        authors=AuthorsFiles(prefix="bert", code=frozenset(_JINA_CLASSES.values())),
        refused={"layer_norm_q": "normalised queries and keys (jina-embeddings-v2-base-code)"},
    )
)

# Liu et al. 2019: a byte-level vocabulary, one segment, <pad> is 1 and positions start after it, no
# next-sentence prediction (section 4.2). Its masked-language head has gelu whatever its layers use.
ROBERTA = register(
    Family(
        model_type="roberta",
        class_prefix="Roberta",
        prefix="roberta",
        encoder=(*EMBEDDINGS, SEGMENT, POOLER),
        layer=_BERT_LAYER,
        heads=(
            ModuleNames("masked_language.dense", ("lm_head.dense",)),
            ModuleNames("masked_language.norm", ("lm_head.layer_norm",)),
            ModuleNames("masked_language", ("lm_head",)),
        ),
        tied={"lm_head.decoder.weight": TOKENS, "lm_head.decoder.bias": "masked_language.bias"},
        classes={
            "Model": frozenset(),
            "ForMaskedLM": MASKED_LANGUAGE,
            "ForSequenceClassification": CLASSIFIER,
            "ForTokenClassification": CLASSIFIER,
            "ForMultipleChoice": CLASSIFIER,
            "ForQuestionAnswering": frozenset({"qa_outputs"}),
        },
        sequence_head=HeadNames(
            "classifier.out_proj", dense="classifier.dense", activation="tanh", drops_first=True
        ),
        token_head=HeadNames("classifier"),
        span_head=HeadNames("qa_outputs"),
        published={
            "vocab_size": 50265,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
            "pad_token_id": 1,
            "head_act": "gelu",
        },
        assumed={"max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12},
        spelling=BERT_SPELLING,
        required=BERT_REQUIRED,
        positions_after_padding=True,
    )
)

# RoBERTa in a hundred languages (Conneau et al. 2020), and in French (Martin et al. 2020), with Unigram
# vocabularies. The tensors of both are named as RoBERTa's.
XLM_ROBERTA = register(
    replace(
        ROBERTA,
        model_type="xlm-roberta",
        class_prefix="XLMRoberta",
        published={**ROBERTA.published, "vocab_size": 250002},
    )
)
CAMEMBERT = register(
    replace(
        ROBERTA,
        model_type="camembert",
        class_prefix="Camembert",
        published={**ROBERTA.published, "vocab_size": 32005},
    )
)

# Sanh et al. 2019: half of BERT's layers, no segments, no pooler, no next-sentence prediction (section 3).
_OWN = "transformer.layer.{}.attention"
DISTILBERT = register(
    Family(
        model_type="distilbert",
        class_prefix="DistilBert",
        prefix="distilbert",
        encoder=EMBEDDINGS,
        layer=layer_rows(
            attention=(f"{_OWN}.q_lin", f"{_OWN}.k_lin", f"{_OWN}.v_lin"),
            output="transformer.layer.{}.attention.out_lin",
            attention_norm="transformer.layer.{}.sa_layer_norm",
            up=("transformer.layer.{}.ffn.lin1",),
            down="transformer.layer.{}.ffn.lin2",
            norm="transformer.layer.{}.output_layer_norm",
        ),
        heads=(
            ModuleNames("masked_language.dense", ("vocab_transform",)),
            ModuleNames("masked_language.norm", ("vocab_layer_norm",)),
            ModuleNames("masked_language", ("vocab_projector",)),
        ),
        tied={"vocab_projector.weight": TOKENS},
        classes={
            "Model": frozenset(),
            "ForMaskedLM": MASKED_LANGUAGE,
            "ForSequenceClassification": frozenset({"pre_classifier", "classifier"}),
            "ForMultipleChoice": frozenset({"pre_classifier", "classifier"}),
            "ForTokenClassification": CLASSIFIER,
            "ForQuestionAnswering": frozenset({"qa_outputs"}),
        },
        sequence_head=HeadNames("classifier", dense="pre_classifier", activation="relu"),
        token_head=HeadNames("classifier"),
        span_head=HeadNames("qa_outputs"),
        published={"num_hidden_layers": 6, "type_vocab_size": 0},
        spelling={
            "vocab_size": "vocab_size",
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
            "hidden_dropout_prob": "dropout",
            "attention_probs_dropout_prob": "attention_dropout",
            "max_position_embeddings": "max_position_embeddings",
            "initializer_range": "initializer_range",
            "pad_token_id": "pad_token_id",
        },
        aliases={name: name for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")},
        required={**BERT_REQUIRED, "sinusoidal_pos_embds": (False,)},
        harmless=dict.fromkeys(
            (
                *("intermediate_size", "hidden_act", "layer_norm_eps", "type_vocab_size"),
                *("hidden_dropout_prob", "attention_probs_dropout_prob"),
            ),
            "of BERT: a DistilBERT has another key for it, or no such thing, and transformers ignores it",
        ),
    )
)

# Song et al. 2020 (arXiv 2004.09297): RoBERTa's heads and positions, no segments, and a bias of the scores by
# distance. In transformers' code the padding's id is 1 and there are 32 buckets, whatever config.json says.
_ATTN = "encoder.layer.{}.attention.attn"
_FIXED = ("type_vocab_size", "pad_token_id")
MPNET = register(
    Family(
        model_type="mpnet",
        class_prefix="MPNet",
        prefix="mpnet",
        encoder=(
            *EMBEDDINGS,
            ModuleNames("encoder.relative.bias", ("encoder.relative_attention_bias",)),
            POOLER,
        ),
        layer=layer_rows(
            attention=(f"{_ATTN}.q", f"{_ATTN}.k", f"{_ATTN}.v"),
            output=f"{_ATTN}.o",
            attention_norm="encoder.layer.{}.attention.LayerNorm",
            up=("encoder.layer.{}.intermediate.dense",),
            down="encoder.layer.{}.output.dense",
            norm="encoder.layer.{}.output.LayerNorm",
        ),
        heads=ROBERTA.heads,
        tied=ROBERTA.tied,
        classes=ROBERTA.classes,
        sequence_head=ROBERTA.sequence_head,
        token_head=ROBERTA.token_head,
        span_head=ROBERTA.span_head,
        published={
            "vocab_size": 30527,
            "max_position_embeddings": 514,
            "type_vocab_size": 0,
            "layer_norm_eps": 1e-5,
            "pad_token_id": 1,
            "head_act": "gelu",
            "position_bias": "buckets",
        },
        assumed={"max_position_embeddings": 512, "layer_norm_eps": 1e-12},
        spelling={ours: theirs for ours, theirs in BERT_SPELLING.items() if ours not in _FIXED},
        required={"pad_token_id": (1,), "relative_attention_num_buckets": (32,)},
        written={"pad_token_id": 1, "relative_attention_num_buckets": 32},
        positions_after_padding=True,
    )
)

# Lan et al. 2020 (arXiv 1909.11942): one layer's weights are used again and again, the embeddings are narrow,
# and the pair head tells whether two segments are in order (sections 3.1 and 4.1).
_SHARED = "encoder.albert_layer_groups.{group}.albert_layers.{inner}"
ALBERT = register(
    Family(
        model_type="albert",
        class_prefix="Albert",
        prefix="albert",
        encoder=(
            *EMBEDDINGS,
            SEGMENT,
            ModuleNames("encoder.embeddings.project", ("encoder.embedding_hidden_mapping_in",)),
            ModuleNames("encoder.pooler", ("pooler",)),
        ),
        layer=layer_rows(
            attention=tuple(f"{_SHARED}.attention.{part}" for part in ("query", "key", "value")),
            output=f"{_SHARED}.attention.dense",
            attention_norm=f"{_SHARED}.attention.LayerNorm",
            up=(f"{_SHARED}.ffn",),
            down=f"{_SHARED}.ffn_output",
            norm=f"{_SHARED}.full_layer_layer_norm",
        ),
        heads=(
            ModuleNames("masked_language.dense", ("predictions.dense",)),
            ModuleNames("masked_language.norm", ("predictions.LayerNorm",)),
            ModuleNames("masked_language", ("predictions",)),
            ModuleNames("next_sentence", ("sop_classifier.classifier",)),
        ),
        tied={"predictions.decoder.weight": TOKENS, "predictions.decoder.bias": "masked_language.bias"},
        classes={
            "Model": frozenset(),
            "ForPreTraining": frozenset({"masked_language", "next_sentence"}),
            "ForMaskedLM": MASKED_LANGUAGE,
            "ForSequenceClassification": CLASSIFIER,
            "ForTokenClassification": CLASSIFIER,
            "ForMultipleChoice": CLASSIFIER,
            "ForQuestionAnswering": frozenset({"qa_outputs"}),
        },
        sequence_head=HeadNames("classifier", pooled=True),
        token_head=HeadNames("classifier"),
        span_head=HeadNames("qa_outputs"),
        published={
            "vocab_size": 30000,
            "embedding_size": 128,
            "hidden_act": "gelu_new",
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "num_hidden_groups": 1,
        },
        # transformers' defaults are the sizes of ALBERT-xxlarge
        assumed={"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
        spelling={
            **BERT_SPELLING,
            **{name: name for name in ("embedding_size", "num_hidden_groups", "inner_group_num")},
        },
        required=BERT_REQUIRED,
        harmless={
            "classifier_dropout_prob": "for training alone",
            **dict.fromkeys(
                ("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"),
                "of Google's code, and read by nobody",
            ),
        },
        written=dict.fromkeys(("bos_token_id", "eos_token_id")),
        always_projects=True,
        sentence_order=True,
        # Lan et al. 2020, table 1
        sizes={
            "base": Size(12, 768, 12, 3072, embedding=128),
            "large": Size(24, 1024, 16, 4096, embedding=128),
            "xlarge": Size(24, 2048, 16, 8192, embedding=128),
            "xxlarge": Size(12, 4096, 64, 16384, embedding=128),
        },
    )
)

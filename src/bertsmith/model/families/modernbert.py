"""ModernBERT, the family of Ettin and mmBERT too. `Family` in family.py explains each row of the record."""

from bertsmith.model.families.family import (
    MASKED_LANGUAGE,
    TOKENS,
    Family,
    HeadNames,
    ModuleNames,
    Size,
    layer_rows,
    register,
)
from bertsmith.model.rotary_json import BY_LAYER_TYPE

# Warner et al. 2024 (arXiv 2412.13663): pre-norm, rotary positions, GeGLU, local and global attention in
# turn, no biases. Layer 0 has no norm before its attention, since the embeddings' norm comes just before it.
# One head module stands before every classifier.
_HEAD = HeadNames("classifier", dense="head.dense", norm="head.norm")
MODERNBERT = register(
    Family(
        model_type="modernbert",
        class_prefix="ModernBert",
        prefix="model",
        encoder=(
            ModuleNames("encoder.embeddings.token", ("embeddings.tok_embeddings",)),
            ModuleNames("encoder.embeddings.norm", ("embeddings.norm",)),
            ModuleNames("encoder.final_norm", ("final_norm",)),
        ),
        layer=layer_rows(
            attention=("layers.{}.attn.Wqkv",),
            output="layers.{}.attn.Wo",
            attention_norm="layers.{}.attn_norm",
            up=("layers.{}.mlp.Wi",),
            down="layers.{}.mlp.Wo",
            norm="layers.{}.mlp_norm",
        ),
        heads=(
            ModuleNames("masked_language.dense", ("head.dense",)),
            ModuleNames("masked_language.norm", ("head.norm",)),
            ModuleNames("masked_language", ("decoder",)),
        ),
        tied={"decoder.weight": TOKENS},
        classes={
            "Model": frozenset(),
            "ForMaskedLM": MASKED_LANGUAGE,
            "ForSequenceClassification": frozenset({"head", "classifier"}),
            "ForTokenClassification": frozenset({"head", "classifier"}),
            "ForMultipleChoice": frozenset({"head", "classifier"}),
            "ForQuestionAnswering": frozenset({"head", "classifier"}),
        },
        sequence_head=_HEAD,
        token_head=_HEAD,
        span_head=_HEAD,
        published={
            "vocab_size": 50368,
            "num_hidden_layers": 22,
            "intermediate_size": 1152,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "embedding_dropout": 0.0,
            "dropout_places": "inside",
            "max_position_embeddings": 8192,
            "type_vocab_size": 0,
            "layer_norm_eps": 1e-5,
            "pad_token_id": 50283,
            "position_embedding": "rotary",
            "rope_theta": 160_000.0,
            "local_rope_theta": 10_000.0,
            "local_attention": 128,
            "global_attn_every_n_layers": 3,
            "pre_norm": True,
            "first_norm": False,
            "final_norm": True,
            "norm_bias": False,
            "attention_bias": False,
            "feed_forward": "gated",
            "feed_forward_bias": False,
            "head_act": "gelu",
            "head_bias": False,
        },
        spelling={
            **{
                name: name
                for name in (
                    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
                    *("intermediate_size", "max_position_embeddings", "initializer_range", "pad_token_id"),
                    *("norm_bias", "attention_bias", "embedding_dropout", "local_attention"),
                    "classifier_pooling",
                )
            },
            "hidden_act": "hidden_activation",
            "hidden_dropout_prob": "mlp_dropout",
            "attention_probs_dropout_prob": "attention_dropout",
            "layer_norm_eps": "norm_eps",
            "feed_forward_bias": "mlp_bias",
            "head_act": "classifier_activation",
            "head_bias": "classifier_bias",
        },
        # sliding_window is another name of local_attention / 2, which transformers lets win over it, so it
        # must be missing or null
        required={"decoder_bias": (True,), "sliding_window": ()},
        harmless={
            **dict.fromkeys(
                ("initializer_cutoff_factor", "sparse_prediction", "sparse_pred_ignore_index"),
                "for training alone",
            ),
            **dict.fromkeys(
                ("deterministic_flash_attn", "reference_compile", "repad_logits_with_grad"),
                "how it is computed, with the same numbers",
            ),
            **dict.fromkeys(
                ("position_embedding_type", "layer_norm_eps"),
                "written by the authors and read by nobody; the latter is norm_eps",
            ),
        },
        # without these keys transformers would take the ids of ModernBERT's own vocabulary
        written=dict.fromkeys(("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id")),
        rotary=BY_LAYER_TYPE,
        # Warner et al. 2024, table 4, and Weller et al. 2025 (Ettin, arXiv 2507.11412), table 1
        sizes={
            "ettin-17m": Size(7, 256, 4, 384),
            "ettin-32m": Size(10, 384, 6, 576),
            "ettin-68m": Size(19, 512, 8, 768),
            "base": Size(22, 768, 12, 1152),
            "large": Size(28, 1024, 16, 2624),
        },
    )
)

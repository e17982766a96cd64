"""gte ("new" in its authors' files): rotary positions and a gated feed-forward part in BERT's layers."""

from bertsmith.model.families.bert import BERT_SPELLING, POOLER, SEGMENT
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
from bertsmith.model.rotary_json import SCALED

# Zhang et al. 2024 (arXiv 2407.19669). The authors' model_type is "new" (Alibaba-NLP/new-impl), and Snowflake
# has the same code under other names.
_CLASSES = (
    *("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"),
    *("ForMultipleChoice", "ForQuestionAnswering"),
)
GTE = register(
    Family(
        model_type="gte",
        class_prefix="Gte",
        prefix="gte",
        encoder=(
            ModuleNames("encoder.embeddings.token", ("embeddings.word_embeddings",)),
            ModuleNames("encoder.embeddings.norm", ("embeddings.LayerNorm",)),
            SEGMENT,
            POOLER,
        ),
        layer=layer_rows(
            attention=("encoder.layer.{}.attention.qkv_proj",),
            output="encoder.layer.{}.attention.o_proj",
            attention_norm="encoder.layer.{}.attn_ln",
            up=("encoder.layer.{}.mlp.up_gate_proj",),
            down="encoder.layer.{}.mlp.down_proj",
            norm="encoder.layer.{}.mlp_ln",
            gate_second=True,
        ),
        class_layer=layer_rows(
            attention=tuple(f"layers.{{}}.self_attn.{part}_proj" for part in "qkv"),
            output="layers.{}.self_attn.o_proj",
            attention_norm="layers.{}.post_attention_layernorm",
            up=("layers.{}.mlp.gate_proj", "layers.{}.mlp.up_proj"),
            down="layers.{}.mlp.down_proj",
            norm="layers.{}.post_mlp_layernorm",
        ),
        heads=(
            ModuleNames("masked_language.dense", ("lm_head.dense",)),
            ModuleNames("masked_language.norm", ("lm_head.norm",)),
            ModuleNames("masked_language", ("lm_head.decoder",)),
        ),
        tied={"lm_head.decoder.weight": TOKENS},
        authors=AuthorsFiles(
            prefix="new",
            model_type="new",
            assumed={"vocab_size": 30528, "max_position_embeddings": 2048, "rope_theta": 10_000.0}
            | {"pad_token_id": 0},
            code=frozenset(
                {"configuration.NewConfig", "configuration_hf_alibaba_nlp_gte.GteConfig"}
                | {f"modeling.New{name}" for name in _CLASSES}
                | {f"modeling_hf_alibaba_nlp_gte.Gte{name}" for name in _CLASSES}
            ),
        ),
        classes={
            "Model": frozenset(),
            "ForMaskedLM": MASKED_LANGUAGE,
            "ForSequenceClassification": CLASSIFIER,
            "ForTokenClassification": CLASSIFIER,
        },
        sequence_head=HeadNames("classifier", pooled=True),
        token_head=HeadNames("classifier"),
        published={
            "vocab_size": 250048,
            "attention_probs_dropout_prob": 0.0,
            "dropout_places": "outputs and inside",
            "max_position_embeddings": 8192,
            "type_vocab_size": 1,
            "pad_token_id": 1,
            "position_embedding": "rotary",
            "rope_theta": 160_000.0,
            "feed_forward": "gated",
            "up_bias": False,
            "head_act": "gelu",
        },
        spelling=BERT_SPELLING,
        required={
            "layer_norm_type": ("layer_norm",),
            "logn_attention_scale": (False,),
            "pack_qkv": (True,),
            "position_embedding_type": ("rope",),
        },
        harmless={
            "logn_attention_clip1": "of logn_attention_scale, which must be off",
            **dict.fromkeys(
                ("unpad_inputs", "use_memory_efficient_attention"),
                "how it is computed, with the same numbers",
            ),
        },
        rotary=SCALED,
        optional_segments=True,
        # base and large are the authors'; the others have BERT's layers and width, and about as many weights
        sizes={
            "tiny": Size(2, 128, 2, 352),
            "mini": Size(4, 256, 4, 688),
            "small": Size(4, 512, 8, 1376),
            "medium": Size(8, 512, 8, 1376),
            "base": Size(12, 768, 12, 3072),
            "large": Size(24, 1024, 16, 4096),
        },
    )
)

"""Nomic's BERT (nomic-embed-text): rotary positions and SwiGLU in BERT's layers."""

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
from bertsmith.model.rotary_json import FOR_ALL_LAYERS

# Nussbaum et al. 2024 (arXiv 2402.01613): BERT with rotary positions and SwiGLU, no biases in its products.
# The authors' code spells the settings as GPT-2 does, transformers as BERT does. In the authors' models with
# a head the encoder is called "bert", and their head for masked words has no biases (nomic-ai/contrastors,
# modeling_hf_nomic_bert).
_GPT2_SPELLING = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
NOMIC_BERT = register(
    Family(
        model_type="nomic_bert",
        class_prefix="NomicBert",
        prefix="nomic_bert",
        encoder=(
            ModuleNames("encoder.embeddings.token", ("embeddings.word_embeddings",)),
            ModuleNames("encoder.embeddings.norm", ("emb_ln",)),
            SEGMENT,
            POOLER,
        ),
        layer=layer_rows(
            attention=("encoder.layers.{}.attn.Wqkv",),
            output="encoder.layers.{}.attn.out_proj",
            attention_norm="encoder.layers.{}.norm1",
            up=("encoder.layers.{}.mlp.fc12", "encoder.layers.{}.mlp.fc11"),  # fc12 is activated
            down="encoder.layers.{}.mlp.fc2",
            norm="encoder.layers.{}.norm2",
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
            ModuleNames("masked_language.dense", ("cls.predictions.transform.dense",)),
            ModuleNames("masked_language.norm", ("cls.predictions.transform.layer_norm",)),
            ModuleNames("masked_language", ("cls.predictions",)),
        ),
        tied={
            "cls.predictions.decoder.weight": TOKENS,
            "cls.predictions.decoder.bias": "masked_language.bias",
        },
        authors=AuthorsFiles(
            prefix="bert",
            zeros={
                "masked_language.dense.bias": "masked_language.dense.weight",
                "masked_language.bias": TOKENS,
            },
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
            "vocab_size": 30528,
            "hidden_act": "silu",
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "max_position_embeddings": 2048,
            "position_embedding": "rotary",
            "rope_theta": 1000.0,
            "attention_bias": False,
            "feed_forward": "gated",
            "feed_forward_bias": False,
        },
        spelling=BERT_SPELLING,
        aliases=_GPT2_SPELLING,
        required={
            "activation_function": ("swiglu",),
            "causal": (False,),
            "mlp_fc1_bias": (False,),
            "mlp_fc2_bias": (False,),
            "parallel_block": (False,),
            "prenorm": (False,),
            "qkv_proj_bias": (False,),
            "reorder_and_upcast_attn": (False,),
            "rotary_emb_fraction": (1.0, 1),
            "rotary_emb_interleaved": (False,),
            "rotary_emb_scale_base": (),
            "rotary_scaling_factor": (),
            "scale_attn_by_inverse_layer_idx": (False,),
            "scale_attn_weights": (True,),
            "use_rms_norm": (False,),
        },
        harmless={
            "embd_pdrop": "dropout is that of resid_pdrop, as in transformers",
            **dict.fromkeys(
                (
                    *("dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "max_trained_positions"),
                    *("pad_vocab_size_multiple", "use_flash_attn", "use_xentropy"),
                ),
                "how it is computed, with the same numbers",
            ),
            **dict.fromkeys(
                (
                    *("summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
                    *("summary_type", "summary_use_proj"),
                ),
                "of GPT-2's head, which the family doesn't have",
            ),
        },
        written=dict.fromkeys(("bos_token_id", "eos_token_id")),
        rotary=FOR_ALL_LAYERS,
        # the base is Nomic's; the others have BERT's layers and width, and about as many weights as BERT's
        sizes={
            "tiny": Size(2, 128, 2, 352),
            "mini": Size(4, 256, 4, 688),
            "small": Size(4, 512, 8, 1376),
            "medium": Size(8, 512, 8, 1376),
            "base": Size(12, 768, 12, 3072),
            "large": Size(24, 1024, 16, 2736),
        },
    )
)

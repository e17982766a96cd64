"""DeBERTa's second and third version: disentangled attention to contents and distances, in BERT's layers."""

from bertsmith.model.families.bert import BERT, BERT_SPELLING, EMBEDDINGS, SEGMENT
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

# He et al. 2021 (arXiv 2006.03654, and 2111.09543 for the third version, which has other weights and a head
# that finds replaced tokens). Attention knows distances, so that there need be no table of positions. The
# pooler belongs to the classifier.
_SELF = "encoder.layer.{}.attention.self"
_POOLED = frozenset({"pooler", "classifier"})
DEBERTA_V2 = register(
    Family(
        model_type="deberta-v2",
        class_prefix="DebertaV2",
        prefix="deberta",
        encoder=(
            *EMBEDDINGS,
            SEGMENT,
            ModuleNames("encoder.embeddings.project", ("embeddings.embed_proj",)),
            ModuleNames("encoder.relative.table", ("encoder.rel_embeddings",)),
            ModuleNames("encoder.relative.norm", ("encoder.LayerNorm",)),
            ModuleNames("encoder.convolution.conv", ("encoder.conv.conv",)),
            ModuleNames("encoder.convolution.norm", ("encoder.conv.LayerNorm",)),
        ),
        layer=(
            *layer_rows(
                attention=(f"{_SELF}.query_proj", f"{_SELF}.key_proj", f"{_SELF}.value_proj"),
                output="encoder.layer.{}.attention.output.dense",
                attention_norm="encoder.layer.{}.attention.output.LayerNorm",
                up=("encoder.layer.{}.intermediate.dense",),
                down="encoder.layer.{}.output.dense",
                norm="encoder.layer.{}.output.LayerNorm",
            ),
            ModuleNames("encoder.layers.{}.attention.distances.key", (f"{_SELF}.pos_key_proj",)),
            ModuleNames("encoder.layers.{}.attention.distances.query", (f"{_SELF}.pos_query_proj",)),
        ),
        heads=tuple(row for row in BERT.heads if row.ours != "next_sentence"),
        tied={
            "cls.predictions.decoder.weight": TOKENS,
            "cls.predictions.decoder.bias": "masked_language.bias",
        },
        # the published files of the third version; transformers' "legacy" classes compute the same
        read_as={
            "lm_predictions.lm_head.dense": "cls.predictions.transform.dense",
            "lm_predictions.lm_head.LayerNorm": "cls.predictions.transform.LayerNorm",
            "lm_predictions.lm_head": "cls.predictions",
        },
        ignored=frozenset({"mask_predictions"}),
        optional_segments=True,
        classes={
            "Model": frozenset(),
            "ForMaskedLM": MASKED_LANGUAGE,
            "ForSequenceClassification": _POOLED,
            "ForTokenClassification": frozenset({"classifier"}),
            "ForMultipleChoice": _POOLED,
            "ForQuestionAnswering": frozenset({"qa_outputs"}),
        },
        sequence_head=HeadNames("classifier", dense="pooler.dense", activation="gelu"),
        token_head=HeadNames("classifier"),
        span_head=HeadNames("qa_outputs"),
        published={
            "vocab_size": 128100,
            "type_vocab_size": 0,
            "layer_norm_eps": 1e-7,
            "relative_attention": True,
            "pos_att_type": ("c2p", "p2c"),
            "share_att_key": True,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "projection_place": "before_norm",
        },
        assumed={
            "hidden_size": 1536,
            "num_hidden_layers": 24,
            "num_attention_heads": 24,
            "intermediate_size": 6144,
            "relative_attention": False,
            "pos_att_type": (),
            "share_att_key": False,
            "position_buckets": -1,
            "norm_rel_ebd": "none",
            "position_biased_input": True,
        },
        spelling={
            **BERT_SPELLING,
            **{
                name: name
                for name in (
                    *("embedding_size", "relative_attention", "pos_att_type", "share_att_key"),
                    *("position_buckets", "max_relative_positions", "norm_rel_ebd", "position_biased_input"),
                    *("conv_kernel_size", "conv_act", "conv_groups"),
                )
            },
        },
        required={"pooler_hidden_act": ("gelu",)},
        harmless={
            **dict.fromkeys(
                ("attention_head_size", "pooler_hidden_size"), "the tensors have no other shape than this"
            ),
            **dict.fromkeys(("pooler_dropout", "cls_dropout"), "for training alone"),
            "legacy": "the head for masked words is read under either name",
        },
        written={"legacy": True},
        # microsoft/DeBERTa, of the third version
        sizes={
            "xsmall": Size(12, 384, 6, 1536),
            "small": Size(6, 768, 12, 3072),
            "base": Size(12, 768, 12, 3072),
            "large": Size(24, 1024, 16, 4096),
        },
    )
)

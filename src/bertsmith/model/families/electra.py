"""ELECTRA: BERT's layers after embeddings of a width of their own, and a head that finds replaced tokens."""

from bertsmith.model.families.bert import BERT, BERT_REQUIRED, BERT_SPELLING, EMBEDDINGS, SEGMENT
from bertsmith.model.families.family import (
    CLASSIFIER,
    MASKED_LANGUAGE,
    TOKENS,
    Family,
    HeadNames,
    ModuleNames,
    Size,
    register,
)

REPLACED_TOKEN = frozenset({"replaced_token"})

# Clark et al. 2020 (arXiv 2003.10555): no pooler and no next-sentence prediction. Discriminator and generator
# are folders of one family, each with its own head; the generator's has gelu whatever the layers use.
ELECTRA = register(
    Family(
        model_type="electra",
        class_prefix="Electra",
        prefix="electra",
        encoder=(*EMBEDDINGS, SEGMENT, ModuleNames("encoder.embeddings.project", ("embeddings_project",))),
        layer=BERT.layer,
        heads=(
            ModuleNames("masked_language.dense", ("generator_predictions.dense",)),
            ModuleNames("masked_language.norm", ("generator_predictions.LayerNorm",)),
            ModuleNames("masked_language", ("generator_lm_head",)),
            ModuleNames("replaced_token.dense", ("discriminator_predictions.dense",)),
            ModuleNames("replaced_token.out", ("discriminator_predictions.dense_prediction",)),
        ),
        tied={"generator_lm_head.weight": TOKENS},
        classes={
            "Model": frozenset(),
            "ForPreTraining": REPLACED_TOKEN,
            "ForMaskedLM": MASKED_LANGUAGE,
            "ForSequenceClassification": CLASSIFIER,
            "ForTokenClassification": CLASSIFIER,
            "ForMultipleChoice": frozenset({"sequence_summary", "classifier"}),
            "ForQuestionAnswering": frozenset({"qa_outputs"}),
        },
        sequence_head=HeadNames(
            "classifier.out_proj", dense="classifier.dense", activation="gelu", drops_first=True
        ),
        token_head=HeadNames("classifier"),
        span_head=HeadNames("qa_outputs"),
        published={"head_act": "gelu"},
        # transformers' defaults are the sizes of ELECTRA-small
        assumed={
            "embedding_size": 128,
            "hidden_size": 256,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
        },
        spelling={**BERT_SPELLING, "embedding_size": "embedding_size"},
        required=BERT_REQUIRED,
        harmless=dict.fromkeys(
            (
                *("summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout"),
                *("summary_last_dropout", "summary_proj_to_labels"),
            ),
            "of the head for multiple choice alone",
        ),
        # Clark et al. 2020, appendix A, table 6
        sizes={
            "small": Size(12, 256, 4, 1024, embedding=128),
            "base": Size(12, 768, 12, 3072),
            "large": Size(24, 1024, 16, 4096),
        },
    )
)

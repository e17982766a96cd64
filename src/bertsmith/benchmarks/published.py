"""Published scores in points of 100: of which model, on which split, and in which source.

GLUE's scores of MRPC, STS-B and QQP are the mean of both metrics where the source has both, otherwise the one
that it names; SuperGLUE's of CB, MultiRC and ReCoRD are the mean of both.
"""

from collections.abc import Mapping
from typing import NamedTuple


class PublishedScores(NamedTuple):
    """A model's scores by task. `part` is dev, or test for scores by the benchmark's server."""

    model: str
    part: str
    scores: Mapping[str, float]
    source: str


_TURC = "google-research/bert, README: 24 smaller models (Turc et al. 2019), GLUE's server"
_DEVLIN = "Devlin et al. 2019, table 1: MRPC and QQP by F1, STS-B by Spearman"
_MINILM = "Wang et al. 2020, table of the released models (unilm/minilm): MRPC and QQP as there"

_ORDER = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "MNLI-mm", "QNLI", "RTE", "WNLI")


def _in_order(*scores: float) -> dict[str, float]:
    return dict(zip(_ORDER, scores, strict=False))


GLUE = (
    PublishedScores(
        "BERT-tiny", "test", _in_order(0.0, 83.2, 76.1, 73.95, 72.8, 70.2, 70.3, 81.5, 57.2, 62.3), _TURC
    ),
    PublishedScores(
        "BERT-mini", "test", _in_order(0.0, 85.9, 76.45, 74.35, 76.3, 74.8, 74.3, 84.1, 57.9, 62.3), _TURC
    ),
    PublishedScores(
        "BERT-small", "test", _in_order(27.8, 89.7, 79.8, 77.9, 77.55, 77.6, 77.0, 86.4, 61.8, 62.3), _TURC
    ),
    PublishedScores(
        "BERT-medium", "test", _in_order(38.0, 89.6, 84.1, 79.4, 78.75, 80.0, 79.1, 87.7, 62.2, 62.3), _TURC
    ),
    PublishedScores(
        "BERT-base", "test", _in_order(52.1, 93.5, 88.9, 85.8, 71.2, 84.6, 83.4, 90.5, 66.4), _DEVLIN
    ),
    PublishedScores(
        "BERT-large", "test", _in_order(60.5, 94.9, 89.3, 86.5, 72.1, 86.7, 85.9, 92.7, 70.1), _DEVLIN
    ),
    PublishedScores(
        "MiniLM-L6-H384",
        "dev",
        {"CoLA": 47.5, "SST-2": 91.5, "MRPC": 88.9, "QQP": 90.6, "MNLI": 83.3, "QNLI": 90.5, "RTE": 68.8},
        _MINILM,
    ),
    PublishedScores(
        "MiniLM-L12-H384",
        "dev",
        {"CoLA": 58.5, "SST-2": 93.0, "MRPC": 89.5, "QQP": 91.3, "MNLI": 85.7, "QNLI": 91.5, "RTE": 73.3},
        _MINILM,
    ),
    PublishedScores(
        "BERT-base, as MiniLM's authors measured",
        "dev",
        {"CoLA": 58.9, "SST-2": 93.2, "MRPC": 87.3, "QQP": 91.3, "MNLI": 84.5, "QNLI": 91.7, "RTE": 68.6},
        _MINILM,
    ),
    PublishedScores(
        "DistilBERT",
        "dev",
        {
            "CoLA": 51.3,
            "SST-2": 91.3,
            "MRPC": 87.5,
            "STS-B": 86.9,
            "QQP": 88.5,
            "MNLI": 82.2,
            "QNLI": 89.2,
            "RTE": 59.9,
            "WNLI": 56.3,
        },
        "Sanh et al. 2019, table 1: medians of 5 runs; metrics as the huggingface example had them",
    ),
    PublishedScores(
        "ModernBERT-base",
        "dev",
        {
            "CoLA": 65.1,
            "SST-2": 96.0,
            "MRPC": 92.2,
            "STS-B": 91.8,
            "QQP": 92.1,
            "MNLI": 89.1,
            "QNLI": 93.9,
            "RTE": 87.4,
        },
        "Warner et al. 2024, table 5: best of a search; RTE, MRPC and STS-B begun from MNLI's model",
    ),
    PublishedScores(
        "ModernBERT-large",
        "dev",
        {
            "CoLA": 71.4,
            "SST-2": 97.1,
            "MRPC": 91.7,
            "STS-B": 92.8,
            "QQP": 92.7,
            "MNLI": 90.8,
            "QNLI": 95.2,
            "RTE": 92.1,
        },
        "Warner et al. 2024, table 5: best of a search; RTE, MRPC and STS-B begun from MNLI's model",
    ),
)

_SUPER = "Wang et al. 2019 (SuperGLUE), table 3: CB, MultiRC by the mean of both metrics"
_SUPER_ORDER = ("BoolQ", "CB", "COPA", "MultiRC", "ReCoRD", "RTE", "WiC", "WSC")


def _of_superglue(model: str, *scores: float) -> PublishedScores:
    return PublishedScores(model, "test", dict(zip(_SUPER_ORDER, scores, strict=True)), _SUPER)


SUPERGLUE = (
    _of_superglue("most frequent class", 62.3, 35.05, 50.0, 30.7, 32.95, 50.3, 50.0, 65.1),
    _of_superglue("BERT-large", 77.4, 79.65, 70.6, 47.05, 71.65, 71.7, 69.6, 64.4),
    _of_superglue("BERT-large, from MNLI or SWAG", 79.0, 87.55, 73.8, 47.05, 71.65, 79.0, 69.6, 64.4),
)

_SQUAD_1 = "Devlin et al. 2019, table 2: one model, trained on SQuAD alone"
_SQUAD_2 = "Devlin et al. 2019, table 3"

SQUAD = {
    "1.1": (
        PublishedScores("BERT-base", "dev", {"f1": 88.5, "exact_match": 80.8}, _SQUAD_1),
        PublishedScores("BERT-large", "dev", {"f1": 90.9, "exact_match": 84.1}, _SQUAD_1),
        PublishedScores(
            "DistilBERT",
            "dev",
            {"f1": 85.8, "exact_match": 77.7},
            "Sanh et al. 2019, table 2: without distillation in fine-tuning",
        ),
    ),
    "2.0": (
        PublishedScores("BERT-large", "dev", {"f1": 81.9, "exact_match": 78.7}, _SQUAD_2),
        PublishedScores("BERT-base, as MiniLM's authors measured", "dev", {"f1": 76.8}, _MINILM),
        PublishedScores("MiniLM-L6-H384", "dev", {"f1": 75.6}, _MINILM),
        PublishedScores("MiniLM-L12-H384", "dev", {"f1": 81.7}, _MINILM),
    ),
}

# nDCG@10 of BM25 (Anserini, title and text as fields): Thakur et al. 2021, table 2.
BM25_SOURCE = "BM25 as published: Thakur et al. 2021, table 2 (Anserini, title and text as two fields)"

BM25: Mapping[str, float] = {
    "msmarco": 22.8,
    "trec-covid": 65.6,
    "bioasq": 46.5,
    "nfcorpus": 32.5,
    "nq": 32.9,
    "hotpotqa": 60.3,
    "fiqa": 23.6,
    "signal1m": 33.0,
    "trec-news": 39.8,
    "robust04": 40.8,
    "arguana": 31.5,
    "webis-touche2020": 36.7,
    "cqadupstack": 29.9,
    "quora": 78.9,
    "dbpedia-entity": 31.3,
    "scidocs": 15.8,
    "fever": 75.3,
    "climate-fever": 21.3,
    "scifact": 66.5,
}

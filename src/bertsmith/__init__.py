"""Bertsmith: the whole life of a BERT, from raw text to a checkpoint that other tools open.

The names below are the public surface, in the order of the flow; docs/python.md shows them at work. Each is
imported when it is first used, so that `import bertsmith` costs no torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertsmith.data.batch import PackedBatch
    from bertsmith.data.store import TokenStore
    from bertsmith.data.tokenizing import tokenize_corpus
    from bertsmith.errors import (
        BertsmithError,
        CorpusError,
        InputError,
        MissingExtra,
        ModelError,
        NotFinite,
        RecipeError,
        ResourceError,
        StoreError,
        TokenizerError,
        TrainingStopped,
    )
    from bertsmith.inference.embedding.embedder import Embedder
    from bertsmith.inference.features import Features
    from bertsmith.inference.index.index import Index
    from bertsmith.inference.masked_language import MaskedLanguageModel
    from bertsmith.inference.predictor import Predictor
    from bertsmith.inference.scikit_learn.estimators import BertClassifier, BertRegressor
    from bertsmith.inference.scikit_learn.feature_transformer import BertFeatures
    from bertsmith.inference.suggesting.suggest import Suggestions, suggest
    from bertsmith.model.bert import Bert
    from bertsmith.model.checkpoint import load_encoder
    from bertsmith.model.config import BertConfig, preset
    from bertsmith.model.legacy import import_legacy
    from bertsmith.model.locate import locate_model
    from bertsmith.planning.plan import plan
    from bertsmith.tasks.pretraining import PretrainingModel
    from bertsmith.tasks.pretraining_checkpoint import load_pretraining_model, save_pretraining_model
    from bertsmith.text.corpus.corpus import Corpus, build_corpus
    from bertsmith.text.corpus_settings import CorpusSettings
    from bertsmith.text.retrieval.documents import DocumentSettings
    from bertsmith.text.retrieval.passages import PassageSettings
    from bertsmith.text.tokens.tokenizer import Tokenizer
    from bertsmith.text.tokens.vocabulary import VocabularySettings, train_tokenizer
    from bertsmith.training.finetuning.finetune import FinetuneResult, finetune
    from bertsmith.training.hardware import Hardware
    from bertsmith.training.pretrain import pretrain
    from bertsmith.training.recipe import Recipe, read_recipe
    from bertsmith.training.tuning.tune import TuneResult, tune

__version__ = "0.2.0"

# Threads that wait for each other turn round for milliseconds before they sleep, by GNU OpenMP's default, and
# take the core from the one that they wait for where another program has the other. Read once, with torch.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # some 50 microseconds

# text → corpus → vocabulary → tokens
_TEXT = {
    "build_corpus": "bertsmith.text.corpus.corpus",
    "CorpusSettings": "bertsmith.text.corpus_settings",
    "Corpus": "bertsmith.text.corpus.corpus",
    "train_tokenizer": "bertsmith.text.tokens.vocabulary",
    "VocabularySettings": "bertsmith.text.tokens.vocabulary",
    "Tokenizer": "bertsmith.text.tokens.tokenizer",
    "tokenize_corpus": "bertsmith.data.tokenizing",
    "TokenStore": "bertsmith.data.store",
}
# shape → weights, in and out
_MODEL = {
    "BertConfig": "bertsmith.model.config",
    "preset": "bertsmith.model.config",
    "Bert": "bertsmith.model.bert",
    "PackedBatch": "bertsmith.data.batch",
    "load_encoder": "bertsmith.model.checkpoint",
    "PretrainingModel": "bertsmith.tasks.pretraining",
    "load_pretraining_model": "bertsmith.tasks.pretraining_checkpoint",
    "save_pretraining_model": "bertsmith.tasks.pretraining_checkpoint",
    "import_legacy": "bertsmith.model.legacy",
    "locate_model": "bertsmith.model.locate",
}
# recipe → run → predictions
_RUN = {
    "Recipe": "bertsmith.training.recipe",
    "read_recipe": "bertsmith.training.recipe",
    "plan": "bertsmith.planning.plan",
    "pretrain": "bertsmith.training.pretrain",
    "finetune": "bertsmith.training.finetuning.finetune",
    "FinetuneResult": "bertsmith.training.finetuning.finetune",
    "tune": "bertsmith.training.tuning.tune",
    "TuneResult": "bertsmith.training.tuning.tune",
    "Hardware": "bertsmith.training.hardware",
    "MaskedLanguageModel": "bertsmith.inference.masked_language",
    "Predictor": "bertsmith.inference.predictor",
    "suggest": "bertsmith.inference.suggesting.suggest",
    "Suggestions": "bertsmith.inference.suggesting.suggest",
    "Features": "bertsmith.inference.features",
    "Embedder": "bertsmith.inference.embedding.embedder",
    "DocumentSettings": "bertsmith.text.retrieval.documents",
    "PassageSettings": "bertsmith.text.retrieval.passages",
    "Index": "bertsmith.inference.index.index",
    "BertFeatures": "bertsmith.inference.scikit_learn.feature_transformer",
    "BertClassifier": "bertsmith.inference.scikit_learn.estimators",
    "BertRegressor": "bertsmith.inference.scikit_learn.estimators",
}
_ERRORS = dict.fromkeys(
    (
        "BertsmithError",
        "InputError",
        "CorpusError",
        "TokenizerError",
        "StoreError",
        "RecipeError",
        "ModelError",
        "NotFinite",
        "ResourceError",
        "MissingExtra",
        "TrainingStopped",
    ),
    "bertsmith.errors",
)
_HOME_OF = _TEXT | _MODEL | _RUN | _ERRORS

# Written out once more, since type checkers and editors read it without running it.
__all__ = [
    "Bert",
    "BertClassifier",
    "BertConfig",
    "BertFeatures",
    "BertRegressor",
    "BertsmithError",
    "Corpus",
    "CorpusError",
    "CorpusSettings",
    "DocumentSettings",
    "Embedder",
    "Features",
    "FinetuneResult",
    "Hardware",
    "Index",
    "InputError",
    "MaskedLanguageModel",
    "MissingExtra",
    "ModelError",
    "NotFinite",
    "PackedBatch",
    "PassageSettings",
    "Predictor",
    "PretrainingModel",
    "Recipe",
    "RecipeError",
    "ResourceError",
    "StoreError",
    "Suggestions",
    "TokenStore",
    "Tokenizer",
    "TokenizerError",
    "TrainingStopped",
    "TuneResult",
    "VocabularySettings",
    "build_corpus",
    "finetune",
    "import_legacy",
    "load_encoder",
    "load_pretraining_model",
    "locate_model",
    "plan",
    "preset",
    "pretrain",
    "read_recipe",
    "save_pretraining_model",
    "suggest",
    "tokenize_corpus",
    "train_tokenizer",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bertsmith' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value  # the next look-up doesn't come here
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

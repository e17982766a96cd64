"""Answers of a trained model without torch: vectors and predictions, by the kernels or NumPy.

In: folders that training, or anyone else, wrote. Out: what the whole package answers on the same processor,
to the bit where predictor.py says so. The wheel bertsmith-run is this room and what it imports, under the
name `bertsmith_run`; run_wheel.py makes it. Read encoder.py first.
"""

from bertsmith.errors import BertsmithError, InputError, ModelError
from bertsmith.runtime.columns import PredictionColumn, VectorColumn
from bertsmith.runtime.predictor import ArrayEmbedder as Embedder
from bertsmith.runtime.predictor import ArrayPredictor as Predictor

__all__ = [
    "BertsmithError",
    "Embedder",
    "InputError",
    "ModelError",
    "PredictionColumn",
    "Predictor",
    "VectorColumn",
]

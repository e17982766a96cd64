"""Vectors of a frozen BERT as a transformer of scikit-learn, in front of any of its other estimators.

E texts, D width of a vector.
"""

# ruff: noqa: N803 - X is scikit-learn's name for what is transformed

from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from bertsmith.estimators.estimator_input import RefusedInput, TextEstimator, as_texts
from bertsmith.inference.features import USUAL_STRIDE, FeaturePooling, Features, Layers


class BertFeatures(TransformerMixin, TextEstimator):  # type: ignore[misc]
    """Vectors of a frozen BERT, as input for other estimators: parameters are those of Features.

    >>> make_pipeline(BertFeatures("minilm"), LogisticRegression()).fit(texts, labels)

    Nothing is learnt: a pickle holds the parameters, and the model is read again by its name.
    """

    def __init__(
        self,
        model: str | Path = "minilm",
        *,
        layers: Layers = "last",
        pooling: FeaturePooling = "mean",
        max_length: int | None = None,
        stride: int | None = USUAL_STRIDE,
    ) -> None:
        self.model = model
        self.layers = layers
        self.pooling = pooling
        self.max_length = max_length
        self.stride = stride

    def fit(self, X: Any, y: Any = None) -> Self:
        """Reads the model. Raises ModelError when there is none, InputError for a choice it doesn't have."""
        as_texts(X)
        if self.pooling in ("tokens", "words"):
            raise RefusedInput(
                f"pooling={self.pooling!r} gives many vectors per text. Use Features for them."
            )
        self.features_ = self._read()
        self.width_ = self.features_.width
        return self

    def transform(self, X: Any) -> npt.NDArray[np.float32]:
        """(E, D)."""
        check_is_fitted(self, "width_")
        if not hasattr(self, "features_"):  # after unpickling
            self.features_ = self._read()
        return np.asarray(self.features_.encode(as_texts(X)))

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """bertfeatures0 … bertfeatures(D - 1)."""
        check_is_fitted(self, "width_")
        return np.array([f"bertfeatures{number}" for number in range(self.width_)], object)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "features_"}

    def _read(self) -> Features:
        return Features(self.model, self.layers, self.pooling, max_length=self.max_length, stride=self.stride)

"""Estimators of scikit-learn that fine-tune a BERT or return its vectors, for pipelines, searches and
cross-validation.

E texts, C classes, D width of a vector. X is a list of texts or of pairs of texts, or one or two columns of
them.
"""

# ruff: noqa: N803 - X is scikit-learn's name for what is predicted from

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.model_selection import train_test_split
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    check_random_state,
    column_or_1d,
)

from bertsmith.errors import InputError, RecipeError
from bertsmith.inference.features import USUAL_STRIDE, FeaturePooling, Features, LayerChoice
from bertsmith.inference.predictor import Predictor
from bertsmith.machine import device_of
from bertsmith.metrics.calibration import probabilities_of
from bertsmith.model.own_tokenizer import read_own_tokenizer
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model, save_task_model
from bertsmith.tasks.examples.text_task import TextExample, TextTask
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.golden.records import write_golden
from bertsmith.tasks.task_model import outputs_of
from bertsmith.training.finetune_recipe import FinetuneRecipe, make_finetune_recipe, make_task
from bertsmith.training.finetuning.in_memory import finetune_examples, move_copies_to_train

TextOrPair = str | tuple[str, str]
Row = TextOrPair | Mapping[str, Any]
_OF_FILES = ("train", "dev", "test", "dev_share", "unlabelled", "group", "out")
_FILES = "model_files"  # a pickle's key for the files of the model


class RefusedInput(InputError, ValueError):
    """An InputError that is also a ValueError, as scikit-learn's rules require."""


class TextEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of estimators of texts, to which scikit-learn's checks of tables of numbers don't apply."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags


class _FinetunedEstimator(TextEstimator):
    """The common part of classifier and regressor: training in memory, and saving. The model is loaded by
    `fit`.
    """

    _task: ClassVar[str]
    _stratified: ClassVar[bool] = False

    def __init__(
        self,
        model: str | Path = "minilm",
        *,
        method: str = "auto",
        epochs: float | None = None,
        batch_size: int = 32,
        learning_rate: float | None = None,
        max_length: int = 128,
        stride: int | None = None,
        patience: int | None = None,
        validation_fraction: float = 0.1,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.model = model
        self.method = method
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_length = max_length
        self.stride = stride
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.settings = settings
        self.random_state = random_state

    def save(self, folder: str | Path) -> Path:
        """Writes the trained model to a folder, as `finetune` does, for `predict`, Predictor and
        transformers.

        Returns the folder. Raises InputError when it exists.
        """
        check_is_fitted(self, "predictor_")
        predictor = self.predictor_
        provenance = {"estimator": type(self).__name__, "recipe": self.recipe_}
        save_task_model(folder, predictor.model, predictor.task, predictor.tokenizer, provenance)
        write_golden(folder, type(predictor.task))
        return Path(folder)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")

    def __getstate__(self) -> dict[str, Any]:
        """The attributes, with the files of the model's folder, safetensors and JSON, in place of the
        model.
        """
        state = dict(super().__getstate__())
        if "predictor_" in state:
            del state["predictor_"]
            with TemporaryDirectory() as temporary:
                folder = self.save(Path(temporary) / "model")
                files = (path for path in folder.rglob("*") if path.is_file())
                state[_FILES] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        state = dict(state)
        files = state.pop(_FILES, None)
        super().__setstate__(state)
        if files is not None:
            with TemporaryDirectory() as folder:
                for name, content in files.items():
                    path = Path(folder) / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                # not prepared for inference, since it may be saved again
                model, task = load_task_model(folder)
                self.predictor_ = Predictor(
                    model.to(device_of("auto")), task, read_own_tokenizer(Path(folder))
                )

    def _read_rows(self, X: Any) -> list[Row]:
        """The rows of X: texts, or mappings where `settings` name features."""
        return [*(as_mixed_rows(X) if (self.settings or {}).get("features") else as_texts(X))]

    def _train(self, texts: list[Row], labels: list[Any], names: Any = None) -> None:
        recipe = self._recipe(names)
        task = cast(TextTask, make_task(recipe))
        task.pairs = None if isinstance(texts[0], Mapping) else isinstance(texts[0], tuple)
        examples = [
            _make_example(task, number, text, label)
            for number, (text, label) in enumerate(zip(texts, labels, strict=True))
        ]
        unlabelled = [example for example in examples if example.label is None]
        examples = [example for example in examples if example.label is not None]
        train, dev = self._hold_out(task, examples, recipe.seed) if examples else ([], [])
        trained = finetune_examples(task, recipe, train, dev, unlabelled)
        self.names_ = asdict(trained.names) if trained.names else None
        self.recipe_ = json.loads(trained.recipe.model_dump_json())
        self.tried_ = [asdict(method) for method in trained.choice.tried] if trained.choice else []
        model = trained.model.to(device_of("auto"))  # as in a pickled copy
        self.predictor_ = Predictor(model, task, trained.tokenizer)

    def _recipe(self, names: Any = None) -> FinetuneRecipe:
        """The recipe of the estimator's parameters. Raises RecipeError that names a wrong one."""
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        values = {
            "task": self._task,
            "model": str(self.model),
            "train": "X",
            "out": "",
            "names": names,
            "method": self.method,
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "optimizer": None if self.learning_rate is None else {"learning_rate": self.learning_rate},
            "patience": self.patience,
            "seed": int(seed),
            "settings": {"max_length": self.max_length, "stride": self.stride, **self._task_settings()},
        }
        settings = self.settings or {}
        if of_files := next((name for name in settings if name in _OF_FILES), None):
            raise RecipeError(
                f"settings: {of_files} is for runs with files. Here X has all rows, and validation_fraction "
                "with patience says how many of them are held out."
            )
        overrides = [f"{key}={json.dumps(_as_plain(value))}" for key, value in settings.items()]
        return make_finetune_recipe({k: _as_plain(v) for k, v in values.items() if v is not None}, overrides)

    def _task_settings(self) -> dict[str, Any]:
        return {}

    def _hold_out(
        self, task: TextTask, examples: list[TextExample], seed: int
    ) -> tuple[list[Any], list[Any]]:
        """Splits the examples to train and dev. Dev is empty without `patience`, since then nothing is chosen
        by it. Copies of training texts stay in train, whatever their case and punctuation.
        """
        if self.patience is None:
            return examples, []
        classes = [example.label for example in examples] if self._stratified else None
        train, dev = train_test_split(
            examples, test_size=self.validation_fraction, random_state=seed, stratify=classes
        )
        train, dev = move_copies_to_train(task, train, dev)
        if not dev:
            raise RefusedInput("X has too few different texts to hold some out: leave patience out.")
        return train, dev

    def _outputs(self, X: Any) -> npt.NDArray[np.float64]:
        """The head's outputs (E, C) for E rows of C columns."""
        check_is_fitted(self, "predictor_")
        task = cast(TextTask, self.predictor_.task)
        rows: list[Row] = [*(as_mixed_rows(X) if task.features else as_texts(X))]
        examples = [_make_example(task, number, row, None) for number, row in enumerate(rows)]
        encoded = encode_examples(task, examples, self.predictor_.tokenizer).encoded
        return np.stack(outputs_of(self.predictor_.model, encoded)).astype(np.float64)


class BertClassifier(ClassifierMixin, _FinetunedEstimator):  # type: ignore[misc]
    """Fine-tunes a BERT to tell classes apart.

    >>> BertClassifier("minilm").fit(texts, labels).predict_proba(["Where is my parcel?"])

    Parameters are those of `bertsmith finetune classification`, which chooses epochs and learning rate where
    they are None; `settings` takes its dotted names, such as {"freeze_layers": 3, "lora.rank": 8}. With
    {"features": ["age", "plan"]} rows of X are {"text": …, "age": …, "plan": …}.
    class_weights: none, auto, or a weight a class.

    All of X is trained on. Of up to 2,000 texts cross-validation chooses the `method`, linear, contrastive or
    full, and calibrates probabilities: `tried_` says what each reached. More are trained in full. A `method`
    that is named trains once, and its probabilities are as the model gives them, not calibrated; but for
    linear, and with `settings` {"folds": 5}, by which it is judged and calibrated too, in up to five more
    trainings. With `patience`, `validation_fraction` of X is held out instead: the best epoch's weights are
    kept, training ends after so many epochs without a better one, and probabilities are calibrated by it.
    """

    _task = "classification"
    _stratified = True

    def __init__(
        self,
        model: str | Path = "minilm",
        *,
        method: str = "auto",
        epochs: float | None = None,
        batch_size: int = 32,
        learning_rate: float | None = None,
        max_length: int = 128,
        stride: int | None = None,
        class_weights: str | Mapping[Any, float] = "none",
        patience: int | None = None,
        validation_fraction: float = 0.1,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        super().__init__(
            model,
            method=method,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            max_length=max_length,
            stride=stride,
            patience=patience,
            validation_fraction=validation_fraction,
            settings=settings,
            random_state=random_state,
        )
        self.class_weights = class_weights

    def fit(self, X: Any, y: Any = None, *, names: Sequence[str] | Mapping[str, str] | None = None) -> Self:
        """X: E texts or pairs; y: (E,) of any values that can be sorted. With the `names` of the classes, a
        list or a mapping to descriptions, y may be left out, or have None (or -1) for texts without a label:
        `names_` then says what to expect.

        Raises RefusedInput (a ValueError) for what is no text or has one class only, RecipeError for a wrong
        parameter, ModelError when there is no such model.
        """
        if names is not None:
            return self._fit_named(self._read_rows(X), y, names)
        texts, gold = self._read_rows(X), as_targets(y)
        check_consistent_length(texts, gold)
        refuse_missing(gold)
        check_classification_targets(gold)
        classes = np.unique(gold)
        if len(classes) < 2:
            raise RefusedInput(f"y has one class only, {classes[0]!r}: there is nothing to tell apart.")
        self._label_names = {label: str(label) for label in classes.tolist()}
        self._train(texts, [str(label) for label in gold])
        self.classes_ = classes  # set after training, so that a failed one leaves the last model as it was
        self._columns = [self.predictor_.task.label_ids[str(label)] for label in self.classes_]
        return self

    def _fit_named(self, texts: list[Row], y: Any, names: Sequence[str] | Mapping[str, str]) -> Self:
        labels: list[Any] = [None] * len(texts) if y is None else [*y]
        check_consistent_length(texts, labels)
        is_missing = [_is_missing(label) or label == -1 for label in labels]
        known = [None if missing else str(label) for missing, label in zip(is_missing, labels, strict=True)]
        given = dict(names) if isinstance(names, Mapping) else tuple(names)
        self._label_names = {str(name): str(name) for name in given}
        try:
            self._train(texts, known, given)
        except RefusedInput:
            raise
        except InputError as error:
            raise RefusedInput(str(error)) from error
        self.classes_ = np.array(self.predictor_.task.labels)
        self._columns = list(range(len(self.classes_)))
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """The probabilities (E, C) of the classes, in the order of `classes_`."""
        return probabilities_of(self._logits(X))

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """The logits (E, C); for two classes the second's minus the first's, (E,)."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most probable class (E,) of each text."""
        best = self._logits(X).argmax(axis=1)  # first, since it refuses an estimator that isn't fitted
        predicted: npt.NDArray[Any] = self.classes_[best]
        return predicted

    def _logits(self, X: Any) -> npt.NDArray[np.float64]:
        outputs = self._outputs(X)[:, self._columns]
        return outputs / self.predictor_.task.temperature

    def _task_settings(self) -> dict[str, Any]:
        weights = self.class_weights
        if isinstance(weights, Mapping):
            names = {label: self._label_names.get(label, str(label)) for label in weights}  # 1 finds 1.0
            return {"class_weights": {names[label]: weight for label, weight in weights.items()}}
        return {"class_weights": weights}


class BertRegressor(RegressorMixin, _FinetunedEstimator):  # type: ignore[misc]
    """Fine-tunes a BERT to give a number for each text or pair; parameters as those of BertClassifier.

    >>> BertRegressor("minilm").fit(pairs, scores).predict([("A cat sleeps.", "A cat naps.")])
    """

    _task = "regression"

    def fit(self, X: Any, y: Any) -> Self:
        """X: E texts or pairs; y: (E,) finite numbers, not all equal. Raises as BertClassifier's does."""
        texts = self._read_rows(X)
        gold = check_array(as_targets(y), ensure_2d=False, dtype=np.float64, input_name="y")
        check_consistent_length(texts, gold)
        if (gold == gold[0]).all():
            raise RefusedInput(f"y is {gold[0]:g} in each of {len(gold)} samples: there is nothing to learn.")
        self._train(texts, gold.tolist())
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """The predicted numbers (E,), in the unit of y."""
        return self._outputs(X)[:, 0]


class BertFeatures(TransformerMixin, TextEstimator):  # type: ignore[misc]
    """Vectors of a frozen BERT, as input for other estimators: parameters are those of Features.

    >>> make_pipeline(BertFeatures("minilm"), LogisticRegression()).fit(texts, labels)

    Nothing is learnt: a pickle holds the parameters, and the model is read again by its name.
    """

    def __init__(
        self,
        model: str | Path = "minilm",
        *,
        layers: LayerChoice = "last",
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
        """Loads the model. Raises ModelError when there is none, InputError for a choice that it doesn't
        have.
        """
        as_texts(X)
        if self.pooling in ("tokens", "words"):
            raise RefusedInput(
                f"pooling={self.pooling!r} gives many vectors per text. Use Features for them."
            )
        self.features_ = self._read()
        self.width_ = self.features_.width
        return self

    def transform(self, X: Any) -> npt.NDArray[np.float32]:
        """The vectors (E, D) of E texts, as the model pools them."""
        check_is_fitted(self, "width_")
        if not hasattr(self, "features_"):  # after unpickling
            self.features_ = self._read()
        return np.asarray(self.features_.encode(as_texts(X)))

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """The names of the D columns: bertfeatures0, bertfeatures1, …"""
        check_is_fitted(self, "width_")
        return np.array([f"bertfeatures{number}" for number in range(self.width_)], object)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "features_"}

    def _read(self) -> Features:
        return Features(self.model, self.layers, self.pooling, max_length=self.max_length, stride=self.stride)


def as_texts(X: Any) -> list[TextOrPair]:
    """The texts or pairs of X: a list of texts or of pairs, or one or two columns of an array or a table.

    Raises RefusedInput that names the row for values that are no texts, for rows of more than two, for single
    texts among pairs, and where there are no rows.
    """
    if isinstance(X, str | Mapping) or not isinstance(X, Iterable):
        raise RefusedInput(f"X must be a list of texts or of pairs of texts, found {_describe(X)}.")
    rows = X.to_numpy() if hasattr(X, "to_numpy") else X
    texts = [_as_text(row, number) for number, row in enumerate(rows)]
    if not texts:
        raise RefusedInput("X has 0 texts. Expected at least one.")
    for number, text in enumerate(texts):
        if isinstance(text, str) != isinstance(texts[0], str):
            raise RefusedInput(
                f"X[{number}]: X[0] is a {_describe_kind(texts[0])}, but this is a {_describe_kind(text)}."
            )
    return texts


def _as_text(row: Any, number: int) -> TextOrPair:
    if isinstance(row, str):
        return str(row)
    if isinstance(row, Mapping):
        raise RefusedInput(
            f"X[{number}]: expected a text or a pair of texts, found {_describe(row)}. Pass the texts alone, "
            "or name the columns beside them in settings={'features': […]}."
        )
    parts = tuple(row) if isinstance(row, Iterable) and not isinstance(row, bytes) else (row,)
    for part in parts:
        if not isinstance(part, str):
            raise RefusedInput(f"X[{number}]: expected a text, found {_describe(part)}.")
    if len(parts) == 1:
        return str(parts[0])
    if len(parts) != 2:
        raise RefusedInput(f"X[{number}]: expected a text or a pair of texts, found {len(parts)} values.")
    return str(parts[0]), str(parts[1])


def _describe_kind(text: TextOrPair) -> str:
    return "text" if isinstance(text, str) else "pair of texts"


def as_mixed_rows(X: Any) -> list[Mapping[str, Any]]:
    """The rows of X as mappings, {"text": …, "age": …}, for a model that reads columns beside the text.
    Raises RefusedInput that names the row.
    """
    if isinstance(X, str | Mapping) or not isinstance(X, Iterable):
        raise RefusedInput(f'X must be a list of rows such as {{"text": …, "age": …}}, found {_describe(X)}.')
    rows = list(X)
    if not rows:
        raise RefusedInput("X has 0 rows. Expected at least one.")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise RefusedInput(
                f'X[{number}]: with features expected {{"text": …, "age": …}}, found {_describe(row)}. '
                'From a table, pass X.to_dict("records").'
            )
    return rows


def as_targets(y: Any) -> npt.NDArray[Any]:
    """y as an array (E,). Raises RefusedInput where there is none, ValueError for another shape."""
    if y is None:
        raise RefusedInput("fit requires y to be passed, but the target y is None.")
    return np.asarray(column_or_1d(y, warn=True))


def refuse_missing(gold: npt.NDArray[Any]) -> None:
    """Raises RefusedInput for None and NaN among strings, which can't be sorted, and for blank labels, which
    a model folder can't have.
    """
    for number, label in enumerate(gold.tolist() if gold.dtype.kind in "OU" else ()):
        is_missing = _is_missing(label)
        if is_missing or (isinstance(label, str) and not label.strip()):
            value = label if is_missing else "blank"
            raise RefusedInput(
                f"y[{number}] is {value}: expected a class. Give it one, or leave out the row."
            )


def _is_missing(label: Any) -> bool:
    # pandas' NA equals nothing, and has no truth value
    return label is None or type(label).__name__ == "NAType" or bool(label != label)


def _describe(value: Any) -> str:
    return f"{str(value)[:60]!r} ({type(value).__name__})"


def _as_plain(value: Any) -> Any:
    """The value with NumPy's numbers, in which searches draw parameters, as Python's."""
    if isinstance(value, Mapping):
        return {key: _as_plain(item) for key, item in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def _make_example(task: TextTask, number: int, text: Row, label: Any) -> TextExample:
    """The example of a row. Raises RefusedInput for a pair where the model was trained on single texts, and
    the other way round.
    """
    try:
        example: TextExample = replace(task.example(text, f"X[{number}]"), label=label)
    except InputError as error:
        raise RefusedInput(str(error)) from error
    return example

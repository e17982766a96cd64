"""Fine-tuning, and the vectors of a frozen BERT, as estimators of scikit-learn: for its pipelines, searches
and cross-validation.

E texts, C classes, D width of a vector. X is a list of texts or of pairs of texts, or one or two columns of
them.
"""

# ruff: noqa: N803 - X is scikit-learn's name for what is predicted from

import json
from collections.abc import Iterable, Mapping
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
from bertsmith.training.finetuning.in_memory import finetune_examples

TextOrPair = str | tuple[str, str]
Row = TextOrPair | Mapping[str, Any]
_OF_FILES = ("train", "dev", "test", "dev_share", "unlabelled", "group", "out")
_FILES = "model_files"  # what a pickle has in place of the model


class RefusedInput(InputError, ValueError):
    """An InputError that is also the ValueError which scikit-learn's rules ask for."""


class TextEstimator(BaseEstimator):  # type: ignore[misc]
    """X is text: the checks that scikit-learn makes of tables of numbers don't apply."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags


class _FinetunedEstimator(TextEstimator):
    """What classifier and regressor share: training in memory, and saving. Nothing happens before `fit`."""

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
        """Writes the trained model as `finetune` does, for `predict`, Predictor and transformers.

        Raises InputError when the folder is there already.
        """
        check_is_fitted(self, "predictor_")
        found = self.predictor_
        provenance = {"estimator": type(self).__name__, "recipe": self.recipe_}
        save_task_model(folder, found.model, found.task, found.tokenizer, provenance)
        write_golden(folder, type(found.task))
        return Path(folder)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")

    def __getstate__(self) -> dict[str, Any]:
        """The model travels as the bytes of its folder: safetensors and JSON inside whatever pickles it."""
        state = dict(super().__getstate__())
        if "predictor_" in state:
            del state["predictor_"]
            with TemporaryDirectory() as place:
                folder = self.save(Path(place) / "model")
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
                model, task = load_task_model(folder)  # not packed, for it may be saved again
                self.predictor_ = Predictor(
                    model.to(device_of("auto")), task, read_own_tokenizer(Path(folder))
                )

    def _rows(self, X: Any) -> list[Row]:
        """Texts, or mappings where `settings` name features."""
        return [*(as_mixed_rows(X) if (self.settings or {}).get("features") else as_texts(X))]

    def _train(self, texts: list[Row], labels: list[Any]) -> None:
        recipe = self._recipe()
        task = cast(TextTask, make_task(recipe))
        task.pairs = None if isinstance(texts[0], Mapping) else isinstance(texts[0], tuple)
        examples = [_example(task, *each) for each in zip(range(len(texts)), texts, labels, strict=True)]
        train, dev = self._held_out(examples, recipe.seed)
        trained = finetune_examples(task, recipe, train, dev)
        self.recipe_ = json.loads(trained.recipe.model_dump_json())
        self.tried_ = [asdict(each) for each in trained.choice.tried] if trained.choice else []
        model = trained.model.to(device_of("auto"))  # as a pickled copy will be
        self.predictor_ = Predictor(model, task, trained.tokenizer)

    def _recipe(self) -> FinetuneRecipe:
        """Raises RecipeError naming the parameter that is wrong."""
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        values = {
            "task": self._task,
            "model": str(self.model),
            "train": "X",
            "out": "",
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
        given = [f"{key}={json.dumps(_plain(value))}" for key, value in settings.items()]
        return make_finetune_recipe({k: _plain(v) for k, v in values.items() if v is not None}, given)

    def _task_settings(self) -> dict[str, Any]:
        return {}

    def _held_out(self, examples: list[TextExample], seed: int) -> tuple[list[Any], list[Any]]:
        """Some are held out only where something is to be chosen by them: when to stop."""
        if self.patience is None:
            return examples, []
        classes = [example.label for example in examples] if self._stratified else None
        train, dev = train_test_split(
            examples, test_size=self.validation_fraction, random_state=seed, stratify=classes
        )
        known = {_what_is_read(each) for each in train}  # copies would choose what they taught
        copies = [each for each in dev if _what_is_read(each) in known]
        dev = [each for each in dev if _what_is_read(each) not in known]
        if not dev:
            raise RefusedInput("X has too few different texts to hold some out: leave patience out.")
        return [*train, *copies], dev

    def _outputs(self, X: Any) -> npt.NDArray[np.float64]:
        """The head's outputs (E, C) for E rows of C columns."""
        check_is_fitted(self, "predictor_")
        task = cast(TextTask, self.predictor_.task)
        rows: list[Row] = [*(as_mixed_rows(X) if task.features else as_texts(X))]
        examples = [_example(task, number, row, None) for number, row in enumerate(rows)]
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

    def fit(self, X: Any, y: Any) -> Self:
        """X: E texts or pairs; y: (E,) of any values that can be sorted.

        Raises RefusedInput (a ValueError) for what is no text or has one class only, RecipeError for a wrong
        parameter, ModelError when there is no such model.
        """
        texts, gold = self._rows(X), targets_of(y)
        check_consistent_length(texts, gold)
        refuse_missing(gold)
        check_classification_targets(gold)
        classes = np.unique(gold)
        if len(classes) < 2:
            raise RefusedInput(f"y has one class only, {classes[0]!r}: there is nothing to tell apart.")
        self._spelled = {each: str(each) for each in classes.tolist()}
        self._train(texts, [str(each) for each in gold])
        self.classes_ = classes  # of this model: a training that fails leaves the last one whole
        self._columns = [self.predictor_.task.label_ids[str(label)] for label in self.classes_]
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """(E, C), a column a class in the order of `classes_`."""
        return probabilities_of(self._logits(X))

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """(E, C) logits; of two classes (E,), the second's before the first."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """(E,) the most probable class of each text."""
        best = self._logits(X).argmax(axis=1)  # before classes_ is read: refuses what isn't fitted
        chosen: npt.NDArray[Any] = self.classes_[best]
        return chosen

    def _logits(self, X: Any) -> npt.NDArray[np.float64]:
        outputs = self._outputs(X)[:, self._columns]
        return outputs / self.predictor_.task.temperature

    def _task_settings(self) -> dict[str, Any]:
        weights = self.class_weights
        if isinstance(weights, Mapping):
            spelled = {label: self._spelled.get(label, str(label)) for label in weights}  # 1 is 1.0
            return {"class_weights": {spelled[label]: weight for label, weight in weights.items()}}
        return {"class_weights": weights}


class BertRegressor(RegressorMixin, _FinetunedEstimator):  # type: ignore[misc]
    """Fine-tunes a BERT to give a number for each text or pair; parameters as those of BertClassifier.

    >>> BertRegressor("minilm").fit(pairs, scores).predict([("A cat sleeps.", "A cat naps.")])
    """

    _task = "regression"

    def fit(self, X: Any, y: Any) -> Self:
        """X: E texts or pairs; y: (E,) finite numbers, not all equal. Raises as BertClassifier's does."""
        texts = self._rows(X)
        gold = check_array(targets_of(y), ensure_2d=False, dtype=np.float64, input_name="y")
        check_consistent_length(texts, gold)
        if (gold == gold[0]).all():
            raise RefusedInput(f"y is {gold[0]:g} in each of {len(gold)} samples: there is nothing to learn.")
        self._train(texts, gold.tolist())
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """(E,) in the unit of y."""
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
    """One text a row, or two: a list of texts or of pairs, a column or two of an array or a table.

    Raises RefusedInput naming the row: for what is no text, for rows of more than two, for singles among
    pairs, and for no rows at all.
    """
    if isinstance(X, str | Mapping) or not isinstance(X, Iterable):
        raise RefusedInput(f"X must be a list of texts or of pairs of texts, found {_shown(X)}.")
    rows = X.to_numpy() if hasattr(X, "to_numpy") else X
    texts = [_as_text(row, number) for number, row in enumerate(rows)]
    if not texts:
        raise RefusedInput("X has 0 texts. Expected at least one.")
    for number, text in enumerate(texts):
        if isinstance(text, str) != isinstance(texts[0], str):
            raise RefusedInput(f"X[{number}]: X[0] is a {_kind(texts[0])}, but this is a {_kind(text)}.")
    return texts


def _as_text(row: Any, number: int) -> TextOrPair:
    if isinstance(row, str):
        return str(row)
    if isinstance(row, Mapping):
        raise RefusedInput(
            f"X[{number}]: expected a text or a pair of texts, found {_shown(row)}. Pass the texts alone, or "
            "name the columns beside them in settings={'features': […]}."
        )
    parts = tuple(row) if isinstance(row, Iterable) and not isinstance(row, bytes) else (row,)
    for part in parts:
        if not isinstance(part, str):
            raise RefusedInput(f"X[{number}]: expected a text, found {_shown(part)}.")
    if len(parts) == 1:
        return str(parts[0])
    if len(parts) != 2:
        raise RefusedInput(f"X[{number}]: expected a text or a pair of texts, found {len(parts)} values.")
    return str(parts[0]), str(parts[1])


def _kind(text: TextOrPair) -> str:
    return "text" if isinstance(text, str) else "pair of texts"


def as_mixed_rows(X: Any) -> list[Mapping[str, Any]]:
    """One mapping a row, {"text": …, "age": …}, for a model that reads columns beside the text. Raises
    RefusedInput naming the row.
    """
    if isinstance(X, str | Mapping) or not isinstance(X, Iterable):
        raise RefusedInput(f'X must be a list of rows such as {{"text": …, "age": …}}, found {_shown(X)}.')
    rows = list(X)
    if not rows:
        raise RefusedInput("X has 0 rows. Expected at least one.")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise RefusedInput(
                f'X[{number}]: with features expected {{"text": …, "age": …}}, found {_shown(row)}. '
                'From a table, pass X.to_dict("records").'
            )
    return rows


def targets_of(y: Any) -> npt.NDArray[Any]:
    """y as an array (E,). Raises RefusedInput where there is none, ValueError for another shape."""
    if y is None:
        raise RefusedInput("fit requires y to be passed, but the target y is None.")
    return np.asarray(column_or_1d(y, warn=True))


def refuse_missing(gold: npt.NDArray[Any]) -> None:
    """Raises RefusedInput for None and NaN among strings, which can't be sorted, and for blanks, which no
    model's folder may have.
    """
    for number, each in enumerate(gold.tolist() if gold.dtype.kind in "OU" else ()):
        missing = each is None or type(each).__name__ == "NAType" or each != each  # pandas' NA equals nothing
        if missing or (isinstance(each, str) and not each.strip()):
            found = each if missing else "blank"
            raise RefusedInput(
                f"y[{number}] is {found}: expected a class. Give it one, or leave out the row."
            )


def _shown(value: Any) -> str:
    return f"{str(value)[:60]!r} ({type(value).__name__})"


def _plain(value: Any) -> Any:
    """Searches draw parameters as NumPy's numbers, which settings and JSON don't know."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def _example(task: TextTask, number: int, text: Row, label: Any) -> TextExample:
    """Raises RefusedInput for a pair where training had single texts, and the other way round."""
    try:
        example: TextExample = replace(task.example(text, f"X[{number}]"), label=label)
    except InputError as error:
        raise RefusedInput(str(error)) from error
    return example


def _what_is_read(example: TextExample) -> tuple[Any, ...]:
    return example.text, example.text_pair, example.columns

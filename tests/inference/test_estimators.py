"""BertClassifier and BertRegressor learn what the words of a text say, as scikit-learn's estimators do."""

# ruff: noqa: N803 - X is scikit-learn's name

import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from bertsmith.errors import InputError, ModelError, RecipeError
from bertsmith.estimators.estimators import BertClassifier, BertRegressor, RefusedInput
from bertsmith.inference.predictor import Predictor
from bertsmith.model.checkpoint import load_encoder
from bertsmith.tasks.classification import ClassificationSettings

COLOURS, SIZES, ANIMALS = ("red", "blue", "green"), ("small", "large", "old", "new"), ("cat", "dog", "bird")
TEXTS = [f"{size} {colour} {animal}" for colour in COLOURS for size in SIZES for animal in ANIMALS]
LABELS = [text.split()[1] for text in TEXTS]
SCORES = [1000.0 + 10 * COLOURS.index(label) for label in LABELS]
KNOWN = [number for number, text in enumerate(TEXTS) if "bird" not in text]
NEW = [number for number, text in enumerate(TEXTS) if "bird" in text]
LEARNS = {"method": "full", "epochs": 30, "batch_size": 8, "learning_rate": 2e-3, "max_length": 16}
QUICK = {"method": "full", "epochs": 1, "batch_size": 12, "learning_rate": 1e-3, "max_length": 16}


def of(values: list[Any], numbers: list[int]) -> list[Any]:
    return [values[number] for number in numbers]


@pytest.fixture(scope="module")
def fitted(tiny_bert: Path) -> BertClassifier:
    return BertClassifier(tiny_bert, **LEARNS).fit(of(TEXTS, KNOWN), of(LABELS, KNOWN))


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return [(text, other) for text, other in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)]


# -- learning ------------------------------------------------------------------------------------------------


def test_a_classifier_learns_which_word_decides(fitted: BertClassifier) -> None:
    assert fitted.score(of(TEXTS, NEW), of(LABELS, NEW)) >= 0.9


def test_a_regressor_learns_in_the_unit_of_y(tiny_bert: Path) -> None:
    model = BertRegressor(tiny_bert, **LEARNS).fit(of(TEXTS, KNOWN), of(SCORES, KNOWN))
    assert model.score(of(TEXTS, NEW), of(SCORES, NEW)) > 0.6  # R²: always 1,010 would have 0


def test_columns_stand_in_the_order_of_classes(tiny_bert: Path) -> None:
    """As words 10 comes before 9, as labels of a model 9 before 10."""
    names = [{"red": "10", "blue": "9", "green": "x"}[label] for label in LABELS]
    model = BertClassifier(tiny_bert, **LEARNS).fit(TEXTS, names)
    assert model.classes_.tolist() == ["10", "9", "x"]
    assert model.predictor_.task.labels == ("9", "10", "x")
    assert model.score(TEXTS, names) >= 0.9


def test_probabilities_scores_and_predictions_agree(fitted: BertClassifier) -> None:
    chances, scores = fitted.predict_proba(TEXTS), fitted.decision_function(TEXTS)
    assert chances.shape == scores.shape == (len(TEXTS), 3)
    np.testing.assert_allclose(chances.sum(1), 1)
    np.testing.assert_allclose(np.exp(scores) / np.exp(scores).sum(1, keepdims=True), chances)
    assert (fitted.classes_[chances.argmax(1)] == fitted.predict(TEXTS)).all()


def test_of_two_classes_the_score_is_that_of_the_second(tiny_bert: Path) -> None:
    answers = np.array([label == "red" for label in LABELS])
    model = BertClassifier(tiny_bert, **QUICK).fit(TEXTS, answers)
    scores = model.decision_function(TEXTS)
    np.testing.assert_allclose(1 / (1 + np.exp(-scores)), model.predict_proba(TEXTS)[:, 1])
    assert model.predict(TEXTS).dtype == bool
    assert ((scores > 0) == model.predict(TEXTS)).all()


def test_the_seed_decides(tiny_bert: Path) -> None:
    same, again, other = (
        BertClassifier(tiny_bert, random_state=seed, **QUICK).fit(TEXTS, LABELS).predict_proba(TEXTS)
        for seed in (3, 3, 4)
    )
    assert (same == again).all()
    assert not np.allclose(same, other)


def test_the_callers_random_numbers_go_on_undisturbed(tiny_bert: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    BertClassifier(tiny_bert, **QUICK).fit(TEXTS, LABELS)
    assert torch.equal(torch.rand(3), expected)


def test_all_of_x_is_trained_on_unless_training_may_stop_early(tiny_bert: Path) -> None:
    whole = BertClassifier(tiny_bert, **QUICK).fit(TEXTS, LABELS)
    assert whole.predictor_.task.confidence is None
    early = BertClassifier(tiny_bert, patience=1, validation_fraction=0.25, **QUICK).fit(TEXTS, LABELS)
    assert early.predictor_.task.confidence.examples == 9


@pytest.mark.slow
def test_few_texts_choose_the_method_and_calibrate(tiny_bert: Path) -> None:
    model = BertClassifier(tiny_bert, **QUICK | {"method": "auto"}, settings={"minutes": 2})
    model.fit(TEXTS, LABELS)
    reached = {each["method"]: each["score"] for each in model.tried_}
    assert set(reached) == {"linear", "contrastive", "full", "upper", "lora"}
    assert reached[model.recipe_["method"]] == max(reached.values())
    assert model.predictor_.task.confidence.examples == len(TEXTS)


@pytest.mark.parametrize(("method", "settings"), [("contrastive", {"folds": 2}), ("linear", {})])
def test_a_named_method_is_calibrated_by_what_its_folds_say(
    tiny_bert: Path, method: str, settings: dict[str, int]
) -> None:
    model = BertClassifier(tiny_bert, **QUICK | {"method": method}, settings=settings).fit(TEXTS, LABELS)
    assert [each["method"] for each in model.tried_] == [model.recipe_["method"]] == [method]
    task = model.predictor_.task
    assert task.confidence.examples == len(TEXTS)
    assert task.temperature != 1
    assert np.allclose(
        model.decision_function(TEXTS) * task.temperature, model._outputs(TEXTS)[:, model._columns]
    )


def test_a_frozen_encoder_is_not_taught_by_pairs(tiny_bert: Path) -> None:
    frozen = {"freeze_layers": 2, "freeze_embeddings": True}
    model = BertClassifier(tiny_bert, **QUICK | {"method": "auto"}, settings=frozen).fit(TEXTS, LABELS)
    assert [each["method"] for each in model.tried_] == ["linear", "names", "full"]
    with pytest.raises(RecipeError, match="Choose linear or names or full"):
        BertClassifier(tiny_bert, **QUICK | {"method": "contrastive"}, settings=frozen).fit(TEXTS, LABELS)


def test_copies_of_texts_that_teach_do_not_choose_when_to_stop(tiny_bert: Path) -> None:
    early = BertClassifier(tiny_bert, patience=1, validation_fraction=0.25, **QUICK)
    twice = early.fit([*TEXTS, *TEXTS], [*LABELS, *LABELS]).predictor_.task.confidence.examples
    assert 0 < twice < 12  # of 18 that are held out
    shouted = [f"{text.upper()}!" for text in TEXTS]
    assert early.fit([*TEXTS, *shouted], [*LABELS, *LABELS]).predictor_.task.confidence.examples == twice
    with pytest.raises(RefusedInput, match="too few different texts to hold some out"):
        early.fit(["red cat", "blue dog"] * 20, ["red", "blue"] * 20)


def test_rows_of_one_text_and_other_columns_are_no_copies(tiny_bert: Path) -> None:
    rows = [{"text": text, "age": age} for age, text in enumerate(["red cat", "blue dog"] * 20)]
    mixed = {"settings": {"features": ["age"]}, "patience": 1, "validation_fraction": 0.25}
    early = BertClassifier(tiny_bert, **QUICK | mixed).fit(rows, ["red", "blue"] * 20)
    assert early.predictor_.task.confidence.examples == 10


def test_settings_are_those_of_finetune(tiny_bert: Path) -> None:
    frozen = {"freeze_layers": 2, "freeze_embeddings": True}
    model = BertClassifier(tiny_bert, settings=frozen, **QUICK).fit(TEXTS, LABELS)
    before = load_encoder(tiny_bert).layers.state_dict()
    after = model.predictor_.model.encoder.layers.state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())


def test_pairs_come_as_tuples_or_as_two_columns(tiny_bert: Path, pairs: list[tuple[str, str]]) -> None:
    model = BertRegressor(tiny_bert, **QUICK).fit(pairs, SCORES)
    turned = [(second, first) for first, second in pairs]
    assert (model.predict(pairs) == model.predict(np.array(pairs))).all()
    assert not np.allclose(model.predict(pairs), model.predict(turned))


def test_a_model_reads_what_it_was_fitted_on(
    tiny_bert: Path, pairs: list[tuple[str, str]], tmp_path: Path
) -> None:
    """A pair where training had single texts, or one text of a pair, was answered without a word."""
    of_texts = BertRegressor(tiny_bert, **QUICK).fit(TEXTS, SCORES)
    of_pairs = BertRegressor(tiny_bert, **QUICK).fit(pairs, SCORES)
    for model in (of_pairs, pickle.loads(pickle.dumps(of_pairs))):
        assert len(model.predict(pairs)) == len(pairs)
        with pytest.raises(RefusedInput, match=r"X\[0\]: the model reads a pair of texts; found 'small red"):
            model.score(TEXTS, SCORES)
    with pytest.raises(RefusedInput, match=r"X\[0\]: the model reads a text; found \('small red cat', "):
        of_texts.predict(pairs)
    single, double = tmp_path / "single.csv", tmp_path / "double.csv"
    single.write_text("text,label\nsmall red cat,1\n")
    double.write_text("question,answer,label\nsmall red cat,old dog,1\n")
    for model, right, wrong in ((of_texts, single, double), (of_pairs, double, single)):
        saved = Predictor.load(model.save(tmp_path / wrong.stem))
        assert saved.predict_file(right, tmp_path / f"{right.stem}.jsonl") == 1
        kind = "a text" if model is of_texts else "a pair of texts"
        for read in (saved.evaluate, lambda path, saved=saved: saved.predict_file(path, tmp_path / "no")):
            with pytest.raises(InputError, match=rf"{wrong.name}, line 2: the model reads {kind}; found"):
                read(wrong)
    with pytest.raises(InputError, match="the model reads a pair of texts; found"):
        saved.predict(TEXTS[:1])


# -- in scikit-learn -----------------------------------------------------------------------------------------


def test_a_pickle_predicts_the_same_to_the_bit_and_holds_nothing_of_torch(fitted: BertClassifier) -> None:
    content = pickle.dumps(fitted)
    assert (pickle.loads(content).predict_proba(TEXTS) == fitted.predict_proba(TEXTS)).all()
    strings = {str(argument) for _, argument, _ in pickletools.genops(content) if isinstance(argument, str)}
    assert not any(text.split(".")[0].split(" ")[0] == "torch" for text in strings)
    assert "model.safetensors" in strings


def test_a_clone_has_the_parameters_and_nothing_learnt(fitted: BertClassifier) -> None:
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(TEXTS)
    with pytest.raises(NotFittedError):
        copy.save("anywhere")


@pytest.mark.slow
def test_it_works_in_a_search_over_a_pipeline(tiny_bert: Path) -> None:
    shouted = [text.upper() + "!!!" for text in TEXTS]
    pipeline = make_pipeline(FunctionTransformer(lambda texts: [text.strip("!") for text in texts]))
    pipeline.steps.append(("bert", BertClassifier(tiny_bert, **LEARNS)))
    search = GridSearchCV(pipeline, {"bert__learning_rate": [2e-3, 1e-9]}, cv=2).fit(shouted, LABELS)
    assert search.best_params_ == {"bert__learning_rate": 2e-3}
    assert search.predict(shouted[:3]).shape == (3,)


def test_parameters_may_be_numpys_numbers_as_searches_draw_them(tiny_bert: Path) -> None:
    plain = BertClassifier(tiny_bert, settings={"freeze_layers": 1}, **QUICK).fit(TEXTS, LABELS)
    kinds = {int: np.int64, float: np.float64, str: np.str_}
    drawn = {name: kinds[type(value)](value) for name, value in QUICK.items()}
    numpys = BertClassifier(
        tiny_bert, settings={"freeze_layers": np.int64(1)}, random_state=np.int64(0), **drawn
    )
    assert (numpys.fit(TEXTS, LABELS).predict_proba(TEXTS) == plain.predict_proba(TEXTS)).all()


def test_cross_validation_takes_arrays_of_texts(tiny_bert: Path) -> None:
    found = cross_val_score(BertRegressor(tiny_bert, **QUICK), np.array(TEXTS), SCORES, cv=2)
    assert np.isfinite(found).all()


def test_a_saved_model_is_one_of_finetune(fitted: BertClassifier, tmp_path: Path) -> None:
    loaded = Predictor.load(fitted.save(tmp_path / "model"))
    said = loaded.predict(TEXTS)
    assert [each["label"] for each in said] == fitted.predict(TEXTS).tolist()
    for each, chances in zip(said, fitted.predict_proba(TEXTS), strict=True):
        named = dict(zip(fitted.classes_, chances, strict=True))
        assert each["probabilities"] == pytest.approx(named, abs=1e-5)
    with pytest.raises(InputError, match="already exists"):
        fitted.save(tmp_path / "model")


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "y", "complaint"),
    [
        ("red cat", ["a"], "X must be a list of texts"),
        (["red", 3.5], ["a", "b"], r"X\[1\]: expected a text, found '3.5' \(float\)"),
        ([("red", "cat"), "dog"], ["a", "b"], r"X\[1\]: X\[0\] is a pair of texts, but this is a text"),
        ([("red", "cat", "dog")], ["a"], r"X\[0\]: expected a text or a pair of texts, found 3 values"),
        ([{"text": "red", "age": 3}], ["a"], r"X\[0\]: .* found .*Pass the texts alone, or name the columns"),
        ([], [], "X has 0 texts"),
        (["red", "cat"], ["a", "a"], "y has one class only"),
        (["red", "cat"], ["a"], "inconsistent numbers of samples"),
        (["red", "cat"], [0.5, 1.5], "Unknown label type"),
        (["red", "cat"], None, "the target y is None"),
    ],
)
def test_what_is_no_text_or_no_label_is_a_value_error(
    tiny_bert: Path, X: Any, y: Any, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        BertClassifier(tiny_bert).fit(X, y)


@pytest.mark.parametrize(
    ("y", "complaint"),
    [([1.0, np.nan], "Input y contains NaN"), ([2.0, 2.0], "y is 2 in each of 2 samples")],
)
def test_numbers_must_be_finite_and_differ(tiny_bert: Path, y: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        BertRegressor(tiny_bert).fit(["red", "cat"], y)


@pytest.mark.parametrize(
    ("changes", "kind", "complaint"),
    [
        ({"epochs": 0}, RecipeError, "epochs"),
        ({"max_length": 4096}, RecipeError, "max_length = 4096, but the model has positions for 64"),
        ({"settings": {"epoch": 3}}, RecipeError, "unknown key 'epoch'. Did you mean 'epochs'"),
        ({"settings": {"restarts": 2}}, RecipeError, "Train once for each seed"),
        ({"settings": {"unlabelled": "a.txt"}}, RecipeError, "settings: unlabelled is for runs with files"),
        ({"settings": {"dev_share": 0.2}}, RecipeError, "settings: dev_share is for runs with files"),
        ({"settings": {"group": "author"}}, RecipeError, "settings: group is for runs with files"),
        (
            {"class_weights": {"red": 2.0}},
            InputError,
            "class_weights has weights for red, but the labels are",
        ),
        ({"model": "nowhere"}, ModelError, "no model 'nowhere'"),
        ({"learning_rate": 1e30}, RecipeError, "optimizer.learning_rate: expected less than or equal to 1"),
    ],
)
def test_a_wrong_parameter_is_named_when_fit_meets_it(
    tiny_bert: Path, changes: dict[str, Any], kind: type[Exception], complaint: str
) -> None:
    estimator = BertClassifier(**{"model": tiny_bert, "max_length": 16, **changes})
    with pytest.raises(kind, match=complaint):
        estimator.fit(TEXTS, LABELS)


def test_weights_are_of_labels_by_value(tiny_bert: Path) -> None:
    """Whole numbers and the numbers of a column that had a blank are the same keys in Python."""
    numbers = [float(sorted(set(LABELS)).index(label)) for label in LABELS]
    weights = {int(number): number + 1 for number in set(numbers)}
    estimator = BertClassifier(tiny_bert, **LEARNS, class_weights=weights).fit(TEXTS, numbers)
    recipe = estimator.predictor_.task.settings
    assert isinstance(recipe, ClassificationSettings)
    assert recipe.class_weights == {str(number): number + 1 for number in set(numbers)}


def test_a_fit_that_fails_leaves_the_last_model_whole(tiny_bert: Path) -> None:
    estimator = BertClassifier(tiny_bert, **LEARNS).fit(TEXTS, LABELS)
    wanted = estimator.predict(TEXTS[:3])
    estimator.class_weights = {"nothing": 1.0}
    with pytest.raises(InputError):
        estimator.fit(TEXTS, [f"other {label}" for label in LABELS])
    assert estimator.predict(TEXTS[:3]).tolist() == wanted.tolist()


@pytest.mark.parametrize("missing", [None, float("nan"), pandas.NA])
def test_a_class_that_is_missing_is_refused_by_row(tiny_bert: Path, missing: Any) -> None:
    labels = np.array([*LABELS[:4], missing, *LABELS[5:]], dtype=object)
    with pytest.raises(RefusedInput, match=r"y\[4\] is (None|nan|<NA>): expected a class"):
        BertClassifier(tiny_bert, **QUICK).fit(TEXTS, labels)


@pytest.mark.parametrize("kind", [str, object])
@pytest.mark.parametrize("blank", ["", " \t"])
def test_a_blank_class_is_refused_before_anything_is_trained(tiny_bert: Path, kind: type, blank: str) -> None:
    """No folder and no pickle of such a model could be opened."""
    labels = np.array([*LABELS[:4], blank, *LABELS[5:]], dtype=kind)
    with pytest.raises(RefusedInput, match=r"y\[4\] is blank: expected a class"):
        BertClassifier(tiny_bert, **QUICK).fit(TEXTS, labels)

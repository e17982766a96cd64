"""What is kept about confidence comes back from JSON as it was, and altered files get a sentence."""

import json
from functools import partial
from typing import Any

import numpy as np
import pytest

from bertsmith.errors import ModelError
from bertsmith.metrics.calibration import Confidence, confidence_of, fit_confidence, probabilities_of
from bertsmith.metrics.thresholds import threshold_for_coverage


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(29)


def overconfident(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Logits three times too sharp, and classes drawn from the true ones."""
    logits = generator.normal(0, 2, (4000, 3))
    probabilities = probabilities_of(logits).cumsum(axis=1)
    return 3 * logits, (generator.random((4000, 1)) > probabilities).sum(axis=1).clip(max=2)


def test_classes_are_calibrated_and_answered_as_far_as_asked(generator: np.random.Generator) -> None:
    logits, gold = overconfident(generator)
    found = fit_confidence(logits, gold, partial(threshold_for_coverage, coverage=0.8))
    assert found.temperature == pytest.approx(3, rel=0.1)
    assert found.ece_after < 0.03 < found.ece_before
    assert found.coverage == pytest.approx(0.8, abs=1e-3)
    everything = fit_confidence(logits, gold)
    assert (everything.threshold, everything.coverage, everything.examples) == (0.0, 1.0, 4000)
    assert found.risk < everything.risk == pytest.approx((logits.argmax(axis=1) != gold).mean())


def test_labels_have_thresholds_of_their_own(generator: np.random.Generator) -> None:
    logits = generator.normal(-1, 2, (3000, 4))
    gold = generator.random(logits.shape) < probabilities_of(logits, multi_label=True)
    logits[:, 3] -= 3  # dev doesn't have it, and it is rare
    gold[:, 3] = False
    found = fit_confidence(2 * logits, gold, partial(threshold_for_coverage, coverage=0.9))
    assert found.label_thresholds is not None
    assert 0.05 < found.label_thresholds[3] < 0.3
    # The best cut for F1 lies at half of the best F1 (Lipton et al. 2014): below one half.
    assert all(0.2 < cut < 0.5 for cut in found.label_thresholds[:3])
    assert found.coverage == pytest.approx(0.9, abs=1e-2)


def test_the_confidence_of_a_set_of_labels_is_that_of_each_decision() -> None:
    probabilities = np.array([[0.9, 0.2], [0.4, 0.1]])
    assert confidence_of(probabilities, [0.5, 0.5]) == pytest.approx([0.9 * 0.8, 0.6 * 0.9])
    assert confidence_of(probabilities, [0.3, 0.5]) == pytest.approx([0.9 * 0.8, 0.4 * 0.9])
    assert confidence_of(probabilities).tolist() == [0.9, 0.4]


def test_json_gives_it_back_to_the_last_bit(generator: np.random.Generator) -> None:
    for multi_label in (False, True):
        logits = generator.normal(size=(50, 3))
        gold = logits > 0.3 if multi_label else generator.integers(3, size=50)
        found = fit_confidence(logits, gold, partial(threshold_for_coverage, coverage=0.5))
        assert Confidence.from_json(json.loads(json.dumps(found.to_json()))) == found


KEPT: dict[str, Any] = {
    "temperature": 1.5,
    "ece_before": 0.1,
    "ece_after": 0.02,
    "threshold": 0.7,
    "coverage": 0.9,
    "risk": 0.05,
    "examples": 872,
    "label_thresholds": None,
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"temperature": 0.0}, "temperature:"),
        ({"temperature": "1.5"}, "temperature:"),
        ({"temperature": float("nan")}, "temperature:"),
        ({"threshold": 3.0}, "threshold:"),
        ({"examples": 1.5}, "examples:"),
        ({"label_thresholds": [0.5, "0.5"]}, "label_thresholds.1:"),
        ({"surprise": 1}, "unknown key 'surprise'."),
    ],
)
def test_an_altered_file_gets_a_sentence(change: dict[str, Any], named: str) -> None:
    assert Confidence.from_json(KEPT).examples == 872
    with pytest.raises(ModelError, match=rf"^model/bertsmith\.json: confidence: {named} "):
        Confidence.from_json(KEPT | change, "model/bertsmith.json")


def test_what_is_missing_or_no_table_gets_a_sentence() -> None:
    with pytest.raises(ModelError, match=r"confidence: the key 'risk' is missing"):
        Confidence.from_json({key: value for key, value in KEPT.items() if key != "risk"})
    with pytest.raises(ModelError, match=r"bertsmith\.json: confidence: "):
        Confidence.from_json([1, 2])

"""A score is never silent: what stands beside it, and what is said of it."""

import pytest

from bertsmith.tasks.evaluating.evaluation import Evaluation
from bertsmith.tasks.finetuning import EncodedExamples


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            0.5,
            ["no better than the baseline 'always the most frequent label' (0.5000): it has learned nothing"],
        ),
        (
            0.4,
            ["no better than the baseline 'always the most frequent label' (0.5000): it has learned nothing"],
        ),
        (0.6, ["on dev TF-IDF has accuracy 0.7000, the model 0.6000"]),
        (0.69994, ["on dev TF-IDF has accuracy 0.7000, the model 0.6999"]),
        (0.69996, []),
        (0.7, []),
        (0.71, []),
    ],
)
def test_a_model_that_a_baseline_beats_is_named_and_no_tie(model: float, said: list[str]) -> None:
    baselines = {"majority": {"accuracy": 0.5}, "TF-IDF": {"accuracy": 0.7}}
    evaluation = Evaluation({"accuracy": model}, baselines, [], EncodedExamples([], []))
    found = evaluation.warnings("dev", "accuracy")
    assert len(found) == len(said)
    assert all(part in sentence for part, sentence in zip(said, found, strict=True))
    assert ("the model" in evaluation.best("accuracy")) is (said == [])


@pytest.mark.parametrize("model", [0.95, 1.0])
def test_on_rows_of_one_answer_nobody_is_said_to_have_learned_nothing(model: float) -> None:
    baselines = {"majority": {"accuracy": 1.0}, "TF-IDF": {"accuracy": 1.0}}
    evaluation = Evaluation({"accuracy": model}, baselines, [], EncodedExamples([], []))
    (found,) = evaluation.warnings("dev", "accuracy")
    assert "'always the most frequent label' has accuracy 1.0000" in found
    assert found.endswith("the rows have one answer only, and figures on them tell nothing")


def test_matthews_of_rows_of_one_answer_tells_nothing_of_the_model() -> None:
    always = {"accuracy": 1.0, "matthews": 0.0}
    evaluation = Evaluation(always, {"majority": always}, [], EncodedExamples([], []))
    (found,) = evaluation.warnings("dev", "matthews")
    assert found.endswith("the rows have one answer only, and figures on them tell nothing")


def test_warnings_of_the_data_come_first() -> None:
    evaluation = Evaluation(
        {"accuracy": 0.5}, {"majority": {"accuracy": 0.5}}, [], EncodedExamples([], []), ("few rows",)
    )
    found = evaluation.warnings("dev", "accuracy")
    assert (found[0], len(found)) == ("few rows", 2)

"""Numbers: learnt in deviations of the labels, answered in their own unit."""

import numpy as np
import pytest
import torch
from small_tasks import WORDS, first_batch, objective_of, random_model, split_of

from bertsmith.errors import InputError
from bertsmith.tasks.examples.text_settings import PooledSettings
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.regression import Regression
from bertsmith.text.tokens.tokenizer import Tokenizer


def learnt(numbers: list[float]) -> tuple[Regression, list[TextExample]]:
    task = Regression(PooledSettings())
    examples = [
        TextExample(WORDS[n % len(WORDS)], None, number, f"rows, line {n}")
        for n, number in enumerate(numbers)
    ]
    task.fit(examples)
    return task, examples


@pytest.mark.parametrize(("scale", "shift"), [(1000.0, 0.0), (1.0, 1e6), (1e-3, -300.0)])
def test_loss_and_gradients_dont_depend_on_the_unit(scale: float, shift: float, tokenizer: Tokenizer) -> None:
    """Prices in cents or in thousands learn alike."""
    numbers = [1.0, 2.5, 4.0, 0.5, 3.0]
    found = []
    for labels in (numbers, [scale * number + shift for number in numbers]):
        task, examples = learnt(labels)
        model = random_model(task, tokenizer)
        objective = objective_of(task, model, split_of(task, examples, tokenizer))
        loss = objective.loss(first_batch(objective))["task"]
        loss.backward()
        found.append((float(loss.detach()), model.encoder.embeddings.token.weight.grad))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-5)


def test_a_head_that_says_nothing_answers_the_mean(tokenizer: Tokenizer) -> None:
    task, examples = learnt([10.0, 20.0, 60.0])
    model = random_model(task, tokenizer)
    torch.nn.init.zeros_(model.head.out.weight)  # type: ignore[arg-type,union-attr]
    torch.nn.init.zeros_(model.head.out.bias)  # type: ignore[arg-type,union-attr]
    objective = objective_of(task, model, split_of(task, examples, tokenizer))
    predictions = task.decode([np.array([30.0], np.float32)] * 3, examples, objective.train.encoded)
    assert [prediction["score"] for prediction in predictions] == [30.0] * 3
    sequences = first_batch(objective)
    mean = objective.loss(sequences)["task"] / objective.counts(sequences)["task"]
    assert float(mean.detach()) == pytest.approx(1.0, rel=1e-5)  # the variance, in deviations


def test_scores_behind_a_sigmoid_are_learnt_as_they_are_answered() -> None:
    """By a student of a cross-encoder: the loss is least where the answer is the label."""
    task = Regression(PooledSettings())
    task.has_sigmoid, task.mean, task.deviation = True, -2.0, 7.0
    outputs = torch.tensor([[-8.0], [0.4], [3.0]], requires_grad=True)
    answers = [each["score"] for each in task.decode([*outputs.detach().numpy()], [], [])]
    task.loss(outputs, answers).backward()
    assert outputs.grad is not None
    torch.testing.assert_close(outputs.grad, torch.zeros(3, 1), rtol=0, atol=1e-6)
    expected = -sum(np.log([1 - answers[0], 1 - answers[1], answers[2]]))  # cross-entropy of 0, 0 and 1
    assert float(task.loss(outputs, [0.0, 0.0, 1.0]).detach()) == pytest.approx(expected)


def test_equal_scores_are_nothing_to_learn() -> None:
    with pytest.raises(InputError, match="has the score 3, from rows, line 0"):
        learnt([3.0, 3.0])
    with pytest.raises(InputError, match=r"has the score 0\.7"):
        learnt([0.7] * 7)  # whose deviation is 1e-16


def test_scores_that_float32_cannot_tell_apart_are_refused() -> None:
    """Cross-validation judges in float64, and the model that is kept would answer one number."""
    times = [1.7e9 + 10 * number for number in range(4)]
    with pytest.raises(InputError, match=r"deviate by 11\.1803 from their mean, 1700000015"):
        learnt(times)
    learnt([time - 1.7e9 for time in times])
    learnt([100.0, 100.01])

"""Two texts encoded apart: pooling against a plain definition, cosines, classes."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from small_tasks import WORDS, make_task, random_model, split_of

from bertsmith.data.batch import PackedBatch
from bertsmith.errors import InputError, ModelError
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model, save_task_model
from bertsmith.tasks.examples.encoding import EncodedExample, Layout, pack_examples
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.heads.pooling import pool_texts
from bertsmith.tasks.similarity import Similarity
from bertsmith.tasks.task_model import outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer

PAIRS = [
    ("bano delo", "firu"),
    (" ".join(WORDS[:30]), " ".join(WORDS[5:9])),
    ("", "bano"),
    ("guma", " ".join(WORDS)),
]


def states_of_texts(encoded: Any, states: torch.Tensor) -> list[list[torch.Tensor]]:
    """For each text in order the states of each of its windows, cut by hand."""
    texts: list[list[torch.Tensor]] = []
    start = 0
    for each in encoded:
        found: list[list[torch.Tensor]] = [[], []]
        for window in each.windows:
            found[window.text].append(states[start : start + len(window.token_ids)])
            start += len(window.token_ids)
        texts += found
    return texts


@pytest.mark.parametrize(
    ("pooling", "plain"),
    [
        ("mean", lambda windows: torch.cat(windows).mean(0)),
        ("max", lambda windows: torch.cat(windows).amax(0)),
        ("cls", lambda windows: torch.stack([window[0] for window in windows]).mean(0)),
    ],
)
def test_pooling_is_over_all_windows_of_a_text(pooling: Any, plain: Any, tokenizer: Tokenizer) -> None:
    task = make_task("similarity", max_length=12, stride=3, pooling=pooling)
    model = random_model(task, tokenizer)
    encoded = split_of(task, [task.example(pair) for pair in PAIRS], tokenizer).encoded
    with torch.inference_mode():
        states = model.encoder(PackedBatch.of(pack_examples(encoded, range(len(PAIRS)))))
        found = pool_texts(states, Layout(encoded), pooling)
    wanted = torch.stack([plain(windows) for windows in states_of_texts(encoded, states)])
    assert found.shape == (2 * len(PAIRS), 16)
    torch.testing.assert_close(found, wanted)


def test_the_cosine_doesnt_depend_on_the_order_of_the_two(tokenizer: Tokenizer) -> None:
    task = make_task("similarity")
    model = random_model(task, tokenizer)
    there, back = (
        outputs_of(model, split_of(task, [task.example(p) for p in pairs], tokenizer).encoded)
        for pairs in (PAIRS, [(b, a) for a, b in PAIRS])
    )
    np.testing.assert_allclose(np.stack(there), np.stack(back), atol=1e-5)
    same = split_of(task, [task.example((a, a)) for a, _ in PAIRS], tokenizer).encoded
    np.testing.assert_allclose(np.stack(outputs_of(model, same)), 1.0, atol=1e-5)


def labelled(task: Any, labels: list[Any]) -> list[Any]:
    return [
        dataclasses.replace(task.example(pair), label=label)
        for pair, label in zip(PAIRS, labels, strict=True)
    ]


def test_scores_become_cosines_of_0_to_1_and_back() -> None:
    task = make_task("similarity")
    task.fit(labelled(task, [1.0, 5.0, 2.0, 3.0]))
    assert [task.target(label) for label in (1.0, 5.0, 3.0)] == [0.0, 1.0, 0.5]
    outputs = [np.array([value], np.float32) for value in (0.0, 1.0, 0.5, -0.7)]
    found = task.decode(outputs, [], [])
    assert [each["score"] for each in found] == pytest.approx([1.0, 5.0, 3.0, 1.0])
    again = Similarity.from_state(task.state(), "here")
    assert again.decode(outputs, [], []) == found
    (beyond,) = task.decode([np.array([1.0000001], np.float32)], [], [])
    assert (beyond["similarity"], beyond["score"]) == (1.0, 5.0)


def test_a_score_of_minus_1_among_positive_ones_is_told() -> None:
    task = make_task("similarity")
    (told,) = task.warnings(labelled(task, [-1.0, 5.0, 2.0, -1.0]))
    assert told.startswith("2 of 4 rows have the score -1, the first in ")
    assert not task.warnings(labelled(task, [-1.0, 1.0, 0.5, 0.0]))
    assert not make_task("similarity", target="class").warnings(labelled(task, ["-1", "1", "2", "3"]))


def test_classes_of_pairs_survive_a_checkpoint(tokenizer: Tokenizer, tmp_path: Any) -> None:
    """transformers has no such head: it lies beside the encoder."""
    task = make_task("similarity", target="class", max_length=64)
    examples = labelled(task, ["same", "other", "same", "against"])
    task.fit(examples)
    assert (task.labels, task.main_metric) == (("against", "other", "same"), "accuracy")
    model = random_model(task, tokenizer)
    encoded: tuple[EncodedExample, ...] | Any = split_of(task, examples, tokenizer).encoded
    outputs = outputs_of(model, encoded)
    save_task_model(tmp_path / "model", model, task, tokenizer, {})
    again, opened = load_task_model(tmp_path / "model")
    np.testing.assert_array_equal(np.stack(outputs_of(again, encoded)), np.stack(outputs))
    wanted = task.decode(outputs, examples, encoded)
    assert opened.decode(outputs, examples, encoded) == wanted
    right = np.mean([p["label"] == e.label for p, e in zip(wanted, examples, strict=True)])
    assert task.metrics(wanted, examples)["accuracy"] == pytest.approx(float(right))


def test_what_cant_be_compared_is_refused() -> None:
    task = make_task("similarity")
    alone = TextExample("bano", None, 1.0, "rows, line 3")
    with pytest.raises(InputError, match="input 2: the model reads a pair of texts; found 'bano'"):
        task.example("bano", "input 2")
    with pytest.raises(InputError, match=r"rows, line 3: similarity needs two texts"):
        task.check([alone])
    with pytest.raises(
        InputError, match=r"4 training pairs has the label 2\.0, from the input on: .*--label"
    ):
        task.fit(labelled(task, [2.0] * 4))
    classes = make_task("similarity", target="class", max_length=64)
    classes.fit(labelled(classes, ["same", "other"] * 2))
    with pytest.raises(
        InputError, match="'against' does not occur in the training data, which has other, same"
    ):
        classes.check(labelled(classes, ["against"] * 4))
    with pytest.raises(ModelError, match="here: range"):
        Similarity.from_state(task.state() | {"range": [0]}, "here")

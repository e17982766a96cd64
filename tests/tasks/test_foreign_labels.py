"""What a foreign folder says of its outputs, held against transformers: names, numbers, what they become."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertsmith.compression.vocabulary_pruning import prune_vocabulary
from bertsmith.errors import ModelError
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from sentence_folders import CLASSIFIER, READER, TEXTS, WORDS, save_foreign

transformers = pytest.importorskip("transformers")
CrossEncoder = pytest.importorskip("sentence_transformers").CrossEncoder
TAGGER = "BertForTokenClassification"


def names(*labels: str) -> dict[str, str]:
    return {str(number): label for number, label in enumerate(labels)}


AGREE: list[tuple[int, dict[str, Any]]] = [
    (2, {}),
    (2, {"num_labels": 2}),
    (3, {"num_labels": 3}),
    (2, {"id2label": names("a", "b")}),
    (3, {"id2label": names("a", "b", "c"), "num_labels": 3, "label2id": {"a": 0, "b": 1, "c": 2}}),
    (3, {"id2label": {"2": "c", "0": "a", "1": "b"}}),
    (2, {"label2id": {"LABEL_0": 0, "LABEL_1": 1}}),
    (2, {"label2id": {"no": 0, "yes": 1}}),
    (2, {"id2label": None, "label2id": None}),
    (3, {"id2label": names("a", "b", "c"), "problem_type": "single_label_classification"}),
]


@pytest.mark.parametrize(("outputs", "said"), AGREE)
@pytest.mark.parametrize("architecture", [CLASSIFIER, TAGGER])
def test_names_are_those_of_transformers(
    tmp_path: Path, architecture: str, outputs: int, said: dict[str, Any]
) -> None:
    folder = save_foreign(tmp_path / "model", outputs, architecture, **said)
    _, task = load_task_model(folder)
    theirs = transformers.AutoConfig.from_pretrained(folder).id2label
    assert list(task.labels) == [theirs[number] for number in range(outputs)]


DISAGREE: list[tuple[int, dict[str, Any], str]] = [
    (3, {}, "the head has 3 outputs.*num_labels not given, id2label not given"),
    (2, {"num_labels": 3}, "the head has 2 outputs.*num_labels 3"),
    (3, {"num_labels": 3, "id2label": names("a", "b")}, "3 outputs.*num_labels 3, id2label 2, label2id not"),
    (2, {"num_labels": 3, "id2label": names("a", "b")}, "2 outputs.*num_labels 3, id2label 2"),
    (3, {"id2label": names("a", "b")}, "3 outputs.*id2label 2"),
    (2, {"id2label": names("a", "b", "c")}, "2 outputs.*id2label 3"),
    (2, {"id2label": names("a", "b"), "label2id": {"a": 0}}, "2 outputs.*id2label 2, label2id 1"),
    (2, {"id2label": names("a", "b"), "label2id": {"a": 1, "b": 0}}, "label2id says that 'a' is output 1"),
    (2, {"id2label": names("a", "b"), "label2id": {"a": 0, "c": 1}}, "label2id says that 'c' is output 1"),
    (2, {"id2label": names("a", "b"), "label2id": {"a": 0, "b": 7}}, "label2id says that 'b' is output 7"),
    (2, {"id2label": {"1": "a", "2": "b"}}, "id2label has the keys 1, 2; expected 0 to 1"),
    (2, {"id2label": {"0": "a", "7": "b"}}, "id2label has the keys 0, 7"),
    (2, {"id2label": {"-1": "a", "0": "b"}}, "id2label"),
    (2, {"id2label": names("a", "a")}, "the label 'a' stands twice"),
    (3, {"label2id": {"no": 0, "yes": 1}}, "3 outputs"),
    (1, {"id2label": names("a", "b")}, "1 outputs.*id2label 2"),
    (
        3,
        {"id2label": names("a", "b", "c"), "problem_type": "regression"},
        "regression, and the head has 3 out",
    ),
    (1, {"num_labels": 1, "problem_type": "single_label_classification"}, "one output, which is no choice"),
    (2, {"problem_type": "ranking"}, "problem_type is 'ranking'; expected regression, single_label"),
]


@pytest.mark.parametrize(("outputs", "said", "sentence"), DISAGREE)
def test_what_does_not_agree_is_refused_with_the_numbers(
    tmp_path: Path, outputs: int, said: dict[str, Any], sentence: str
) -> None:
    folder = save_foreign(tmp_path / "model", outputs, **said)
    with pytest.raises(ModelError, match=sentence):
        load_task_model(folder)


@pytest.mark.parametrize("said", [{}, {"num_labels": 2}, {"id2label": names("a", "b")}])
def test_a_reader_has_two_outputs_whatever_they_are_called(tmp_path: Path, said: dict[str, Any]) -> None:
    assert (
        load_task_model(save_foreign(tmp_path / "model", 2, READER, **said))[1].name == "question-answering"
    )


def test_a_reader_of_three_labels_is_refused(tmp_path: Path) -> None:
    folder = save_foreign(tmp_path / "model", 2, READER, id2label=names("a", "b", "c"))
    with pytest.raises(ModelError, match=r"2 outputs.*id2label 3"):
        load_task_model(folder)


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        (2, {}),
        (3, {"num_labels": 3}),
        (1, {"num_labels": 1}),
        (1, {"num_labels": 1, "problem_type": "regression"}),
        (2, {"problem_type": "multi_label_classification"}),
        (1, {"num_labels": 1, "problem_type": "multi_label_classification"}),
    ],
)
def test_scores_are_those_of_transformers_pipeline(
    tmp_path: Path, outputs: int, said: dict[str, Any]
) -> None:
    folder = save_foreign(tmp_path / "model", outputs, **said)
    pipe = transformers.pipeline("text-classification", str(folder), device="cpu", top_k=None)
    found = Predictor.load(folder, compute_dtype=torch.float32).predict(list(TEXTS))
    for theirs, ours in zip(pipe(list(TEXTS)), found, strict=True):
        wanted = {their["label"]: their["score"] for their in theirs}
        mine = ours.get("probabilities") or {next(iter(wanted)): ours["score"]}
        assert mine.keys() == wanted.keys()
        np.testing.assert_allclose([mine[name] for name in wanted], [*wanted.values()], atol=1e-4)


@pytest.mark.parametrize("activation", ["", "Identity", "Sigmoid"])
def test_what_one_output_is_put_through_goes_along_into_a_folder_of_ours(
    tmp_path: Path, activation: str
) -> None:
    """As into that of a pruned or distilled cross-encoder; pipeline and CrossEncoder are the oracles."""
    said = {"sentence_transformers": {"activation_fn": f"torch.nn.{activation}"}} if activation else {}
    folder = save_foreign(tmp_path / "model", 1, num_labels=1, **said)
    prune_vocabulary(folder, [*TEXTS, "other"], tmp_path / "small")
    pairs = [(text, "other") for text in TEXTS]
    ours = [each["score"] for each in Predictor.load(folder, compute_dtype=torch.float32).predict(pairs)]
    theirs = CrossEncoder(str(tmp_path / "small"), device="cpu").predict(pairs)
    np.testing.assert_allclose(theirs, ours, atol=1e-4)
    pipe = transformers.pipeline("text-classification", str(tmp_path / "small"), device="cpu")
    found = [pipe({"text": first, "text_pair": second})["score"] for first, second in pairs]
    np.testing.assert_allclose(found, ours, atol=1e-4)


@pytest.mark.parametrize(
    ("key", "limit"), [("model_max_length", 12), ("max_len", 9), ("model_max_length", 512)]
)
def test_the_longest_text_is_the_tokenizers_or_what_there_are_positions_for(
    tmp_path: Path, key: str, limit: int
) -> None:
    folder = save_foreign(tmp_path / "model", 2)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("model_max_length", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {key: limit}))
    pipe = transformers.pipeline(
        "text-classification", str(folder), device="cpu", top_k=None, truncation=True
    )
    if limit > 64:  # transformers would look for a position that there isn't
        pipe.tokenizer.model_max_length = 64
    (theirs,) = pipe([" ".join(WORDS) * 20])
    (ours,) = Predictor.load(folder, compute_dtype=torch.float32).predict([" ".join(WORDS) * 20])
    for their in theirs:
        assert ours["probabilities"][their["label"]] == pytest.approx(their["score"], abs=1e-4)
    prune_vocabulary(folder, [" ".join(WORDS) * 20], tmp_path / "small")  # which is ours, and says its own
    again = transformers.pipeline("text-classification", str(tmp_path / "small"), device="cpu", top_k=None)
    (found,) = again([" ".join(WORDS) * 20], truncation=True)
    for each in found:
        assert ours["probabilities"][each["label"]] == pytest.approx(each["score"], abs=1e-4)


def test_an_adapter_alone_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "run" / "adapter").mkdir(parents=True)
    (tmp_path / "run" / "adapter" / "adapter_config.json").write_text("{}")
    with warnings.catch_warnings(), pytest.raises(ModelError, match=r"an adapter \(LoRA\) alone.*run/model"):
        load_task_model(tmp_path / "run" / "adapter")

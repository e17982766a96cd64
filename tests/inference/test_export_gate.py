"""The padded twin answers as the packed model does, and the gate finds out what doesn't. By torch, without a
graph.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from export_samples import FAMILIES, NAMES, gate_file, labelled_file, saved_model, torch_run
from scipy.stats import binom

from bertsmith.errors import InputError, ModelError
from bertsmith.inference.export import comparison, padded
from bertsmith.inference.export import gate_file as reading_rows
from bertsmith.inference.export.export import _require_enough
from bertsmith.inference.export.gate import ERROR, EXACT, ExportLimits, Gate
from bertsmith.inference.export.gate_file import GateFile, make_probes, read_gate_file, require_same_ids
from bertsmith.inference.export.graph import Feed, all_together, arrangements, padded_feed, run_sequences
from bertsmith.inference.export.source import ExportSource, open_source
from bertsmith.metrics.calibration import Confidence

EVERY_HEAD_AND_FAMILY = [
    *((name, "bert") for name in NAMES),
    *(("classification", family) for family in FAMILIES if family != "bert"),
    *(("tagging", family) for family in FAMILIES if family != "bert"),
]


def opened(folder: Path, name: str, family: str = "bert", **settings: Any) -> tuple[ExportSource, GateFile]:
    source = open_source(saved_model(folder / "model", name, family, **settings))
    return source, read_gate_file(source, gate_file(folder, name), {})


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[ExportSource, GateFile]:
    return opened(tmp_path_factory.mktemp("gate"), "classification", pooling="published")


@pytest.mark.parametrize(("name", "family"), EVERY_HEAD_AND_FAMILY)
def test_the_padded_twin_answers_as_the_packed_model_in_any_company(
    tmp_path: Path, name: str, family: str
) -> None:
    source, file = opened(tmp_path, name, family)
    assert len({len(window.token_ids) for window in file.sequences}) > 8
    verdict = Gate(source, file).judge(torch_run(source.padded), EXACT, ERROR)
    assert verdict.problems == ()
    assert verdict.figures["sequences"] == len(file.sequences)
    largest = verdict.figures.get("largest_change", 1 - verdict.figures.get("smallest_cosine", 1))
    assert largest < 1e-5


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "published"])
def test_every_pooling_of_a_classifier(tmp_path: Path, pooling: str) -> None:
    source, file = opened(tmp_path, "classification", pooling=pooling)
    ours = source.answers(file.sequences)
    for arrangement in arrangements(file.lengths):
        theirs = run_sequences(torch_run(source.padded), source, file.sequences, arrangement)
        np.testing.assert_allclose(np.stack(theirs), np.stack(ours), atol=1e-5)


def test_an_encoder_alone_gives_its_hidden_states(tiny_bert: Path, tmp_path: Path) -> None:
    source = open_source(tiny_bert)
    (tmp_path / "rows.txt").write_text("red cat\nold dog runs\nblue bird sleeps 10\n")
    file = read_gate_file(source, tmp_path / "rows.txt", {})
    assert source.padded.head.names == ("last_hidden_state",)
    assert Gate(source, file).judge(torch_run(source.padded), EXACT, ERROR).problems == ()


def test_padding_says_nothing_whatever_it_holds(classifier: tuple[ExportSource, GateFile]) -> None:
    source, file = classifier
    feed, _ = padded_feed(file.sequences[:8], source, left=True)
    other = {**feed, "input_ids": np.where(feed["attention_mask"] == 1, feed["input_ids"], 7)}
    run = torch_run(source.padded)
    np.testing.assert_array_equal(run(feed)[0], run(other)[0])


def test_positions_that_padding_moves_are_found(
    classifier: tuple[ExportSource, GateFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, file = classifier
    gate = Gate(source, file)

    def moved(attention_mask: torch.Tensor) -> padded.PaddedBatch:
        places = torch.arange(attention_mask.shape[1]).expand_as(attention_mask)
        return padded.PaddedBatch(places, attention_mask > 0)

    monkeypatch.setattr(padded.PaddedBatch, "of", staticmethod(moved))
    verdict = gate.judge(torch_run(source.padded), EXACT, ERROR)
    by_arrangement = {name: row["largest_change"] for name, row in verdict.figures["arrangements"].items()}
    assert by_arrangement["32 of any length, padded on the left"] > 1e-3
    assert by_arrangement["8 of any length, padded on the right"] < 1e-5
    assert verdict.problems


def test_a_graph_that_is_right_at_the_lengths_of_the_file_alone_is_found(
    classifier: tuple[ExportSource, GateFile],
) -> None:
    source, file = classifier
    right, longest = torch_run(source.padded), max(file.lengths)

    def wrong_beyond(feed: Feed) -> list[npt.NDArray[Any]]:
        found = list(right(feed))
        too_long = feed["attention_mask"].sum(1) > longest
        return [np.where(too_long[:, None], -found[0], found[0])]

    verdict = Gate(source, file).judge(wrong_beyond, EXACT, ERROR)
    assert verdict.figures["largest_change"] < 1e-5
    assert any("a sequence of" in problem and "tokens" in problem for problem in verdict.problems)


def test_a_row_that_its_neighbours_change_is_found(classifier: tuple[ExportSource, GateFile]) -> None:
    source, file = classifier
    right = torch_run(source.padded)

    def mixed(feed: Feed) -> list[npt.NDArray[Any]]:
        (logits,) = right(feed)
        return [logits + (logits.mean(0) - logits) * 0.3]

    verdict = Gate(source, file).judge(mixed, EXACT, ERROR)
    assert verdict.figures["arrangements"]["alone"]["largest_change"] < 1e-5
    assert verdict.figures["largest_change"] > 1e-3 and verdict.problems


def test_values_that_are_not_finite_are_refused(classifier: tuple[ExportSource, GateFile]) -> None:
    source, file = classifier
    with pytest.raises(ModelError, match="values that are not finite"):
        Gate(source, file).judge(lambda feed: [np.full((len(feed["input_ids"]), 3), np.nan)], EXACT, ERROR)


def test_the_lengths_tried_are_those_of_the_model(classifier: tuple[ExportSource, GateFile]) -> None:
    lengths = [len(window.token_ids) for window in make_probes(*classifier)]
    assert lengths[0] == 3 and lengths[-1] == 64 and 33 in lengths


@pytest.mark.parametrize(("agreeing", "of", "error"), [(860, 872, 0.05), (72, 72, 0.025), (1, 10, 0.05)])
def test_the_bound_is_the_share_that_shows_so_many_with_the_chance_of_error(
    agreeing: int, of: int, error: float
) -> None:
    bound = comparison.lower_bound(agreeing, of, error)
    assert binom.sf(agreeing - 1, of, bound) == pytest.approx(error, rel=1e-6)
    assert comparison.lower_bound(0, of, error) == 0.0


def test_so_many_rows_prove_so_much() -> None:
    least = comparison.fewest_examples(0.95, 0.025)
    assert comparison.lower_bound(least, least, 0.025) >= 0.95
    assert comparison.lower_bound(least - 1, least - 1, 0.025) < 0.95


@pytest.mark.parametrize(("rows", "count"), [(2, 1), (11, 1), (40, 3), (101, 10), (300, 10)])
def test_neighbours_are_counted_as_the_definition_says(rows: int, count: int) -> None:
    """A tenth of the others: if all were among the nearest, all would be kept."""
    draw = np.random.Generator(np.random.PCG64DXSM(1))
    ours, theirs = draw.normal(size=(2, rows, 8))

    def nearest(vectors: npt.NDArray[Any], row: int) -> set[int]:
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        order = np.argsort(-(units @ units[row]))
        return set([number for number in order.tolist() if number != row][:count])

    shares = [len(nearest(ours, row) & nearest(theirs, row)) / count for row in range(rows)]
    assert comparison.neighbour_count(rows) == count
    assert comparison.neighbours_kept(ours, theirs) == pytest.approx(np.mean(shares))
    assert comparison.neighbours_kept(ours, ours) == 1.0


def test_of_few_rows_a_spoilt_graph_keeps_few_neighbours_and_says_of_how_many(tmp_path: Path) -> None:
    source, file = opened(tmp_path, "retrieval")
    for rows, of in ((8, "nearest"), (30, "2 nearest")):
        gate = Gate(source, replace(file, sequences=file.sequences[:rows]))
        mixed = gate._ours[rows // 3 :] + gate._ours[: rows // 3]
        kept, (problem,) = gate._compare_neighbours(mixed, ExportLimits())
        assert kept["neighbours_kept"] < 0.9
        assert problem.endswith(f"% of the {of} neighbours stay so; at least 90% must")


def test_a_file_too_short_to_tell_of_neighbours_is_refused_before_the_work(tmp_path: Path) -> None:
    """All of 36 kept prove 90 % with the certainty of the gate, all of 35 don't: Clopper and Pearson."""
    source, file = opened(tmp_path, "retrieval")
    assert comparison.lower_bound(36, 36, 0.025) >= 0.9 > comparison.lower_bound(35, 35, 0.025)
    _require_enough(source, replace(file, encoded=file.encoded[:1] * 36), ExportLimits())
    with pytest.raises(
        InputError, match=r"35 rows, too few to tell whether 90% of the nearest.* at least 36"
    ):
        _require_enough(source, replace(file, encoded=file.encoded[:1] * 35), ExportLimits())


def test_a_label_column_that_pairs_lack_is_noted_where_it_was_given(tmp_path: Path) -> None:
    source, file = opened(tmp_path, "retrieval")
    assert file.labelled and file.notes == ()
    mistyped = read_gate_file(source, file.path, {"label": "revelance"})
    assert not mistyped.labelled
    (note,) = mistyped.notes
    assert note.startswith("The file was read without labels: ") and "revelance" in note


def test_all_neighbours_can_be_asked_for(tmp_path: Path, classifier: tuple[ExportSource, GateFile]) -> None:
    """No number of rows proves a share of 1, so that as many as 99 % takes are enough."""
    all_of_them = ExportLimits(neighbours=1.0)
    _require_enough(
        classifier[0], replace(classifier[1], encoded=classifier[1].encoded[:1] * 72), all_of_them
    )
    source, file = opened(tmp_path, "retrieval")
    _require_enough(source, replace(file, encoded=file.encoded[:1] * 368), all_of_them)
    with pytest.raises(InputError, match=r"367 rows, too few to tell whether 100% .* at least 368"):
        _require_enough(source, replace(file, encoded=file.encoded[:1] * 367), all_of_them)


def test_labels_are_read_where_there_are_some_and_refitted_for_int8(tmp_path: Path) -> None:
    source, file = opened(tmp_path, "multi-label")
    task = source.task
    assert task is not None and not file.labelled
    said = file.predictions(task, source.answers(file.sequences), source)
    rows = [
        {"text": example.text, "label": prediction["labels"] if number % 4 else ["b"]}  # most are right
        for number, (example, prediction) in enumerate(zip(file.examples, said, strict=True))
    ]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = read_gate_file(source, tmp_path / "dev.jsonl", {})
    assert file.labelled and file.notes == ()
    task.calibrate(file.outputs(source.answers(file.sequences), source), file.examples, file.encoded)
    run = torch_run(source.padded)
    limits = ExportLimits(agreement=0.5, change=1.0)

    def sharper(feed: Feed) -> list[npt.NDArray[Any]]:
        return [output * 2 for output in run(feed)]

    exact, rough = (
        Gate(source, file).judge(run, EXACT, ERROR),
        Gate(source, file).judge(sharper, limits, 0.05),
    )
    assert exact.task is task
    assert rough.task is not None and rough.task is not task
    temperatures = rough.figures["temperature"]
    assert temperatures["graph"] == pytest.approx(2 * temperatures["model"], rel=1e-3)
    assert rough.figures["largest_change"] == pytest.approx(0, abs=1e-4)  # the fit takes the factor away
    assert rough.task.state()["confidence"] | {"temperature": 0} == task.state()["confidence"] | {
        "temperature": 0
    }
    assert rough.figures["metrics"]["graph"] == exact.figures["metrics"]["model"]


@pytest.mark.parametrize("name", ["multi-label", "question-answering"])
def test_a_small_file_moves_no_threshold(tmp_path: Path, name: str) -> None:
    source, file = opened(tmp_path, name)
    task: Any = source.task
    if name == "question-answering":
        task.threshold = 1.25
    else:
        task.confidence = Confidence(
            temperature=1.5,
            ece_before=0.1,
            ece_after=0.1,
            threshold=0.3,
            coverage=1.0,
            risk=0.0,
            examples=9,
            label_thresholds=(0.2, 0.4, 0.9),
        )
    run = torch_run(source.padded)
    fitted: Any = Gate(source, file).judge(run, ExportLimits(agreement=0.5), 0.05).task
    if name == "question-answering":
        assert fitted.state() == task.state()
    else:
        assert fitted.state()["confidence"]["label_thresholds"] == [0.2, 0.4, 0.9]
        assert fitted.state()["confidence"]["threshold"] == 0.3
        assert fitted.state()["confidence"]["temperature"] == pytest.approx(1.5, rel=1e-3)


@pytest.mark.parametrize("lengths", [[8192, 3, 4, 5], [512] * 40 + [3], [8192] * 3, [2048, 2048, 9], [7]])
def test_no_batch_takes_more_attention_than_there_is_memory_for(lengths: list[int]) -> None:
    for each in [*arrangements(lengths), all_together(lengths)]:
        assert sorted({number for batch in each.batches for number in batch}) == [*range(len(lengths))]
        for batch in each.batches:
            places = len(batch) * max(lengths[number] for number in batch) ** 2
            assert len(batch) == 1 or places <= 32 * 512**2, each.name


def test_of_many_tokens_rows_are_drawn_from_the_whole_file(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_rows, "MOST_TOKENS", 400)
    monkeypatch.setattr(reading_rows, "_MOST_STATE_TOKENS", 400)
    for name in ("classification", "encoder"):
        folder = saved_model(tmp_path / name, "classification") if name == "classification" else tiny_bert
        rows = [{"text": f"row {number}"} for number in range(500)]
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        file = read_gate_file(open_source(folder), path, {})
        assert file.rows == 500 and 20 < len(file.examples) <= 100
        texts = [getattr(each, "text", each) for each in file.examples]
        numbers = [int(text.split()[1]) for text in texts]
        assert numbers == sorted(numbers) and numbers[-1] > 400


def test_a_lone_surrogate_in_the_file_is_read_as_everywhere(tmp_path: Path) -> None:
    source = open_source(saved_model(tmp_path / "model", "classification"))
    (tmp_path / "odd.jsonl").write_text('{"text": "bano \\ud800 delo"}\n{"text": "delo"}\n')
    file = read_gate_file(source, tmp_path / "odd.jsonl", {})
    require_same_ids(source, file)
    pieces = [source.tokenizer.id_to_token(number) for number in file.sequences[0].token_ids.tolist()]
    assert pieces == ["[CLS]", "bano", "delo", "[SEP]"]  # half a character is none


def test_a_file_with_labels_of_others_is_read_without_and_says_so(tmp_path: Path) -> None:
    source = open_source(saved_model(tmp_path / "model", "classification"))
    file = read_gate_file(source, labelled_file(tmp_path / "dev.jsonl", 9, ["never", "no"]), {})
    assert not file.labelled
    assert "'never'" in file.notes[0] and "line 1" in file.notes[0]


def test_what_cannot_be_read_is_told_by_file_and_line(tmp_path: Path) -> None:
    source = open_source(saved_model(tmp_path / "model", "classification"))
    (tmp_path / "dev.jsonl").write_text('{"text": "bano", "label": "no"}\n{"text": 7, "label": "no"}\n')
    with pytest.raises(InputError, match=r"dev\.jsonl, line 2: expected a text"):
        read_gate_file(source, tmp_path / "dev.jsonl", {})


def test_what_an_encoder_alone_has_no_use_for_is_refused(tiny_bert: Path, tmp_path: Path) -> None:
    source = open_source(tiny_bert)
    (tmp_path / "rows.txt").write_text("red cat\n")
    with pytest.raises(InputError, match=r"has no task.*Leave label"):
        read_gate_file(source, tmp_path / "rows.txt", {"label": "kind"})
    with pytest.raises(InputError, match="is not a file"):
        read_gate_file(source, tmp_path / "absent.txt", {})


def test_similarity_with_classes_is_refused_by_name(tmp_path: Path) -> None:
    from bertsmith.inference.export.padded import padded_head
    from bertsmith.tasks.similarity import PairHead

    source, _ = opened(tmp_path, "classification")
    with pytest.raises(ModelError, match="similarity with classes"):
        padded_head(PairHead(source.packed.config, "mean", 3), source.packed.encoder, "similarity")  # type: ignore[union-attr,arg-type]


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        ({"agreement": 1.0}, "must be below 1"),
        ({"change": -1}, "change must be"),
        ({"cosine": "x"}, "cosine"),
    ],
)
def test_limits_that_are_none_are_refused(limits: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        ExportLimits(**limits)


@pytest.mark.parametrize("value", [True, "0.5", 0, 1.5, float("nan")])
def test_a_limit_is_a_number_above_0_and_at_most_1(value: Any) -> None:
    with pytest.raises(InputError, match="cosine must be a number above 0 and at most 1"):
        ExportLimits(cosine=value)

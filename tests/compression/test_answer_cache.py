"""What a teacher said is found again, and by nobody else's name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distil_rows import save_teacher, write_rows

from bertsmith.compression.distilling.tasks import teacher as answer_cache
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher, compute_cached_outputs, make_cache_key
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.examples.encoding import EncodedExample
from bertsmith.tasks.finetuning import encode_examples

CPU = torch.device("cpu")


class Counted:
    """A teacher that counts the examples it is asked for."""

    def __init__(self, teacher: TaskTeacher, dies_after: int = 1_000_000) -> None:
        self.teacher, self.asked, self.dies_after = teacher, 0, dies_after
        self.sha256 = teacher.sha256

    def outputs(self, encoded: list[EncodedExample]) -> Any:
        if self.asked + len(encoded) > self.dies_after:
            raise KeyboardInterrupt
        self.asked += len(encoded)
        return self.teacher.outputs(encoded)


def open_teacher(folder: Path) -> TaskTeacher:
    return TaskTeacher.open(str(folder), None, CPU)


def encoded_by(teacher: TaskTeacher, folder: Path, task: str, count: int = 40) -> list[EncodedExample]:
    examples = teacher.task.read(write_rows(folder / "rows.jsonl", task, count), labelled=False)
    return list(encode_examples(teacher.task, examples, teacher.tokenizer).encoded)


@pytest.mark.parametrize("task", ["classification", "tagging", "retrieval"])
def test_outputs_come_back_as_they_were(
    task: str, make_teacher: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_cache, "_SHARD_TOKENS", 64)
    teacher = open_teacher(make_teacher(task))
    encoded = encoded_by(teacher, tmp_path, task)
    first = compute_cached_outputs(teacher, encoded, tmp_path / "cache")
    again = compute_cached_outputs(Counted(teacher, 0), encoded, tmp_path / "cache")  # type: ignore[arg-type]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert [each.shape for each in first] == [each.shape for each in teacher.outputs(encoded)]


def test_a_killed_pass_goes_on_behind_what_is_kept(
    make_teacher: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_cache, "_SHARD_TOKENS", 64)
    teacher = open_teacher(make_teacher("classification"))
    encoded = encoded_by(teacher, tmp_path, "classification")
    dying = Counted(teacher, dies_after=25)
    with pytest.raises(KeyboardInterrupt):
        compute_cached_outputs(dying, encoded, tmp_path / "cache")  # type: ignore[arg-type]
    following = Counted(teacher)
    found = compute_cached_outputs(following, encoded, tmp_path / "cache")  # type: ignore[arg-type]
    assert dying.asked > 0 and following.asked == len(encoded) - dying.asked
    assert np.allclose(np.stack(found), np.stack(teacher.outputs(encoded)), atol=1e-4)


def test_a_damaged_shard_is_computed_again(make_teacher: Callable[..., Path], tmp_path: Path) -> None:
    teacher = open_teacher(make_teacher("classification"))
    encoded = encoded_by(teacher, tmp_path, "classification")
    first = compute_cached_outputs(teacher, encoded, tmp_path / "cache")
    (shard,) = (tmp_path / "cache").rglob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-9])
    again = compute_cached_outputs(teacher, encoded, tmp_path / "cache")
    assert np.allclose(np.stack(again), np.stack(first), atol=1e-5)


def test_another_teacher_other_texts_and_another_order_have_another_key(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    teacher, other = (open_teacher(make_teacher("classification", seed)) for seed in (5, 6))
    encoded = encoded_by(teacher, tmp_path, "classification")
    keys = [
        make_cache_key(teacher, encoded),
        make_cache_key(other, encoded),
        make_cache_key(teacher, encoded[:-1]),
    ]
    assert len({*keys, make_cache_key(teacher, encoded[::-1])}) == 4


def test_columns_and_patches_are_part_of_what_was_read(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    """Rows of one text that differ in a column, and series of one length, have equal ids."""
    teacher = open_teacher(make_teacher("classification"))
    (one,) = encoded_by(teacher, tmp_path, "classification", 1)
    found = [
        replace(one, columns=np.array([number], np.float32), windows=windows)
        for number in (0.0, 1.0)
        for windows in (one.windows, *(_with_values(one, value) for value in (0.0, 1.0)))
    ]
    assert len({make_cache_key(teacher, [each]) for each in (one, *found)}) == 7


def _with_values(one: EncodedExample, value: float) -> Any:
    return tuple(
        replace(window, values=np.full((len(window.token_ids), 3), value, np.float32))
        for window in one.windows
    )


def test_a_teacher_of_cosines_shows_its_vectors(tmp_path: Path) -> None:
    """What it says of a pair is the same."""
    folder = save_teacher(tmp_path, "similarity", 0)
    teacher = TaskTeacher.open(str(folder), None, torch.device("cpu"))
    examples = teacher.task.read(tmp_path / "train.jsonl")[:5]
    encoded = encode_examples(teacher.task, examples, teacher.tokenizer).encoded
    outputs = teacher.outputs(encoded)
    assert [output.shape for output in outputs] == [(2, 16)] * 5
    said = [each["similarity"] for each in teacher.task.decode(outputs, examples, encoded)]
    pairs = [(each.text, each.text_pair) for each in examples]
    expected = [each["similarity"] for each in Predictor.load(folder).predict(pairs)]
    assert said == pytest.approx(expected, abs=1e-5)

"""Texts that nobody wrote: of the words that there are, without labels, the same for a seed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distil_rows import write_rows

from bertsmith.compression.distilling.distil_task import distil_task
from bertsmith.compression.distilling.invented_texts import invented_examples, require_words
from bertsmith.errors import RecipeError
from bertsmith.files import read_json
from bertsmith.tasks.examples.tagged_example import TaggedExample
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.registry import find_task
from bertsmith.training import machine

ONE = [TextExample(" ".join(f"{letter}{n}" for n in range(10)), None, "no", "here", 7) for letter in "abcd"]


def test_words_go_come_from_elsewhere_or_stand_before_the_end_of_another_text() -> None:
    made = invented_examples(ONE, 50, 1)
    assert len(made) == 200 and {(each.label, each.id, each.where) for each in made} == {(None, None, "here")}
    known = {word for each in ONE for word in each.text.split()}
    changed, joined = made[0::8], made[1::8]  # of the first and of the second example, in every other turn
    words = [each.text.split() for each in changed]
    assert known.issuperset(word for each in words for word in each)
    assert 8 < sum(map(len, words)) / len(words) < 9.6
    own = [sum(word.startswith("a") for word in each) / len(each) for each in words]
    assert 0.8 < sum(own) / len(own) < 0.98
    for each in joined:
        found = each.text.split()
        start = next((n for n, word in enumerate(found) if word != f"b{n}"), len(found))
        assert start >= 1
        end = found[start:]
        assert [word[1:] for word in end] == [str(n) for n in range(10 - len(end), 10)]
        assert len({word[0] for word in end}) <= 1


def test_the_same_seed_gives_the_same_texts() -> None:
    assert invented_examples(ONE, 3, 4) == invented_examples(ONE, 3, 4) != invented_examples(ONE, 3, 5)
    assert invented_examples(ONE, 0, 4) == invented_examples([], 3, 4) == []
    assert invented_examples([TextExample("", None, None, "")], 3, 4) == []


def test_both_texts_of_a_pair_and_words_with_tags_are_changed() -> None:
    pairs = [TextExample("a b c d e", "f g h i j", 3.0, "")] * 4
    made = invented_examples(pairs, 10, 0)
    assert len({each.text for each in made}) > 10 and len({each.text_pair for each in made}) > 10
    assert all(each.text_pair for each in made)
    tagged = [TaggedExample(tuple("abcdefgh"), ("O",) * 8, "there", "a b c d e f g h")] * 4
    found = invented_examples(tagged, 10, 0)
    assert {(each.tags, each.text, each.where) for each in found} == {(None, None, "there")}
    assert len({each.words for each in found}) > 10


@pytest.mark.parametrize("name", ["question-answering", "retrieval", "reranking"])
def test_where_a_teacher_would_have_nothing_to_say_it_is_refused(name: str) -> None:
    kind = find_task(name)
    with pytest.raises(RecipeError, match=f"not for {name}"):
        require_words(kind(kind.Settings()), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["classification", "tagging", "similarity"])
def test_a_student_learns_from_them_and_the_results_say_so(
    name: str, make_teacher: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1e11)
    files: dict[str, Any] = {
        "train": write_rows(tmp_path / "train.jsonl", name, 40),
        "dev": write_rows(tmp_path / "dev.jsonl", name, 40, seed=1),
    }
    quick = ("hardware.threads=1", "epochs=1", "augment=2", "compare=false")
    found = distil_task([make_teacher(name)], *quick, out=tmp_path / "out", layers=1, **files).results
    assert found.texts == found.invented > 60
    assert found.student.train_rows == 40
    assert read_json(tmp_path / "out" / "results.json")["invented"] == found.invented
    assert f"{found.invented} of them invented" in (tmp_path / "out" / "report.html").read_text()

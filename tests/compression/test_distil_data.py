"""What a distillation reads, and what it leaves out."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distil_rows import write_rows

from bertsmith.compression.distilling.recipes import make_distil_recipe
from bertsmith.compression.distilling.tasks.data import (
    DistilData,
    hash_data_files,
    read_answer_file,
    read_distil_data,
)
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher, open_teachers
from bertsmith.errors import InputError, RecipeError
from bertsmith.files import read_json, sha256, write_json
from bertsmith.tasks.examples.held_out import hold_out
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.regression import Regression
from bertsmith.tasks.task import Task


@pytest.fixture
def task(make_teacher: Callable[..., Path]) -> Task[Any]:
    teacher = TaskTeacher.open(str(make_teacher("classification")), None, torch.device("cpu"))
    return teacher.task.as_student({})


def read(task: Task[Any], folder: Path, *overrides: str, **given: Any) -> DistilData:
    values = {"teacher": ["t"], "out": str(folder / "out")} | given
    return read_distil_data(task, make_distil_recipe(values, list(overrides)), [])


def rows(path: Path, *found: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return str(path)


def test_texts_of_dev_are_not_learned_from_and_none_comes_twice(task: Task[Any], tmp_path: Path) -> None:
    train = rows(tmp_path / "train.jsonl", *({"text": f"a{n}", "label": "no"} for n in range(5)))
    dev = rows(tmp_path / "dev.jsonl", *({"text": f"b{n}", "label": "yes"} for n in range(5)))
    texts = rows(tmp_path / "texts.jsonl", *({"text": text} for text in ("a1", "b1", "c", "c", "d")))
    data = read(task, tmp_path, train=train, dev=dev, texts=[texts])
    assert [example.text for example in data.texts] == ["c", "d"]
    assert any("1 of the texts stand in dev or test" in warning for warning in data.warnings)


def test_one_text_beside_other_columns_is_another_example(tmp_path: Path) -> None:
    kind = find_task("classification")
    task = kind(kind.Settings(text="text", label="label", features=("plan",)))
    labelled = [{"text": f"a{n}", "plan": "big", "label": "no"} for n in range(6)]
    labelled[5]["label"] = "yes"
    train = rows(tmp_path / "train.jsonl", *labelled)
    task.fit(task.read(train))
    dev = rows(tmp_path / "dev.jsonl", *({"text": f"b{n}", "plan": "big", "label": "yes"} for n in range(5)))
    unlabelled = (("a1", "big"), ("a1", "small"), ("c", "big"), ("c", "big"), ("c", "small"), ("b1", "small"))
    texts = rows(tmp_path / "texts.jsonl", *({"text": text, "plan": plan} for text, plan in unlabelled))
    data = read(task, tmp_path, train=train, dev=dev, texts=[texts])
    assert [(example.text, *example.columns) for example in data.texts] == [
        *(("a1", "small"), ("c", "big"), ("c", "small"))
    ]
    assert any("1 of the texts stand in dev or test" in warning for warning in data.warnings)


@pytest.mark.parametrize("held", ["dev", "test"])
def test_texts_of_dev_are_not_learned_from_in_another_case_or_form(
    held: str, task: Task[Any], tmp_path: Path
) -> None:
    train = rows(tmp_path / "train.jsonl", *({"text": f"a{n}", "label": "no"} for n in range(5)))
    spellings = ("Caf\u00e9  open", "it works", "so!", "\U0001f600")
    measured = rows(tmp_path / "held.jsonl", *({"text": text, "label": "yes"} for text in spellings))
    dev = rows(tmp_path / "dev.jsonl", *({"text": f"b{n}", "label": "yes"} for n in range(5)))
    others = ("cafe\u0301 open ", "It works.", "SO", "\U0001f601", "it worked")
    texts = rows(tmp_path / "texts.jsonl", *({"text": text} for text in others))
    data = read(task, tmp_path, **({"train": train, "dev": dev, "texts": [texts]} | {held: measured}))
    assert [example.text for example in data.texts] == ["\U0001f601", "it worked"]
    assert any("3 of the texts stand in dev or test" in warning for warning in data.warnings)


def test_a_sentence_of_dev_is_not_learned_from_though_its_words_were_divided_otherwise(
    tmp_path: Path,
) -> None:
    tagging = find_task("tagging")
    task = tagging(tagging.Settings())
    sentences = (["Ada", "did", "n't", "call", "U.S.", "."], ["Paris", "is", "nice", "."])
    dev = rows(
        tmp_path / "dev.jsonl", *({"tokens": s, "tags": ["B-x"] + ["O"] * (len(s) - 1)} for s in sentences)
    )
    task.fit(task.read(dev))
    texts = tmp_path / "texts.txt"
    texts.write_text("Ada didn't call U.S.\nparis is nice\nLyon is nice.\nParis is.\n")
    data = read(task, tmp_path, dev=dev, texts=[str(texts)])
    assert [example.words[0] for example in data.texts] == ["Lyon", "Paris"]
    assert any("2 of the texts stand in dev or test" in warning for warning in data.warnings)


def test_rows_without_text_are_held_out_by_their_columns(tmp_path: Path) -> None:
    """A blank text in dev kept all of them from being learned."""
    kind = find_task("classification")
    task = kind(kind.Settings(features=("age",)))
    labelled = [{"text": f"a{n}", "age": n, "label": "yes" if n % 2 else "no"} for n in range(6)]
    train = rows(tmp_path / "train.jsonl", *labelled)
    task.fit(task.read(train))
    dev = rows(tmp_path / "dev.jsonl", *({"text": " ", "age": n, "label": "yes"} for n in range(5)))
    texts = tmp_path / "texts.csv"
    texts.write_text("text,age\n,4.0\n,40\nc,4\n")
    data = read(task, tmp_path, train=train, dev=dev, texts=[str(texts)])
    assert [(example.text, *example.columns) for example in data.texts] == [("", "40"), ("c", "4")]


@pytest.mark.parametrize(("setting", "value"), [("max_length", 2), ("missing", "skip")])
def test_a_wrong_setting_of_a_student_is_no_altered_file(setting: str, value: Any, task: Task[Any]) -> None:
    with pytest.raises(RecipeError, match=f"the student: {setting}.*found") as error:
        task.as_student({setting: value})
    assert "altered" not in str(error.value)


def test_a_labelled_row_of_csv_is_not_learned_again_as_one_of_json(tmp_path: Path) -> None:
    kind = find_task("classification")
    task = kind(kind.Settings(text="text", label="label", features=("age",)))
    train = tmp_path / "train.csv"
    train.write_text(
        "text,age,label\n" + "".join(f"a{n},{n}.50,{'yes' if n % 2 else 'no'}\n" for n in range(6))
    )
    task.fit(task.read(train))
    dev = rows(tmp_path / "dev.jsonl", *({"text": f"b{n}", "age": n, "label": "yes"} for n in range(5)))
    texts = rows(tmp_path / "texts.jsonl", {"text": "a1", "age": 1.5}, {"text": "a1", "age": 2})
    data = read(task, tmp_path, train=str(train), dev=dev, texts=[texts])
    assert [(example.text, *example.columns) for example in data.texts] == [("a1", 2)]


@pytest.mark.parametrize("held", ["dev", "test"])
def test_pairs_of_a_search_are_held_back_whatever_negatives_they_have(held: str, tmp_path: Path) -> None:
    kind = find_task("retrieval")
    task = kind(kind.Settings(document_prefix="text: "))

    def pairs(name: str, letter: str) -> str:
        made = ({"query": f"{letter}{n}", "positive": f"{letter}{n} is", "negative": "no"} for n in range(8))
        return rows(tmp_path / name, *made)

    train, measured = pairs("train.jsonl", "a"), pairs("held.jsonl", "b")
    fresh = rows(tmp_path / "fresh.jsonl", {"query": "c", "positive": "c is"})
    other = {"dev": pairs("dev.jsonl", "d"), held: measured}
    data = read(task, tmp_path, train=train, texts=[train, measured, fresh], **other)
    assert [(example.query, *example.documents) for example in data.texts] == [("c", "c is")]
    assert any("8 of the texts stand in dev or test" in warning for warning in data.warnings)


def test_columns_of_other_names_are_found_by_them(task: Task[Any], tmp_path: Path) -> None:
    """The teacher learned from `text` and `label`."""
    train = tmp_path / "train.tsv"
    train.write_text("sentence\tcategory\n" + "".join(f"a{n}\tno\n" for n in range(30)))
    texts = tmp_path / "texts.csv"
    texts.write_text("id,review\n1,one\n2,two\n")
    data = read(task, tmp_path, train=str(train), texts=[str(texts)])
    assert [example.text for example in data.texts] == ["one", "two"]
    assert len(data.labelled) + len(data.dev) == 30 and not data.dev_is_unlabelled
    numbers = {"text": 1, "label": 2}
    student = task.as_student(numbers)
    read(student, tmp_path, "text=1", "label=2", train=str(train))
    assert student.state()["settings"]["text"] == "sentence"  # the number may be another column's elsewhere
    train.write_text(train.read_text().replace("\tno\n", "\trail\n"))  # no alone is a list of 0 and 1
    answers = read_answer_file(train, "multi-label", numbers)
    assert answers.task.state()["settings"]["text"] == "sentence"


@pytest.mark.parametrize(
    ("teachers", "found", "said"),
    [
        ({"text": "text"}, "question,answer", "the model reads a text; found"),
        ({"text": "text"}, "review,other", ""),
        ({"text": "premise", "text_pair": "hypothesis"}, "question,reply", "reads a pair of texts; found"),
        ({"text": "premise", "text_pair": "hypothesis"}, "sentence1,sentence2", ""),
    ],
)
def test_a_teacher_of_single_texts_is_asked_no_pairs_and_the_other_way_round(
    teachers: dict[str, str], found: str, said: str, tmp_path: Path
) -> None:
    """Whatever names the columns of a file have that lacks the teacher's."""
    kind = find_task("classification")
    task = kind(kind.Settings(**teachers, label="label"), ("no", "yes"))
    lines = [f"{found},label", *(f"a{n},b{n},{'no' if n % 2 else 'yes'}" for n in range(40))]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    for given in ({"texts": [str(tmp_path / "rows.csv")]}, {"train": str(tmp_path / "rows.csv")}):
        if said:
            with pytest.raises(InputError, match=said):
                read(task, tmp_path, **given)
        else:
            data = read(task, tmp_path, **given)
            rows = [*data.labelled, *data.texts]
            assert {row.text_pair is not None for row in rows} == {"text_pair" in teachers}


def test_labelled_rows_of_several_files_and_folders(task: Task[Any], tmp_path: Path) -> None:
    """As in fine-tuning: what else is named is left out of a folder."""
    (tmp_path / "data").mkdir()
    rows(tmp_path / "data" / "a.jsonl", *({"text": f"a {n}", "label": "no"} for n in range(20)))
    rows(tmp_path / "data" / "b.jsonl", *({"text": f"b {n}", "label": "yes"} for n in range(20)))
    texts = rows(tmp_path / "data" / "c.jsonl", *({"text": f"c {n}"} for n in range(9)))
    dev = rows(tmp_path / "data" / "dev.jsonl", *({"text": f"d {n}", "label": "yes"} for n in range(9)))
    one = rows(tmp_path / "one.jsonl", {"text": "one", "label": "no"})
    given = {"train": [one, str(tmp_path / "data")], "texts": [texts], "dev": dev}
    data = read(task, tmp_path, **given)
    wanted = ["one", *(f"a {n}" for n in range(20)), *(f"b {n}" for n in range(20))]
    assert [example.text for example in data.labelled] == wanted
    recipe = make_distil_recipe({"teacher": ["teacher"], "out": "out", **given}, [])
    assert [*hash_data_files(recipe)] == ["train 1", "train 2", "train 3", "dev", "texts 1"]


def test_lines_and_several_files_of_texts(task: Task[Any], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    more = rows(tmp_path / "b.jsonl", *({"text": f"text {n}"} for n in range(40)))
    data = read(task, tmp_path, texts=[str(tmp_path / "a.txt"), more])
    assert len(data.texts) + len(data.dev) == 42
    assert data.dev_is_unlabelled and data.labelled == []


def test_a_label_that_the_teacher_does_not_know_is_named(task: Task[Any], tmp_path: Path) -> None:
    train = rows(tmp_path / "train.jsonl", {"text": "a", "label": "no"}, {"text": "b", "label": "strange"})
    with pytest.raises(InputError, match=r"train.jsonl, line 2: the label 'strange' does not occur"):
        read(task, tmp_path, train=train)


@pytest.mark.parametrize(
    ("texts", "said"), [([""], "every text is empty"), (["a"], "too few rows to learn from")]
)
def test_nothing_to_learn_from_is_a_sentence(
    texts: list[str], said: str, task: Task[Any], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        read(task, tmp_path, texts=[rows(tmp_path / "t.jsonl", *({"text": text} for text in texts))])


def test_probabilities_of_a_file_are_its_answers(tmp_path: Path) -> None:
    """Also of a label that is nowhere the likeliest."""
    shares = {"a": 0.6, "b": 0.1, "c": 0.3}
    path = rows(
        tmp_path / "answers.jsonl",
        {"text": "x", "label": "a", "probabilities": shares},
        {"text": "y", "label": "c", "probabilities": None},
        {"text": "z", "label": "c", "probabilities": {"a": 0.0, "b": 0.0, "c": 1.0}},
    )
    found = read_answer_file(Path(path), "classification", {})
    assert found.task.labels == ("a", "b", "c")
    first, second, third = found.answers
    assert first is not None and third is not None and second is None
    assert [float(each) for each in torch.from_numpy(first).exp()] == pytest.approx([0.6, 0.1, 0.3])
    assert float(third[2]) == pytest.approx(0.0, abs=1e-5)


def test_some_rows_of_a_file_may_have_probabilities_as_the_page_shows(tmp_path: Path) -> None:
    """In either order: of JSON lines each row has its own keys."""
    page = (Path(__file__).parents[2] / "docs" / "smaller.md").read_text()
    shown = page.split("```json answers.jsonl\n")[1].split("```")[0].splitlines()[:2]
    for lines in (shown, shown[::-1]):
        (tmp_path / "answers.jsonl").write_text("\n".join(lines))
        found = read_answer_file(tmp_path / "answers.jsonl", "classification", {})
        assert found.task.labels == ("card", "loan", "transfer")
        said = {each.label: answer for each, answer in zip(found.examples, found.answers, strict=True)}
        assert said["card"] is None
        assert [float(each) for each in np.exp(said["transfer"])] == pytest.approx([0.05, 0.05, 0.9])


def test_labels_of_a_file_stand_in_the_order_of_fine_tuning_whatever_its_probabilities_have(
    tmp_path: Path,
) -> None:
    """F1 is that of the second label."""
    found = [
        {"text": f"t {n}", "label": label, "probabilities": {"10": 0.1, "9": 0.2, "yes": 0.3, "no": 0.4}}
        for n, label in enumerate(("yes", "no", "10", "9"))
    ]
    written = read_answer_file(Path(rows(tmp_path / "answers.jsonl", *found)), "classification", {})
    task = find_task("classification")(find_task("classification").Settings())
    task.fit(written.examples)
    assert written.task.labels == task.labels == ("9", "10", "no", "yes")
    assert written.answers[0] is not None
    assert np.exp(written.answers[0]).tolist() == pytest.approx([0.2, 0.1, 0.4, 0.3])


def test_all_answers_to_one_text_are_learned_as_in_fine_tuning(tmp_path: Path) -> None:
    """Also those that contradict each other, and all of them on one side: of what is learned, or of dev."""
    found = [{"text": f"t {n}", "label": "card" if n % 2 else "transfer"} for n in range(40)]
    found += [{"text": "A", "label": label} for label in ("card", "card", "transfer")]
    path = rows(tmp_path / "answers.jsonl", *found)
    file = read_answer_file(Path(path), "classification", {})
    given = {"teacher": [path], "task": "classification", "out": str(tmp_path / "out")}
    data = read_distil_data(file.task, make_distil_recipe(given, []), [], file)
    assert len(data.texts) + len(data.dev) == 43
    sides = [[each.label for each in side if each.text == "A"] for side in (data.texts, data.dev)]
    assert sorted(sides) == [[], ["card", "card", "transfer"]]
    assert data.written is not None and len(data.written) == len(data.texts)


def test_a_labelled_row_has_the_files_probabilities_for_its_text_beside_its_own_label(tmp_path: Path) -> None:
    shares = [{"no": 1 - n / 20, "yes": n / 20} for n in range(20)]
    found = [{"text": f"t {n}", "label": "yes", "probabilities": each} for n, each in enumerate(shares)]
    found[1] |= {"label": "no", "probabilities": None}
    path = rows(tmp_path / "answers.jsonl", *found)
    train = rows(tmp_path / "train.jsonl", *({"text": f"t {n}", "label": "no"} for n in (9, 30, 1, 3)))
    dev = rows(tmp_path / "dev.jsonl", *({"text": f"d {n}", "label": "no"} for n in range(5)))
    given = {"teacher": [path], "task": "classification", "out": str(tmp_path / "out")}
    file = read_answer_file(Path(path), "classification", {})
    recipe = make_distil_recipe(given | {"train": train, "dev": dev}, [])
    data = read_distil_data(file.task, recipe, [], file)
    assert [row.label for row in data.labelled] == ["no"] * 4 and len(data.texts) == 17
    assert data.written is not None
    answers = dict(zip([row.text for row in (*data.labelled, *data.texts)], data.written, strict=True))
    assert answers.pop("t 30") is None and answers.pop("t 1") is None
    for text, answer in answers.items():
        assert answer is not None
        assert float(np.exp(answer[1])) == pytest.approx(int(text[2:]) / 20, abs=1e-5)


def test_answers_of_tags_are_labels(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "tags.jsonl", "tagging", 5)
    found = read_answer_file(path, "tagging", {"crf": True})
    assert found.answers == [None] * 5 and len(found.task.labels) > 1


def test_a_label_without_a_probability_is_refused(tmp_path: Path) -> None:
    path = rows(
        tmp_path / "answers.jsonl",
        {"text": "x", "label": "a", "probabilities": {"a": 1.0, "b": 0.0}},
        {"text": "y", "label": "d", "probabilities": {"a": 0.5, "b": 0.5}},
    )
    with pytest.raises(InputError, match="lack the label 'd'"):
        read_answer_file(Path(path), "classification", {})


def taught_by(
    teacher: Path, folder: Path, learned: Path | list[Path], recipe: dict[str, Any], **given: Any
) -> DistilData:
    """What is read where the teacher learned from the files `learned` by that recipe."""
    files = {f"train {n}": file for n, file in enumerate(learned, 1)} if isinstance(learned, list) else {}
    files = files or {"train": learned}
    shutil.copytree(teacher, folder / "teacher")
    manifest = read_json(folder / "teacher" / "bertsmith.json")
    manifest["provenance"] = {
        "recipe": {"train": list(map(str, files.values()))} | recipe,
        "sha256": {name: sha256(file) for name, file in files.items()},
    }
    write_json(folder / "teacher" / "bertsmith.json", manifest)
    opened = TaskTeacher.open(str(folder / "teacher"), None, torch.device("cpu"))
    values = {"teacher": [str(folder / "teacher")], "out": str(folder / "out")} | given
    return read_distil_data(opened.task.as_student({}), make_distil_recipe(values, []), [opened])


def test_rows_that_the_teacher_learned_from_are_told(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    train = write_rows(tmp_path / "train.jsonl", "classification", 60)
    test = write_rows(tmp_path / "test.jsonl", "classification", 30, seed=1)
    recipe = {"dev": "other.jsonl"}  # it held out none of train
    data = taught_by(
        make_teacher("classification"), tmp_path, train, recipe, train=str(train), test=str(test)
    )
    said = [warning for warning in data.warnings if "the teacher learned from" in warning]
    assert len(said) == 1 and f"{len(data.dev)} of the {len(data.dev)} dev texts" in said[0]
    assert "Give other rows with --dev" in said[0]


def test_what_two_teachers_learned_from_one_file_is_told_once(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    train = write_rows(tmp_path / "train.jsonl", "classification", 60)
    names = [str(make_teacher("classification", seed)) for seed in (5, 6)]
    folders = [tmp_path / "one", tmp_path / "two"]
    for name, folder in zip(names, folders, strict=True):
        shutil.copytree(name, folder)
        manifest = read_json(folder / "bertsmith.json")
        recipe = {"train": str(train), "dev": "other.jsonl"}
        manifest["provenance"] = {"recipe": recipe, "sha256": {"train": sha256(train)}}
        write_json(folder / "bertsmith.json", manifest)
    opened = open_teachers(list(map(str, folders)), None, torch.device("cpu"))
    values = {"teacher": list(map(str, folders)), "out": str(tmp_path / "out"), "train": str(train)}
    recipe = make_distil_recipe(values, [])
    data = read_distil_data(opened[0].task.as_student({}), recipe, opened)
    assert len([warning for warning in data.warnings if "the teacher learned from" in warning]) == 1


def test_of_its_own_training_file_those_rows_are_dev_that_the_teacher_held_out(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    train = write_rows(tmp_path / "train.jsonl", "classification", 120)
    given: dict[str, Any] = {"train": str(train), "dev_share": 0.4}
    data = taught_by(make_teacher("classification"), tmp_path, train, {"dev_share": 0.2}, **given)
    kind = find_task("classification")
    held_out = hold_out(kind(kind.Settings()), kind(kind.Settings()).read(train), 0.2)[1]
    assert [each.text for each in data.dev] == [each.text for each in held_out] != []
    assert data.dev_share == 0.2  # which the student's provenance tells, for its own baselines
    assert not [warning for warning in data.warnings if "the teacher learned from" in warning]
    files = [train, write_rows(tmp_path / "more.jsonl", "classification", 40, seed=1)]
    (tmp_path / "several").mkdir()
    given = {"train": [str(file) for file in reversed(files)], "dev_share": 0.4}
    several = taught_by(
        make_teacher("classification"), tmp_path / "several", files, {"dev_share": 0.2}, **given
    )
    assert several.dev_share == 0.2


def test_what_a_teacher_learned_from_need_not_be_read_any_longer(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    """Of 0.3.0, which learned from blank texts: only a warning depends on them."""
    learned = write_rows(tmp_path / "learned.jsonl", "classification", 12)
    with learned.open("a") as file:
        file.write('{"text": "", "label": "no"}\n')
    train = str(write_rows(tmp_path / "train.jsonl", "classification", 60, seed=1))
    data = taught_by(make_teacher("classification"), tmp_path, learned, {}, train=train)
    assert len(data.labelled) + len(data.dev) == 60
    (sentence,) = [warning for warning in data.warnings if "can't be read as it was" in warning]
    assert "1 has no text" in sentence


def test_a_label_among_several_that_the_teacher_cannot_give_is_refused(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    """Learned as absent it would teach the contrary. In rows that measure it counts as missed."""
    teacher = TaskTeacher.open(str(make_teacher("multi-label")), None, torch.device("cpu"))
    found = [{"text": f"bano {n}", "labels": ["a"]} for n in range(40)]
    train = rows(tmp_path / "train.jsonl", *found, {"text": "delo", "labels": ["a", "new"]})
    task = teacher.task.as_student({})
    with pytest.raises(InputError, match=r"train.jsonl, line 41: the label 'new' is none of the teacher's 3"):
        read(task, tmp_path, train=train)
    assert read(task, tmp_path, train=rows(tmp_path / "known.jsonl", *found), dev=train).dev


def test_numbers_of_another_scale_than_the_teachers_are_refused(tmp_path: Path) -> None:
    task = Regression(Regression.Settings())
    task.has_sigmoid = True
    found = [{"text": f"bano {n}", "label": n % 3 / 2} for n in range(40)]
    train = rows(tmp_path / "train.jsonl", *found, {"text": "delo", "label": 4.5})
    with pytest.raises(InputError, match=r"train.jsonl, line 41: the label is 4.5, but the teacher's scores"):
        read(task, tmp_path, train=train)
    assert read(task, tmp_path, train=rows(tmp_path / "known.jsonl", *found), dev=train).dev


def test_blank_texts_have_no_answer_to_learn(task: Task[Any], tmp_path: Path) -> None:
    texts = [*({"text": f"text {n}"} for n in range(40)), {"text": None}, {"text": " "}]
    data = read(task, tmp_path, texts=[rows(tmp_path / "texts.jsonl", *texts)])
    assert all(example.text.strip() for example in (*data.texts, *data.dev))
    (told,) = (warning for warning in data.warnings if "blank" in warning)
    assert told.startswith(f"2 of the texts are blank, the first in {tmp_path}/texts.jsonl, line 41, ")


def test_labelled_rows_without_a_text_are_refused_or_dropped(task: Task[Any], tmp_path: Path) -> None:
    train = [*({"text": f"text {n}", "label": "no"} for n in range(40)), {"text": None, "label": "yes"}]
    path = rows(tmp_path / "train.jsonl", *train)
    with pytest.raises(InputError, match=r"of 41 rows 1 has no text \(the first: line 41\)"):
        read(task, tmp_path, train=path)
    data = read(task, tmp_path, "missing=drop", train=path)
    assert len(data.labelled) + len(data.dev) == 40
    assert any("they were left out" in warning for warning in data.warnings)


def test_answers_of_a_file_stay_beside_their_rows_where_some_are_left_out(tmp_path: Path) -> None:
    answers = [
        {"text": text, "label": "a", "probabilities": {"a": a, "b": 1 - a}}
        for text, a in (("one", 0.9), (None, 0.8), ("two", 0.7))
    ]
    path = rows(
        tmp_path / "answers.jsonl",
        *answers,
        {"text": "three", "label": "b", "probabilities": {"a": 0.2, "b": 0.8}},
    )
    file = read_answer_file(Path(path), "classification", {"missing": "drop"})
    shares = [np.exp(answer)[0] for answer in file.answers if answer is not None]
    assert [example.text for example in file.examples] == ["one", "two", "three"]
    assert shares == pytest.approx([0.9, 0.7, 0.2], abs=1e-4)

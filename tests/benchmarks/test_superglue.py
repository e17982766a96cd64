"""SuperGLUE's official files: what is read of each, how it is judged, and what is handed in."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_toys import QUICK, WORDS, sentence
from sklearn import metrics

from bertsmith.benchmarks.glue_scores import Alternatives, F1Alone, MacroF1AndAccuracy
from bertsmith.benchmarks.published import SUPERGLUE
from bertsmith.benchmarks.seed_run import predictions_path, run_seed, seed_folder
from bertsmith.benchmarks.superglue import superglue_suite
from bertsmith.cli.main import main
from bertsmith.errors import InputError
from bertsmith.tasks.classification import Classification
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.registry import find_task

TASKS = {task.name: task for task in superglue_suite().tasks}
DRAW = np.random.default_rng(0)


def boolq(n: int) -> dict[str, Any]:
    return {"question": f"is it {n}", "passage": "It is.", "idx": n, "label": n % 2 == 0}


def entailment(*labels: str) -> Callable[[int], dict[str, Any]]:
    return lambda n: {"premise": f"P {n}.", "hypothesis": "H.", "idx": n, "label": labels[n % len(labels)]}


def copa(n: int) -> dict[str, Any]:
    asked = "cause" if n % 2 else "effect"
    line = {"premise": f"I fell {n}.", "choice1": "It hurt.", "choice2": "It was ice.", "question": asked}
    return line | {"idx": n, "label": n % 2}


def multirc(n: int) -> dict[str, Any]:
    def answer(place: int) -> dict[str, Any]:
        return {"text": WORDS[place], "idx": 100 * n + place, "label": place % 2}

    questions = [
        {"question": "Who?", "idx": 10 * n, "answers": [answer(0), answer(1)]},
        {"question": "What?", "idx": 10 * n + 1, "answers": [answer(2), answer(3), answer(4)]},
    ]
    return {"idx": n, "version": 1.1, "passage": {"text": f"Text {n}.", "questions": questions}}


def wic(n: int) -> dict[str, Any]:
    words = {"word": "bank", "sentence1": f"The bank {n}.", "sentence2": "A bank."}
    return words | {"idx": n, "label": n % 2 == 1, "start1": 4, "end1": 8, "start2": 2, "end2": 6}


def wsc(n: int) -> dict[str, Any]:
    target = {"span1_text": "Mark", "span1_index": 0, "span2_text": "He", "span2_index": 3}
    return {"text": f"Mark told Pete. He fell {n}.", "target": target, "idx": n, "label": n % 2 == 0}


def diagnostic(first: str, second: str) -> Callable[[int], dict[str, Any]]:
    return lambda n: {first: f"A {n}.", second: "B.", "idx": n, "label": "entailment", "logic": "x"}


LINES: dict[str, Callable[[int], dict[str, Any]]] = {
    "BoolQ": boolq,
    "CB": entailment("contradiction", "entailment", "neutral"),
    "COPA": copa,
    "MultiRC": multirc,
    "RTE": entailment("entailment", "not_entailment"),
    "WiC": wic,
    "WSC": wsc,
}


def without_labels(line: Any) -> Any:
    if isinstance(line, dict):
        return {name: without_labels(value) for name, value in line.items() if name != "label"}
    return [without_labels(each) for each in line] if isinstance(line, list) else line


def write(path: Path, lines: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def official(folder: Path, rows: int = 6) -> Path:
    for name, line in LINES.items():
        for part in ("train", "val"):
            write(folder / name / f"{part}.jsonl", [line(number) for number in range(rows)])
        write(folder / name / "test.jsonl", [without_labels(line(number)) for number in range(3)])
    write(folder / "AX-b/AX-b.jsonl", [diagnostic("sentence1", "sentence2")(number) for number in range(2)])
    write(folder / "AX-g/AX-g.jsonl", [diagnostic("premise", "hypothesis")(number) for number in range(2)])
    return folder


@pytest.fixture(scope="module")
def superglue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return official(tmp_path_factory.mktemp("superglue"))


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("BoolQ", [("is it 0", "It is.", "true")]),
        ("CB", [("P 0.", "H.", "contradiction")]),
        (
            "COPA",
            [
                ("I fell 0. What happened as a result?", "It hurt.", 1.0),
                ("I fell 0. What happened as a result?", "It was ice.", 0.0),
                ("I fell 1. What was the cause?", "It hurt.", 0.0),
            ],
        ),
        ("MultiRC", [("Text 0.", f"Who? {WORDS[0]}", "0"), ("Text 0.", f"Who? {WORDS[1]}", "1")]),
        ("RTE", [("P 0.", "H.", "entailment")]),
        ("WiC", [("bank: The bank 0.", "bank: A bank.", "false")]),
        ("WSC", [("Mark told Pete. * He * fell 0.", "Mark", "true")]),
    ],
)
def test_lines_become_pairs_with_the_official_labels(
    name: str, expected: list[tuple[Any, ...]], superglue: Path, tmp_path: Path
) -> None:
    files = TASKS[name].prepare(superglue, tmp_path, None)
    found = [(row["text"], row["text_pair"], row["label"]) for row in rows_of(files.train)]
    assert found[: len(expected)] == expected
    assert set(files.predicted) == {"test"} | ({"AX-b", "AX-g"} if name == "RTE" else set())
    assert all("label" not in row for path in files.predicted.values() for row in rows_of(path))


def test_fewer_rows_are_whole_questions(superglue: Path, tmp_path: Path) -> None:
    files = TASKS["MultiRC"].prepare(superglue, tmp_path, 2)
    assert len({row["place"][0] for row in rows_of(files.train)}) == 2
    assert len(rows_of(files.train)) == 10


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("BoolQ", {"label": "maybe"}, "line 2: expected one of false, true as label, found 'maybe'"),
        ("BoolQ", {"label": None}, "line 2: expected a label, found none"),
        ("BoolQ", {"passage": None}, "line 2: expected text under 'passage'"),
        ("BoolQ", {"idx": "1"}, "line 2: expected a whole number under 'idx'"),
        ("COPA", {"question": "why"}, "line 2: expected cause or effect"),
        ("COPA", {"label": 2}, "line 2: expected one of 0, 1 as label"),
        ("MultiRC", {"passage": []}, "line 2: expected an object under 'passage'"),
        ("MultiRC", {"passage": {"text": "A", "questions": [3]}}, "line 2: expected text under 'question'"),
        (
            "WSC",
            {"target": {"span1_text": "A", "span2_text": "b", "span2_index": 9}},
            "line 2: expected a word 9",
        ),
    ],
)
def test_a_line_that_is_not_official_is_refused(
    name: str, change: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    folder = official(tmp_path / "superglue")
    write(folder / name / "train.jsonl", [LINES[name](0), LINES[name](1) | change])
    with pytest.raises(InputError, match=complaint):
        TASKS[name].prepare(folder, tmp_path / "out", None)


def test_a_damaged_file_is_named_and_leaves_nothing_behind(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = official(tmp_path / "superglue")
    (folder / "CB/train.jsonl").write_text('{"premise": "P"\n')
    assert (
        main(["benchmark", "superglue", str(folder), "--model", model, "--out", str(tmp_path / "run")]) == 2
    )
    told = " ".join(capsys.readouterr().err.split())
    assert "CB/train.jsonl, line 1: expected one JSON object" in told
    assert "Take the file from the benchmark anew." in told
    assert not (tmp_path / "run").exists()


def test_a_missing_part_says_where_it_is_from(tmp_path: Path) -> None:
    folder = official(tmp_path / "superglue")
    (folder / "CB/test.jsonl").unlink()
    (folder / "AX-g/AX-g.jsonl").unlink()
    assert TASKS["CB"].prepare(folder, tmp_path / "cb", None).notes == (
        "CB: nothing to hand in for test, for there is no CB/test.jsonl",
    )
    assert "for AX-g" in TASKS["RTE"].prepare(folder, tmp_path / "rte", None).notes[0]
    (folder / "CB/val.jsonl").unlink()
    with pytest.raises(InputError, match=r"has no CB. Expected CB/ with train.jsonl.*super.gluebenchmark"):
        TASKS["CB"].prepare(folder, tmp_path / "cb", None)


def answered(task: str, folder: Path, superglue: Path, said: Callable[[int], Any], part: str = "dev") -> Any:
    """The rows of a part and a file of predictions."""
    files = TASKS[task].prepare(superglue, folder, None)
    rows = files.dev if part == "dev" else files.predicted[part]
    count = len(rows_of(rows))
    return rows, write(folder / "said.jsonl", [said(number) for number in range(count)])


def test_figures_are_scikit_learns(superglue: Path, tmp_path: Path) -> None:
    labels = ("contradiction", "entailment", "neutral")
    said = [str(label) for label in DRAW.choice(labels, 6)]
    files = answered("CB", tmp_path, superglue, lambda n: {"label": said[n]})
    gold = [labels[number % 3] for number in range(6)]
    f1, accuracy = metrics.f1_score(gold, said, average="macro"), metrics.accuracy_score(gold, said)
    expected = {"score": (f1 + accuracy) / 2, "macro_f1": f1, "accuracy": accuracy}
    assert TASKS["CB"].figures(*files) == pytest.approx(expected)


def test_a_question_of_multirc_is_right_when_all_its_answers_are(superglue: Path, tmp_path: Path) -> None:
    """Of each passage the first question's answers are right, of the second's one is wrong."""
    gold = [place % 2 for _ in range(6) for place in range(5)]
    said = [0 if number % 5 == 3 else label for number, label in enumerate(gold)]
    files = answered("MultiRC", tmp_path, superglue, lambda n: {"label": str(said[n])})
    f1 = metrics.f1_score(gold, said)
    assert TASKS["MultiRC"].figures(*files) == pytest.approx(
        {"score": (f1 + 0.5) / 2, "f1": f1, "exact_match": 0.5}
    )


def test_multircs_interval_is_of_its_score_over_whole_questions(superglue: Path, tmp_path: Path) -> None:
    """Of 12 questions 6 are right, and 6 have their one right answer wrong: of resamples with n right ones
    both measures are known.
    """
    said = [0 if number % 5 == 3 else number % 5 % 2 for number in range(30)]
    files = answered("MultiRC", tmp_path, superglue, lambda n: {"label": str(said[n])})
    right = np.arange(13)
    scores = (2 * right / (12 + right) + right / 12) / 2
    chances = np.array([math.comb(12, n) for n in right]) / 2**12
    expected = math.sqrt(chances @ scores**2 - (chances @ scores) ** 2)
    assert TASKS["MultiRC"].standard_error(*files, 0.01) == pytest.approx(expected, rel=0.15)
    assert TASKS["CB"].standard_error(*files, 0.01) == 0.01  # its head's main metric is its score


def test_a_seed_has_the_standard_error_of_its_tasks_score(model: str, tmp_path: Path) -> None:
    task, lines = TASKS["MultiRC"], [multirc(number) for number in range(6)]
    write(tmp_path / "superglue/MultiRC/train.jsonl", lines)
    for line in lines[:2]:  # dev says otherwise
        for question in line["passage"]["questions"]:
            question["answers"][0]["label"] = 1
    write(tmp_path / "superglue/MultiRC/val.jsonl", lines)
    files = task.prepare(tmp_path / "superglue", tmp_path / "data", None)
    found = run_seed(task, files, model, tmp_path, 1, QUICK, None)
    out = seed_folder(tmp_path, 1)
    of_head = json.loads((out / "results.json").read_text())["evaluations"]["dev"]["standard_error"]
    assert found.standard_error == task.standard_error(files.dev, predictions_path(out, "dev"), of_head)
    assert found.standard_error != of_head


def test_of_alternatives_the_one_scored_higher_is_chosen(superglue: Path, tmp_path: Path) -> None:
    scores = [0.9, 0.1, 0.2, 0.1, 0.3, 0.4, 0.1, 0.9, 0.8, 0.9, 0.5, 0.6]  # right: 0, 1, 0, 1, 0, 1
    files = answered("COPA", tmp_path, superglue, lambda n: {"score": scores[n]})
    assert TASKS["COPA"].figures(*files) == pytest.approx({"score": 0.5, "accuracy": 0.5})
    task = Alternatives(Alternatives.Settings())
    examples = [TextExample(row["text"], row["text_pair"], row["label"], "") for row in rows_of(files[0])]
    found = task.metrics([{"score": score} for score in scores], examples)
    assert found["accuracy"] == 0.5
    assert task.metrics([{"score": 0.5}] * 12, examples)["accuracy"] == 0.5  # equal scores are worth chance


def test_what_is_handed_in_is_as_the_server_wants_it(superglue: Path, tmp_path: Path) -> None:
    cases: list[tuple[str, str, Callable[[int], Any], Any]] = [
        ("BoolQ", "test", lambda n: {"label": "true"}, {"idx": 1, "label": "true"}),
        ("CB", "test", lambda n: {"label": "neutral"}, {"idx": 1, "label": "neutral"}),
        ("COPA", "test", lambda n: {"score": n % 2}, {"idx": 1, "label": 1}),
        ("RTE", "test", lambda n: {"label": "entailment"}, {"idx": 1, "label": "entailment"}),
        ("RTE", "AX-b", lambda n: {"label": "not_entailment"}, {"idx": 1, "label": "not_entailment"}),
        ("WiC", "test", lambda n: {"label": "false"}, {"idx": 1, "label": "false"}),
        ("WSC", "test", lambda n: {"label": "false"}, {"idx": 1, "label": "False"}),
    ]
    for name, part, said, expected in cases:
        files = answered(name, tmp_path / name / part, superglue, said, part)
        path = TASKS[name].write_submission(part, *files, tmp_path)
        assert path is not None
        assert path.name == f"{name if part == 'test' else part}.jsonl"
        assert rows_of(path)[1] == expected
        assert len(rows_of(path)) == (3 if part == "test" else 2)
        assert TASKS[name].write_submission("dev", *files, tmp_path) is None
    files = answered("MultiRC", tmp_path / "multirc", superglue, lambda n: {"label": str(n % 2)}, "test")
    path = TASKS["MultiRC"].write_submission("test", *files, tmp_path)
    assert path is not None
    first = [{"idx": 100, "label": 1}, {"idx": 101, "label": 0}]
    second = [{"idx": 102, "label": 1}, {"idx": 103, "label": 0}, {"idx": 104, "label": 1}]
    questions = [{"idx": 10, "answers": first}, {"idx": 11, "answers": second}]
    assert rows_of(path)[1] == {"idx": 1, "passage": {"questions": questions}}


@pytest.mark.parametrize("name", list(TASKS))
def test_weights_are_chosen_by_superglues_score(name: str) -> None:
    own = {"CB": MacroF1AndAccuracy, "COPA": Alternatives, "MultiRC": F1Alone}
    assert find_task(TASKS[name].head) is own.get(name, Classification)


def test_published_rows_have_the_averages_that_their_source_prints() -> None:
    for row, printed in zip(SUPERGLUE, (47.1, 69.0, 71.5), strict=True):
        assert np.mean([*row.scores.values()]) == pytest.approx(printed, abs=0.06)


@pytest.mark.parametrize("name", ["COPA", pytest.param("CB", marks=pytest.mark.slow)])
def test_the_command_runs_it_whole(
    name: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(number: int) -> dict[str, Any]:
        good, label = number % 2 == 0, ("entailment", "neutral", "contradiction")[number % 3]
        texts = [sentence(DRAW, good), sentence(DRAW, not good)]
        choices = {"choice1": texts[0], "choice2": texts[1], "question": "cause", "label": number % 2}
        pair = {"hypothesis": texts[0], "label": label}
        return {"premise": f"bano {number} .", "idx": number} | (choices if name == "COPA" else pair)

    for part in ("train", "val", "test"):
        lines = [line(number) for number in range(24)]
        write(tmp_path / f"data/{name}/{part}.jsonl", without_labels(lines) if part == "test" else lines)
    out = tmp_path / "out"
    words = [*QUICK, "--seeds", "1", "--model", model, "--out", str(out)]
    assert main(["benchmark", "superglue", str(tmp_path / "data"), *words]) == 0
    page = capsys.readouterr().out
    record = json.loads((out / "results.json").read_text())["tasks"][name]
    assert f"{100 * record['mean']:.1f}" in page
    assert "BERT-large" in page
    handed_in = rows_of(out / f"submission/{name}.jsonl")
    assert [each["idx"] for each in handed_in] == list(range(24))
    predictions = rows_of(out / f"{name}/seed-1/predictions/dev.jsonl")
    gold = rows_of(out / f"{name}/data/dev.jsonl")
    if name == "COPA":
        right = [predictions[n]["score"] > predictions[n + 1]["score"] for n in range(0, 48, 2)]
        expected = np.mean([one == (row["label"] > 0) for one, row in zip(right, gold[::2], strict=True)])
    else:
        pairs = [row["label"] for row in gold], [row["label"] for row in predictions]
        expected = (metrics.f1_score(*pairs, average="macro") + metrics.accuracy_score(*pairs)) / 2
    assert record["seeds"][0]["figures"]["dev"]["score"] == pytest.approx(float(expected))

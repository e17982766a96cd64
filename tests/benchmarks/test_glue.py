"""GLUE's official files: what is read of each, how it is judged, and what is handed in."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_toys import write_mrpc, write_pairs, write_sst2, write_stsb
from scipy import stats
from sklearn import metrics

from bertsmith.benchmarks.benchmark import BenchmarkTask
from bertsmith.benchmarks.glue import RECORDS, glue_suite
from bertsmith.benchmarks.glue_scores import F1AndAccuracy, Matthews, PearsonAndSpearman
from bertsmith.benchmarks.published import BM25
from bertsmith.benchmarks.published import GLUE as PUBLISHED
from bertsmith.errors import InputError
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.registry import find_task

TASKS = {task.name: task for task in glue_suite().tasks}
ENTAILMENT = ("entailment", "not_entailment")


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_predictions(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def official(folder: Path) -> Path:
    """All nine, with the columns that the official files have."""
    write_sst2(folder)
    write_mrpc(folder)
    write_stsb(folder)
    (folder / "CoLA").mkdir()
    for part in ("train", "dev"):
        (folder / f"CoLA/{part}.tsv").write_text('gj04\t1\t\tThe "cat sat.\ngj04\t0\t*\tCat the sat.\n')
    (folder / "CoLA/test.tsv").write_text("index\tsentence\n0\tBill sang.\n")
    for name, labels in (("RTE", ENTAILMENT), ("WNLI", ("0", "1"))):
        for part in ("train", "dev"):
            write_pairs(folder, f"{name}/{part}", "index sentence1 sentence2 label", labels, 4, 0)
        write_pairs(folder, f"{name}/test", "index sentence1 sentence2", None, 3, 1)
    for part in ("train", "dev"):
        write_pairs(folder, f"QNLI/{part}", "index question sentence label", ENTAILMENT, 4, 0)
    write_pairs(folder, "QNLI/test", "index question sentence", None, 3, 1)
    (folder / "QQP").mkdir()
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    for part in ("train", "dev"):
        (folder / f"QQP/{part}.tsv").write_text(
            header + "0\t1\t2\tWhy?\tWhat?\t0\n1\t3\t4\tbroken\n2\t5\t6\tHow?\tHow so?\t1\n"
        )
    (folder / "QQP/test.tsv").write_text("id\tquestion1\tquestion2\n0\tWhy?\tWho?\n")
    parses = (
        "promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
    )
    for part in ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"):
        labels = [] if part.startswith("test") else ["label1", "gold_label"]
        head = ["index", *parses.split(), "sentence1", "sentence2", *labels]
        lines = ["\t".join(head)]
        for number, label in enumerate(("neutral", "entailment", "contradiction")):
            answer = [] if part.startswith("test") else ["entailment", label]
            lines.append("\t".join([str(number), *["p"] * 7, f"{part} {number}", "So it is.", *answer]))
        (folder / "MNLI").mkdir(exist_ok=True)
        (folder / f"MNLI/{part}.tsv").write_text("\n".join(lines) + "\n")
    write_pairs(folder, "diagnostic/diagnostic", "index sentence1 sentence2", None, 2, 3)
    return folder


@pytest.fixture(scope="module")
def glue_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return official(tmp_path_factory.mktemp("glue_data"))


@pytest.mark.parametrize("name", list(TASKS))
def test_each_official_layout_is_read_and_everything_the_server_wants_is_there(
    name: str, glue_data: Path, tmp_path: Path
) -> None:
    task, record = TASKS[name], next(each for each in RECORDS if each.name == name)
    assert task.is_in(glue_data)
    files = task.prepare(glue_data, tmp_path, None)
    assert set(record.submission) <= set(files.predicted)
    for part in (files.train, files.dev, *files.labelled.values()):
        for row in rows_of(part):
            assert row["text"]
            assert (row["label"] in record.labels) if record.labels else (0 <= row["label"] <= 5)
            assert ("text_pair" in row) == (name not in ("CoLA", "SST-2"))
    assert all("label" not in row for part in files.unlabelled.values() for row in rows_of(part))


def test_texts_and_labels_come_from_the_official_columns(glue_data: Path, tmp_path: Path) -> None:
    cola = TASKS["CoLA"].prepare(glue_data, tmp_path / "cola", None)
    assert rows_of(cola.train) == [
        {"id": 0, "text": 'The "cat sat.', "label": "1"},
        {"id": 1, "text": "Cat the sat.", "label": "0"},
    ]
    mnli = TASKS["MNLI"].prepare(glue_data, tmp_path / "mnli", None)
    assert [row["label"] for row in rows_of(mnli.train)] == ["neutral", "entailment", "contradiction"]
    assert rows_of(mnli.labelled["dev-mm"])[1]["text"] == "dev_mismatched 1"
    assert {*mnli.unlabelled} == {"test", "test-mm", "AX"}


def test_broken_rows_of_qqp_are_left_out_and_counted(glue_data: Path, tmp_path: Path) -> None:
    files = TASKS["QQP"].prepare(glue_data, tmp_path, None)
    assert [row["text"] for row in rows_of(files.train)] == ["Why?", "How?"]
    assert any("train: 1 broken rows" in note for note in files.notes)


def test_empty_questions_of_qqp_are_read_as_they_are(tmp_path: Path) -> None:
    """Its training rows have some, and the server counts those of the test."""
    folder, task = official(tmp_path / "glue_data"), TASKS["QQP"]
    with (folder / "QQP/train.tsv").open("a") as file:
        file.write("3\t7\t8\tHow can I make an app?\t\t0\n")
    train = task.prepare(folder, tmp_path / "out", None).train
    kind = find_task(task.head)
    assert [example.text_pair for example in kind(kind.Settings(**task.settings)).read_files([train])][
        2
    ] == ""


def test_a_broken_row_that_the_server_counts_is_refused(tmp_path: Path) -> None:
    """Left out, it would move every answer behind it to another question."""
    folder = official(tmp_path / "glue_data")
    (folder / "QQP/test.tsv").write_text("id\tquestion1\tquestion2\n0\tWhy?\n1\tHow?\tWho?\n")
    with pytest.raises(InputError, match=r"test.tsv, line 2: expected at least 3 columns, found 2"):
        TASKS["QQP"].prepare(folder, tmp_path / "out", None)


def test_labels_beside_the_test_are_for_the_servers_rows_or_not_taken(tmp_path: Path) -> None:
    folder = official(tmp_path / "glue_data")
    test = ["fine .", "dull .", "great ."]
    lines = [f"{number}\t{text}\n" for number, text in enumerate(test)]
    (folder / "SST-2/test.tsv").write_text("index\tsentence\n" + "".join(lines))
    for order, judged in ((test, True), (test[::-1], False)):
        labelled = [f"{text}\t{int(text != 'dull .')}\n" for text in order]
        (folder / "SST-2/test-labeled.tsv").write_text("sentence\tlabel\n" + "".join(labelled))
        files = TASKS["SST-2"].prepare(folder, tmp_path / str(judged), None)
        assert [row["text"] for row in rows_of(files.predicted["test"])] == test
        assert ("test" in files.labelled) is judged
        assert any("not those of test.tsv in their order" in note for note in files.notes) is not judged


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        (
            "RTE/train.tsv",
            "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\n",
            "line 2: expected at least 4 col",
        ),
        (
            "RTE/train.tsv",
            "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tmaybe\n",
            "line 2: expected one of",
        ),
        ("RTE/train.tsv", "index\ts1\tsentence2\tlabel\n0\tA.\tB.\tentailment\n", "a column 'sentence1'"),
        ("STS-B/dev.tsv", "sentence1\tsentence2\tscore\nA.\tB.\tmuch\n", "line 2: expected a finite number"),
        ("RTE/dev.tsv", "index\tsentence1\tsentence2\tlabel\n", "has no rows"),
    ],
)
def test_a_file_that_is_not_the_official_one_is_refused_with_its_line(
    file: str, text: str, complaint: str, tmp_path: Path
) -> None:
    folder = official(tmp_path / "glue_data")
    (folder / file).write_text(text)
    with pytest.raises(InputError, match=complaint):
        TASKS[file.split("/")[0]].prepare(folder, tmp_path / "out", None)


def test_a_missing_dev_says_where_it_is_from(tmp_path: Path) -> None:
    folder = official(tmp_path / "glue_data")
    (folder / "RTE/dev.tsv").unlink()
    with pytest.raises(InputError, match=r"expected dev.tsv.*gluebenchmark.com"):
        TASKS["RTE"].prepare(folder, tmp_path / "out", None)


def test_fewer_rows_are_the_same_ones_each_time(glue_data: Path, tmp_path: Path) -> None:
    first, again = (TASKS["SST-2"].prepare(glue_data, tmp_path / name, 10) for name in "ab")
    assert rows_of(first.train) == rows_of(again.train)
    numbers = [row["id"] for row in rows_of(first.train)]
    assert len(numbers) == 10
    assert numbers == sorted(numbers) != list(range(10))


def test_figures_of_classes_are_scikit_learns(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    for name in ("CoLA", "MRPC", "MNLI", "RTE"):
        labels = next(each.labels for each in RECORDS if each.name == name)
        gold = [str(label) for label in draw.choice(labels, 200)]
        said = [label if draw.random() < 0.7 else str(draw.choice(labels)) for label in gold]
        rows = write_predictions(tmp_path / "rows.jsonl", [{"label": label} for label in gold])
        predictions = write_predictions(tmp_path / "said.jsonl", [{"label": label} for label in said])
        expected = {
            "CoLA": [metrics.matthews_corrcoef(gold, said)],
            "MRPC": [metrics.f1_score(gold, said, pos_label="1"), metrics.accuracy_score(gold, said)]
            if name == "MRPC"
            else [],
            "MNLI": [metrics.accuracy_score(gold, said)],
            "RTE": [metrics.accuracy_score(gold, said)],
        }[name]
        found = TASKS[name].figures(rows, predictions)
        assert list(found.values()) == pytest.approx([float(np.mean(expected)), *expected])


def test_figures_of_sts_b_are_scipys(tmp_path: Path) -> None:
    draw = np.random.default_rng(4)
    gold = draw.integers(0, 26, 300) / 5
    said = gold + draw.normal(0, 1.5, 300)
    rows = write_predictions(tmp_path / "rows.jsonl", [{"label": float(each)} for each in gold])
    predictions = write_predictions(tmp_path / "said.jsonl", [{"score": float(each)} for each in said])
    pearson, spearman = stats.pearsonr(gold, said).statistic, stats.spearmanr(gold, said).statistic
    found = TASKS["STS-B"].figures(rows, predictions)
    assert list(found.values()) == pytest.approx([(pearson + spearman) / 2, pearson, spearman])


@pytest.mark.parametrize("name", list(TASKS))
def test_weights_are_chosen_by_glues_score(name: str) -> None:
    kind, measures = find_task(TASKS[name].head), TASKS[name].measures
    by = {"CoLA": Matthews, "MRPC": F1AndAccuracy, "QQP": F1AndAccuracy, "STS-B": PearsonAndSpearman}
    assert kind is by.get(name, kind)
    assert (kind.main_metric == measures[0]) or set(kind.main_metric.split("_and_")) == set(measures)


def test_the_score_that_chooses_is_the_mean_of_both_measures() -> None:
    pairs = F1AndAccuracy(F1AndAccuracy.Settings())
    gold, said = ["no", "no", "no", "yes", "yes"], ["no", "no", "yes", "yes", "no"]
    pairs.fit([TextExample("a", "b", label, "here") for label in gold])
    found = pairs.metrics(
        [{"label": each} for each in said], [TextExample("a", "b", each, "here") for each in gold]
    )
    assert found["f1"] == pytest.approx(0.5) and found["accuracy"] == pytest.approx(0.6)
    assert found["f1_and_accuracy"] == pytest.approx(0.55)
    numbers, guesses = [0.0, 1.0, 2.0, 5.0], [0.1, 0.3, 0.2, 4.0]
    alike = PearsonAndSpearman(PearsonAndSpearman.Settings())
    scored = alike.metrics(
        [{"score": each} for each in guesses], [TextExample("a", "b", each, "here") for each in numbers]
    )
    pearson, spearman = (
        stats.pearsonr(numbers, guesses).statistic,
        stats.spearmanr(numbers, guesses).statistic,
    )
    assert abs(pearson - spearman) > 0.05
    assert scored["pearson_and_spearman"] == pytest.approx((pearson + spearman) / 2)


def test_what_is_handed_in_is_as_the_server_wants_it(tmp_path: Path) -> None:
    said = write_predictions(tmp_path / "said.jsonl", [{"score": score} for score in (5.7, -0.2, 3.14159)])
    rows = write_predictions(tmp_path / "rows.jsonl", [{"id": number} for number in range(3)])
    path = TASKS["STS-B"].write_submission("test", rows, said, tmp_path)
    assert path is not None
    assert path.name == "STS-B.tsv"
    assert path.read_text() == "index\tprediction\n0\t5.000\n1\t0.000\n2\t3.142\n"
    said = write_predictions(tmp_path / "said.jsonl", [{"label": "entailment"}, {"label": "neutral"}])
    rows = write_predictions(tmp_path / "rows.jsonl", [{"id": 0}, {"id": 7}])
    parts = ("test", "test-mm", "AX", "dev-mm")
    written = [TASKS["MNLI"].write_submission(part, rows, said, tmp_path) for part in parts]
    assert [path and path.name for path in written] == ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv", None]
    assert written[2] is not None
    assert written[2].read_text() == "index\tprediction\n0\tentailment\n7\tneutral\n"


def test_published_rows_have_the_averages_that_their_sources_print() -> None:
    rows = {(each.model, each.part): each.scores for each in PUBLISHED}
    turc = {"BERT-tiny": 64.2, "BERT-mini": 65.8, "BERT-small": 71.2, "BERT-medium": 73.5}
    for name, printed in turc.items():  # nine tasks, MNLI's parts as one
        scores = dict(rows[name, "test"])
        scores["MNLI"] = (scores["MNLI"] + scores.pop("MNLI-mm")) / 2
        assert np.mean([*scores.values()]) == pytest.approx(printed, abs=0.11)
    for name, part, printed in (
        ("BERT-base", "test", 79.6),
        ("BERT-large", "test", 82.1),
        ("DistilBERT", "dev", 77.0),
        ("ModernBERT-base", "dev", 88.4),
        ("ModernBERT-large", "dev", 90.4),
    ):
        assert np.mean([*rows[name, part].values()]) == pytest.approx(printed, abs=0.09)
    assert np.mean([score for name, score in BM25.items() if name != "msmarco"]) == pytest.approx(
        42.3, abs=0.06
    )


COUNTS = {  # of the published tasks
    "SST-2": {"train": 67_349, "dev": 872, "test": 1_821},
    "MRPC": {"train": 3_576, "dev": 500, "test": 1_725},
    "STS-B": {"train": 5_749, "dev": 1_500, "test": 1_379},
    "RTE": {"train": 2_490, "dev": 277, "test": 3_000},
}


@pytest.mark.parametrize("name", list(COUNTS))
def test_the_real_files_have_the_published_counts(name: str, shared_data: Path, tmp_path: Path) -> None:
    task: BenchmarkTask = TASKS[name]
    files = task.prepare(shared_data, tmp_path, None)
    parts = {"train": files.train, "dev": files.dev, **files.predicted}
    assert {part: len(rows_of(path)) for part, path in parts.items()} == COUNTS[name]
    assert set(files.labelled) == (set() if name == "RTE" else {"test"})
    if name == "STS-B":  # the same rows as comma-separated values, by somebody else's reader
        with (shared_data / "stsb" / "stsb-en-dev.csv").open(encoding="utf-8", newline="") as file:
            expected = [(a, b, float(score)) for a, b, score in csv.reader(file)]
        found = [(row["text"], row["text_pair"], row["label"]) for row in rows_of(files.dev)]
        assert [score for *_, score in found] == [score for *_, score in expected]
        assert np.mean([a == b for a, b in zip(found, expected, strict=True)]) > 0.98

"""Columns beside the text, from labelled file to prediction: half of each label stands in the text, half in a
column.
"""

import csv
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finetune_toys import SHORT_RUN, SIGNS, sentence, tiny_encoder
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from starlette.testclient import TestClient

from bertsmith import BertClassifier, BertFeatures, look
from bertsmith.cli.main import main
from bertsmith.errors import InputError, ModelError, RecipeError
from bertsmith.inference.explaining.attribution import Explainer
from bertsmith.inference.export.source import open_source
from bertsmith.inference.predictor import Predictor
from bertsmith.serving.app import make_app
from bertsmith.serving.settings import read_settings
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.task_model import outputs_of
from bertsmith.training.finetuning.finetune import FinetuneResult, finetune

PLANS = ("free", "paid")


def rows_of(task: str, count: int, seed: int) -> list[dict[str, Any]]:
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        words, _, sign = sentence(draw)
        plan, age = str(draw.choice(PLANS)), int(draw.integers(20, 60))
        label: Any = f"{SIGNS[sign]} {plan}"
        if task == "multi-label":
            label = f"{SIGNS[sign]},{plan}"
        if task == "regression":
            label = 10.0 * (SIGNS[sign] == "good") + 20.0 * (plan == "paid")
        known = age if draw.random() < 0.9 else ""
        rows.append({"text": " ".join(words), "label": label, "age": known, "plan": plan})
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("encoder") / "tiny")


def run(task: str, encoder: Path, folder: Path, *overrides: str, **files: Any) -> FinetuneResult:
    train = files.pop("train", None) or write(folder / "train.csv", rows_of(task, 120, 0))
    places = {"model": str(encoder), "train": str(train), "out": str(folder / "run")}
    return finetune(task, *SHORT_RUN, "features=age,plan", *overrides, **(places | files))


@pytest.fixture(scope="module")
def trained(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> FinetuneResult:
    folder = tmp_path_factory.mktemp("trained")
    dev = write(folder / "dev.csv", rows_of("classification", 60, 1))
    return run("classification", encoder, folder, "epochs=4", "method=full", dev=str(dev))


@pytest.mark.parametrize(
    "task",
    [
        "classification",
        *(pytest.param(task, marks=pytest.mark.slow) for task in ("multi-label", "regression")),
    ],
)
def test_an_informative_column_raises_the_score_and_is_credited_for_it(
    task: str, encoder: Path, tmp_path: Path
) -> None:
    study = run(task, encoder, tmp_path, "method=linear").results.columns
    assert study is not None
    scores = {each.name: each.score for each in study.reached}
    assert scores["both"] > scores["text alone"] + 0.1
    assert scores["both"] > scores["columns alone"] + 0.1
    for gain in (study.columns_add, study.text_adds):
        assert gain.gain > 2 * gain.error
    text, plan, age = (
        next(each for each in study.worths if each.name == n) for n in ("the text", "plan", "age")
    )
    assert text.loss > 0.1
    assert plan.loss > 3 * plan.error
    assert abs(age.loss) < 3 * age.error + 0.03
    assert plan.showed == "2 values: free, paid"


def test_a_useless_column_adds_nothing(encoder: Path, tmp_path: Path) -> None:
    rows = [row | {"label": row["label"].split()[0]} for row in rows_of("classification", 120, 0)]
    study = run("classification", encoder, tmp_path, "method=linear", train=write(tmp_path / "t.csv", rows))
    found = study.results.columns
    assert found is not None
    assert found.columns_add.gain < 3 * found.columns_add.error + 0.02


def test_a_column_called_the_text_is_not_taken_for_it(encoder: Path, tmp_path: Path) -> None:
    rows = [
        {"text": row["text"], "label": row["label"].split()[1], "the text": row["plan"]}
        for row in rows_of("classification", 80, 0)
    ]
    train = write(tmp_path / "t.csv", rows)
    result = run("classification", encoder, tmp_path, "method=linear", 'features=["the text"]', train=train)
    assert result.results.columns is not None
    text, column = result.results.columns.worths
    assert (text.name, text.kind, column.name) == ("the text", "", "the text")
    assert column.loss > 0.3 > text.loss + 0.1  # the plan is the label
    assert column.showed == "2 values: free, paid"


@pytest.mark.slow
def test_with_a_dev_the_trained_model_itself_is_asked(trained: FinetuneResult) -> None:
    study = trained.results.columns
    assert study is not None
    assert (study.judge, study.model, study.rows) == ("dev", "the model", 60)
    assert study.worths[0].name == "the text"
    plan = next(each for each in study.worths if each.name == "plan")
    assert plan.loss > 3 * plan.error
    scores = {each.name: each.score for each in study.reached}
    assert 0.4 < scores["columns alone"] < 0.7 and 0.4 < scores["text alone"] < 0.7  # of four classes


def test_the_text_adds_to_the_better_of_what_columns_alone_reach(encoder: Path, tmp_path: Path) -> None:
    """Which age is in the middle no linear model of it tells, but boosted trees do."""
    rows = [
        row | {"age": number % 40 + 20, "label": "middle" if 10 <= number % 40 < 30 else "end"}
        for number, row in enumerate(rows_of("classification", 160, 0))
    ]
    file = write(tmp_path / "t.csv", rows)
    study = run("classification", encoder, tmp_path, "method=linear", train=file).results.columns
    assert study is not None
    scores = {each.name: each.score for each in study.reached}
    boosted = scores["columns alone, gradient boosting"]
    assert boosted > scores["columns alone"] + 0.2
    assert study.text_adds.gain == pytest.approx(scores["both"] - boosted)


def test_report_and_results_say_it(trained: FinetuneResult) -> None:
    page = trained.report.read_text()
    study = trained.results.columns
    assert study is not None
    assert study.as_sentence("accuracy") in page
    assert "What text and columns are worth" in page
    record = json.loads((trained.report.parent / "results.json").read_text())["columns"]
    assert record["text_adds"]["gain"] == pytest.approx(study.text_adds.gain)
    assert [each["name"] for each in record["reached"]] == [each.name for each in study.reached]


def test_the_saved_model_answers_as_the_trained_one_in_files_python_and_evaluation(
    trained: FinetuneResult, tmp_path: Path
) -> None:
    predictor = Predictor.load(trained.model)
    rows = rows_of("classification", 60, 1)
    said = predictor.predict([{name: row[name] or None for name in ("text", "age", "plan")} for row in rows])
    expected = [line["label"] for line in trained.results.evaluations["dev"].predictions]
    assert [each["label"] for each in said] == expected
    file = write(tmp_path / "new.csv", [{k: row[k] for k in ("age", "text", "plan")} for row in rows])
    predictor.predict_file(file, tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["label"] for line in lines] == expected
    dev = write(tmp_path / "dev.csv", rows)
    again = predictor.evaluate(dev)
    assert again.model == pytest.approx(trained.results.evaluations["dev"].model)


def test_another_plan_gives_another_answer_to_the_same_text(trained: FinetuneResult) -> None:
    predictor = Predictor.load(trained.model)
    found = [predictor.predict([{"text": "happy", "age": 30, "plan": plan}])[0]["label"] for plan in PLANS]
    assert found == ["good free", "good paid"]


def test_a_text_of_many_parts_keeps_its_columns(
    trained: FinetuneResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, task = load_task_model(trained.model)
    task.settings = task.settings.model_copy(update={"stride": 4})
    tokenizer = Predictor.load(trained.model).tokenizer
    examples = [task.example({"text": "happy bano delo " * 60, "age": 30, "plan": plan}) for plan in PLANS]
    encoded = encode_examples(task, examples, tokenizer).encoded
    whole = outputs_of(model, encoded)
    monkeypatch.setattr("bertsmith.tasks.task_model.LONGEST", 40)
    parts = outputs_of(model, encoded)
    np.testing.assert_allclose(np.stack(parts), np.stack(whole), atol=1e-5)
    assert np.abs(whole[0] - whole[1]).max() > 0.1


@pytest.mark.slow
def test_the_published_head_reads_columns_too(encoder: Path, tmp_path: Path) -> None:
    result = run("classification", encoder, tmp_path, "method=linear", "pooling=published")
    found = Predictor.load(result.model).predict([{"text": "happy", "age": 30, "plan": "paid"}])
    assert found[0]["label"].endswith("paid")


def test_export_refuses_by_name(trained: FinetuneResult) -> None:
    with pytest.raises(
        ModelError, match=r"classification reads columns of a table beside the text \(features\)"
    ):
        open_source(trained.model)


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["features=age,paln"], InputError, r"no column 'paln'.*Did you mean 'plan'"),
        (["features=label"], InputError, r"There are: text, age, plan, beside the features label\. Name it"),
        (
            ["features=label", "label=label"],
            InputError,
            r"the column 'label' is the label: it can't be one of",
        ),
        (["features=text"], InputError, r"no column has a name that says it holds the text"),
        (["features=text", "text=text", "label=label"], InputError, r"the column 'text' is the text"),
        (["features=age,age"], RecipeError, r"the column 'age' is named twice"),
    ],
)
def test_what_cannot_be_read_is_refused_before_anything_is_written(
    overrides: list[str], error: type[Exception], message: str, encoder: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        run("classification", encoder, tmp_path, *overrides)
    assert not (tmp_path / "run").exists()


def test_a_cell_of_the_test_file_that_is_no_number_is_refused_before_anything_is_written(
    encoder: Path, tmp_path: Path
) -> None:
    rows = [row | {"age": "n/a"} for row in rows_of("classification", 3, 2)]
    test = write(tmp_path / "test.csv", rows)
    with pytest.raises(InputError, match=r"test\.csv, line 2, column 'age': expected a finite number"):
        run("classification", encoder, tmp_path, "method=linear", test=str(test))
    assert not (tmp_path / "run").exists()


def test_other_tasks_say_that_they_read_none(encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="features: similarity reads no columns beside the text"):
        run("similarity", encoder, tmp_path)


def test_a_file_to_predict_without_the_columns_is_refused(trained: FinetuneResult, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("happy bano\n")
    with pytest.raises(InputError, match="no column 'age'"):
        Predictor.load(trained.model).predict_file(tmp_path / "new.txt", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_the_service_reads_columns_by_name_and_refuses_a_text_alone(trained: FinetuneResult) -> None:
    client = TestClient(make_app(read_settings([f"mixed={trained.model}"], None, {}, {})))
    asked = [{"text": "happy", "age": 30, "plan": "paid"}, {"plan": None, "text": "happy", "age": None}]
    with client:
        answer = client.post("/v1/mixed", json={"inputs": asked})
        one = client.post("/v1/mixed", json={"inputs": asked[0]})
        alone = client.post("/v1/mixed", json={"inputs": ["happy"]})
    expected = [each["label"] for each in Predictor.load(trained.model).predict(asked)]
    assert [each["label"] for each in answer.json()["results"]] == expected
    assert one.json()["results"]["label"] == expected[0]
    assert alone.status_code == 422
    message = alone.json()["error"]["message"]
    assert message.startswith(
        'input 1: the model reads columns beside the text: {"text": …, "age": …, "plan": …}'
    )


def test_the_words_of_a_text_are_explained_beside_its_columns(trained: FinetuneResult) -> None:
    given = {"text": "bano awful delo", "age": 30, "plan": "paid"}
    found = Explainer(trained.model, "cpu").attributions(given)
    assert found.target == "bad paid"  # the empty text is answered "good": there is something to credit
    assert found.tokens[int(found.scores.argmax())] == "awful"


def test_the_page_of_a_look_shows_the_columns(trained: FinetuneResult, tmp_path: Path) -> None:
    given = {"age": 30, "text": "bano awful delo", "plan": "paid"}
    look(trained.model, given).save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert '<p class="given">bano awful delo · age: 30 · plan: paid</p>' in page


def test_the_command_that_looks_says_where_columns_can_be_given(
    trained: FinetuneResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["look", str(trained.model), "bano awful", "--out", str(tmp_path / "page.html")]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "reads columns beside the text (age, plan), which it can be given from Python only" in message
    assert not (tmp_path / "page.html").exists()


def test_in_scikit_learn_rows_have_their_columns_by_name(encoder: Path) -> None:
    rows = rows_of("classification", 120, 0)
    given = [{name: row[name] or None for name in ("text", "age", "plan")} for row in rows]
    texts, labels = [row["text"] for row in rows], [row["label"] for row in rows]
    usual = {"hardware.threads": 1}
    mixed = BertClassifier(encoder, method="linear", max_length=32, settings=usual | {"features": "age,plan"})
    alone = BertClassifier(encoder, method="linear", max_length=32, settings=usual)
    assert mixed.fit(given, labels).score(given, labels) > alone.fit(texts, labels).score(texts, labels) + 0.1
    assert pickle.loads(pickle.dumps(mixed)).predict(given[:5]).tolist() == mixed.predict(given[:5]).tolist()
    with pytest.raises(ValueError, match=r"X\[0\]: with features expected"):
        mixed.predict(["a text"])


def test_vectors_of_texts_stand_beside_columns_in_one_pipeline(encoder: Path) -> None:
    rows = rows_of("classification", 120, 0)
    table = np.array([[row["text"], row["age"] or 40, row["plan"]] for row in rows], dtype=object)
    labels = [row["label"] for row in rows]
    text = ("text", BertFeatures(str(encoder)), 0)
    columns = [("age", StandardScaler(), [1]), ("plan", OneHotEncoder(handle_unknown="ignore"), [2])]

    def score(*parts: Any) -> float:
        learner = make_pipeline(ColumnTransformer([*parts]), LogisticRegression(C=100, max_iter=2000))
        return float(cross_val_score(learner, table, labels, cv=3).mean())

    assert score(text, *columns) > max(score(text), score(*columns)) + 0.1

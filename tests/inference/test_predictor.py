"""A trained folder at work: by text, by file and on labelled rows."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from bertsmith.cli.main import main
from bertsmith.errors import InputError, ModelError, RecipeError
from bertsmith.files import read_json, sha256, write_json
from bertsmith.inference import predictor as predictor_module
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.provenance import TrainedOn
from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model, save_task_model
from bertsmith.tasks.examples.held_out import hold_out
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.registry import TASKS, find_task
from bertsmith.tasks.task import reading_columns
from bertsmith.tasks.task_model import TaskModel, outputs_of
from bertsmith.text.tokens.tokenizer import Tokenizer
from served_models import save_fine_tuned

WORDS = ["bano", "delo", "firu", "guma", "kano", "lelo", "miru"]


def saved_model(
    folder: Path, name: str, labels: list[Any], *, pair: bool = False, heads: int = 2, **settings: Any
) -> Path:
    """A random model of a task that learnt these labels, one a text."""
    tokenizer = Tokenizer.from_pieces(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "."], lowercase=True
    )
    kind = find_task(name)
    task = kind(kind.Settings(max_length=16, **settings))
    field = "tags" if name == "tagging" else "label"
    text: Any = ["bano"] if name == "tagging" else ("bano", "delo") if pair else "bano"
    task.fit([dataclasses.replace(task.example(text), **{field: label}) for label in labels])
    shape = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "intermediate_size": 32,
    }
    config = make_config({"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 32} | shape, "test")
    torch.manual_seed(2)
    model = TaskModel(Bert(config), task.head(config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    save_task_model(folder, model, task, tokenizer, {})
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return Predictor.load(
        saved_model(tmp_path_factory.mktemp("predictor") / "model", "classification", ["no", "yes"], stride=4)
    )


def random_texts(count: int, longest: int = 40) -> list[str]:
    draw = np.random.Generator(np.random.PCG64DXSM(0))
    return [" ".join(draw.choice(WORDS, draw.integers(0, longest))) for _ in range(count)]


def test_a_text_has_the_same_prediction_alone_and_among_others(classifier: Predictor) -> None:
    texts = random_texts(12)
    together = classifier.predict(texts)
    assert len({prediction["confidence"] for prediction in together}) > 6
    for text, prediction in zip(texts, together, strict=True):
        (alone,) = classifier.predict([text])
        assert alone["label"] == prediction["label"]
        assert alone["probabilities"] == pytest.approx(prediction["probabilities"], abs=1e-5)


OF_ALL_KINDS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "classification": (["no", "yes"], {"stride": 4}),
    "multi-label": ([("bad",), ("good", "bad")], {}),
    "regression": ([1.0, 2.5], {}),
    "reranking": ([0.0, 1.0], {"text": "a", "text_pair": "b"}),
    "similarity": ([0.0, 1.0], {"text": "a", "text_pair": "b"}),
    "tagging": ([("B-PER", "I-PER", "O")], {"crf": True}),
}


@pytest.mark.parametrize("precision", [torch.float32, None])
@pytest.mark.parametrize("name", OF_ALL_KINDS)
def test_a_prediction_is_the_same_to_the_bit_in_any_company(
    tmp_path: Path, name: str, precision: torch.dtype | None, inference_way: str, some_threads: None
) -> None:
    if inference_way == "torch":
        pytest.skip("of torch's products the last bits depend on the company")
    labels, settings = OF_ALL_KINDS[name]
    pair = "text_pair" in settings
    folder = saved_model(tmp_path / "model", name, labels, pair=pair, heads=1, **settings)
    predictor = Predictor.load(folder, compute_dtype=precision)
    texts: list[Any] = [text or "bano" for text in random_texts(150)]
    if pair:
        texts = list(zip(texts, reversed(texts), strict=True))
    encoded = encode_examples(
        predictor.task, [predictor.task.example(text) for text in texts], predictor.tokenizer
    ).encoded
    together = outputs_of(predictor.model, encoded)
    for number in range(0, len(texts), 7):
        (alone,) = outputs_of(predictor.model, [encoded[number]])
        np.testing.assert_array_equal(alone, together[number])
    some = predictor.predict(texts[40:60])
    assert some == predictor.predict(texts)[40:60] == [predictor.predict([text])[0] for text in texts[40:60]]


@pytest.fixture(params=[1, 3])
def some_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def test_products_in_int16_give_nearly_the_same(tmp_path: Path, inference_way: str) -> None:
    folder = saved_model(tmp_path / "model", "classification", ["no", "yes"], heads=1)
    texts = random_texts(12)
    expected = [
        each["probabilities"]["yes"]
        for each in Predictor.load(folder, compute_dtype=torch.float32).predict(texts)
    ]
    usual = Predictor.load(folder).predict(texts)
    found = [each["probabilities"]["yes"] for each in usual]
    if inference_way == "torch":
        assert found == expected
        with pytest.raises(InputError, match="compiled kernels"):
            Predictor.load(folder, compute_dtype=torch.int16)
        return
    assert found == pytest.approx(expected, abs=2e-3)
    assert found != expected
    assert Predictor.load(folder, compute_dtype=torch.int16).predict(texts) == usual


def test_the_command_multiplies_in_what_it_is_told(
    tmp_path: Path, inference_way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved_model(tmp_path / "model", "classification", ["no", "yes"], heads=1)
    texts = random_texts(5, 9)
    (tmp_path / "texts.txt").write_text("".join(f"{text}.\n" for text in texts))
    command = ["predict", str(folder), str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out.jsonl")]
    status = main([*command, "--compute-dtype", "int16"])
    if inference_way == "torch":
        assert status == 2
        assert "Use float32." in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / "out.jsonl").exists()
        return
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = Predictor.load(folder, compute_dtype=torch.int16).predict([f"{text}." for text in texts])
    assert [each["probabilities"] for each in found] == [each["probabilities"] for each in expected]


def test_other_precisions_are_refused(tmp_path: Path) -> None:
    folder = saved_model(tmp_path / "model", "classification", ["no", "yes"])
    with pytest.raises(
        InputError, match=r"one of torch\.float32, torch\.int16, torch\.int8, found torch\.float16"
    ):
        Predictor.load(folder, compute_dtype=torch.float16)


def test_probabilities_are_of_every_label_and_sum_to_one(classifier: Predictor) -> None:
    for prediction in classifier.predict(random_texts(5)):
        assert list(prediction["probabilities"]) == ["no", "yes"]
        assert sum(prediction["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)
        assert prediction["confidence"] == max(prediction["probabilities"].values())
        assert prediction["probabilities"][prediction["label"]] == prediction["confidence"]


def test_nothing_to_predict_is_no_prediction(classifier: Predictor) -> None:
    assert classifier.predict([]) == []


def test_a_file_is_predicted_line_by_line_in_order(classifier: Predictor, tmp_path: Path) -> None:
    texts = ["bano", "delo firu", "guma " * 30]
    (tmp_path / "in.csv").write_text("id,remark\n" + "".join(f"{n},{t}\n" for n, t in enumerate(texts)))
    seen: list[tuple[int, int | None]] = []
    count = classifier.predict_file(
        tmp_path / "in.csv",
        tmp_path / "out.jsonl",
        lambda done, total, what: seen.append((done, total)),
        text="remark",
    )
    assert (count, seen) == (3, [(3, 3)])
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line.pop("text").strip() for line in lines] == [text.strip() for text in texts]
    for line, wanted in zip(lines, classifier.predict(texts), strict=True):
        assert line["label"] == wanted["label"]
        assert line["confidence"] == pytest.approx(wanted["confidence"], abs=1e-5)


def test_other_columns_leave_labels_and_settings_alone(classifier: Predictor) -> None:
    other = reading_columns(classifier.task, {"text": "remark", "label": None})
    assert (other.settings.text, other.settings.stride) == ("remark", 4)
    assert other.labels == classifier.task.labels
    assert classifier.task.settings.text is None


def test_evaluation_stands_beside_its_baselines(classifier: Predictor, tmp_path: Path) -> None:
    texts = [text or "bano" for text in random_texts(9)]
    rows = [{"text": text, "label": "yes" if number % 3 else "no"} for number, text in enumerate(texts)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluation = classifier.evaluate(tmp_path / "rows.jsonl", tmp_path / "rows.jsonl")
    guessed = [prediction["label"] for prediction in classifier.predict(texts)]
    right = np.mean([label == row["label"] for label, row in zip(guessed, rows, strict=True)])
    assert evaluation.model["accuracy"] == pytest.approx(float(right))
    assert next(iter(evaluation.baselines.values()))["accuracy"] == pytest.approx(6 / 9)
    assert (evaluation.rows, len(evaluation.baselines)) == (9, 2)


def test_a_label_the_model_never_saw_is_told_by_line(classifier: Predictor, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        '{"text": "bano", "label": "yes"}\n{"text": "delo", "label": "perhaps"}\n'
    )
    with pytest.raises(InputError, match=r"rows\.jsonl, line 2.*'perhaps'"):
        classifier.evaluate(tmp_path / "rows.jsonl")


def test_entities_of_a_text_are_told_in_its_characters(tmp_path: Path) -> None:
    tags = [("B-PER", "I-PER", "B-LOC", "O")]
    predictor = Predictor.load(saved_model(tmp_path / "model", "tagging", tags))
    text = "  Bano, delo\tFIRU 🙂 guma é kano.  " * 3
    (prediction,) = predictor.predict([text])
    assert "".join(prediction["words"]) == "".join(text.split())
    assert len(prediction["tags"]) == len(prediction["words"]) == len(prediction["confidence"])
    assert prediction["entities"]
    for entity in prediction["entities"]:
        assert text[entity["start"] : entity["end"]] == entity["text"]


def test_a_folder_without_a_head_is_refused_with_the_way_on(tmp_path: Path) -> None:
    folder = saved_model(tmp_path / "model", "similarity", [0.0, 1.0], pair=True)
    (folder / "bertsmith.json").unlink()
    with pytest.raises(ModelError, match=r"without a head for a task\. Fine-tune it first: bertsmith"):
        Predictor.load(folder)


def test_windows_of_a_long_text_all_count(classifier: Predictor) -> None:
    """A text of one word over and over, and then another that only the last window shows."""
    plain, other = classifier.predict(["bano " * 60, "bano " * 59 + "firu"])
    assert plain["confidence"] != other["confidence"]


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        ("bano delo", r"Expected a list of texts, found one text: 'bano delo'"),
        (["bano", None], "input 2: the model reads a text, or a pair of texts; found nothing"),
        ([("a", "b", "c")], r"input 1: the model reads a text, or a pair of texts; found \('a', 'b', 'c'\)"),
        ([("a", None)], "input 1: the model reads"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(classifier: Predictor, texts: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        classifier.predict(texts)


def test_a_model_of_pairs_refuses_single_texts_and_the_other_way_about(classifier: Predictor) -> None:
    of_pairs, of_texts = (
        dataclasses.replace(classifier, task=reading_columns(classifier.task, {"text": "a", **more}))
        for more in ({"text_pair": "b"}, {})
    )
    assert len(of_pairs.predict([("bano", "delo")])) == len(of_texts.predict(["bano"])) == 1
    with pytest.raises(InputError, match="input 1: the model reads a pair of texts; found 'bano'"):
        of_pairs.predict(["bano"])
    with pytest.raises(InputError, match="input 1: the model reads a text; found"):
        of_texts.predict([("bano", "delo")])


def write_rows(path: Path, texts: list[str], text: str = "text", label: str = "label") -> Path:
    rows = [{text: each, label: "yes" if number % 3 else "no"} for number, each in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def numbered(word: str, count: int) -> list[str]:
    return [f"{word} {number}" for number in range(count)]


def trained(predictor: Predictor, train: Path, dev_share: float | None) -> Predictor:
    return dataclasses.replace(predictor, trained_on=TrainedOn((train,), (sha256(train),), dev_share))


def test_without_its_training_file_no_baseline_learns(classifier: Predictor, tmp_path: Path) -> None:
    test = write_rows(tmp_path / "test.jsonl", numbered("bano", 9))
    train = write_rows(tmp_path / "train.jsonl", numbered("delo", 9))
    known = trained(classifier, train, None)
    assert len(known.evaluate(test).baselines) == 2
    train.write_text(train.read_text() + "\n")
    for predictor, lost in ((known, "train.jsonl is not there, or was changed"), (classifier, "names no")):
        evaluation = predictor.evaluate(test)
        assert evaluation.baselines == {}
        (said,) = evaluation.warnings("test", "accuracy")
        assert lost in said and "--train" in said
    assert len(classifier.evaluate(test, train).baselines) == 2


def test_baselines_learn_from_what_was_trained_on(
    classifier: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from the part that was held out, wherever the file is now; and by the columns of training."""
    learnt: list[list[str]] = []
    baselines = type(classifier.task).baselines

    def spy(task: Any, train: Any, dev: Any) -> Any:
        learnt.append([example.text for example in train])
        return baselines(task, train, dev)

    monkeypatch.setattr(type(classifier.task), "baselines", spy)
    texts = numbered("delo", 60)
    train = write_rows(tmp_path / "train.jsonl", texts)
    moved = write_rows(tmp_path / "moved.jsonl", texts)
    test = write_rows(tmp_path / "test.jsonl", numbered("bano", 5), "body", "kind")
    known = trained(classifier, train, 0.2)
    columns = {"text": "body", "label": "kind"}
    known.evaluate(test, **columns)
    known.evaluate(test, moved, **columns)
    trained(classifier, train, None).evaluate(test, **columns)
    kept, dev = hold_out(classifier.task, reading_columns(classifier.task, {}).read(train), 0.2)
    assert dev
    assert learnt[0] == learnt[1] == [example.text for example in kept]
    assert learnt[2] == texts


def test_a_training_file_that_nobody_named_costs_the_baselines_alone(
    classifier: Predictor, tmp_path: Path
) -> None:
    test = write_rows(tmp_path / "test.jsonl", numbered("bano", 9))
    train = write_rows(tmp_path / "train.jsonl", numbered("delo", 9), label="kind")
    task = reading_columns(classifier.task, {"text": "text", "label": "label"})
    predictor = dataclasses.replace(trained(classifier, train, None), task=task)
    evaluation = predictor.evaluate(test)
    assert evaluation.baselines == {}
    (said,) = evaluation.warnings("test", "accuracy")
    assert "the model's training file can't be read as it was" in said and "'label'" in said
    with pytest.raises(InputError, match="'label'"):
        predictor.evaluate(test, train)


def test_the_frozen_baseline_learns_in_the_unit_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in training: the same strengths of regularisation mean nothing for prices in thousands."""
    seen: list[Any] = []
    monkeypatch.setattr(predictor_module, "frozen_predictions", lambda task, *_: seen.append(task) or {})
    predictor = Predictor.load(saved_model(tmp_path / "model", "regression", [1000.0, 5000.0]))
    rows = [{"text": text, "score": 1000.0 * n} for n, text in enumerate(numbered("delo", 9))]
    train = tmp_path / "train.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataclasses.replace(predictor, before=tmp_path).evaluate(train, train)
    assert seen[0].mean == pytest.approx(4000.0) and seen[0].deviation == pytest.approx(2582, abs=1)
    assert predictor.task.deviation == 1.0


@pytest.mark.parametrize("layers", [0, 1])
def test_a_model_with_new_layers_isnt_compared_with_the_encoder_before(tmp_path: Path, layers: int) -> None:
    """As in training: it didn't begin with that encoder's highest layers."""
    encoder = saved_model(tmp_path / "encoder", "classification", ["a", "b"])
    model, task = load_task_model(encoder)
    recipe = {"model": str(encoder), "reinit_layers": layers}
    save_task_model(tmp_path / "new", model, task, Tokenizer.load(encoder), {"recipe": recipe})
    assert Predictor.load(tmp_path / "new").before == (None if layers else encoder)


def test_texts_that_were_trained_on_are_told(classifier: Predictor, tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", numbered("delo", 9))
    evaluation = trained(classifier, train, None).evaluate(train)
    assert evaluation.data_warnings[0].startswith("9 of the 9 train.jsonl texts occur in")


def test_a_file_in_another_encoding_is_read_as_said(classifier: Predictor, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes("text\nbano\ncaf\xe9\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"in\.csv: expected utf-8 .* in line 3 .*'latin-1'"):
        classifier.predict_file(path, tmp_path / "out.jsonl")
    assert classifier.predict_file(path, tmp_path / "out.jsonl", encoding="latin-1") == 2
    assert "caf\xe9" in (tmp_path / "out.jsonl").read_text(encoding="utf-8")


def test_an_encoding_is_that_of_a_file_and_not_of_the_model_that_learned_from_it(tmp_path: Path) -> None:
    folder = saved_model(tmp_path / "model", "classification", ["no", "yes"], encoding="cp1252", text="text")
    train = tmp_path / "train.csv"
    rows = "text,label\n" + "".join(f"caf\xe9 {word},{'no' if word < 'g' else 'yes'}\n" for word in WORDS)
    train.write_bytes(rows.encode("cp1252"))
    manifest = read_json(folder / "bertsmith.json")
    recipe = {"train": str(train), "settings": {"encoding": "cp1252"}, "dev": "dev.csv"}
    manifest["provenance"] = {"recipe": recipe, "sha256": {"train": sha256(train)}}
    write_json(folder / "bertsmith.json", manifest)
    predictor, new, out = Predictor.load(folder), tmp_path / "new.csv", tmp_path / "out.jsonl"
    new.write_text("text,label\ncaf\xe9 kano,yes\ncaf\xe9 bano,no\n", encoding="utf-8")
    predictor.predict_file(new, out)
    assert [json.loads(line)["text"] for line in out.read_text(encoding="utf-8").splitlines()] == [
        "caf\xe9 kano",
        "caf\xe9 bano",
    ]
    evaluation = predictor.evaluate(new)  # beside baselines that learn from the file in its encoding
    assert len(evaluation.baselines) == 2
    assert evaluation.data_warnings[0].startswith("2 of the 2 new.csv texts occur in")
    with pytest.raises(InputError, match="expected utf-8 text, found 0xe9"):
        predictor.predict_file(train, out, overwrite=True)


def test_a_setting_that_would_have_no_effect_on_a_file_is_refused(
    classifier: Predictor, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("text,label\nbano,yes\n")
    for own in ({"stride": 4}, {"max_length": 16}, {"coverage": 0.5}, {"features": ["age"]}):
        with pytest.raises(InputError, match=f"{next(iter(own))} is a setting of training"):
            classifier.predict_file(tmp_path / "in.csv", tmp_path / "out.jsonl", **own)
        with pytest.raises(InputError, match="can't be changed for a file"):
            classifier.evaluate(tmp_path / "in.csv", **own)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("name", sorted(TASKS))
def test_each_setting_is_of_the_model_or_says_how_a_file_is_read(name: str) -> None:
    settings = find_task(name).Settings
    of_files = {
        *("text", "text_pair", "label", "labels", "separator", "group", "missing", "scheme"),
        *("header", "format", "encoding", "query", "positive", "negative", "negatives"),
        *("query_prefix", "document_prefix"),  # may be another's for other documents
    }
    assert settings.of_model == settings.model_fields.keys() - of_files


def test_ids_and_blank_lines_keep_predictions_beside_their_rows(
    classifier: Predictor, tmp_path: Path
) -> None:
    (tmp_path / "in.csv").write_text("id,text\nx7,bano\n,delo\n")
    classifier.predict_file(tmp_path / "in.csv", tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["id"], line["text"]) for line in lines] == [("x7", "bano"), ("", "delo")]
    (tmp_path / "in.txt").write_text("bano\n\ndelo\n")
    assert classifier.predict_file(tmp_path / "in.txt", tmp_path / "out.jsonl", overwrite=True) == 3
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == ["bano", "", "delo"]
    assert "id" not in lines[0]


def test_texts_that_pandas_quoted_in_tsv_are_told(classifier: Predictor, tmp_path: Path) -> None:
    """They were read with their quotes in silence; where a quote is a letter, nothing is said."""
    rows = [('he said "bano"', "a"), ("delo", "b"), ('"delo"', "a")]
    path, warnings = tmp_path / "in.tsv", list[str]()
    pandas.DataFrame(rows, columns=["text", "label"]).to_csv(path, sep="\t", index=False)
    assert classifier.predict_file(path, tmp_path / "out.jsonl", warn=warnings.append) == 3
    assert len(warnings) == 1 and f'{path}: 2 texts are quoted as in CSV, such as "he said' in warnings[0]
    labelled = reading_columns(classifier.task, {})
    labelled.read(path)
    assert labelled.left_out == warnings
    partly = reading_columns(classifier.task, {})
    partly.read_partly_labelled(path)
    assert partly.left_out == warnings
    path.write_text("text\n" + "".join(f"{text}\n" for text, _ in rows))
    assert classifier.predict_file(path, tmp_path / "out.jsonl", overwrite=True, warn=warnings.append) == 3
    assert len(warnings) == 1


def test_a_line_end_in_quotes_and_a_header_that_are_read_as_rows_are_told(
    classifier: Predictor, tmp_path: Path
) -> None:
    """A prediction more than the table has rows was all that told of them."""
    path, warnings = tmp_path / "in.tsv", list[str]()
    rows = pandas.DataFrame({"text": ["bano\nkeru", "delo", 'a "bano"\n\ndelo'], "day": [1, 2, 3]})
    rows.to_csv(path, sep="\t", index=False)
    classifier.predict_file(path, tmp_path / "out.jsonl", warn=warnings.append)
    assert "2 texts are quoted as in CSV" in warnings[0] and "and 2 of them torn into several" in warnings[0]
    path.write_text('text\tday\n"bano\t1\ndelo" said he\t2\n')  # quotes are letters here
    classifier.predict_file(path, tmp_path / "out.jsonl", overwrite=True, warn=warnings.append)
    assert len(warnings) == 1
    columns = {"header": False, "text": 1}
    classifier.predict_file(path, tmp_path / "out.jsonl", overwrite=True, warn=warnings.append, **columns)
    assert len(warnings) == 2 and warnings[1].startswith(f"{path}, line 1: 'text' was read as a text")


def test_plain_lines_are_predicted_whatever_the_column_was_called(tmp_path: Path) -> None:
    folder = saved_model(tmp_path / "model", "classification", ["no", "yes"], text="review", label="kind")
    predictor = Predictor.load(folder)
    (tmp_path / "in.txt").write_text("bano\ndelo\n")
    assert predictor.predict_file(tmp_path / "in.txt", tmp_path / "out.jsonl") == 2


def test_a_training_file_with_labels_of_its_own_is_refused(classifier: Predictor, tmp_path: Path) -> None:
    test = write_rows(tmp_path / "test.jsonl", numbered("bano", 4))
    (tmp_path / "train.jsonl").write_text('{"text": "bano", "label": "perhaps"}\n')
    with pytest.raises(InputError, match=r"train\.jsonl, line 1.*'perhaps'"):
        classifier.evaluate(test, tmp_path / "train.jsonl")


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [({"lable": "kind"}, "unknown key 'lable'. Did you mean 'label'"), ({"header": "maybe"}, "header")],
)
def test_columns_that_are_none_are_refused(
    classifier: Predictor, columns: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=complaint):
        classifier.evaluate(tmp_path / "rows.jsonl", **columns)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "txt"])
def test_a_row_without_text_is_answered_so(classifier: Predictor, tmp_path: Path, ending: str) -> None:
    path, out = tmp_path / f"rows.{ending}", tmp_path / "out.jsonl"
    texts = ["bano", " ", "delo"]
    lines = {
        "csv": ["text", *texts],
        "jsonl": ['{"text": "bano"}', '{"text": null}', '{"text": "delo"}'],
        "txt": texts,
    }
    path.write_text("\n".join(lines[ending]))
    warnings: list[str] = []
    assert classifier.predict_file(path, out, warn=warnings.append) == 3
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row.get("error") for row in rows] == [None, "no text", None]
    assert "label" not in rows[1]
    plain = [{name: row[name] for name in ("label", "confidence", "probabilities")} for row in rows[::2]]
    assert plain == classifier.predict(["bano", "delo"])
    (sentence,) = warnings
    place = {"csv": "line 3", "jsonl": "line 2", "txt": "line 2"}[ending]
    assert sentence == f"1 of 3 rows have no text and no prediction, the first is {path}, {place}"


def test_a_blank_text_that_is_given_is_answered(classifier: Predictor) -> None:
    """As transformers' pipelines do, by [CLS] and [SEP] alone; only in a file it is a missing cell."""
    empty, blank = classifier.predict(["", " "])
    assert empty == blank and sum(empty["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    with pytest.raises(InputError, match="input 2"):
        classifier.predict(["", None])


@pytest.mark.parametrize("tags", [["O", "B-PER", "B-LOC"], ["NOUN", "VERB", "ADJ"]])
def test_a_tagger_reads_a_text_of_many_windows_whole(tmp_path: Path, tags: list[str]) -> None:
    made = Predictor.load(saved_model(tmp_path / "made", "tagging", [(tag,) for tag in tags]))
    texts = [" ".join(WORDS * 12), "bano"]
    found = list(made.predict_windows(texts))
    assert found == made.predict(texts)
    assert [len(each["tags"]) for each in found] == [84, 1]


def test_a_mistyped_column_of_retrieval_is_refused_where_a_file_is_evaluated(tmp_path: Path) -> None:
    """A trained model's own label and group may be missing from a file; those that are given may not."""
    predictor = Predictor.load(save_fine_tuned(tmp_path / "model", "retrieval"))
    file = tmp_path / "pairs.csv"
    file.write_text("query,positive,right,source\nbano,delo,1,a\nfiru,guma,1,b\nkano,lelo,1,b\n")
    assert predictor.evaluate(file, label="right", group="source").rows == 3
    with pytest.raises(InputError, match=r"pairs\.csv has no column 'rihgt', by which --label"):
        predictor.evaluate(file, label="rihgt")
    with pytest.raises(InputError, match=r"no column 'suorce'"):
        predictor.evaluate(file, group="suorce")

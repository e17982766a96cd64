"""What a fine-tuning run reads and how it is set, before anything is trained."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bertsmith.errors import InputError, RecipeError
from bertsmith.tasks.examples.held_out import folds_of, group_of, hold_out, repeated_texts
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.registry import find_task
from bertsmith.tasks.tagging import TaggedExample, Tagging
from bertsmith.training.finetune_recipe import FinetuneRecipe, make_finetune_recipe
from bertsmith.training.finetuning.labelled_data import LabelledData
from bertsmith.training.finetuning.results import hash_data


def test_without_a_dev_file_a_share_is_held_out_that_stays_when_rows_are_added(tmp_path: Path) -> None:
    texts = [f"text number {number}" for number in range(400)]
    few, many = (held_out(tmp_path, f"{count}.jsonl", texts[:count]) for count in (300, 400))
    assert few == many & set(texts[:300])
    assert 15 <= len(few) <= 45
    doubled = held_out(tmp_path, "twice.jsonl", texts[:300] + texts[:300])
    assert doubled == few, "equal texts fell on both sides"


def held_out(folder: Path, name: str, texts: list[str]) -> set[str]:
    rows = [json.dumps({"text": text, "label": str(len(text) % 2)}) for text in texts]
    (folder / name).write_text("\n".join(rows))
    recipe = FinetuneRecipe(
        task="classification", model="m", train=str(folder / name), out="o", dev_share=0.1
    )
    kind = find_task("classification")
    data = LabelledData.read(kind(kind.Settings()), recipe)
    dev = {example.text for example in data.dev}
    assert dev.isdisjoint(example.text for example in data.train)
    assert len(data.train) + len(data.dev) == len(texts)
    return dev


@pytest.mark.parametrize("folds", [False, True])
def test_texts_given_as_labels_are_recognised(tmp_path: Path, folds: bool) -> None:
    labels = [f"a text of its own {number}" for number in range(50)]
    texts = range(50) if folds else [len(label) % 3 for label in labels]
    rows = [json.dumps({"text": f"{a}", "label": b}) for a, b in zip(texts, labels, strict=True)]
    (tmp_path / "swapped.jsonl").write_text("\n".join(rows))
    recipe = FinetuneRecipe(task="classification", model="m", train=str(tmp_path / "swapped.jsonl"), out="o")
    kind = find_task("classification")
    with pytest.raises(InputError, match="has 50 labels in 50 rows: hardly any comes twice"):
        LabelledData.read(kind(kind.Settings()), recipe, folds=folds)
    rows.append(json.dumps({"text": "another", "label": labels[0]}))  # a label that comes twice
    (tmp_path / "swapped.jsonl").write_text("\n".join(rows))
    if folds:
        assert len(LabelledData.read(kind(kind.Settings()), recipe, folds=True).train) == 51


def test_settings_of_the_task_stand_beside_those_of_the_run() -> None:
    values = {"task": "tagging", "model": "m", "train": "t", "out": "o"}
    recipe = make_finetune_recipe(values, ["crf=true", "optimizer.learning_rate=3e-5", "epochs=2"])
    assert (recipe.settings, recipe.epochs) == ({"crf": True}, 2)
    assert recipe.resolve(10, 7).steps == 20


@pytest.mark.parametrize("given", [("decay=1000",), ("warmup=0.4", "decay=0.9")])
def test_a_decay_that_has_no_room_in_the_run_is_refused(given: tuple[str, ...]) -> None:
    values = {"task": "classification", "model": "m", "train": "t", "out": "o"}
    settings = ["epochs=3", "optimizer.schedule=wsd", *(f"optimizer.{each}" for each in given)]
    with pytest.raises(RecipeError, match=r"together longer than the run \(150 steps: epochs=3"):
        make_finetune_recipe(values, settings).resolve(50, 0)
    shorter = make_finetune_recipe(values, [*settings, "optimizer.warmup=0.1", "optimizer.decay=15"])
    assert shorter.resolve(50, 0).steps == 150


@pytest.mark.parametrize(
    ("given", "width", "layers", "rows", "epochs", "rate", "decay"),
    [
        ([], 768, 6, 100_000, 3, 1e-4, 0.75),
        ([], 384, 6, 100_000, 3, 2e-4, 0.75),
        ([], 128, 6, 100_000, 3, 6e-4, 0.75),
        ([], 192, 2, 100_000, 3, 1.2e-3, 0.75),
        ([], 768, 12, 100_000, 3, 1e-4, 0.75),
        ([], 1024, 6, 100_000, 3, 7.5e-5, 0.75),
        ([], 384, 6, 3576, 6, 2e-4, 0.75),  # 112 steps an epoch
        ([], 384, 6, 20, 10, 2e-4, 0.75),
        (["batch_size=16"], 384, 6, 3576, 3, 2e-4, 0.75),
        (["lora.rank=8"], 384, 6, 100_000, 3, 1e-3, 1),
        (["optimizer.layer_decay=1"], 384, 6, 100_000, 3, 1e-4, 1),
        (["optimizer.layer_decay=0.9"], 384, 6, 100_000, 3, 2e-4, 0.9),
        (["epochs=3", "optimizer.learning_rate=5e-5"], 128, 6, 20, 3, 5e-5, 1),
        (["optimizer.weight_decay=0"], 384, 6, 100_000, 3, 2e-4, 0.75),
    ],
)
def test_what_nobody_gave_is_chosen_by_shape_and_rows(
    given: list[str], width: int, layers: int, rows: int, epochs: float, rate: float, decay: float
) -> None:
    values = {"task": "classification", "model": "m", "train": "t", "out": "o"}
    recipe = make_finetune_recipe(values, given)
    completed = recipe.complete(width, layers, -(-rows // recipe.batch_size))
    assert (completed.epochs, completed.optimizer.learning_rate) == (epochs, pytest.approx(rate))
    assert completed.optimizer.layer_decay == decay
    assert completed.optimizer.weight_decay == recipe.optimizer.weight_decay
    assert completed.complete(64, 2, 7) == completed
    assert recipe.with_choices_of(completed) == completed


def classes(counts: dict[str, int]) -> list[TextExample]:
    return [
        TextExample(f"{label} {number}", None, label, f"row {number}")
        for label, count in counts.items()
        for number in range(count)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_class_has_a_text_on_either_side_if_it_has_enough(seed: int) -> None:
    kind = find_task("classification")
    counts = {f"only {seed}": 1, f"few {seed}": 4, f"some {seed}": 12, f"many {seed}": 60}
    train, dev = hold_out(kind(kind.Settings()), classes(counts), 0.1)
    kept, held = ([sum(e.label == label for e in part) for label in counts] for part in (train, dev))
    assert all(kept), "a class that can't be learnt"
    assert kept[0] == 1 and held[0] == 0
    assert held[2] and held[3], "a class that isn't measured"
    assert [a + b for a, b in zip(kept, held, strict=True)] == list(counts.values())


@pytest.mark.parametrize("lonely", range(12))
def test_a_label_is_measured_whichever_of_its_texts_has_a_rare_label_too(lonely: int) -> None:
    """That text stays in train; no other took its place in dev, and the label wasn't measured."""
    kind = find_task("multi-label")
    examples = [
        TextExample(f"text {n}", None, ("common", "rare") if n == lonely else ("common",), f"row {n}")
        for n in range(12)
    ]
    train, dev = hold_out(kind(kind.Settings()), examples, 0.05)
    assert dev and examples[lonely] in train


def test_tags_that_one_sentence_has_are_trained_on() -> None:
    task = Tagging(Tagging.Settings())
    examples = [TaggedExample((f"w{n}",), (f"B-{n}",), f"line {n}") for n in range(40)]
    train, dev = hold_out(task, examples, 0.5)
    assert (len(train), dev) == (40, [])


def test_a_dev_that_tells_little_is_told(tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"text {n}", "label": "ab"[n % 2]}) for n in range(60)]
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    (tmp_path / "dev.jsonl").write_text("\n".join(rows[:8:2]))
    values = {"task": "classification", "model": "m", "train": str(tmp_path / "train.jsonl"), "out": "o"}
    kind = find_task("classification")
    data = LabelledData.read(kind(kind.Settings()), FinetuneRecipe(**values, dev=str(tmp_path / "dev.jsonl")))
    few, one, shared = data.warnings
    assert few.startswith("dev has 4 rows: too few")
    assert one.startswith("dev has one label only, 'a'")
    assert shared.startswith("4 of the 4 dev texts occur in")
    data = LabelledData.read(kind(kind.Settings()), FinetuneRecipe(**values, dev_share=0.6))
    assert data.warnings == ()


def test_what_reading_changed_is_told_with_its_file(tmp_path: Path) -> None:
    rows = [
        {"text": f"Anna Weber{n} came", "spans": [{"start": 0, "end": 10, "label": "PER"}]} for n in range(60)
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = FinetuneRecipe(
        task="tagging", model="m", train=str(tmp_path / "train.jsonl"), out="o", dev_share=0.6
    )
    data = LabelledData.read(Tagging(Tagging.Settings()), recipe)
    assert [warning.split(" marked")[0] for warning in data.warnings] == [
        f"train: {len(data.train)}",
        f"dev: {len(data.dev)}",
    ]


@pytest.mark.parametrize(("rare", "told"), [(3, True), (5, False)])
def test_labels_with_fewer_rows_than_folds_are_told(tmp_path: Path, rare: int, told: bool) -> None:
    rows = [json.dumps({"text": f"often {number}", "label": "often"}) for number in range(20)]
    rows += [json.dumps({"text": f"rare {number}", "label": "rare"}) for number in range(rare)]
    (tmp_path / "few.jsonl").write_text("\n".join(rows))
    recipe = FinetuneRecipe(task="classification", model="m", train=str(tmp_path / "few.jsonl"), out="o")
    kind = find_task("classification")
    warnings = LabelledData.read(kind(kind.Settings()), recipe, folds=True).warnings
    expected = "1 of 2 labels have fewer than 5 rows, such as 'rare': cross-validation"
    assert any(warning.startswith(expected) for warning in warnings) is told


def test_too_few_texts_are_told_how_many_would_do(tmp_path: Path) -> None:
    """Rows don't count: equal texts fall on one side."""
    rows = tmp_path / "rows.conll"
    rows.write_text("Anna\tB-PER\nruns\tO\n\n" * 40)
    recipe = FinetuneRecipe(task="tagging", model="m", train=str(rows), out="o", dev_share=0.1)
    with pytest.raises(
        InputError, match=r"40 rows with 1 different texts: .* Give at least 6 different texts"
    ):
        LabelledData.read(Tagging(Tagging.Settings()), recipe)
    rows.write_text("".join(f"Anna{number}\tB-PER\nruns\tO\n\n" for number in range(6)))
    data = LabelledData.read(Tagging(Tagging.Settings()), recipe)
    assert data.train and data.dev


def test_texts_that_are_alike_to_a_model_are_one_text_to_judge_by() -> None:
    """As the folds have them: ten of them would all be in one."""
    kind = find_task("classification")
    task = kind(kind.Settings())
    texts = ["Where is it?", "where is it", "WHERE IS IT!", *(f"word{number}" for number in range(8))]
    rows = [TextExample(text, None, "yes", text) for text in texts]
    assert not LabelledData(task, rows[:10], []).can_be_folded
    assert len(set(folds_of(task, rows[:3], 2).tolist())) == 1
    another = TextExample("another", None, "no", "another")
    assert LabelledData(task, [*rows, another], []).can_be_folded


def warnings_of(folder: Path, rows: list[dict[str, object]], **settings: object) -> tuple[str, ...]:
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = FinetuneRecipe(task="classification", model="m", train=str(folder / "rows.jsonl"), out="o")
    kind = find_task("classification")
    return LabelledData.read(kind(kind.Settings(**settings)), recipe, folds=True).warnings


def test_labels_that_look_alike_are_told_with_their_counts(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": ("Refund", "refund", "other")[n % 3]} for n in range(30)]
    (sentence,) = warnings_of(tmp_path, rows)
    assert sentence.startswith("the labels 'Refund' (10) and 'refund' (10) differ in case, blanks or")


@pytest.mark.parametrize(
    ("labels", "start"),
    [
        (("joy", "anger", "joy,anger"), "labels such as 'joy,anger' (10) are others joined"),
        (("0 1 0", "1 1 0", "0 0 1"), "labels such as '0 1 0' (10) look like a 0 or 1 for each"),
        (("4,25", "3,5", "1,0"), "the 3 labels are numbers with fractions"),
        (("4.5", "3", "1"), "the 3 labels are numbers with fractions"),
        (("joy", "NaN", "anger"), "the label 'NaN' (10 rows) is learned as a class."),
    ],
)
def test_labels_that_are_probably_no_classes_are_told(
    tmp_path: Path, labels: tuple[str, ...], start: str
) -> None:
    rows = [{"text": f"text {n}", "label": labels[n % 3]} for n in range(30)]
    (sentence,) = warnings_of(tmp_path, rows)
    assert sentence.startswith(start)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([-1, 0, 1], "-1"),
        ([-1, 0, 2], "-1"),
        ([-1, 1, 2, 3], "-1"),
        ([-100, 1, 2], "-100"),
        ([-1, 1], None),
        ([-2, -1, 0, 1], None),
    ],
)
def test_a_class_that_says_that_there_is_none_in_other_files_is_told(
    tmp_path: Path, labels: list[Any], told: str | None
) -> None:
    rows = [{"text": f"text {n}", "label": labels[n % len(labels)]} for n in range(60)]
    expected = [f"the label {told!r} ({60 // len(labels)} rows) is learned as a class."] if told else []
    assert [sentence[: len(expected[0])] for sentence in warnings_of(tmp_path, rows)] == expected


@pytest.mark.parametrize(
    ("scores", "are_told"), [([4.5, 3.2, -1, 0], True), ([-1, 0, 1], False), ([-2, -1, 3], False)]
)
def test_a_score_of_minus_one_below_all_others_is_told(
    tmp_path: Path, scores: list[float], are_told: bool
) -> None:
    rows = [{"text": f"text {n}", "label": scores[n % len(scores)]} for n in range(100)]
    found = data_of("regression", rows, tmp_path).warnings
    assert any("have the score -1, the first in" in sentence for sentence in found) == are_told


def test_rows_that_were_left_out_are_told(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"text": f"text {n}", "label": "ab"[n % 2]} for n in range(30)]
    (sentence,) = warnings_of(tmp_path, [*rows, {"text": None, "label": "a"}], missing="drop")
    assert sentence.endswith("of 31 rows 1 has no text (the first: line 31): they were left out")


def recipe_of(task: str, path: Path, **values: Any) -> FinetuneRecipe:
    return FinetuneRecipe(task=task, model="m", train=str(path), out="o", **values)


def data_of(task: str, rows: list[dict[str, Any]], folder: Path, **settings: Any) -> LabelledData:
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    kind = find_task(task)
    recipe = recipe_of(task, folder / "rows.jsonl", dev_share=0.3)
    return LabelledData.read(kind(kind.Settings(**settings)), recipe)


def test_questions_about_a_passage_fall_on_one_side(tmp_path: Path) -> None:
    rows = [
        {"question": f"Who was it {n}?", "passage": f"It was Ada in {n // 5}.", "answer": "Ada"}
        for n in range(200)
    ]
    data = data_of("question-answering", rows, tmp_path)
    train, dev = ({example.passage for example in part} for part in (data.train, data.dev))
    assert train and dev and train.isdisjoint(dev)
    assert data.warnings == ()


@pytest.mark.parametrize(
    ("task", "row"),
    [
        (
            "question-answering",
            {"question": "Who {n}?", "passage": "It was Ada in {k}.{blanks}", "answer": "Ada"},
        ),
        ("retrieval", {"query": "who {k}{blanks}", "positive": "Ada {n}"}),
        ("reranking", {"query": "Who {k}{marks}", "document": "Ada {n}", "label": "{parity}"}),
        ("similarity", {"text": "who {k}{marks}", "text_pair": "{blanks}Who {k}", "label": "{parity}"}),
        ("classification", {"text": "who {k}{marks}", "label": "{parity}"}),
        ("regression", {"text": "Who {k}{blanks}", "label": "{n}"}),
    ],
)
def test_texts_that_differ_in_signs_alone_fall_on_one_side(
    tmp_path: Path, task: str, row: dict[str, Any]
) -> None:
    rows = []
    for n in range(200):
        marks = {"n": n, "k": n // 4, "blanks": " " * (n % 4), "marks": "!" * (n % 4), "parity": n % 2}
        filled = {
            key: value.format(**marks) if isinstance(value, str) else value for key, value in row.items()
        }
        rows.append(filled)
    data = data_of(task, rows, tmp_path)
    reader = find_task(task)(find_task(task).Settings())
    train, dev = ({group_of(reader, example) for example in part} for part in (data.train, data.dev))
    assert dev and train.isdisjoint(dev) and len(train | dev) == 50


def test_articles_of_squad_fall_on_one_side_where_the_title_is_the_group(tmp_path: Path) -> None:
    def paragraph(article: int, number: int) -> dict[str, Any]:
        context = f"Ada wrote {article} and {number}."
        question = {
            "id": f"{article}-{number}",
            "question": "Who?",
            "answers": [{"text": "Ada", "answer_start": 0}],
        }
        return {"context": context, "qas": [question]}

    articles = [
        {"title": f"Article {n}", "paragraphs": [paragraph(n, number) for number in range(4)]}
        for n in range(40)
    ]
    (tmp_path / "squad.json").write_text(json.dumps({"data": articles}))
    kind = find_task("question-answering")
    recipe = recipe_of("question-answering", tmp_path / "squad.json", dev_share=0.3)
    data = LabelledData.read(kind(kind.Settings(group="title")), recipe)
    train, dev = ({example.title for example in part} for part in (data.train, data.dev))
    assert train and dev and train.isdisjoint(dev)


@pytest.mark.parametrize("task", ["classification", "multi-label", "regression", "retrieval", "reranking"])
def test_rows_of_one_group_fall_on_one_side(tmp_path: Path, task: str) -> None:
    rows: list[dict[str, Any]] = [
        {"text": f"window {n}", "source": n // 4, "label": n % 2} for n in range(200)
    ]
    if task == "multi-label":
        rows = [row | {"label": "ab"[row["label"]]} for row in rows]
    if task in ("retrieval", "reranking"):
        rows = [row | {"query": row["text"], "document": f"document {n}"} for n, row in enumerate(rows)]
        rows = [{name: row[name] for name in row if name != "text"} for row in rows]
    if task == "retrieval":
        rows = [{name: row[name] for name in row if name != "label"} for row in rows]
    data = data_of(task, rows, tmp_path, group="source")
    train, dev = ({example.group for example in part} for part in (data.train, data.dev))
    assert train and dev and train.isdisjoint(dev)
    assert all(example.group is not None for example in data.train)


def test_rows_of_one_group_fall_in_one_fold() -> None:
    kind = find_task("classification")
    task = kind(kind.Settings(group="source"))
    rows = [
        TextExample(f"window {n}", None, "ab"[n % 2], f"row {n}", group=str(n // 4) if n < 80 else None)
        for n in range(100)
    ]
    folds = folds_of(task, rows, 5)
    assert all(len(set(folds[start : start + 4].tolist())) == 1 for start in range(0, 80, 4))
    assert set(folds.tolist()) == set(range(5))


@pytest.mark.parametrize("folds", [False, True])
def test_pairs_that_share_a_text_with_the_other_side_are_told(tmp_path: Path, folds: bool) -> None:
    """As the three hypotheses of each premise of SNLI."""
    rows = [
        {"premise": f"premise {n // 3}", "hypothesis": f"hypothesis {n}", "label": "abc"[n % 3]}
        for n in range(300)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    kind = find_task("classification")
    share: dict[str, Any] = {} if folds else {"dev_share": 0.3}
    recipe = recipe_of("classification", tmp_path / "rows.jsonl", **share)
    data = LabelledData.read(kind(kind.Settings()), recipe, folds=folds)
    (sentence,) = data.warnings
    assert "have a text" in sentence and "group=COLUMN" in sentence
    grouped = LabelledData.read(kind(kind.Settings(group="premise")), recipe, folds=folds)
    assert grouped.warnings == ()


@pytest.mark.parametrize("group", ["topic", 2])
def test_a_group_is_not_taken_for_the_label(group: str | int, tmp_path: Path) -> None:
    """By the names alone `topic` would be the label, and not `stars`."""
    (tmp_path / "rows.csv").write_text("text,topic,stars\na,x,1\nb,y,2\n")
    kind = find_task("classification")
    with pytest.raises(InputError, match="is the group: it can't be the label too"):
        kind(kind.Settings(group=group)).read(tmp_path / "rows.csv")
    assert kind(kind.Settings(group=group, label="stars")).read(tmp_path / "rows.csv")[0].label == "1"


@pytest.mark.parametrize("folds", [False, True])
def test_equal_texts_of_two_groups_are_told(tmp_path: Path, folds: bool) -> None:
    """As the short turns of conversations: groups decide, so that such texts may stand on both sides."""
    rows = [{"text": f"turn {n}", "source": n // 4, "label": "ab"[n % 2]} for n in range(200)]
    share: dict[str, Any] = {} if folds else {"dev_share": 0.3}
    kind, path = find_task("classification"), tmp_path / "rows.jsonl"
    for copies in (0, 40):
        path.write_text(
            "\n".join(
                json.dumps(row | {"text": "Yes."} if n % 5 == 0 and copies else row)
                for n, row in enumerate(rows)
            )
        )
        recipe = recipe_of("classification", path, **share)
        data = LabelledData.read(kind(kind.Settings(group="source")), recipe, folds=folds)
        assert len(data.warnings) == bool(copies)
    (sentence,) = data.warnings
    assert "have a text" in sentence and "group=COLUMN" not in sentence


@pytest.mark.parametrize(
    ("copies", "sentences"),
    [
        (
            [("where is my card ", "card"), ("Where is  my card", "card")],
            ["of 3 training rows 2 repeat text"],
        ),
        ([("where is my card", "loan")], ["2 training rows 1 have the text of an earlier one and another"]),
        ([("where is your card", "loan")], []),
    ],
)
def test_training_rows_that_repeat_a_text_are_told(
    tmp_path: Path, copies: list[tuple[str, str]], sentences: list[str]
) -> None:
    rows = [("where is my card", "card"), *copies]
    kind, path = find_task("classification"), tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"text": text, "label": label}) for text, label in rows))
    task = kind(kind.Settings())
    told = repeated_texts(task, task.read(path))
    assert len(told) == len(sentences)
    assert all(part in sentence for part, sentence in zip(sentences, told, strict=True))


def test_categories_that_are_equal_as_numbers_alone_are_other_rows(tmp_path: Path) -> None:
    """Version 3.10 isn't 3.1, nor branch 007 branch 7: the model reads them as different categories."""
    (tmp_path / "a.csv").write_text("text,label,version\nit fails,old,3.1\nit fails,new,3.10\n")
    kind = find_task("classification")
    for features, told in ((("version:category",), 0), (("version",), 1)):
        task = kind(kind.Settings(features=features))
        assert len(repeated_texts(task, task.read(tmp_path / "a.csv"))) == told
    (tmp_path / "b.csv").write_text("text,label,version\nother,old,beta\n")
    task = kind(kind.Settings(features=("version",)))  # beta: no column of numbers
    assert repeated_texts(task, task.read_files([tmp_path / "a.csv", tmp_path / "b.csv"])) == []


def test_unlabelled_rows_with_other_columns_are_learned_from(tmp_path: Path) -> None:
    rows = [{"text": f"refund {n % 20}", "amount": n, "label": "ab"[n % 2]} for n in range(40)]
    fresh = [(0, 0), (0, 700), (1, 800), (1, "800.0"), (99, 5)]  # the first is a row of train
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    dev = [{"text": "refund 1", "amount": 3, "label": "a"}, {"text": "none", "amount": 3, "label": "b"}]
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, dev)))
    unlabelled = [{"text": f"refund {number}", "amount": amount} for number, amount in fresh]
    (tmp_path / "more.jsonl").write_text("\n".join(map(json.dumps, unlabelled)))
    kind, path = find_task("classification"), tmp_path / "rows.jsonl"
    recipe = recipe_of(
        "classification", path, dev=str(tmp_path / "dev.jsonl"), unlabelled=str(tmp_path / "more.jsonl")
    )
    data = LabelledData.read(kind(kind.Settings(features=("amount",))), recipe)
    assert [(row.text, row.columns) for row in data.unlabelled] == [("refund 0", (700,)), ("refund 99", (5,))]


def test_unlabelled_texts_of_dev_and_test_are_left_out_in_whatever_case(tmp_path: Path) -> None:
    labelled, dev, test = (tmp_path / name for name in ("train.csv", "dev.csv", "test.csv"))
    for path in (labelled, dev, test):
        path.write_text("text,label\n" + "".join(f"{path.stem.title()} {n},{n % 2}\n" for n in range(12)))
    others = tmp_path / "others.txt"
    others.write_text("DEV 3\n  dev   4\ntest 5!\ndev 30\n")
    recipe = recipe_of("classification", labelled, dev=str(dev), test=str(test), unlabelled=str(others))
    kind = find_task("classification")
    data = LabelledData.read(kind(kind.Settings()), recipe)
    assert [example.text for example in data.unlabelled] == ["dev 30"]


def test_unlabelled_texts_of_folds_are_left_out_in_whatever_case(tmp_path: Path) -> None:
    """Each training row is judged by models that haven't seen its text."""
    labelled, others = tmp_path / "train.csv", tmp_path / "others.txt"
    labelled.write_text("text,label\n" + "".join(f"Row {n},{n % 2}\n" for n in range(40)))
    others.write_text("ROW 3\n  row   4!\nrow 50\n")
    recipe = recipe_of("classification", labelled, unlabelled=str(others))
    kind = find_task("classification")
    data = LabelledData.read(kind(kind.Settings()), recipe, folds=True)
    assert data.dev == [] and [example.text for example in data.unlabelled] == ["row 50"]


@pytest.mark.parametrize("missing", ["drop", "keep"])
def test_an_unlabelled_pair_without_one_text_is_learned_from_where_training_keeps_it(
    missing: str, tmp_path: Path
) -> None:
    labelled, others = tmp_path / "train.csv", tmp_path / "others.csv"
    labelled.write_text("a,b,label\n" + "".join(f"why {n},so {n},{n % 2}\n" for n in range(40)))
    others.write_text("a,b\none,\n,two\n,\nthree,four\n")
    recipe = recipe_of("classification", labelled, unlabelled=str(others))
    kind = find_task("classification")
    task = kind(kind.Settings(text="a", text_pair="b", missing=missing))
    found = [(row.text, row.text_pair) for row in LabelledData.read(task, recipe).unlabelled]
    assert found == ([("one", ""), ("", "two")] if missing == "keep" else []) + [("three", "four")]


def test_an_unlabelled_row_of_which_all_cells_are_blank_is_not_learned_from(tmp_path: Path) -> None:
    """Spreadsheets end with such rows."""
    labelled, others = tmp_path / "train.csv", tmp_path / "others.csv"
    labelled.write_text("text,age,label\n" + "".join(f"row {n},{n % 7},{n % 2}\n" for n in range(40)))
    others.write_text("text,age\nnew,3\n,7\n,\n,\n")
    kind = find_task("classification")
    task = kind(kind.Settings(features=("age",)))
    data = LabelledData.read(task, recipe_of("classification", labelled, unlabelled=str(others)))
    assert [(row.text, row.columns) for row in data.unlabelled] == [("new", ("3",)), ("", ("7",))]


def test_one_label_that_some_rows_of_dev_lack_is_not_always_right(tmp_path: Path) -> None:
    """Of several labels a row may have none, and one who always gave it was said to be right."""
    train, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
    train.write_text("text,labels\n" + "".join(f"row {n},{('mild', 'rude', '')[n % 3]}\n" for n in range(60)))
    kind = find_task("multi-label")
    recipe = recipe_of("multi-label", train, dev=str(dev))
    for usual in ("", "mild"):
        dev.write_text(
            "text,labels\n" + "".join(f"dev {n},{usual if n % 5 else 'mild'}\n" for n in range(40))
        )
        warnings = LabelledData.read(kind(kind.Settings()), recipe).warnings
        assert any("one label only" in warning for warning in warnings) == bool(usual)


@pytest.mark.parametrize("folds", [False, True])
def test_blank_texts_are_nothing_in_common(tmp_path: Path, folds: bool) -> None:
    kind, path = find_task("classification"), tmp_path / "rows.jsonl"
    share: dict[str, Any] = {} if folds else {"dev_share": 0.3}
    pairs = [
        {"text": f"why {n}", "text_pair": "" if n % 2 else f"so {n}", "label": "ab"[n % 3 % 2]}
        for n in range(200)
    ]
    path.write_text("\n".join(map(json.dumps, pairs)))
    settings = kind.Settings(text="text", text_pair="text_pair", missing="keep")
    assert (
        LabelledData.read(kind(settings), recipe_of("classification", path, **share), folds=folds).warnings
        == ()
    )
    grouped = [{"text": "", "age": n, "source": n // 4, "label": "ab"[n % 2]} for n in range(199)]
    grouped.append(grouped[0] | {"text": "one"})
    path.write_text("\n".join(map(json.dumps, grouped)))
    settings = kind.Settings(text="text", features=("age",), group="source")
    assert (
        LabelledData.read(kind(settings), recipe_of("classification", path, **share), folds=folds).warnings
        == ()
    )


def test_rows_without_a_text_are_divided_by_their_columns(tmp_path: Path) -> None:
    """A third of the rows was one group: none of it in dev, or all of it in one fold."""
    kind = find_task("classification")

    def write(name: str, count: int, first_age: int) -> str:
        rows = [
            {"text": f"{name} {n}" if n % 3 else "", "age": n + first_age, "label": "ab"[n % 4 % 2]}
            for n in range(count)
        ]
        (tmp_path / name).write_text("\n".join(map(json.dumps, [*rows, rows[0]])))
        return str(tmp_path / name)

    train, dev = write("train.jsonl", 300, 0), write("dev.jsonl", 100, 1000)
    settings = kind.Settings(text="text", features=("age",))
    recipe = recipe_of("classification", Path(train), dev_share=0.2)
    data = LabelledData.read(kind(settings), recipe)
    blank = [[row for row in part if not row.text] for part in (data.dev, data.train)]
    assert 10 < len(blank[0]) < 30 and {row.columns for row in blank[0]}.isdisjoint(
        row.columns for row in blank[1]
    )
    folds = LabelledData.read(kind(settings), recipe_of("classification", Path(train)), folds=True)
    blank_of_fold = Counter(
        fold for row, fold in zip(folds.train, folds.folds(5, 0).tolist(), strict=True) if not row.text
    )
    assert len(blank_of_fold) == 5 and max(blank_of_fold.values()) < 40
    apart = LabelledData.read(kind(settings), recipe_of("classification", Path(train), dev=dev))
    assert not any("in common" in warning for warning in apart.warnings)


def test_what_looks_wrong_in_the_unlabelled_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(
        "text,label\n" + "".join(f"row {n},{'ab'[n % 2]}\n" for n in range(60))
    )
    (tmp_path / "more.tsv").write_text('text\n"a text of\ntwo lines"\nanother\n')
    kind, path = find_task("classification"), tmp_path / "rows.csv"
    recipe = recipe_of("classification", path, unlabelled=str(tmp_path / "more.tsv"), dev_share=0.6)
    (warning,) = LabelledData.read(kind(kind.Settings()), recipe).warnings
    assert "more.tsv: 1 texts are quoted as in CSV" in warning


def test_sources_in_common_are_told_beside_a_single_text_in_common(tmp_path: Path) -> None:
    def write(name: str, prefix: str) -> str:
        rows = [{"text": f"{prefix} {n}", "source": n // 4, "label": "ab"[n % 2]} for n in range(80)]
        rows.append({"text": "the same", "source": "x", "label": "a"})
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
        return str(tmp_path / name)

    kind = find_task("classification")
    train, dev = write("train.jsonl", "turn"), write("dev.jsonl", "answer")
    recipe = recipe_of("classification", Path(train), dev=dev)
    first, second = LabelledData.read(kind(kind.Settings(group="source")), recipe).warnings
    assert first.startswith("1 of the 81 dev texts occur in")
    assert second.startswith("81 of the 81 rows of dev have a text or a source in common with train")


def test_a_row_of_csv_repeats_one_of_json_with_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label,age\nwhere is my card,card,36\n")
    (tmp_path / "b.jsonl").write_text('{"text": "where is my card", "label": "card", "age": 36}\n')
    kind = find_task("classification")
    task = kind(kind.Settings(features=("age",)))
    (sentence,) = repeated_texts(task, task.read_files([tmp_path / "a.csv", tmp_path / "b.jsonl"]))
    assert "1 repeat text and label" in sentence


@pytest.mark.parametrize(
    ("name", "settings", "rows", "kinds"),
    [
        (
            "regression",
            {},
            [{"text": text, "label": score} for text, score in (("a", 1), ("A", 5), ("a", 1))],
            ["repeat text and label", "another label"],
        ),
        (
            "question-answering",
            {},
            [
                {"question": "Who?", "passage": "Ann met Bob.", "answer": answer}
                for answer in ("Ann", "Bob", "Ann")
            ],
            ["repeat text and label", "another label"],
        ),
        (
            "tagging",
            {},
            [
                {"tokens": ["EU", "sells", "EU"], "tags": tags}
                for tags in (["B-X", "O", "O"], ["O", "O", "B-X"], ["B-X", "O", "O"])
            ],
            ["repeat text and label", "another label"],
        ),
        (
            "classification",
            {"features": ["amount"]},
            [{"text": "paid", "amount": amount, "label": label} for amount, label in ((3, "x"), (900, "y"))],
            [],
        ),
    ],
)
def test_whether_a_repeated_text_has_another_label_is_told_by_all_that_a_row_teaches(
    tmp_path: Path, name: str, settings: dict[str, Any], rows: list[dict[str, Any]], kinds: list[str]
) -> None:
    """A score, an answer and the place of a tag count; with other columns it is another row."""
    kind, path = find_task(name), tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    task = kind(kind.Settings(**settings))
    told = repeated_texts(task, task.read(path))
    assert len(told) == len(kinds)
    assert all(part in sentence and " 1 " in sentence for part, sentence in zip(kinds, told, strict=True))


def test_a_dev_file_that_has_the_passages_of_train_is_told(tmp_path: Path) -> None:
    def write(name: str, numbers: range) -> str:
        rows = [
            {"question": f"Who {n}?", "passage": f"It was Ada, {n % 40}.", "answer": "Ada"} for n in numbers
        ]
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
        return str(tmp_path / name)

    kind = find_task("question-answering")
    train, dev = write("train.jsonl", range(40)), write("dev.jsonl", range(40, 80))
    recipe = recipe_of("question-answering", Path(train), dev=dev)
    (sentence,) = LabelledData.read(kind(kind.Settings()), recipe).warnings
    assert sentence.startswith("40 of the 40 rows of dev have a text or a source in common with train")


def test_several_files_and_folders_are_trained_on(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, count in (("one.csv", 10), ("data/a.jsonl", 20), ("data/b.tsv", 30), ("data/README.md", 0)):
        rows = [{"text": f"{name} {n}", "label": "ab"[n % 2]} for n in range(count)]
        tab = "\t" if name.endswith("tsv") else ","
        table = [f"text{tab}label", *(f"{row['text']}{tab}{row['label']}" for row in rows)]
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows) if name.endswith("jsonl") else table))
    recipe = FinetuneRecipe(
        task="classification", model="m", train=(str(tmp_path / "one.csv"), str(tmp_path / "data")), out="o"
    )
    kind = find_task("classification")
    data = LabelledData.read(kind(kind.Settings()), recipe, folds=True)
    assert [
        sum(example.text.startswith(name) for example in data.train) for name in ("one", "data/a", "data/b")
    ] == [
        10,
        20,
        30,
    ]
    assert [*hash_data(recipe)] == ["train 1", "train 2", "train 3"]


@pytest.mark.parametrize("missing", ["refuse", "drop"])
def test_what_stands_for_no_label_is_seen_beside_the_labels_of_another_file(
    tmp_path: Path, missing: str
) -> None:
    """-1 beside 0 and 1 alone may be a class."""
    first = "".join(f"text {row},{row % 3 - 1}\n" for row in range(30))
    second = "".join(f"another {row},{row % 3}\n" for row in range(30))
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for file, rows in zip(files, (first, second), strict=True):
        file.write_text("text,label\n" + rows)
    recipe = FinetuneRecipe(task="classification", model="m", train=list(map(str, files)), out="o")
    kind = find_task("classification")
    task = kind(kind.Settings(missing=missing))
    if missing == "refuse":
        with pytest.raises(InputError, match="of 60 rows 10 have no label"):
            LabelledData.read(task, recipe)
    else:
        data = LabelledData.read(task, recipe)
        assert len(data.train) + len(data.dev) == 50 and task.labels == ("0", "1", "2")


def test_a_blank_text_is_no_unlabelled_text(tmp_path: Path) -> None:
    labelled, others = tmp_path / "a.csv", tmp_path / "more.txt"
    labelled.write_text("text,label\n" + "".join(f"text {row},{row % 2}\n" for row in range(30)))
    others.write_text("one\n\ntwo\n  \n")
    recipe = FinetuneRecipe(
        task="classification", model="m", train=str(labelled), unlabelled=str(others), out="o"
    )
    kind = find_task("classification")
    data = LabelledData.read(kind(kind.Settings()), recipe)
    assert [example.text for example in data.unlabelled] == ["one", "two"]

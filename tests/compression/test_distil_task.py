"""A teacher's answers become a smaller model, whatever its head."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from distil_rows import ROWS, WORDS, save_teacher, tokenizer_of_words, write_rows
from static_samples import save_table_of_classes

from bertsmith.compression.distilling.distil import DistilResult, distil_task
from bertsmith.compression.distilling.recipes import make_distil_recipe
from bertsmith.compression.distilling.tasks import distiller
from bertsmith.compression.distilling.tasks.session import DistilSession
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher, hash_model_folder, open_teachers
from bertsmith.compression.shrinking.shrink import shrink
from bertsmith.compression.vocabulary_pruning import prune_vocabulary
from bertsmith.errors import BertsmithError, InputError, ModelError, RecipeError
from bertsmith.files import read_json, write_json
from bertsmith.inference.checking.check import check_model
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.provenance import encoder_before
from bertsmith.machine import Hardware
from bertsmith.metrics.calibration import Confidence
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import make_config
from bertsmith.model.manifest import read_verified_manifest
from bertsmith.tasks.examples.text_task import TextExample
from bertsmith.tasks.heads.crf import legal_scores, viterbi
from bertsmith.tasks.heads.pooling import Dense, Projection, VectorNorm
from bertsmith.tasks.registry import find_task
from bertsmith.training import machine
from bertsmith.training.machine import set_up_machine
from sentence_folders import save_foreign

QUICK = ("batch_size=16", "hardware.threads=1", "epochs=2")


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the machine, which takes a second, nor pages drawn, which takes two."""
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1e11)
    monkeypatch.setattr(distiller, "write_distil_report", lambda *_: None)


def distil(teacher: Path, folder: Path, task: str, *overrides: str, **given: Any) -> DistilResult:
    """On 40 labelled rows and 80 texts, dev of 40."""
    files: dict[str, Any] = {
        "train": str(write_rows(folder / "train.jsonl", task, 40)),
        "dev": str(write_rows(folder / "dev.jsonl", task, 40, seed=1)),
        "texts": [str(write_rows(folder / "texts.jsonl", task, 80, seed=2, labelled=False))],
        "out": str(folder / "small"),
        "layers": 1,
        "compare": False,
    }
    return distil_task([str(teacher)], *QUICK, *overrides, **(files | given))


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(
            task, marks=[pytest.mark.slow] * (task not in ("classification", "tagging", "similarity"))
        )
        for task in ROWS
    ],
)
def test_a_student_of_any_head_opens_and_says_what_was_measured(
    task: str, make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    result = distil(make_teacher(task), tmp_path, task)
    assert check_model(result.model).agrees
    student = Predictor.load(result.model)
    assert student.model.config.num_hidden_layers == 1
    found = student.evaluate(tmp_path / "dev.jsonl", tmp_path / "train.jsonl")
    measured = result.results.student.evaluations["dev"].model
    assert found.model == pytest.approx(measured, nan_ok=True, abs=1e-3)
    teacher = Predictor.load(make_teacher(task)).evaluate(tmp_path / "dev.jsonl", tmp_path / "train.jsonl")
    assert result.results.teacher["dev"] == pytest.approx(teacher.model, nan_ok=True, abs=1e-3)


@pytest.mark.parametrize("width", [None, 8])
@pytest.mark.parametrize("task", ["similarity", "retrieval"])
def test_a_student_has_the_layers_behind_its_teacher_s_pooling(
    task: str, width: int | None, tmp_path: Path
) -> None:
    """A narrower student's first layer is a new one."""
    torch.manual_seed(3)
    projection = Projection([Dense(16, 12, True, "Tanh"), VectorNorm(12), Dense(12, 6, True, "Identity")])
    teacher = save_teacher(tmp_path, task, 5, projection=projection)
    result = distil(teacher, tmp_path, task, **({} if width is None else {"width": width}))
    assert check_model(result.model).agrees
    teachers = Predictor.load(teacher).evaluate(tmp_path / "dev.jsonl", tmp_path / "train.jsonl")
    assert result.results.teacher["dev"] == pytest.approx(teachers.model, nan_ok=True, abs=1e-3)
    texts = ["one two", "three"]
    student, opened = Embedder(result.model, compute_dtype=torch.float32), Predictor.load(result.model)
    assert student.width == Embedder(teacher).width == 6
    vectors = student.documents(texts)
    (prediction,) = opened.predict([tuple(texts)])
    assert prediction["similarity"] == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-4)
    pruned = prune_vocabulary(result.model, texts, tmp_path / "pruned").folder
    np.testing.assert_allclose(
        Embedder(pruned, compute_dtype=torch.float32).documents(texts), vectors, atol=1e-6
    )


def test_a_student_learns_what_its_teacher_says_and_not_what_is_right(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    """Labels are random: agreement can only come from the teacher. Processors differ in how much."""
    texts = [str(write_rows(tmp_path / "more.jsonl", "regression", 300, seed=3, labelled=False))]
    rate = ("optimizer.learning_rate=0.01", "optimizer.layer_decay=1", "soft_weight=1", "epochs=6")
    result = distil(make_teacher("regression"), tmp_path, "regression", *rate, texts=texts)
    assert result.results.agreement["dev"] > 0.3
    assert abs(result.results.student.evaluations["dev"].model["spearman"]) < 0.5


def test_the_provenance_names_teacher_layers_and_data(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    teacher = make_teacher("classification")
    result = distil(teacher, tmp_path, "classification", layers=[2])
    manifest = read_verified_manifest(result.model)
    assert manifest is not None
    assert manifest.provenance["teachers"] == [{"model": str(teacher), "sha256": hash_model_folder(teacher)}]
    assert manifest.provenance["layers"] == [2]
    assert {"train", "dev", "texts 1", "teacher 1"} == manifest.provenance["sha256"].keys()


def test_the_student_is_compared_with_itself_without_a_teacher(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    result = distil(make_teacher("classification"), tmp_path, "classification", compare=True)
    record = read_json(tmp_path / "small" / "results.json")
    assert record["without_teacher"]["dev"].keys() == record["evaluations"]["dev"]["model"].keys()
    assert [each for each in record["warnings"] if "begins with the teacher's own fine-tuned layers" in each]
    assert record["saving"]["student"]["parameters"] < record["saving"]["teacher"]["parameters"]
    assert result.results.beside("dev").keys() >= {"the student", "its teacher", "without the teacher"}


def test_several_teachers_answer_together(make_teacher: Callable[..., Path], tmp_path: Path) -> None:
    first, second = make_teacher("classification"), make_teacher("classification", 6)
    files = {"dev": str(write_rows(tmp_path / "dev.jsonl", "classification", 40, seed=1))}
    texts = [str(write_rows(tmp_path / "texts.jsonl", "classification", 60, seed=2, labelled=False))]
    both = distil_task([str(first), str(second)], *QUICK, out=str(tmp_path / "out"), texts=texts, **files)
    probabilities = [
        [each["probabilities"] for each in Predictor.load(model).predict(_texts(tmp_path / "dev.jsonl"))]
        for model in (first, second)
    ]
    expected = [
        max(one, key=lambda label, one=one, two=two: one[label] + two[label])  # type: ignore[misc]
        for one, two in zip(*probabilities, strict=True)
    ]
    gold = [json.loads(line)["label"] for line in (tmp_path / "dev.jsonl").read_text().splitlines()]
    right = np.mean([a == b for a, b in zip(expected, gold, strict=True)])
    assert both.results.teacher["dev"]["accuracy"] == pytest.approx(right, abs=0.051)


def test_several_teachers_with_a_crf_say_the_likeliest_legal_tags_by_their_mean(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    """Their answers have the transitions in them: decoding must not add those of the first once more."""
    teachers = [str(make_teacher("tagging", seed)) for seed in (5, 6)]
    recipe = make_distil_recipe(
        {
            "teacher": teachers,
            "texts": [str(write_rows(tmp_path / "texts.jsonl", "tagging", 30, labelled=False))],
            "out": str(tmp_path / "out"),
        },
        [],
    )
    session = DistilSession.open(recipe, set_up_machine(recipe.hardware, None, Hardware.detect()), tmp_path)
    with torch.no_grad():  # which tag follows which matters much to the first
        session.teachers[0].model.head.crf.transitions.mul_(30)
    examples = session.train.examples
    said = session.ask(examples)
    labels = session.task.labels
    wanted = viterbi(
        torch.from_numpy(np.concatenate(said.answers)), tuple(map(len, said.answers)), legal_scores(labels)
    )
    assert [tag for each in said.predictions for tag in each["tags"]] == [labels[n] for n in wanted.tolist()]


def test_teachers_that_read_other_windows_do_not_teach_together(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    teachers = [make_teacher("question-answering"), tmp_path / "other"]
    shutil.copytree(*teachers)
    state = read_json(teachers[1] / "bertsmith.json")
    state["settings"]["settings"] |= {"max_length": 16}
    write_json(teachers[1] / "bertsmith.json", state)
    texts = [_long_passages(tmp_path / "t.jsonl")]
    with pytest.raises(RecipeError, match="must read the same pieces"):
        distil_task(teachers, *QUICK, out=tmp_path / "out", texts=texts)


def test_a_student_that_reads_other_pieces_is_refused_before_its_teacher_is_asked(
    make_teacher: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskTeacher, "outputs", lambda *_, **__: pytest.fail("asked"))
    texts = _long_passages(tmp_path / "texts.jsonl")
    with pytest.raises(RecipeError, match="student must read the same pieces"):
        distil_task(
            [make_teacher("question-answering")], "max_length=16", out=tmp_path / "out", texts=[texts]
        )
    assert not (tmp_path / "out").exists()


def test_without_any_label_the_teacher_is_the_judge(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    teacher = make_teacher("regression")
    texts = [str(write_rows(tmp_path / "texts.jsonl", "regression", 200, seed=2, labelled=False))]
    result = distil_task([str(teacher)], *QUICK, out=str(tmp_path / "out"), texts=texts)
    assert result.results.labels_of_teacher and result.results.teacher == {}
    score = result.results.student.evaluations["dev"].model["spearman"]
    assert result.results.agreement["dev"] == pytest.approx(score)


def test_labels_that_nobody_gave_are_the_teachers_several_of_a_text_too(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    teacher = make_teacher("multi-label")
    texts = [str(write_rows(tmp_path / "texts.jsonl", "multi-label", 200, seed=2, labelled=False))]
    result = distil_task([str(teacher)], *QUICK, out=str(tmp_path / "out"), texts=texts)
    assert result.results.labels_of_teacher
    assert result.results.student.evaluations["dev"].model["micro_f1"] > 0


@pytest.mark.parametrize("task", ["reranking", "retrieval"])
def test_an_order_of_documents_is_no_label_and_real_ones_are_asked_for_before_the_teacher_is(
    task: str, make_teacher: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskTeacher, "outputs", lambda *_, **__: pytest.fail("asked"))
    texts = [str(write_rows(tmp_path / "texts.jsonl", task, 200, seed=2, labelled=False))]
    with pytest.raises(
        RecipeError, match=f"{task} can't be judged by a teacher: give labelled rows with --dev"
    ):
        distil_task([str(make_teacher(task))], *QUICK, out=str(tmp_path / "out"), texts=texts)
    assert not (tmp_path / "out").exists()


def test_without_a_teacher_a_student_begins_with_the_encoder_before_if_that_reads_the_same_pieces(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    encoder = make_teacher("classification", 6)
    teacher = from_encoder(make_teacher("classification"), encoder, tmp_path / "teacher")
    texts = write_rows(tmp_path / "texts.jsonl", "classification", 30, labelled=False)
    pruned = prune_vocabulary(teacher, _texts(texts)[:3], tmp_path / "pruned").folder
    assert encoder_before(pruned) == encoder
    assert before(teacher, tmp_path) == (encoder, False)
    assert before(pruned, tmp_path) == (pruned, True)


@pytest.mark.parametrize("shape", [{"hidden_size": 8}, {"num_hidden_layers": 1}])
def test_an_encoder_of_another_shape_in_the_old_place_is_noticed_before_anything_is_trained(
    shape: dict[str, int], make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    """Of an older model, which doesn't say by their hash which weights it began with."""
    tokenizer = tokenizer_of_words()
    usual = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = make_config(
        {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 64} | usual | shape, ""
    )
    tensors = {f"encoder.{name}": tensor for name, tensor in Bert(config).state_dict().items()}
    encoder = tmp_path / "encoder"
    save_checkpoint(encoder, tensors, config, "BertModel", task="encoder", tokenizer=tokenizer)
    teacher = from_encoder(make_teacher("classification"), encoder, tmp_path / "teacher")
    assert before(teacher, tmp_path, layers=[2]) == (teacher, True)


def from_encoder(model: Path, encoder: Path, out: Path) -> Path:
    """A copy of the model that says it was fine-tuned from the encoder, and not which weights that had."""
    shutil.copytree(model, out)
    state = read_json(out / "bertsmith.json")
    write_json(out / "bertsmith.json", state | {"provenance": {"recipe": {"model": str(encoder)}}})
    return out


def before(model: Path, folder: Path, **given: Any) -> tuple[Path, bool]:
    """Where the student without a teacher begins, and whether a warning says that it is the teacher."""
    train = str(write_rows(folder / "train.jsonl", "classification", 60))
    recipe = make_distil_recipe(
        {"teacher": [str(model)], "train": train, "out": str(folder / "o")} | given, []
    )
    computer = set_up_machine(recipe.hardware, None, Hardware.detect())
    session = DistilSession.open(recipe, computer, folder)
    assert session.before is not None and not session.before.takes_head
    own = "the student without a teacher begins with the teacher's own fine-tuned layers"
    return session.before.folder, any(own in warning for warning in session.data.warnings)


@pytest.mark.parametrize("source", ["teacher", "file", "both"])
def test_classes_are_weighed_by_the_rows_that_are_learned_whatever_the_order_of_labels(
    source: str, make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    labels = [label for label, count in (("yes", 30), ("no", 10), ("perhaps", 20)) for _ in range(count)]
    rows = [{"text": f"bano {WORDS[n % 48]} {n}", "label": label} for n, label in enumerate(labels)]
    train, answers, dev = (tmp_path / f"{name}.jsonl" for name in ("train", "answers", "dev"))
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shares = {"yes": 0.2, "perhaps": 0.3, "no": 0.5}
    answers.write_text("".join(json.dumps(row | {"probabilities": shares}) + "\n" for row in rows))
    write_rows(dev, "classification", 20, seed=9)
    model, given = str(make_teacher("classification")), {"dev": str(dev), "out": str(tmp_path / "o")}
    file = {"teacher": [str(answers)], "task": "classification", "student": model}
    given |= {"teacher": [model], "train": str(train)} if source == "teacher" else file
    if source == "both":
        more = [{"text": f"melo {n}", "label": "no"} for n in range(20)]
        train.write_text("".join(json.dumps(row) + "\n" for row in more))
        given |= {"train": str(train)}
    recipe = make_distil_recipe(given, ["settings.class_weights=auto", "max_length=32"])
    session = DistilSession.open(recipe, set_up_machine(recipe.hardware, None, Hardware.detect()), tmp_path)
    found = {
        label: float(session.task.loss(torch.zeros(1, 3), [number])) / math.log(3)
        for label, number in session.task.label_ids.items()
    }
    counts = {"yes": 30, "no": 30 if source == "both" else 10, "perhaps": 20}
    assert found == pytest.approx({label: sum(counts.values()) / 3 / n for label, n in counts.items()})


def test_the_student_alone_weighs_classes_too_where_the_rows_lack_one(
    make_teacher: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distiller, "start_head", lambda *_: None)
    train, model = tmp_path / "train.jsonl", str(make_teacher("classification"))
    rows = [{"text": f"bano {WORDS[n % 48]} {n}", "label": "yes" if n % 4 else "no"} for n in range(40)]
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dev = write_rows(tmp_path / "dev.jsonl", "classification", 20, seed=9)
    given = {"teacher": [model], "train": str(train), "dev": str(dev), "out": str(tmp_path / "o")}
    recipe = make_distil_recipe(given, ["settings.class_weights=auto", "max_length=32"])
    session = DistilSession.open(recipe, set_up_machine(recipe.hardware, None, Hardware.detect()), tmp_path)
    weights = []

    def stop(_: Any, task: Any, *__: Any) -> None:
        weights.extend(float(task.loss(torch.zeros(1, 3), [number])) / math.log(3) for number in (0, 2))
        raise InterruptedError

    run = SimpleNamespace(machine=session.machine)
    alone = SimpleNamespace(session=session, recipe=recipe, run=run, _train_to_end=stop)
    with pytest.raises(InterruptedError):
        distiller.TaskDistiller._train_alone(alone, {"dev": distiller.Exam(session.train, None, {})})
    assert session.task.labels == ("no", "perhaps", "yes") and weights == pytest.approx([2, 2 / 3])


def test_class_weights_leave_the_teacher_its_share_whatever_their_unit() -> None:
    kind, loss = find_task("classification"), []
    for unit in (1, 50):
        task = kind(kind.Settings(class_weights={"no": 2 * unit, "yes": 6 * unit}), ("no", "yes"))
        labels = ["no" if n % 2 else "yes" for n in range(10)]
        task.know_labelled([TextExample("t", None, label, "here") for label in labels])
        loss.append([float(task.loss(torch.zeros(1, 2), [number])) / math.log(2) for number in (0, 1)])
    assert loss[0] + loss[1] == pytest.approx([0.5, 1.5, 0.5, 1.5])


def test_a_finished_run_is_not_repeated_and_answers_are_asked_for_once(
    make_teacher: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = distil(make_teacher("tagging"), tmp_path, "tagging")
    kept = (first.model / "model.safetensors").read_bytes()

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("asked again")

    monkeypatch.setattr(TaskTeacher, "outputs", never)
    monkeypatch.setattr(distiller.TaskRun, "run", never)
    again = distil(make_teacher("tagging"), tmp_path, "tagging", resume=True)
    assert (again.model / "model.safetensors").read_bytes() == kept
    assert again.results.student.evaluations["dev"].model == first.results.student.evaluations["dev"].model


@pytest.mark.slow
def test_other_students_find_the_answers_in_a_shared_cache(
    make_teacher: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, cache = make_teacher("classification"), str(tmp_path / "cache")
    distil(teacher, tmp_path, "classification", cache=cache, out=str(tmp_path / "a"))
    monkeypatch.setattr(TaskTeacher, "outputs", lambda *_, **__: pytest.fail("asked again"))
    other = distil(teacher, tmp_path, "classification", cache=cache, out=str(tmp_path / "b"), layers=[2])
    assert other.model.is_dir()
    assert not (tmp_path / "b" / "answers").exists()


@pytest.mark.parametrize(("steps", "epochs"), [(19, 30), (281, 8), (700, 3), (2100, 3)])
def test_few_steps_get_more_epochs_unless_somebody_said_how_many(steps: int, epochs: int) -> None:
    recipe = make_distil_recipe({"teacher": ["t"], "out": "o"}, [])
    assert recipe.complete(384, 3, steps).epochs == epochs
    assert (
        make_distil_recipe({"teacher": ["t"], "out": "o", "epochs": 2}, []).complete(384, 3, 19).epochs == 2
    )


@pytest.mark.slow
def test_a_narrower_student_of_fewer_layers(make_teacher: Callable[..., Path], tmp_path: Path) -> None:
    result = distil(make_teacher("classification"), tmp_path, "classification", width=8, feed_forward=5)
    config = Predictor.load(result.model).model.config
    assert (config.hidden_size, config.intermediate_size) == (8, 5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"layers": 3}, "choose from 1 to 2"),
        ({"layers": [0]}, "choose from 1 to 2"),
        ({"width": 9}, "multiple of"),
        ({"feed_forward": 1000}, "has more than its teacher"),
        ({"texts": [], "train": None}, "nothing to learn from"),
        ({"epoch": 3}, "unknown key 'epoch'. Did you mean 'epochs'"),
        ({"learning_rate": 3e-5}, "key 'learning_rate'. Did you mean 'optimizer.learning_rate'"),
        ({"max_seq_length": 64}, "Did you mean 'max_length'"),
        ({"steps": 100}, "by epochs"),
        ({"text": "nowhere"}, "nowhere"),
        ({"dev": "missing.jsonl"}, "missing.jsonl"),
        ({"texts": ["-"]}, "name of a file in place of -"),
        ({"train": "-"}, "name of a file in place of -"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    given: dict[str, Any], said: str, make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(BertsmithError, match=said):
        distil(make_teacher("classification"), tmp_path, "classification", **given)
    assert not (tmp_path / "small").exists()


def test_a_static_table_has_no_layers_to_teach(tmp_path: Path) -> None:
    table = save_table_of_classes(tmp_path / "table")
    with pytest.raises(ModelError, match="is a static table of vectors, which has no layers"):
        distil(table, tmp_path, "classification")


def test_another_run_or_other_files_are_not_gone_on_with(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    teacher = make_teacher("classification")
    distil(teacher, tmp_path, "classification")
    with pytest.raises(RecipeError, match="already holds a run"):
        distil(teacher, tmp_path, "classification")
    with pytest.raises(RecipeError, match=r"other settings: temperature"):
        distil(teacher, tmp_path, "classification", "temperature=4", resume=True)
    other = str(write_rows(tmp_path / "other.jsonl", "classification", 41))
    (tmp_path / "train.jsonl").write_text(Path(other).read_text())
    with pytest.raises(RecipeError, match="file given as train has changed"):
        distil_again(teacher, tmp_path)


def test_another_student_of_the_same_name_is_not_gone_on_with(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    student = tmp_path / "student"
    shutil.copytree(make_teacher("classification", 6), student)
    distil(make_teacher("classification"), tmp_path, "classification", student=student)
    shutil.rmtree(student)
    shutil.copytree(make_teacher("classification", 7), student)
    with pytest.raises(RecipeError, match="file given as student has changed"):
        distil(make_teacher("classification"), tmp_path, "classification", student=student, resume=True)


def distil_again(teacher: Path, folder: Path) -> DistilResult:
    """The same command, with the files as they are now."""
    return distil_task(
        [str(teacher)],
        *QUICK,
        train=str(folder / "train.jsonl"),
        dev=str(folder / "dev.jsonl"),
        texts=[str(folder / "texts.jsonl")],
        out=str(folder / "small"),
        layers=1,
        compare=False,
        resume=True,
    )


def test_teachers_of_other_questions_do_not_teach_together(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    teachers = [str(make_teacher("classification")), str(make_teacher("regression"))]
    texts = [str(write_rows(tmp_path / "texts.jsonl", "classification", 30, labelled=False))]
    with pytest.raises(RecipeError, match=r"same question: .* does classification .* regression"):
        distil_task(teachers, out=str(tmp_path / "out"), texts=texts)
    teachers[0] = str(save_foreign(tmp_path / "other", outputs=1, num_labels=1))
    with pytest.raises(RecipeError, match="only one puts its number through a sigmoid"):
        distil_task(teachers, out=str(tmp_path / "out"), texts=texts)


def test_teachers_read_the_same_columns_in_one_order_or_the_text_alone(tmp_path: Path) -> None:
    """Cells are read once, by the first teacher's columns."""
    rows = [
        {**json.loads(line), "age": number % 7, "income": 1000 * (number % 5)}
        for number, line in enumerate(
            write_rows(tmp_path / "a", "classification", 60).read_text().splitlines()
        )
    ]
    train = tmp_path / "train.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    kinds = {"both": ("age", "income"), "turned": ("income", "age"), "none": ()}
    teachers = {
        name: str(save_teacher(tmp_path / name, "classification", 5, train, features=features))
        for name, features in kinds.items()
    }
    out = tmp_path / "out"
    for first, second, said in (
        ("both", "turned", "both/model reads age, income; .*turned/model reads income, age"),
        ("none", "both", "none/model reads none; .*both/model reads age, income"),
    ):
        with pytest.raises(RecipeError, match=f"the same columns in the same order.*{said}"):
            distil_task([teachers[first], teachers[second]], out=str(out), train=str(train), layers=1)
        assert not out.exists()
    opened = open_teachers([teachers["both"], teachers["none"], teachers["both"]], None, torch.device("cpu"))
    assert [len(each.task.column_names) for each in opened] == [2, 0, 2]  # type: ignore[attr-defined]


@pytest.mark.parametrize("made_by", ["distil", "shrink"])
def test_a_cell_of_the_test_file_that_is_no_number_is_refused_before_the_teacher_is_asked(
    tmp_path: Path, made_by: str
) -> None:
    texts = [
        json.loads(line) for line in write_rows(tmp_path / "a", "classification", 60).read_text().splitlines()
    ]
    for name, last in (("train", 7), ("dev", 7), ("test", "n/a")):
        rows = [{**row, "age": last if number == 59 else number % 7} for number, row in enumerate(texts)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "dev", "test")}
    train, out = tmp_path / "train.jsonl", tmp_path / "out"
    teacher = str(save_teacher(tmp_path / "teacher", "classification", 5, train, features=("age",)))
    with pytest.raises(InputError, match=r"test\.jsonl, line 60, column 'age': expected a finite number"):
        if made_by == "shrink":
            shrink(teacher, out=str(out), **files)
        else:
            distil_task([teacher], out=str(out), layers=1, **files)
    assert not out.exists()


def _long_passages(path: Path) -> Path:
    """Of one word to forty."""
    path.write_text("".join(f'{{"question": "bano?", "passage": "{"belo " * n}"}}\n' for n in range(1, 41)))
    return path


def _texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def test_the_training_file_of_a_student_is_found_again_whatever_its_columns_are_called(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    """The teacher's are text and label."""
    rows = map(json.loads, write_rows(tmp_path / "rows.jsonl", "classification", 40).read_text().splitlines())
    train = tmp_path / "other.tsv"
    lines = ["sentence\tintent", *(f"{row['text']}\t{row['label']}" for row in rows)]
    train.write_text("\n".join(lines) + "\n")
    result = distil(make_teacher("classification"), tmp_path, "classification", train=str(train))
    evaluation = Predictor.load(result.model).evaluate(tmp_path / "dev.jsonl")
    assert len(evaluation.baselines) >= 2


def test_a_student_is_there_before_it_is_compared(
    make_teacher: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(distiller.TaskDistiller, "_train_alone", stopped)
    with pytest.raises(KeyboardInterrupt):
        distil(make_teacher("classification"), tmp_path, "classification", compare=True)
    assert Predictor.load(tmp_path / "small" / "model").predict(["bano"])


def test_several_teachers_of_labels_say_the_same_in_any_order(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    """By the thresholds of all of them, in calibrated probabilities."""
    texts = [str(write_rows(tmp_path / "texts.jsonl", "multi-label", 40, labelled=False))]
    seeds, said = (5, 6), []
    for order in (seeds, seeds[::-1]):
        teachers = [str(make_teacher("multi-label", seed)) for seed in order]
        recipe = make_distil_recipe({"teacher": teachers, "texts": texts, "out": str(tmp_path / "out")}, [])
        session = DistilSession.open(
            recipe, set_up_machine(recipe.hardware, None, Hardware.detect()), tmp_path
        )
        for seed, teacher in zip(order, session.teachers, strict=True):
            thresholds = (0.1, 0.2, 0.3) if seed == 5 else (0.6, 0.9, 0.7)
            teacher.task.confidence = Confidence(
                temperature=1.0 if seed == 5 else 3.0,
                label_thresholds=thresholds,
                threshold=0.0,
                **dict.fromkeys(("ece_before", "ece_after", "coverage", "risk"), 0.5),
                examples=9,
            )
        said.append([each["labels"] for each in session.ask(session.train.examples).predictions])
    assert said[0] == said[1]
    assert len(set(map(tuple, said[0]))) > 1

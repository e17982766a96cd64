"""The search for a smaller model: what is tried, what is chosen, what is left out, and what a kill leaves."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from distil_rows import save_teacher as save_labelling_teacher
from distil_rows import write_rows as write_labelled_rows
from own_task import Species
from safetensors.torch import load_file
from static_samples import PIECES, save_table_of_classes, save_teacher

from bertsmith.compression.distilling.distil import distil_task
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher
from bertsmith.compression.shrinking import shrink as module
from bertsmith.compression.shrinking import training as trying
from bertsmith.compression.shrinking.candidates import (
    CandidateResult,
    ReportedScores,
    ShrinkResults,
    SkippedCandidate,
    choose,
    find_doubts,
    list_candidates,
)
from bertsmith.compression.shrinking.judging import CandidateJudge
from bertsmith.compression.shrinking.shrink import shrink
from bertsmith.compression.shrinking.shrink_report import render_shrink
from bertsmith.data.sequences.building import SequenceSettings, build_sequences
from bertsmith.data.sequences.encoding import encode_sequences
from bertsmith.errors import DiskFull, InputError, ModelError, RecipeError
from bertsmith.files import read_json, write_json
from bertsmith.inference.explaining.attribution import Explainer
from bertsmith.inference.export.export import export_model
from bertsmith.inference.predictor import Predictor
from bertsmith.metrics.calibration import probabilities_of
from bertsmith.metrics.thresholds import best_f1_cuts
from bertsmith.model.config import make_config
from bertsmith.serving.served_model import open_model
from bertsmith.serving.settings import ModelSettings
from bertsmith.tasks.checkpoints.task_checkpoint import load_task_model, save_task_model
from bertsmith.tasks.finetuning import encode_examples
from bertsmith.tasks.task_model import outputs_of
from bertsmith.training.finetuning.finetune import finetune
from bertsmith.training.pretrain import pretrain

WHOLE = CandidateResult("the model itself", "whole", 0.9, 0.01, 1000, 4000, 100.0, 2.0, 4.0, 1.0, 1.0)
SMALL = replace(WHOLE, name="1 layer", slug="layers-1", score=0.8, parameters=300, work=30.0)
MIDDLE = replace(WHOLE, name="3 layers", slug="layers-3", score=0.89, parameters=600, work=60.0)
PRUNED = replace(WHOLE, name="90 pieces", slug="pruned", score=0.895, parameters=500)


def write_rows(path: Path, count: int, seed: int) -> Path:
    random = np.random.default_rng(seed)
    lines = ["text,label"]
    for _ in range(count):
        animal = random.choice(["cat", "dog", "bird"])
        filling = " ".join(random.choice(["red", "old", "new", "runs"], 3))
        lines.append(f"{filling} {animal},{animal}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A fine-tuned model of two layers, and its rows."""
    folder = tmp_path_factory.mktemp("parts")
    train, dev = write_rows(folder / "train.csv", 120, 0), write_rows(folder / "dev.csv", 60, 1)
    encoder = save_teacher(folder / "encoder")
    files = {"train": str(train), "dev": str(dev)}
    finetune(
        *("classification", "epochs=8", "max_length=32", "method=full", "optimizer.learning_rate=3e-3"),
        model=str(encoder),
        out=str(folder / "run"),
        **files,
    )
    return {"model": str(folder / "run" / "model"), **files}


def search(parts: dict[str, str], out: Path, *overrides: str, **more: object) -> module.ShrinkResult:
    given = {"train": parts["train"], "dev": parts["dev"], "out": str(out)} | more
    return shrink(parts["model"], "epochs=4", "optimizer.learning_rate=3e-3", *overrides, **given)


def test_the_ladder_goes_down_to_one_layer_and_half_the_width() -> None:
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    found = list_candidates(make_config(shape, "test"))
    assert [each.slug for each in found] == [
        *("layers-3-width-192", "layers-1", "layers-2-feed-forward-512", "layers-2", "layers-3", "layers-4")
    ]
    assert found[0].width == 192
    assert (found[2].name, found[2].layers, found[2].feed_forward) == (
        "2 layers, a third of the feed-forward",
        2,
        512,
    )
    deep = list_candidates(make_config(shape | {"num_hidden_layers": 12}, "test"))
    assert [each.layers for each in deep if each.width is each.feed_forward is None] == [1, 2, 3, 4, 6, 8]
    odd = {"hidden_size": 96, "num_attention_heads": 3, "num_hidden_layers": 1, "intermediate_size": 100}
    assert list_candidates(make_config(odd, "test")) == []


def test_the_least_work_that_keeps_enough_is_chosen() -> None:
    tried = [SMALL, MIDDLE, PRUNED]
    assert choose(WHOLE, tried, 0.98) == MIDDLE
    assert choose(WHOLE, tried, 0.8) == SMALL
    assert choose(WHOLE, tried, 0.99) == PRUNED
    assert choose(WHOLE, tried, 1.0) == WHOLE
    as_little = replace(PRUNED, slug="fewer", parameters=400, work=103.0)
    assert choose(WHOLE, [PRUNED, as_little], 0.99) == as_little
    assert choose(WHOLE, [PRUNED, replace(as_little, work=106.0)], 0.99) == PRUNED
    busy = replace(MIDDLE, share_alone=3.0, milliseconds_alone=12.0)  # while it was measured
    assert choose(WHOLE, [SMALL, busy, PRUNED], 0.98) == busy


def test_what_to_mistrust_in_a_choice_is_said() -> None:
    tried = [SMALL, MIDDLE, PRUNED]
    assert "more dev rows would tell" in find_doubts(WHOLE, tried, MIDDLE, 0.98, "accuracy")[0]
    assert find_doubts(WHOLE, tried, replace(MIDDLE, error=0.001), 0.98, "accuracy") == []
    assert "no smaller model keeps 100%" in find_doubts(WHOLE, tried, WHOLE, 1.0, "accuracy")[0]
    slower = replace(PRUNED, parameters=2_500_000, work=108.0)
    assert choose(WHOLE, [SMALL, slower], 0.98) == WHOLE
    assert find_doubts(WHOLE, [SMALL, slower], WHOLE, 0.98, "accuracy") == [
        "no faster model keeps 98% of the accuracy. Smaller ones do: 90 pieces, 2.5 M parameters, lies in "
        "candidates/pruned/model"
    ]


def test_the_interval_of_a_share_ends_at_one() -> None:
    assert replace(WHOLE, score=0.99, error=0.01).interval == pytest.approx((0.9704, 1.0))
    assert replace(WHOLE, score=34.0, error=1.0).interval == pytest.approx((32.04, 35.96))
    assert replace(WHOLE, score=0.99, error=None).interval == (0.99, 0.99)


def test_a_search_ends_with_the_chosen_model_its_table_and_its_page(
    parts: dict[str, str], tmp_path: Path
) -> None:
    found = search(parts, tmp_path / "out", keep=0.5)
    shrunk = found.shrunk
    slugs = {each.slug for each in shrunk.tried}
    assert slugs == {"pruned", "static", "layers-1", "layers-1-width-16"}
    work = {each.slug: each.work for each in (shrunk.whole, *shrunk.tried)}
    assert (
        work["pruned"] == work["whole"] > work["layers-1"] > work["layers-1-width-16"] > work["static"] == 0
    )
    whole = TaskTeacher.open(parts["model"], None, torch.device("cpu"))
    lengths = [
        each.tokens
        for each in encode_examples(whole.task, whole.task.read(parts["dev"]), whole.tokenizer).encoded
    ]
    assert work["whole"] - work["layers-1"] == sum(
        2 * n * (4 * 32**2 + 2 * 32 * 64 + 2 * n * 32) for n in lengths
    )
    assert shrunk.whole.share_alone == 1 and shrunk.chosen.parameters < shrunk.whole.parameters
    assert shrunk.chosen.score >= shrunk.wanted == pytest.approx(0.5 * shrunk.whole.score)
    pruned = next(each for each in shrunk.tried if each.slug == "pruned")
    assert pruned.score == pytest.approx(shrunk.whole.score)
    table = Predictor.load(tmp_path / "out" / "candidates" / "static" / "model")
    assert table.tokenizer.vocab_size < len(PIECES) / 2
    chosen = tmp_path / "out" / "candidates" / shrunk.chosen.slug / "model"
    texts = ["red old cat", "new dog runs"]
    assert Predictor.load(found.model).predict(texts) == Predictor.load(chosen).predict(texts)
    evaluation = Predictor.load(found.model).evaluate(parts["dev"], parts["train"])
    assert evaluation.model["accuracy"] == pytest.approx(shrunk.chosen.score)
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert written["chosen"] == shrunk.chosen.slug and len(written["tried"]) == 4
    page = found.report.read_text()
    assert page.count("<svg") == 2 and "of the model" in page and "1 layer" in page


def test_a_static_table_for_classes_answers_as_a_model_of_its_kind(
    parts: dict[str, str], tmp_path: Path
) -> None:
    shrunk = search(parts, tmp_path / "out", hours=1e-9, prune=False).shrunk
    folder = tmp_path / "out" / "candidates" / "static" / "model"
    (tried,) = shrunk.tried
    assert tried.score > 0.9  # the words alone say which animal it is
    predictor = Predictor.load(folder)
    assert predictor.tokenizer.vocab_size == len(PIECES)  # for a model that will read other texts
    assert predictor.evaluate(parts["dev"], parts["train"]).model["accuracy"] == pytest.approx(tried.score)
    texts = ["red old cat", "", "new dog runs zebra"]
    answers = predictor.predict(texts)
    assert [each["label"] for each in answers][::2] == ["cat", "dog"]
    tensors = load_file(folder / "model.safetensors")["embeddings"], load_file(folder / "head.safetensors")
    vector = tensors[0][predictor.tokenizer.encode(texts[0]).ids].sum(0)
    logits = tensors[1]["out.weight"] @ (vector / vector.norm()) + tensors[1]["out.bias"]
    assert predictor.task.labels[int(logits.argmax())] == "cat"
    served = open_model(ModelSettings(name="small", path=str(folder)), 1)
    assert served.task == "classification" and "predict" in served.operations
    with pytest.raises(ModelError, match="no layers"):
        export_model(folder, parts["dev"], tmp_path / "exported")
    with pytest.raises(ModelError, match="no layers"):
        Explainer(folder)


@pytest.mark.slow
def test_a_killed_search_goes_on_with_what_was_finished(
    parts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, trained = tmp_path / "out", list[str]()
    real = trying.distil_task

    def killed_at_the_second(*given: object, **named: object) -> object:
        trained.append(Path(str(named["out"])).name)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(trying, "distil_task", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        search(parts, out, keep=0.5)
    assert not (out / "model").exists()
    with pytest.raises(InputError, match="already exists"):
        search(parts, out, keep=0.5)
    with pytest.raises(InputError, match="begun with another settings"):
        search(parts, out, "batch_size=8", keep=0.5, resume=True)
    first = json.loads((out / "candidates" / trained[0] / "tried.json").read_text())
    resumed = search(parts, out, keep=0.5, resume=True)
    assert trained[1] == trained[2] and len(trained) == 3
    assert any(each.score == first["score"] and each.slug == first["slug"] for each in resumed.shrunk.tried)
    stricter = search(parts, out, keep=0.999, resume=True)
    assert len(trained) == 3
    assert stricter.shrunk.wanted > resumed.shrunk.wanted


@pytest.mark.slow
def test_the_vocabulary_is_decided_once_though_another_share_be_asked_for(
    parts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate that was interrupted began with the other teacher, and could not go on."""
    out, real = tmp_path / "out", trying.CandidateJudge.judge

    def pruned_is_poor(
        self: trying.CandidateJudge, folder: Path, name: str, slug: str, *more: float, **named: bool
    ) -> CandidateResult:
        found = real(self, folder, name, slug, *more, **named)
        return replace(found, score=0.9 * found.score) if slug == "pruned" else found

    monkeypatch.setattr(trying.CandidateJudge, "judge", pruned_is_poor)
    trains, real_training = list[list[str]](), trying.distil_task

    def interrupted(teacher: list[str], *given: str, **named: object) -> object:
        trains.append(teacher)
        if len(trains) == 1:
            raise KeyboardInterrupt
        return real_training(teacher, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(trying, "distil_task", interrupted)
    with pytest.raises(KeyboardInterrupt):
        search(parts, out, keep=0.98)
    search(parts, out, keep=0.5, resume=True)
    assert len(trains) == 3 and {teacher[0] for teacher in trains} == {parts["model"]}


class Clock:
    """Stands where a module has `time`: only what is told to takes time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = staticmethod(time.perf_counter)  # by which steps are measured


@pytest.mark.slow
def test_seconds_are_those_of_all_parts_and_asking_is_not_counted_twice(
    parts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first candidate pays for asking. Training that a killed part did is in the run's log alone."""
    clock, asked = Clock(), list[bool]()
    real_training, real_asking = trying.distil_task, trying.DistilSession.ask

    def training(*given: object, **named: object) -> object:
        clock.now += 10.0
        made = real_training(*given, **named)  # type: ignore[arg-type]
        student = made.results.student
        seconds = 10.0 if Path(str(named["out"])).name == "layers-1-width-16" else 500.0
        whole = replace(student, restarts=(student.restarts[0]._replace(seconds=seconds),))
        return replace(made, results=replace(made.results, student=whole))

    def asking(*given: Any) -> Any:
        clock.now += 0.0 if asked else 100.0
        asked.append(True)
        return real_asking(*given)

    monkeypatch.setattr(trying, "time", clock)
    monkeypatch.setattr(trying.DistilSession, "ask", asking)
    monkeypatch.setattr(trying, "distil_task", training)
    monkeypatch.setattr(module, "find_table_source", lambda whole: None)
    first, second = search(parts, tmp_path / "out", prune=False).shrunk.tried
    assert (first.seconds, second.seconds) == (110.0, 500.0)
    assert first.predicted is not None and first.predicted > 100.0


def test_test_rows_are_reported_on_and_not_learned_from(parts: dict[str, str], tmp_path: Path) -> None:
    test = write_rows(tmp_path / "test.csv", 50, 7)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(line.rpartition(",")[0] for line in test.read_text().splitlines()[1:]) + "\n")
    found = search(parts, tmp_path / "out", hours=1e-9, prune=False, keep=0.5, test=test, texts=[texts])
    shown = found.shrunk.on_test
    assert shown is not None and shown.rows == 50
    evaluation = Predictor.load(found.model).evaluate(test, parts["train"])
    assert evaluation.model["accuracy"] == pytest.approx(shown.chosen)
    assert shown.sentence("accuracy") in found.report.read_text().replace("\n", " ")
    assert any("stand in dev or test too" in each for each in found.shrunk.warnings)
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert written["test"]["chosen"] == shown.chosen


def test_what_test_rows_say_in_words() -> None:
    said = ReportedScores(400, 0.9, 0.01, 0.882, None).sentence("f1")
    assert (
        said == "On 400 rows of test the model itself has f1 0.9000 ± 0.0196, the chosen 0.8820, 98.0% of it."
    )


def test_what_does_not_fit_into_the_time_is_left_out_and_said(parts: dict[str, str], tmp_path: Path) -> None:
    found = search(parts, tmp_path / "out", hours=1e-9, prune=False)
    assert [each.slug for each in found.shrunk.tried] == ["static"]
    assert {each.name for each in found.shrunk.left_out} == {"1 layer", "1 layer of 16"}
    assert sum("left out, it would take about" in each for each in found.shrunk.warnings) == 2
    assert Predictor.load(found.model).predict(["old cat"])[0]["label"] == "cat"


def test_the_page_shows_what_was_left_out_and_escapes_names() -> None:
    left = SkippedCandidate("4 layers", 600.0, 20.0)
    shrunk = ShrinkResults("accuracy", 0.98, WHOLE, (SMALL, MIDDLE), MIDDLE, (left,), ("<b>4 layers</b>",))
    page = render_shrink(shrunk, "runs/<i>/model")
    assert "&lt;b&gt;4 layers" in page and "runs/&lt;i&gt;" in page
    assert "3 layers ←" in page and "0.8704 to 0.9096" in page


def test_bad_input_is_one_sentence_and_leaves_nothing(parts: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError, match="keep is a share"):
        search(parts, out, keep=98)
    with pytest.raises(InputError, match="hours must be above 0"):
        search(parts, out, hours=0)
    with pytest.raises(ModelError, match="none of Bertsmith's tasks"):
        shrink(
            str(Path(parts["model"]).parents[1] / "encoder"),
            train=parts["train"],
            dev=parts["dev"],
            out=str(out),
        )
    with pytest.raises(InputError):
        search(parts, out, dev=str(tmp_path / "nowhere.csv"))
    with pytest.raises(ModelError, match="is a static table of vectors, which has no layers"):
        search(parts | {"model": str(save_table_of_classes(tmp_path / "table"))}, out, prune=False)
    assert not out.exists()


def test_a_model_that_finds_no_room_on_the_disk_is_refused_before_anything_is_learned(
    parts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    expected = r"^Saving the model needs about 0\.\d MB in .*, but 0\.0 MB are free"
    with pytest.raises(DiskFull, match=expected):
        search(parts, tmp_path / "out")
    with pytest.raises(DiskFull, match=expected):
        distil_task([parts["model"]], train=parts["train"], dev=parts["dev"], out=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("overrides", "values"),
    [
        *((("width=192",), {}), (("layers=2",), {}), (("compare=true",), {}), (("teacher=other",), {})),
        *((("out=elsewhere",), {}), (("student=minilm",), {}), ((), {"layers": 2}), ((), {"compare": True})),
    ],
)
def test_what_each_candidate_has_of_its_own_is_not_to_be_given(
    overrides: tuple[str, ...], values: dict[str, object], parts: dict[str, str], tmp_path: Path
) -> None:
    name = overrides[0].partition("=")[0] if overrides else next(iter(values))
    with pytest.raises(RecipeError, match=f"{name} is not to be given, since each candidate"):
        search(parts, tmp_path / "out", *overrides, **values)
    assert not (tmp_path / "out").exists()


def test_a_task_of_ones_own_is_pruned_too(parts: dict[str, str], tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(parts["model"], model)
    manifest = read_json(model / "bertsmith.json")
    write_json(model / "bertsmith.json", manifest | {"task": "species"})
    given = parts | {"model": str(model)}
    shrunk = search(given, tmp_path / "out", hours=1e-9, task="own_task:Species").shrunk
    assert [each.slug for each in shrunk.tried] == ["pruned"]
    assert shrunk.tried[0].score == pytest.approx(shrunk.whole.score)
    assert Predictor.load(tmp_path / "out" / "model", Species).task.name == "species"


@pytest.mark.slow
def test_a_model_of_numbers_keeps_their_places_and_no_table_without_them_is_tried(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [
        {"x": float(x), "kind": f"k{min(number, 60)}", "label": "high" if x > 0 else "low"}
        for number, x in enumerate(random.normal(size=180))
    ]
    source, store = tmp_path / "rows.jsonl", tmp_path / "store"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    labelled = tmp_path / "labelled.jsonl"  # of one of the kinds: pieces of the others don't occur
    labelled.write_text("".join(json.dumps(row) + "\n" for row in rows[60:]))
    build_sequences(
        [source],
        store,
        SequenceSettings(kind="table", numbers="continuous", leave_out=("label",), heldout=0.2),
    )
    train = tmp_path / "train.jsonl"
    encode_sequences(labelled, store, train)
    shape = "hidden_size=16", "intermediate_size=32", "num_hidden_layers=2", "num_attention_heads=2"
    encoder = pretrain(
        *("quickstart", "steps=2", "data.sequence_lengths=[8]", f"corpus={store}", f"out={tmp_path / 'run'}"),
        *(f"model.{each}" for each in ("model_type=bert", *shape)),
    ).model
    files = {"train": str(train), "dev": str(train)}
    learning = "epochs=8", "method=full", "optimizer.learning_rate=3e-3"
    run = finetune("classification", *learning, model=str(encoder), out=str(tmp_path / "fine"), **files)
    found = search({"model": str(run.model), **files}, tmp_path / "out", keep=0.1)
    assert {each.slug for each in found.shrunk.tried} == {"layers-1", "layers-1-width-8"}
    small = Predictor.load(found.model)
    texts = [json.loads(line)["text"] for line in train.read_text().splitlines()]
    # As [UNK] all would be one; two of them may be equal to six digits.
    assert len({answer["probabilities"]["high"] for answer in small.predict(texts[:20])}) > 15


def test_no_candidate_is_judged_by_thresholds_that_its_own_labels_chose(tmp_path: Path) -> None:
    """The whole model's have never seen dev: a smaller one's, chosen there, would look better than it is."""
    folder = save_labelling_teacher(tmp_path, "multi-label", 5)
    model, task = load_task_model(folder)
    dev = task.read(write_labelled_rows(tmp_path / "dev.jsonl", "multi-label", 60, seed=3))
    whole = TaskTeacher.open(str(folder), None, torch.device("cpu"))
    split = encode_examples(task, dev, whole.tokenizer)
    outputs = outputs_of(model, split.encoded)
    task.calibrate(outputs, dev, split.encoded)
    cuts = best_f1_cuts(
        probabilities_of(outputs, task.temperature, multi_label=True),
        np.array([each.target for each in split.encoded]),
    )
    task.confidence = task.confidence.model_copy(update={"label_thresholds": tuple(cuts.tolist())})
    save_task_model(tmp_path / "fitted", model, task, whole.tokenizer, {})
    judge = CandidateJudge(whole, dev, torch.device("cpu"))
    flattered = judge.judge(tmp_path / "fitted", "a", "a").score
    honest = judge.judge(tmp_path / "fitted", "a", "a", fitted=True).score
    assert honest < flattered

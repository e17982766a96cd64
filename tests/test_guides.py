"""The guides are followed from outside the package: their code is written down, run, and has to learn.

The pages' `minilm` is a folder of that name here, with a tiny random BERT that learns toy data in seconds.
`pip install` is done by hand: beside the code it writes a folder with the entry points.
"""

import json
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from bertsmith.cli.main import main
from bertsmith.errors import ModelError
from bertsmith.inference.predictor import Predictor
from bertsmith.model.config import BertConfig, make_config
from bertsmith.model.families import FAMILIES, find_family
from bertsmith.serving.operations.operation import Options
from bertsmith.serving.served_model import open_model
from bertsmith.serving.settings import read_settings
from bertsmith.tasks.pretraining.pretraining import PretrainingModel
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model, save_pretraining_model
from bertsmith.tasks.registry import find_task
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.finetuning.task_run import BestWeights
from bertsmith.training.log import RunLog
from bertsmith.training.loop import Loop
from bertsmith.training.recipe import read_recipe
from parity.model_parity import assert_parity, random_sample, twin, with_large_weights
from test_documented_commands import commands

DOCS = Path(__file__).parent.parent / "docs"
TASK, FORMATS, VARIANT = (
    (DOCS / page).read_text(encoding="utf-8")
    for page in ("add-a-task-or-metric.md", "add-a-format-or-route.md", "add-a-family-or-optimiser.md")
)
TABLE_FORMAT, TASK_FORMAT, *_ = re.split(
    r"^## A (?:format for one task|wire format)\n", FORMATS, flags=re.MULTILINE
)
OWN = "roberta-prelayernorm"  # the family of the page
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
JUDGEMENTS = ("awful", "weak", "fine", "superb")  # one star to four
QUEUES = {"billing": ("charged", "refund", "invoice"), "shipping": ("parcel", "late", "courier")}
FILLERS = ("the", "film", "was", "my", "and", "is", "it", "a")
SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
PRETRAINS_FAST = [
    *("steps=3", "data.sequence_lengths=[32]", "data.batch_size=16", "loss.sampled_pieces=0"),
    *("optimizer.warmup=0", "evaluation.tokens=500", "checkpoint.every=1000", "hardware.threads=1"),
]
# A random model of this size wants more than the rate that suits a trained one.
LEARNS_FAST = ["optimizer.learning_rate=5e-3", "epochs=10", "batch_size=16", "hardware.threads=1"]


def files_in(page: str) -> dict[str, str]:
    """The code blocks of a page that say which file they are."""
    return dict(re.findall(r"^```\w+ (\S+\.\w+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with both pages' files in it, as if written by their reader."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for page in (TASK, TASK_FORMAT):
        for name, text in files_in(page).items():
            (tmp_path / name).write_text(text, encoding="utf-8")
    write_tiny_bert(tmp_path / "minilm")
    yield tmp_path
    for name in ("stars", "tickets", "within_one", "lion", "smoothed"):
        sys.modules.pop(name, None)


def write_tiny_bert(folder: Path) -> None:
    words = [*JUDGEMENTS, *FILLERS, *(word for words in QUEUES.values() for word in words)]
    pieces = [*SPECIAL, *words]
    config = make_config({"vocab_size": len(pieces), "max_position_embeddings": 128} | SHAPE, "test")
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_pieces(pieces, lowercase=True)
    save_pretraining_model(folder, PretrainingModel(config), tokenizer, {"weights": "random"})


def sentences(rows: int, seed: int, words: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(which word, a text with it among fillers)."""
    draw = random.Random(seed)
    for _ in range(rows):
        number = draw.randrange(len(words))
        text = [*draw.choices(FILLERS, k=draw.randint(2, 6)), words[number]]
        draw.shuffle(text)
        yield number, " ".join(text)


def write_reviews(folder: Path) -> None:
    for name, rows, seed in (("reviews", 160, 0), ("later", 60, 1)):
        lines = [f"{text},{number + 1}" for number, text in sentences(rows, seed, JUDGEMENTS)]
        (folder / f"{name}.csv").write_text("\n".join(["text,score", *lines]))
    unlabelled = [line.rpartition(",")[0] for line in (folder / "later.csv").read_text().splitlines()]
    (folder / "new.csv").write_text("\n".join(unlabelled))


def write_tickets(folder: Path) -> None:
    queue_of = {word: queue for queue, words in QUEUES.items() for word in words}
    words = tuple(queue_of)
    train = [f"queue: {queue_of[words[n]]}\ntext: {text}\n" for n, text in sentences(160, 2, words)]
    (folder / "tickets.rec").write_text("\n".join(train))
    new = [text for _, text in sentences(40, 3, words)]
    (folder / "new.rec").write_text("\n".join(f"text: {text}\n" for text in new))
    (folder / "new.csv").write_text("\n".join(["text", *new]))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_guide_to_a_task_leads_to_one_that_learns(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_reviews(desk)
    finetune, predict, evaluate, *others = commands(TASK)
    assert main([*finetune, *LEARNS_FAST]) == 0
    dev = json.loads((desk / "runs/stars/results.json").read_text())["evaluations"]["dev"]
    assert dev["model"]["accuracy"] > dev["baselines"]["majority"]["accuracy"] + 0.3

    assert main(predict) == 0
    right = [gold["gold"] for gold in lines_of(desk / "runs/stars/predictions/dev.jsonl")]
    said = [line["stars"] for line in lines_of(desk / "predictions.jsonl")]
    assert sum(g == s for g, s in zip(right, said, strict=True)) / len(said) == dev["model"]["accuracy"]

    capsys.readouterr()
    assert main([*evaluate, "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["model"] == pytest.approx(dev["model"])
    assert measured["baselines"] == dev["baselines"]

    exec(compile((desk / "use.py").read_text(), "use.py", "exec"), {})
    assert float(capsys.readouterr().out) in (1, 2, 3, 4)
    has_everything_that_ours_have(desk, others)


def has_everything_that_ours_have(desk: Path, others: list[list[str]]) -> None:
    """Exported, distilled, explained, suggested for, served."""
    export, distil, look, suggest, serve, *_ = others
    assert main(export) == 0
    parity = json.loads((desk / "runs/graph/parity.json").read_text())
    assert parity["passed"] and parity["gate"]["agreeing"] == 60
    facts = json.loads((desk / "runs/graph/decoding.json").read_text())
    assert (facts["task"], facts["probabilities"], facts["labels"]) == ("stars", "sigmoid", list("1234"))
    assert main([*distil, *LEARNS_FAST]) == 0
    found = json.loads((desk / "runs/small/results.json").read_text())
    assert found["agreement"]["dev"] > 0.5
    assert main(look) == 0
    assert "thresholds passed" in (desk / "look.html").read_text()
    assert main(suggest) == 0
    rows = (desk / "runs/next/rows.csv").read_text().splitlines()
    assert len(rows) > 10 and rows[0].startswith("text,")
    settings = read_settings([serve[1]], None, {"task": serve[-1]})
    (answer,) = (
        open_model(settings.models[0], 1).operation(None).prepare(["superb film"], Options()).compute_answer()
    )
    assert answer == Predictor.load("runs/stars/model", find_task("stars:Stars")).predict(["superb film"])[0]


def test_a_metric_of_one_s_own_decides_and_stands_beside_the_others(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of weights after each epoch the best by it are kept, and the model is an ordinary one."""
    write_reviews(desk)
    *_, finetune, evaluate, predict = commands(TASK)
    assert main([*finetune, *LEARNS_FAST, "epochs=2"]) == 0
    results = json.loads((desk / "runs/near/results.json").read_text())
    log = lines_of(desk / "runs/near/restarts/1/log.jsonl")
    best = max(each["within_one"] for each in log if each["kind"] == "evaluation")
    assert (results["main_metric"], results["restarts"][0]["score"]) == ("within_one", best)
    dev = results["evaluations"]["dev"]
    assert dev["model"]["within_one"] == best
    assert main(predict) == 0
    right = [gold["gold"] for gold in lines_of(desk / "runs/near/predictions/dev.jsonl")]
    said = [line["label"] for line in lines_of(desk / "near.jsonl")]
    near = [abs(int(g) - int(s)) <= 1 for g, s in zip(right, said, strict=True)]
    assert dev["model"]["within_one"] == pytest.approx(sum(near) / 60)
    assert dev["model"]["within_one"] > dev["baselines"]["majority"]["within_one"]
    capsys.readouterr()
    assert main([*evaluate, "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert (measured["main_metric"], measured["model"]) == ("within_one", pytest.approx(dev["model"]))


def test_a_model_of_someone_s_task_opens_only_with_that_task(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_reviews(desk)
    finetune, predict, *_ = commands(TASK)
    assert main([*finetune, *LEARNS_FAST, "epochs=0.2"]) == 0
    without = predict[: predict.index("--task")]
    assert main(without) == 2
    assert "'stars'" in capsys.readouterr().err
    assert not (desk / "predictions.jsonl").exists()


@pytest.mark.slow
def test_python_m_bertsmith_finds_a_task_in_the_current_folder(desk: Path) -> None:
    write_reviews(desk)
    (desk / "later.csv").write_text("text,score\nfine film,9\n")
    finetune, *_ = commands(TASK)
    done = subprocess.run([sys.executable, "-m", "bertsmith", *finetune], capture_output=True, text=True)
    assert done.returncode == 2
    assert "later.csv, line 2: no training text has 9 stars" in " ".join(done.stderr.split())


def test_the_guide_s_records_are_read_with_their_places(desk: Path) -> None:
    task = imported("tickets")
    examples = task.read(desk / "tickets.rec")
    assert [(e.text, e.label, e.where) for e in examples] == [
        ("I was charged twice for March.", "billing", "tickets.rec, line 1"),
        ("Where is my parcel?", "shipping", "tickets.rec, line 4"),
    ]
    assert [example.label for example in task.read(desk / "tickets.rec", labelled=False)] == [None, None]


@pytest.mark.slow
def test_the_guide_to_a_format_leads_to_a_model_that_reads_tables_too(desk: Path) -> None:
    write_tickets(desk)
    finetune, from_records, from_table = commands(TASK_FORMAT)
    assert main([*finetune, *LEARNS_FAST]) == 0
    found = json.loads((desk / "runs/tickets/results.json").read_text())["evaluations"]
    dev = found["cross-validation"]  # of few rows
    assert dev["model"]["accuracy"] > dev["baselines"]["majority"]["accuracy"] + 0.2
    said = []
    for command in (from_records, from_table):
        assert main(command) == 0
        said.append([line["label"] for line in lines_of(desk / "queues.jsonl")])
    assert said[0] == said[1]
    assert len(said[0]) == 40
    assert set(said[0]) == set(QUEUES)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "queue: billing\ntext charged\n",
            "tickets.rec, line 2: expected 'field: value', found 'text",
        ),
        ("queue: billing\ntxt: charged\n", "tickets.rec, line 1: no column 'text'. There are: queue, txt"),
        ("\n\n", "has no records"),
    ],
)
def test_the_guide_s_reader_names_file_and_line(
    desk: Path, capsys: pytest.CaptureFixture[str], text: str, complaint: str
) -> None:
    (desk / "tickets.rec").write_text(text)
    finetune, *_ = commands(TASK_FORMAT)
    assert main(finetune) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())
    assert not (desk / "runs").exists()


# -- a family ------------------------------------------------------------------------------------------------


@pytest.fixture
def package(desk: Path) -> Iterator[Path]:
    """The page's folder, installed."""
    for name, text in files_in(VARIANT).items():
        (desk / name).write_text(text, encoding="utf-8")
    project = tomllib.loads((desk / "pyproject.toml").read_text())["project"]
    install(desk, project["name"], project["version"], project["entry-points"])
    yield desk
    FAMILIES.pop(OWN, None)
    sys.modules.pop("prelayernorm", None)


def install(folder: Path, name: str, version: str, groups: dict[str, dict[str, str]]) -> None:
    """What pip writes of a package that lies in a folder of Python's path."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def their_own(architecture: str, seed: int = 7, **values: Any) -> Any:
    """A model of the page's family with large random weights."""
    shape = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 40}
    config = transformers.RobertaPreLayerNormConfig(
        **{"vocab_size": 97, "max_position_embeddings": 40, "attn_implementation": "eager"} | shape | values
    )
    return with_large_weights(getattr(transformers, f"RobertaPreLayerNorm{architecture}")(config), seed)


@pytest.mark.parametrize("shape", [{}, {"hidden_act": "relu", "type_vocab_size": 1, "layer_norm_eps": 1e-5}])
def test_a_family_from_outside_gives_the_numbers_of_transformers(
    package: Path, shape: dict[str, Any]
) -> None:
    """States of every layer, logits, loss and all gradients, to 1e-5."""
    theirs = their_own("ForMaskedLM", **shape)
    ours = twin(theirs, package / "theirs")
    assert ours.config.model_type == OWN
    for seed in range(3):
        assert_parity(theirs, ours, random_sample(ours.config, seed))


def test_a_family_from_outside_is_saved_as_transformers_saves_it(package: Path) -> None:
    ours = twin(their_own("ForMaskedLM"), package / "theirs")
    save_pretraining_model(package / "ours", ours, None, {})
    back, keys = transformers.AutoModelForMaskedLM.from_pretrained(
        package / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert type(back).__name__ == "RobertaPreLayerNormForMaskedLM"
    assert not any(keys.values())
    back.save_pretrained(package / "again")
    for folder in ("ours", "again"):
        first, found = (load_file(package / name / "model.safetensors") for name in ("theirs", folder))
        assert found.keys() == first.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in first.items())
    again, notes = load_pretraining_model(package / "again")
    assert (again.config, notes) == (ours.config, ())


@pytest.mark.slow
def test_the_command_line_trains_on_a_family_from_outside(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the page's commands do, in which nothing but the folder's config.json names the family."""
    tokenizer = Tokenizer.load(package / "minilm")
    config = make_config(
        {"model_type": OWN, "vocab_size": tokenizer.vocab_size, "pad_token_id": 0, **SHAPE}, "test"
    )
    save_pretraining_model(package / "downloads/prelayernorm", PretrainingModel(config), tokenizer, {})
    write_reviews(package)
    (package / "clauses.csv").write_text((package / "reviews.csv").read_text())
    finetune, *_ = commands(VARIANT)
    assert main([*finetune, "pooling=published", *LEARNS_FAST]) == 0
    found = json.loads((package / "runs/clauses/results.json").read_text())["evaluations"]
    dev = found["cross-validation"]  # of few rows
    assert dev["model"]["accuracy"] > dev["baselines"]["majority"]["accuracy"] + 0.3

    folder = package / "runs/clauses/model"
    theirs, keys = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(keys.values())
    texts = ["the film was superb", "my film was awful and it was weak"]
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    labels = theirs.config.id2label
    for logits, said in zip(
        theirs.eval()(**inputs).logits, Predictor.load(folder).predict(texts), strict=True
    ):
        assert said["label"] == labels[int(logits.argmax())]


@pytest.mark.slow
def test_the_page_s_proof_runs_where_the_package_is_installed(package: Path) -> None:
    done = subprocess.run([sys.executable, "check.py"], capture_output=True, text=True, check=True)
    differences = [float(number) for number in re.findall(r"off by (\S+)", done.stdout)]
    assert len(differences) == 4
    assert max(differences) < 1e-5
    assert "'missing_keys': set(), 'unexpected_keys': set(), 'mismatched_keys': set()" in done.stdout


def test_a_recipe_names_a_family_from_outside(package: Path) -> None:
    recipe = read_recipe("roberta-base", [f"model.model_type={OWN}", "model.size=tiny"])
    config = recipe.model.config(100, pad_token_id=0)
    assert (config.max_length, config.pre_norm, config.hidden_size) == (512, True, 128)


def test_nothing_is_imported_of_a_package_whose_family_nobody_asks_for(package: Path) -> None:
    with pytest.raises(ModelError, match=f"There is no family 'roberta-prelayernrom'. Did you mean '{OWN}'"):
        find_family("roberta-prelayernrom")
    assert BertConfig().model_type == "bert"
    assert "prelayernorm" not in sys.modules
    assert find_family(OWN) is sys.modules["prelayernorm"].RECORD


@pytest.mark.parametrize(
    ("name", "target", "complaint"),
    [
        (
            "ernie",
            "not_there:RECORD",
            r"The family 'ernie' \(not_there:RECORD\) can't be imported: No module",
        ),
        ("ernie", "prelayernorm:REKORD", "can't be imported: .*REKORD"),
        ("ernie", "prelayernorm:LAYER", "must be a Family whose model_type is 'ernie'"),
        ("ernie", "prelayernorm:RECORD", "must be a Family whose model_type is 'ernie'"),
    ],
)
def test_a_package_that_says_something_else_is_one_sentence(
    package: Path, name: str, target: str, complaint: str
) -> None:
    install(package, "slip", "1", {"bertsmith.families": {name: target}})
    with pytest.raises(ModelError, match=complaint):
        find_family(name)
    assert name not in FAMILIES


def test_a_package_can_t_take_the_place_of_a_family_of_ours(package: Path) -> None:
    install(package, "bold", "1", {"bertsmith.families": {"bert": "prelayernorm:RECORD"}})
    assert find_family("bert").class_prefix == "Bert"


# -- an optimiser --------------------------------------------------------------------------------------------


def test_a_run_by_the_guide_s_optimiser_learns_and_goes_on_to_the_bit(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (desk / "lion.py").write_text(files_in(VARIANT)["lion.py"], encoding="utf-8")
    write_reviews(desk)
    by_lion, _ = (c for c in commands(VARIANT) if "optimizer.kind=lion:Lion" in c)
    whole = [*by_lion, *LEARNS_FAST, "optimizer.learning_rate=1e-3", "method=full", "restarts=1"]
    assert main(whole) == 0
    dev = json.loads((desk / "runs/lion/results.json").read_text())["evaluations"]["dev"]
    assert dev["model"]["accuracy"] > dev["baselines"]["majority"]["accuracy"] + 0.3
    assert 'kind = "lion:Lion"' in (desk / "runs/lion/recipe.toml").read_text()

    parts = ["runs/parts" if word == "runs/lion" else word for word in whole]
    considered, consider = count(), BestWeights.consider

    def interrupted(best: BestWeights, *arguments: Any) -> None:
        if next(considered) == 3:
            raise KeyboardInterrupt
        consider(best, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(BestWeights, "consider", interrupted)
        assert main(parts) == 130
    (state,) = (desk / "runs/parts").glob("restarts/1/**/step-*/optimizer.safetensors")
    assert {name.rpartition(".")[2] for name in load_file(state)} == {"momentum"}
    assert main([*parts, "--resume"]) == 0
    first, second = (load_file(desk / f"runs/{name}/model/model.safetensors") for name in ("lion", "parts"))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_a_pre_training_by_the_guide_s_optimiser_goes_on_to_the_bit(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (desk / "lion.py").write_text(files_in(VARIANT)["lion.py"], encoding="utf-8")
    (desk / "texts.txt").write_text("\n".join(f"{text}." for _, text in sentences(400, 4, JUDGEMENTS)))
    assert main(["corpus", "build", "texts.txt", "--format", "lines", "--out", "corpora/law"]) == 0
    assert main(["tokenizer", "train", "corpora/law", "--out", "tokenizers/law", "--vocab-size", "200"]) == 0
    _, by_lion = (c for c in commands(VARIANT) if "optimizer.kind=lion:Lion" in c)
    tiny = ["model.size=tiny", "data.batch_size=8", "optimizer.warmup=2", "optimizer.decay=3"]
    shorter = ["steps=12" if word == "hours=4" else word for word in by_lion]
    whole = [*shorter, *tiny, "checkpoint.every=3", "hardware.threads=1"]
    assert main(whole) == 0

    parts = [*whole, "out=runs/parts"]
    batches, advance = count(1), Loop.advance

    def interrupted(loop: Loop, batch: Any) -> bool:
        if next(batches) == 8:
            raise KeyboardInterrupt
        return advance(loop, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "advance", interrupted)
        assert main(parts) == 130
    assert main([*parts, "--resume"]) == 0
    first, second = (load_file(desk / f"runs/{name}/model/model.safetensors") for name in ("law", "parts"))
    assert all(torch.equal(first[name], second[name]) for name in first)


# -- a way of pre-training -----------------------------------------------------------------------------------


def write_law(folder: Path) -> None:
    lines = [f"{text}." for _, text in sentences(240, 4, JUDGEMENTS)]
    (folder / "law.txt").write_text("\n\n".join(lines))
    settings = CorpusSettings(format="blank-lines", heldout=0.2, near_duplicates=False)
    build_corpus([str(folder / "law.txt")], folder / "corpora/law", settings=settings, workers=1)


def test_the_guide_to_an_objective_leads_to_a_run(desk: Path) -> None:
    """Its loss is the cross-entropy with a tenth of each label spread evenly, from the same weights on."""
    (desk / "smoothed.py").write_text(files_in(VARIANT)["smoothed.py"], encoding="utf-8")
    write_law(desk)
    every = commands(VARIANT)
    (pretrain,) = (each for each in every if "objective=smoothed:Smoothed" in each)
    assert main([*pretrain, *PRETRAINS_FAST]) == 0
    assert main([*pretrain, "objective=masked-language", "out=runs/plain", *PRETRAINS_FAST]) == 0
    smoothed, plain = (
        next(each for each in RunLog.read(desk / "runs" / run) if each["kind"] == "step")["mlm_loss"]
        for run in ("law-smoothed", "plain")
    )
    # of random weights all pieces are about as likely, so that what is spread costs log V as all else does
    assert smoothed == pytest.approx(plain, rel=0.02)
    assert smoothed != plain
    assert 'objective = "smoothed:Smoothed"' in (desk / "runs/law-smoothed/recipe.toml").read_text()


def imported(module: str) -> Any:
    """The task in a file of the guide, with its default settings."""
    kind = find_task(f"{module}:{module.title()}")
    return kind(kind.Settings())

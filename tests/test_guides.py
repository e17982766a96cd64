"""Both guides are followed from outside the package: their code is written down, run, and has to learn.

The page's `minilm` is a folder of that name here, with a tiny random BERT that learns toy data in seconds.
"""

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bertsmith.cli.main import main
from bertsmith.model.config import make_config
from bertsmith.tasks.pretraining import PretrainingModel
from bertsmith.tasks.pretraining_checkpoint import save_pretraining_model
from bertsmith.text.tokens.tokenizer import Tokenizer
from test_documented_commands import commands

DOCS = Path(__file__).parent.parent / "docs"
TASK, FORMAT = DOCS / "add-a-task.md", DOCS / "add-a-data-format.md"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
JUDGEMENTS = ("awful", "weak", "fine", "superb")  # one star to four
QUEUES = {"billing": ("charged", "refund", "invoice"), "shipping": ("parcel", "late", "courier")}
FILLERS = ("the", "film", "was", "my", "and", "is", "it", "a")
SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
# A random model of this size wants more than the rate that suits a trained one.
LEARNS_FAST = ["optimizer.learning_rate=5e-3", "epochs=10", "batch_size=16", "hardware.threads=1"]


def files_in(page: Path) -> dict[str, str]:
    """The code blocks of a page that say which file they are."""
    found = re.findall(
        r"^```\w+ (\S+\.\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return dict(found)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with both pages' files in it, as if written by their reader."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for page in (TASK, FORMAT):
        for name, text in files_in(page).items():
            (tmp_path / name).write_text(text, encoding="utf-8")
    write_tiny_bert(tmp_path / "minilm")
    yield tmp_path
    for name in ("stars", "tickets"):
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
    finetune, predict, evaluate = commands(TASK.read_text(encoding="utf-8"))
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


def test_a_model_of_someone_s_task_opens_only_with_that_task(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_reviews(desk)
    finetune, predict, _ = commands(TASK.read_text(encoding="utf-8"))
    assert main([*finetune, *LEARNS_FAST, "epochs=0.2"]) == 0
    without = predict[: predict.index("--task")]
    assert main(without) == 2
    assert "'stars'" in capsys.readouterr().err
    assert not (desk / "predictions.jsonl").exists()


def test_python_m_bertsmith_finds_a_task_in_the_current_folder(desk: Path) -> None:
    write_reviews(desk)
    (desk / "later.csv").write_text("text,score\nfine film,9\n")
    finetune, *_ = commands(TASK.read_text(encoding="utf-8"))
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


def test_the_guide_to_a_format_leads_to_a_model_that_reads_tables_too(desk: Path) -> None:
    write_tickets(desk)
    finetune, from_records, from_table = commands(FORMAT.read_text(encoding="utf-8"))
    assert main([*finetune, *LEARNS_FAST]) == 0
    dev = json.loads((desk / "runs/tickets/results.json").read_text())["evaluations"]["dev"]
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
    finetune, *_ = commands(FORMAT.read_text(encoding="utf-8"))
    assert main(finetune) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())
    assert not (desk / "runs").exists()


def imported(module: str) -> Any:
    """The task in a file of the guide, with its default settings."""
    from bertsmith.tasks.registry import find_task

    kind = find_task(f"{module}:{module.title()}")
    return kind(kind.Settings())

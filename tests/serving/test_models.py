"""Models that are opened again: what is served already stays, and nothing waits for the opening."""

import asyncio
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from bertsmith.data.sequences.building import SequenceSettings, build_sequences
from bertsmith.errors import ModelError
from bertsmith.inference import engine
from bertsmith.inference.embedding.embedder import Embedder
from bertsmith.inference.index.index import Index
from bertsmith.model.cpu.kernels import has_kernels
from bertsmith.serving import models as models_module
from bertsmith.serving.app import make_app
from bertsmith.serving.models import Models, probe_once
from bertsmith.serving.operations.operation import Options
from bertsmith.serving.page.page import describe_model
from bertsmith.serving.refusals import UnsupportedRequest
from bertsmith.serving.served_model import open_model
from bertsmith.serving.settings import ModelSettings, read_settings
from bertsmith.text.tokens.value_tokenizers import load_tokenizer
from live_server import threaded_server
from served_models import save_encoder, save_fine_tuned, save_of_numbers


def opened(path: Path) -> Models:
    found = Models(read_settings([f"m={path}"], None, {}, {}))
    found.open_all()
    return found


def save_index(folder: Path, text: str) -> Path:
    pytest.importorskip("lancedb")
    if not (folder / "encoder").exists():
        save_encoder(folder / "encoder")
    (folder / "a.txt").write_text(text)
    return Index.build([folder / "a.txt"], folder / "index", model=str(folder / "encoder")).path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_fine_tuned(tmp_path / "model", "classification")


@pytest.mark.parametrize(("kind", "size"), [("series", 4), ("images", 32)])
def test_models_of_series_and_images_are_served_and_the_page_has_a_row_of_theirs(
    tmp_path: Path, kind: Any, size: int
) -> None:
    rows = np.random.default_rng(0).normal(1e6, 1, (20, 4, 8) if kind == "images" else (20, 8))
    np.save(tmp_path / "rows.npy", rows)
    settings = SequenceSettings(kind=kind, patch=4, heldout=0)
    build_sequences([tmp_path / "rows.npy"], tmp_path / "store", settings)
    tokenizer = load_tokenizer(tmp_path / "store/tokenizer")
    model = opened(save_of_numbers(tmp_path / "model", tokenizer))["m"]
    (example,) = describe_model(model)["example"]
    assert [float(number) for number in example.split()] == pytest.approx([1e6] * size, abs=1)
    (answer,) = model.operation("predict").prepare([example], Options()).compute_answer()
    assert answer["label"] in ("low", "high")


@pytest.mark.skipif(not has_kernels(), reason="int8 needs the compiled kernels")
def test_a_model_in_int8_is_announced_with_what_that_changes(folder: Path) -> None:
    for dtype, lines in (("int16", 1), ("int8", 2)):
        model = {"name": "m", "path": str(folder), "compute_dtype": dtype}
        models = Models(read_settings([], None, {"models": [model]}, {}))
        models.open_all()
        described = models.describe()
        assert len(described) == lines
        assert f"classification, {dtype}, predict" in described[0]
    assert "products are in int8" in described[1]
    assert "the smallest cosine with float32 is 0.9" in described[1]


def test_the_page_knows_the_label_whose_probability_ranks(tmp_path: Path) -> None:
    """Which need not be the last one."""
    labels = ["related", "unrelated"]
    pairs = opened(save_fine_tuned(tmp_path / "pairs", "classification", labels=labels, pair=True))["m"]
    assert describe_model(pairs)["relevant"] == "related"
    (answer,) = pairs.operation("predict").prepare([("bano", "delo")], Options()).compute_answer()
    ranked = pairs.operation("rerank").prepare(["delo"], Options(more={"query": "bano"})).compute_answer()
    assert ranked == [answer["probabilities"]["related"]]
    number = opened(save_fine_tuned(tmp_path / "number", "reranking"))["m"]
    assert describe_model(number)["relevant"] is None


def test_a_second_reload_of_the_same_folder_keeps_the_version_to_go_back_to(
    folder: Path, tmp_path: Path
) -> None:
    models = opened(folder)
    first = models["m"]
    assert models.replace("m") is first
    shutil.rmtree(folder)
    save_fine_tuned(folder, "classification", seed=9)
    second = models.replace("m")
    assert second.version == 2
    assert models.replace("m") is second
    assert models.roll_back("m") is first
    with pytest.raises(UnsupportedRequest):
        models.roll_back("m")


def test_an_index_is_not_rolled_back_since_each_search_sees_what_is_committed(tmp_path: Path) -> None:
    models = opened(save_index(tmp_path, "bano delo"))
    save_index(tmp_path, "firu guma")
    second = models.replace("m")
    assert second.version == 2
    with pytest.raises(UnsupportedRequest, match="m is an index: each search sees what is committed"):
        models.roll_back("m")
    assert models["m"] is second
    assert not models.was_rolled_back("m")


def test_an_index_is_asked_in_the_precision_that_its_settings_name(tmp_path: Path) -> None:
    path = str(save_index(tmp_path, "bano delo"))
    found = open_model(ModelSettings(name="m", path=path, compute_dtype="float32"), 1)
    assert found.compute_dtype == torch.float32


def test_an_index_of_an_embedder_of_ones_own_is_refused_by_saying_so(tmp_path: Path) -> None:
    class Own(Embedder):
        pass

    path = save_index(tmp_path, "bano delo")
    shutil.rmtree(path)
    Index.build([tmp_path / "a.txt"], path, embedder=Own(tmp_path / "encoder"))
    with pytest.raises(
        ModelError, match=r"index was built by 'Own', .* embedder of your own can't be served"
    ):
        open_model(ModelSettings(name="m", path=str(path)), 1)


def test_a_look_at_all_models_leaves_alone_what_was_rolled_back_until_other_files_lie_there(
    folder: Path, tmp_path: Path
) -> None:
    models = opened(folder)
    first = models["m"]
    bad, good = (save_fine_tuned(tmp_path / f"{n}", "classification", seed=n) for n in (9, 11))
    put(bad, folder)
    assert models.refresh("m").version == 2
    assert not models.was_rolled_back("m")
    assert models.roll_back("m") is first
    assert models.refresh("m") is first
    assert models.was_rolled_back("m")
    put(good, folder)
    assert models.refresh("m").version == 3
    assert not models.was_rolled_back("m")
    assert models.roll_back("m") is first
    assert models.replace("m").version == 4  # which names the model
    assert models.roll_back("m") is first
    folder.rename(tmp_path / "good")
    folder.with_name("before-9").rename(folder)
    assert models.refresh("m") is first
    assert not models.was_rolled_back("m")
    folder.rename(tmp_path / "first")
    (tmp_path / "good").rename(folder)
    assert models.refresh("m").version == 5  # it was put back on purpose


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "bertsmith.json", "model.safetensors"])
def test_another_file_of_a_model_is_seen(folder: Path, name: str) -> None:
    models = opened(folder)
    copied = Path(shutil.copy(folder / name, folder / "new"))
    copied.replace(folder / name)
    assert models.replace("m").version == 2


def test_a_link_that_leads_elsewhere_is_seen(folder: Path, tmp_path: Path) -> None:
    other = save_fine_tuned(tmp_path / "other", "classification", seed=9)
    link = tmp_path / "current"
    link.symlink_to(folder)
    models = opened(link)
    assert models.replace("m").version == 1
    link.unlink()
    link.symlink_to(other)
    assert models.replace("m").version == 2


def answer(models: Models) -> Any:
    return models["m"].operation("predict").prepare(["bano"], Options()).compute_answer()[0]["probabilities"]


def put(new: Path, folder: Path) -> None:
    """In its place, as a deployment does: the former is beside it."""
    folder.rename(folder.with_name(f"before-{new.name}"))
    new.rename(folder)


@pytest.mark.parametrize("step", ["load_task_model", "start_engine"])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_model_that_is_replaced_while_it_is_opened_is_the_one_that_is_served(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, mixed: bool
) -> None:
    """Whether or not the files of two models fit each other."""
    models = opened(folder)
    second, third = (save_fine_tuned(tmp_path / f"{n}", "classification", seed=n) for n in (9, 11))
    wanted = answer(opened(third))
    put(second, folder)
    usual = getattr(engine, step)

    def slow(*arguments: Any, **named: Any) -> Any:
        found = usual(*arguments, **named)
        if third.exists():
            put(third, folder)
            if mixed:
                raise RuntimeError("shapes differ")
        return found

    monkeypatch.setattr(engine, step, slow)
    assert models.replace("m").version == 2
    assert answer(models) == wanted
    assert models["m"].files.are_still_there
    assert models.replace("m").version == 2


def test_a_model_whose_files_are_replaced_without_an_end_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, usual, times = opened(folder), engine.start_engine, list[int]()

    def slow(*arguments: Any) -> Any:
        times.append(1)
        os.utime(folder / "model.safetensors", (len(times), len(times)))
        return usual(*arguments)

    monkeypatch.setattr(engine, "start_engine", slow)
    os.utime(folder / "model.safetensors")
    with pytest.raises(ModelError, match="files were replaced each of the 5 times that it was opened"):
        models.replace("m")
    assert len(times) == 5
    assert models["m"].version == 1


def test_when_the_folder_was_written_is_known_while_it_is_away(folder: Path, tmp_path: Path) -> None:
    models = opened(folder)
    written = folder.stat().st_mtime
    folder.rename(tmp_path / "away")
    assert models["m"].written == written
    app = make_app(read_settings([f"m={folder}"], None, {}, {}), models)
    shown = TestClient(app).get("/v1/models").json()
    assert shown["data"][0]["created"] == int(written)
    assert shown["models"][0]["release_date"].startswith("20")


def test_the_health_s_forward_pass_does_not_wait_for_a_model_that_is_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = opened(folder)
    usual, begun, go_on = models_module.open_model, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return usual(*arguments)

    monkeypatch.setattr(models_module, "open_model", slow)
    os.utime(folder / "model.safetensors")
    opening = threading.Thread(target=models.replace, args=("m",))
    opening.start()
    try:
        assert begun.wait(60)
        models.run_in_thread(probe_once, models["m"]).result(timeout=30)
    finally:
        go_on.set()
        opening.join()
    assert models["m"].version == 2


def test_a_way_back_that_waits_for_a_model_that_is_opened_holds_nobody(tmp_path: Path) -> None:
    folder = save_fine_tuned(tmp_path / "model", "classification")
    (tmp_path / "keys").write_text(f"operator {'o' * 20} admin\n")
    given = {"keys_file": tmp_path / "keys"}
    app = make_app(read_settings([f"m={folder}"], None, given, {}))
    with threaded_server(app) as server:
        changing = app.state.service.models._changing
        key = {"authorization": f"Bearer {'o' * 20}"}
        with changing:  # as `replace` has it while it opens
            asking = threading.Thread(
                target=server.ask, args=("/admin/models/m/rollback", b"", key), daemon=True
            )
            asking.start()
            time.sleep(0.2)
            answered = threading.Event()
            health = threading.Thread(
                target=lambda: (server.ask("/health/live"), answered.set()), daemon=True
            )
            health.start()
            held = not answered.wait(10)
        asking.join()
        assert not held


def test_signals_that_come_while_models_are_opened_are_one_look_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertsmith.serving.serve import ServiceServer

    models = opened(folder)
    looks, all_signals = list[str](), threading.Event()

    def slow(name: str) -> Any:
        looks.append(name)
        all_signals.wait(30)
        return models["m"]

    monkeypatch.setattr(models, "refresh", slow)
    settings = read_settings([f"m={folder}"], None, {}, {})

    async def ask() -> None:
        server = ServiceServer(settings, models, lambda: None)
        for _ in range(10):
            server._reload()
            await asyncio.sleep(0.005)
        all_signals.set()
        assert server._reloading is not None
        await server._reloading

    asyncio.run(ask())
    assert looks == ["m", "m"]

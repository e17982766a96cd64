"""objectives.py: every objective is trained for as long, measured alike and fine-tuned alike."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_runs import RunScript

import labelled
import objectives
from bertsmith.data.tokenizing import tokenize_corpus
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training import machine
from bertsmith.training.recipe import read_recipe


class Worker:
    """Answers within the test, by way of JSON."""

    def __init__(self, script: str, side: str) -> None:
        self._answer = {"pretrain": objectives.pre_train, "finetune": objectives.fine_tune}[side]

    def ask(self, **request: Any) -> Any:
        return json.loads(json.dumps(self._answer(json.loads(json.dumps(request)))))

    def close(self) -> None:
        """Nothing to end."""


@pytest.mark.parametrize("way", objectives.WAYS)
def test_every_way_is_a_recipe_of_one_shape(way: str) -> None:
    settings = {**{f"model.{k}": v for k, v in objectives._SHAPE.items()}, **objectives._RECIPE}
    settings |= objectives.WAYS[way]
    recipe = read_recipe("budget", [f"{name}={json.dumps(value)}" for name, value in settings.items()])
    config = recipe.model.config(100, 0)
    shape = {name: getattr(config, name) for name in objectives._SHAPE}
    assert shape == objectives._SHAPE and config.embedding_size is None
    assert config.position_embedding == "learned"
    assert recipe.masking.mask_rate == 0.15


def test_a_row_says_what_was_learnt_and_what_it_is_worth() -> None:
    figures = {"mlm_accuracy": 0.25, "rtd_recall": 0.5, "rtd_precision": 0.75}
    trained = {"steps": 1200, "tokens": 2_500_000, "figures": figures}
    scores = {("rtd", "sst2"): [{"score": 0.7}, {"score": 0.8}]}
    assert objectives.row_of("rtd", trained, scores, ["sst2", "rte"]) == {
        "objective": "rtd",
        "steps": "1,200",
        "tokens": "2.5 M",
        "held-out masked pieces": "25.00% (generator)",
        "its own question": "replaced tokens: 50.0% found, 75.0% of those called are",
        "sst2, accuracy": "75.00 ± 5.00",
        "rte, accuracy": "not yet",
    }
    assert objectives.row_of(objectives.RANDOM, None, {}, ["sst2"])["held-out masked pieces"] == "–"


def write_documents(folder: Path) -> Path:
    (folder / "text").mkdir()
    for number in range(30):
        sentences = [f"{'abcdefgh'[number % 8]}{ending} of the court {number}." for ending in "stuvwxyz"]
        (folder / "text" / f"{number:02}.txt").write_text("\n".join(map(str.capitalize, sentences)))
    return folder / "text"


@pytest.mark.slow
def test_objectives_are_trained_compared_and_kept(
    run_script: RunScript,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1.0)  # takes longer than the steps
    monkeypatch.setattr(labelled, "DATA", tmp_path / "data")
    monkeypatch.setattr(labelled, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(objectives, "_PLACE", tmp_path / "kept" / "objectives")
    monkeypatch.setattr(labelled, "Worker", Worker)
    short = replace(objectives.DATA["sst2"], columns=objectives.DATA["sst2"].columns | {"max_length": 32})
    monkeypatch.setitem(objectives.DATA, "sst2", short)
    (tmp_path / "data" / "sst2").mkdir(parents=True)
    for name in ("train", "dev"):
        rows = [f"{'a good cat' if n % 2 else 'the bad dog'} {n}\t{n % 2}" for n in range(40)]
        (tmp_path / "data" / "sst2" / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    settings = CorpusSettings(heldout=0.3, near_duplicates=False)
    corpus = build_corpus([str(write_documents(tmp_path))], tmp_path / "corpus", settings=settings, workers=1)
    tokenize_corpus(corpus, Tokenizer.load(tiny_model), tmp_path / "store")
    options = ("--store", str(tmp_path / "store"), "--tokenizer", str(tiny_model), "--minutes", "0.02")
    options += ("--data", "sst2", "--rows", "12", "--ways", "mlm", "sop", "spans", "rtd")
    run_script(objectives, *options)
    first = capsys.readouterr().out
    table = [line.strip("| ").split(" | ") for line in first.splitlines() if line.startswith("| ")]
    rows = {cells[0]: cells for cells in table[-5:]}
    assert list(rows) == ["mlm", "sop", "spans", "rtd", objectives.RANDOM]
    assert rows["rtd"][3].endswith("% (generator)") and rows["rtd"][4].startswith("replaced tokens")
    assert rows["sop"][4].startswith("order: ")
    assert all(0 <= float(cells[5]) <= 100 for cells in rows.values())
    monkeypatch.setattr(labelled, "Worker", None)  # what is kept is not run again
    run_script(objectives, *options)
    assert capsys.readouterr().out.splitlines()[-14:] == first.splitlines()[-14:]

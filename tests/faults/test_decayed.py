"""Warm-up, stable phase and decay: killed in any, and a decay that begins in another run's stable phase."""

import json
import re
import shutil
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from evidence import Evidence, evidence
from nursery import Attempt, Settings, finish
from places import Fault
from tiny_run import OPTIMIZERS, NewRun

from bertsmith.errors import BertsmithError, ModelError, RecipeError
from bertsmith.files import read_json
from bertsmith.planning.plan import plan
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
from bertsmith.text.corpus.building import build_corpus
from bertsmith.text.corpus_settings import CorpusSettings
from bertsmith.text.tokens.value_tokenizers import load_tokenizer
from bertsmith.training import pretrain as pretraining
from bertsmith.training.checkpoint import read_training_state
from bertsmith.training.log import RunLog
from bertsmith.training.pretraining_report import fill_masks
from bertsmith.training.recipe import check_recipe

STEPS, DECAY = 24, 10  # of the long run, a quarter of which is its decay, and of those that begin from it
# The weights change once a step. In the order of the attempts: warm-up, stable phase, decay.
DEATHS_OF_LONG = [Fault("before the weights change", 3), Fault("after the weights changed", 11)]
DEATHS_OF_LONG += [Fault("between two micro-batches", 30), Fault("in the middle of a tensor file", 4)]
DEATHS_OF_DECAY = [Fault("between two micro-batches", 3), Fault("after the weights changed", 7)]
KINDS = ["muon", pytest.param("adamw", marks=pytest.mark.slow)]
RANKS = [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]


def long_run(new_run: NewRun, kind: str, **changes: object) -> Settings:
    optimizer = OPTIMIZERS[kind] | {"schedule": "wsd", "decay": 0.25}
    saved, masking = {"every": 4, "keep": 9}, {"mask_rate": 0.4, "final_mask_rate": 0.1}
    run = new_run(steps=STEPS, optimizer=optimizer, checkpoint=saved, masking=masking)
    return run | {"loss": {"sampled_pieces": 12}} | changes


def decay_of(long: Settings, new_run: NewRun, origin: str = "") -> Settings:
    """A run that begins from a long one, or from a checkpoint of it."""
    decayed = {"decay_from": str(Path(long["out"]) / origin), "steps": DECAY}
    return long | decayed | {"out": new_run()["out"], "checkpoint": {"every": 3, "keep": 2}}


def killed_and_finished(settings: Settings, faults: list[Fault], ranks: int = 1) -> Evidence:
    for fault in faults:
        assert -SIGKILL in Attempt(settings, [fault], ranks=ranks).wait(), fault
    finish(settings, ranks=ranks)
    return evidence(Path(settings["out"]))


@pytest.fixture(scope="module")
def longs(new_run: NewRun) -> dict[str, Settings]:
    """A finished long run for each optimizer."""
    known = {kind: long_run(new_run, kind) for kind in OPTIMIZERS}
    for settings in known.values():
        finish(settings)
    return known


def steps(out: str) -> list[dict[str, Any]]:
    return [record for record in RunLog.read(Path(out)) if record["kind"] == "step"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_in_warm_up_stable_phase_and_decay(
    kind: str, new_run: NewRun, longs: dict[str, Settings]
) -> None:
    found = killed_and_finished(long_run(new_run, kind), DEATHS_OF_LONG)
    assert found == evidence(Path(longs[kind]["out"]))
    rates = [step["learning_rate"] for step in found.steps]
    peak = OPTIMIZERS[kind]["learning_rate"]
    assert max(rates) == peak and rates[4:18] == [peak] * 14
    assert rates[17] > rates[18] > rates[23] > 0
    decayed = [0.0] * 18 + [(step + 0.5) / 6 for step in range(6)]
    assert [step["mask_rate"] for step in found.steps] == pytest.approx([0.4 - 0.3 * x for x in decayed])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", RANKS)
def test_a_decay_killed_before_its_first_checkpoint_and_later(
    kind: str, ranks: int, new_run: NewRun, longs: dict[str, Settings]
) -> None:
    """Four ranks go on from what one has saved."""
    whole, broken = (decay_of(longs[kind], new_run) for _ in range(2))
    finish(whole, ranks=ranks)
    found = killed_and_finished(broken, DEATHS_OF_DECAY, ranks)
    assert found == evidence(Path(whole["out"]))
    assert [step["step"] for step in found.steps] == list(range(1, DECAY + 1))
    rates = [step["learning_rate"] for step in found.steps]
    assert rates == sorted(rates, reverse=True)
    mask_rates = [0.4 - 0.3 * (step + 0.5) / DECAY for step in range(DECAY)]
    assert [step["mask_rate"] for step in found.steps] == pytest.approx(mask_rates)
    origin = Path(longs[kind]["out"]) / "checkpoints" / "step-00000016"
    provenance = read_json(Path(whole["out"]) / "model" / "bertsmith.json")["provenance"]
    assert provenance["recipe"]["decay_from"] == str(origin)


def test_a_report_shows_what_the_checkpoint_filled_in_before_the_decay(
    new_run: NewRun, longs: dict[str, Settings]
) -> None:
    long = Path(longs["muon"]["out"])
    decayed = decay_of(longs["muon"], new_run)
    finish(decayed)
    decay = Path(decayed["out"])
    before, untrained = ([each["before"] for each in read_json(run / "fills.json")] for run in (decay, long))
    assert before != untrained
    begun, _ = load_pretraining_model(decay / "model")
    begun.load_state_dict(read_training_state(long / "checkpoints/step-00000016").weights)
    texts = [each["text"] for each in read_json(decay / "fills.json")]
    expected = fill_masks(begun, load_tokenizer(decay / "model"), texts)
    assert [dict(each) for each in before] == [pytest.approx(dict(each), rel=1e-3) for each in expected]


@pytest.mark.slow
def test_two_that_divide_the_weights_decay_from_what_one_has_saved(
    new_run: NewRun, longs: dict[str, Settings]
) -> None:
    whole, broken = (decay_of(longs["adamw"], new_run) for _ in range(2))
    for settings in (whole, broken):
        settings["hardware"] = settings["hardware"] | {"shard": "full"}
    finish(whole, ranks=2)
    assert killed_and_finished(broken, DEATHS_OF_DECAY, ranks=2) == evidence(Path(whole["out"]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_decay_is_the_end_of_the_run_planned_so_from_the_beginning(kind: str, new_run: NewRun) -> None:
    """Without dropout, which is drawn by the number of the step; in one phase."""
    smooth = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    base = long_run(new_run, kind)
    base["model"] |= smooth
    base["data"] |= {"sequence_lengths": [16], "sequence_shares": [1.0]}
    planned = base | {"steps": 16 + DECAY, "optimizer": base["optimizer"] | {"decay": DECAY}}
    long = base | {"out": new_run()["out"], "steps": 40}
    for settings in (planned, long):
        finish(settings)
    decayed = decay_of(long, new_run, "checkpoints/step-00000016")
    finish(decayed)
    expected, found = steps(planned["out"])[16:], steps(decayed["out"])
    assert steps(long["out"])[20]["loss"] != expected[4]["loss"]
    for name in ("loss", "learning_rate", "gradient_norm", "mask_rate"):
        assert [each[name] for each in found] == pytest.approx([each[name] for each in expected], rel=1e-3)


def test_a_decay_goes_on_though_the_long_run_has_newer_checkpoints_or_is_gone(
    new_run: NewRun, longs: dict[str, Settings], tmp_path: Path
) -> None:
    """The first attempt dies before it has a checkpoint of its own, and keeps to what it began from."""
    copied = Path(longs["adamw"]["out"]).rename(tmp_path / "long")
    later = copied / "checkpoints" / "step-00000016"
    hidden = later.rename(tmp_path / later.name)
    try:
        long = longs["adamw"] | {"out": str(copied)}
        whole, broken = (decay_of(long, new_run) for _ in range(2))
        finish(whole)
        assert Attempt(broken, [Fault("before the weights change", 2)]).wait() == [-SIGKILL]
        hidden.rename(later)
        assert Attempt(broken, [Fault("before the weights change", 8)]).wait() == [-SIGKILL]
    finally:
        copied.rename(longs["adamw"]["out"])
    finish(broken)
    assert evidence(Path(broken["out"])) == evidence(Path(whole["out"]))


def test_a_decay_never_goes_back_to_shorter_texts(new_run: NewRun, longs: dict[str, Settings]) -> None:
    """The long run is in its second phase at step 16 of 24; the decay's own shares begin with the first."""
    decayed = decay_of(longs["muon"], new_run)
    finish(decayed)
    assert evidence(Path(decayed["out"])).phases == {0: 32}
    assert {step["phase"] for step in steps(decayed["out"])} == {1}
    for length in ({"steps": DECAY}, {"steps": None, "hours": 1e-3}):  # and is planned so
        planned = plan(check_recipe(decayed | length | {"hardware": {}}, "test"), hardware="h100").phases
        assert [phase.steps > 0 for phase in planned] == [False, True]


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "checkpoints/step-00000020", "names no checkpoint of a stable phase (found: step-00000020)"),
    ({}, "checkpoints/step-00000024", "names no checkpoint of a stable phase (found: step-00000024)"),
    ({}, "elsewhere", "is neither the folder of a run nor a checkpoint in one"),
    ({"seed": 3}, "", "begun with other settings: seed. Decay with the same ones"),
    ({"optimizer": {"learning_rate": 1e-4, "kind": "muon"}}, "", "settings: optimizer.learning_rate."),
    ({"optimizer": OPTIMIZERS["adamw"]}, "", "settings: optimizer.kind, optimizer.learning_rate."),
    ({"model": {"size": "tiny"}}, "", "settings: model.size, model.hidden_size"),
    ({"corpus": "another"}, "", "begun with other settings: corpus."),
]


@pytest.mark.parametrize(("changes", "origin", "sentence"), REFUSED)
def test_what_a_decay_cannot_begin_from(
    changes: dict[str, Any], origin: str, sentence: str, new_run: NewRun, longs: dict[str, Settings]
) -> None:
    settings = decay_of(longs["muon"], new_run, origin) | changes
    with pytest.raises(RecipeError) as error:
        pretraining.pretrain(check_recipe(settings, "the test"))
    assert sentence in str(error.value)
    assert not Path(settings["out"]).exists()


def test_a_run_without_a_stable_phase_or_a_damaged_checkpoint_is_refused(
    new_run: NewRun, tmp_path: Path
) -> None:
    linear = new_run(steps=4, optimizer={"warmup": 1}, checkpoint={"every": 2})
    finish(linear)
    assert "found: step-00000002, step-00000004" in refused(decay_of(linear, new_run), RecipeError)
    (Path(linear["out"]) / "checkpoints" / "step-00000004" / "state.json").write_text("{}")
    assert "step-00000004 is no whole checkpoint" in refused(decay_of(linear, new_run), ModelError)


def test_the_text_is_that_of_the_long_run_or_the_decay_is_refused(
    corpus: Path, new_run: NewRun, tmp_path: Path
) -> None:
    """A place in the text would be another one in a corpus that was built anew."""
    own = shutil.copytree(corpus, tmp_path / "corpus")
    long = long_run(new_run, "adamw", corpus=str(own))
    finish(long)
    own_store, made_again = (decay_of(long, new_run) for _ in range(2))
    own_store["corpus"] = str(Path(long["out"]) / "tokens")
    for settings in (own_store, made_again):
        finish(settings)
    assert evidence(Path(own_store["out"])) == evidence(Path(made_again["out"]))
    assert re.search(r"Pre-training text: [\d,]+ documents, [\d,]+ tokens", card_of(own_store))
    assert re.search(r"Pre-training text: [\d,]+ documents, [\d,]+ words", card_of(made_again))
    assert "of the long run" in card_of(own_store)
    shutil.rmtree(own)
    other = CorpusSettings(heldout=0.5)
    texts = [str(path) for path in sorted(corpus.parent.glob("*.txt"))]
    build_corpus(texts, own, settings=other, workers=1, progress=None)
    assert "was trained on another corpus than" in refused(decay_of(long, new_run), RecipeError)


def card_of(settings: Settings) -> str:
    return (Path(settings["out"]) / "model" / "README.md").read_text()


def refused(settings: Settings, kind: type[BertsmithError]) -> str:
    with pytest.raises(kind) as error:
        pretraining.pretrain(check_recipe(settings, "the test"))
    return str(error.value)


def test_a_token_store_that_was_built_again_since_the_long_run_is_refused(
    longs: dict[str, Settings], new_run: NewRun, tmp_path: Path
) -> None:
    """The long run's place in it would be another one."""
    store = tmp_path / "store"
    shutil.copytree(Path(longs["muon"]["out"]) / "tokens", store)
    long = long_run(new_run, "muon") | {"corpus": str(store)}
    finish(long)
    hashes = Path(long["out"]) / "data.json"
    hashes.write_text(json.dumps({"corpus": "of other tokens"}))
    assert "The file given as corpus has changed since" in refused(decay_of(long, new_run), RecipeError)

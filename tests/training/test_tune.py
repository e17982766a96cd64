"""A search over settings: its proposals, that it goes on after a kill, and that its best can be had again."""

import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from finetune_toys import tiny_encoder, write_rows
from safetensors.torch import load_file

from bertsmith.cli.main import main
from bertsmith.errors import DiskFull, MissingExtra, RecipeError
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.heads.linear_start import LinearProbe
from bertsmith.training import finetune_recipe, machine
from bertsmith.training.finetuning import report as finetune_report
from bertsmith.training.finetuning import tune as tuning
from bertsmith.training.finetuning.finetune import finetune
from bertsmith.training.finetuning.search import (
    COMPLETE,
    DIVERGED,
    PRUNED,
    SettingSearch,
    Trial,
    begin_search,
    best_trial,
    build_study,
    make_search,
    measure_importance,
    open_search,
)
from bertsmith.training.finetuning.task_run import TaskRun
from bertsmith.training.finetuning.tune import TuneResult, tune

pytest.importorskip("optuna")

SMALL = (
    "trials=6",
    "search.learning_rate=[1e-4,0.02]",
    "search.epochs=[1,3]",
    "search.batch_size=[8,16]",
    "optimizer.warmup=0.1",
    "dropout=0",
    "max_length=32",
    "hardware.threads=1",
)
NAMES = {"optimizer.learning_rate", "optimizer.layer_decay", "epochs", "batch_size", "freeze_layers"}
VALUES = {"task": "classification", "model": "m", "train": "t", "out": "o"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose speed needs no measuring."""
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1e11)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tune")
    return {
        "model": str(tiny_encoder(folder / "encoder")),
        "train": str(write_rows(folder / "train.jsonl", "classification", 64)),
        "dev": str(write_rows(folder / "dev.jsonl", "classification", 40, seed=1)),
    }


@pytest.fixture(scope="module")
def found(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    """A search of six trials without a stop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "matmul_flops", lambda *_, **__: 1e11)
        return search(files, tmp_path_factory.mktemp("found") / "search")


def search(files: dict[str, str], out: Path, *overrides: str, **named: Any) -> TuneResult:
    return tune("classification", *SMALL, *overrides, **files, out=str(out), **named)


def timeless(trials: list[Trial]) -> list[tuple[Any, ...]]:
    return [(each.number, each.choice, each.state, each.score, each.steps, each.scores) for each in trials]


# -- a whole search ----------------------------------------------------------------------------------------


def test_the_baseline_comes_first_and_the_others_differ_within_the_bounds(found: TuneResult) -> None:
    baseline, *others = [trial.choice for trial in found.trials]
    assert baseline == {
        "optimizer.learning_rate": 0.014,  # chosen for two layers of 16
        "optimizer.layer_decay": 0.75,
        "epochs": 3,  # of 10 for few rows: the nearest within the bounds
        "batch_size": 16,  # of 32
        "freeze_layers": 0,
    }
    assert len({json.dumps(choice) for choice in others}) == 5
    for choice in others:
        assert 1e-4 <= choice["optimizer.learning_rate"] <= 0.02
        assert 0.7 <= choice["optimizer.layer_decay"] <= 1
        assert choice["epochs"] in range(1, 4) and choice["batch_size"] in (8, 16)
        assert choice["freeze_layers"] in (0, 1)


def test_the_best_is_the_highest_score_and_what_it_says_is_trained_again_by_finetune(
    found: TuneResult, files: dict[str, str], tmp_path: Path
) -> None:
    """To the bit: a trial takes the steps that a run of its own takes."""
    ended = [trial.score or 0.0 for trial in found.trials if trial.state == COMPLETE]
    assert found.best.score == max(ended)
    settings = [f"{name}={value}" for name, value in found.best.choice.items()]
    fixed = [change for change in SMALL if not change.startswith(("trials", "search"))]
    again = finetune("classification", *fixed, *settings, **files, out=str(tmp_path / "again"))
    assert again.results.restarts[0][:4] == found.results.restarts[0][:4]
    assert again.results.restarts[0].score == found.best.score
    kept, run = (
        load_file(folder / "model" / "model.safetensors") for folder in (found.out, tmp_path / "again")
    )
    assert all(bool((kept[name] == run[name]).all()) for name in run)


def test_the_folder_holds_the_best_model_its_recipe_and_a_page(
    found: TuneResult, files: dict[str, str]
) -> None:
    out = found.out
    evaluated = Predictor.load(out / "model").evaluate(files["dev"], files["train"])
    assert evaluated.model["accuracy"] == pytest.approx(found.best.score)
    assert [path.parts[-3] for path in out.glob("trials/*/best/weights.safetensors")] == [
        str(found.best.number)
    ]
    assert not list(out.glob("trials/*/checkpoints"))
    assert finetune_report.format_command(found.recipe) in (out / "best.toml").read_text()
    page = (out / "report.html").read_text()
    assert "0 (baseline)" in page and "Score by optimizer.learning_rate" in page
    assert json.loads((out / "results.json").read_text())["evaluations"]["dev"]["rows"] == 40


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_search_of_similarity_keeps_the_encoder_that_training_makes_no_better(
    precision: str, files: dict[str, str], tmp_path: Path
) -> None:
    """As `finetune` does: it is measured before the first step."""
    rows = {
        "model": files["model"],
        "train": str(write_rows(tmp_path / "train.jsonl", "similarity", 64)),
        "dev": str(write_rows(tmp_path / "dev.jsonl", "similarity", 40, seed=1)),
    }
    settings = ("epochs=1", "optimizer.learning_rate=1e-12", "max_length=32", "hardware.threads=1")
    settings += (f"hardware.precision={precision}",)
    found = tune("similarity", "trials=1", *settings, **rows, out=str(tmp_path / "search"))
    again = finetune("similarity", *settings, **rows, out=str(tmp_path / "again"))
    assert again.results.restarts[0].step == 0
    assert found.results.restarts[0][:4] == again.results.restarts[0][:4]


def test_importance_is_shared_out_among_what_was_searched(found: TuneResult) -> None:
    assert set(found.importance) in (set(), NAMES)
    if found.importance:
        assert sum(found.importance.values()) == pytest.approx(1)


# -- few rows and no dev ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_few_rows_judge_trials_in_turn_and_the_best_learns_from_all(
    files: dict[str, str], tmp_path: Path
) -> None:
    rows = {"model": files["model"], "train": files["train"]}
    short = [change for change in SMALL if not change.startswith("trials")]
    found = tune("classification", *short, "trials=2", **rows, out=str(tmp_path / "search"))
    assert found.results.judge == "cross-validation"
    assert found.results.train_rows == 64
    best = found.best
    assert found.results.restarts[0].score == best.score
    assert found.results.evaluations["cross-validation"].model["accuracy"] == pytest.approx(best.score)
    assert " by cross-validation." in (tmp_path / "search" / "best.toml").read_text()
    settings = [f"{name}={value}" for name, value in best.choice.items()]
    fixed = [change for change in short if not change.startswith("search")]
    again = finetune("classification", *fixed, *settings, "method=full", **rows, out=str(tmp_path / "again"))
    kept, run = (load_file(folder / "model.safetensors") for folder in (found.out / "model", again.model))
    assert all(torch.equal(kept[name], run[name]) for name in kept)
    longer = tune("classification", *short, "trials=3", **rows, out=str(tmp_path / "search"), resume=True)
    assert timeless(longer.trials)[:2] == timeless(found.trials)


@pytest.mark.slow
def test_the_command_in_best_toml_judges_by_as_many_folds_whatever_they_take(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search judges by all of them; a run of its own by as many as its work allows."""
    rows = {"model": files["model"], "train": files["train"]}
    quick = ("epochs=1", "trials=1", "max_length=32", "hardware.threads=1")
    found = tune("classification", *quick, **rows, out=str(tmp_path / "search"))
    monkeypatch.setattr(finetune_recipe, "_MINUTES", 0.0)
    monkeypatch.setattr(finetune_recipe, "_MINUTES_A_ROW", 0.0)
    monkeypatch.chdir(tmp_path)
    typed = (tmp_path / "search" / "best.toml").read_text().splitlines()[1].removeprefix("# bertsmith ")
    assert typed == finetune_report.format_command(found.recipe).removeprefix("bertsmith ")
    assert main(shlex.split(typed)) == 0
    kept, again = (
        (folder / "predictions" / "cross-validation.jsonl").read_text()
        for folder in (tmp_path / "search", tmp_path / "runs" / "again")
    )
    assert len(kept.splitlines()) == 64
    assert again == kept  # probabilities by one temperature


def test_a_method_without_these_settings_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="method = linear has none of the settings"):
        search(files, tmp_path / "search", "method=linear")


# -- going on ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dies_in", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_a_search_stopped_in_a_trial_comes_to_the_same(
    dies_in: int, found: TuneResult, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    class Deadly(TaskRun):
        def run(self) -> None:
            super().run()
            if self.best.folder.parent.name == str(dies_in):
                raise Killed

    monkeypatch.setattr(tuning, "TaskRun", Deadly)
    with pytest.raises(Killed):
        search(files, tmp_path / "search")
    monkeypatch.undo()
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1e11)
    heard: list[int] = []
    again = search(files, tmp_path / "search", resume=True, on_trial=lambda trial: heard.append(trial.number))
    assert timeless(again.trials) == timeless(found.trials)
    assert heard == list(range(dies_in, 6))
    kept, whole = (load_file(out / "model" / "model.safetensors") for out in (again.out, found.out))
    assert all(bool((kept[name] == whole[name]).all()) for name in whole)


def test_another_search_in_the_same_folder_is_refused(found: TuneResult, files: dict[str, str]) -> None:
    with pytest.raises(RecipeError, match=r"already holds a search\. Go on with it by --resume"):
        search(files, found.out)
    with pytest.raises(RecipeError, match="begun with other settings: dev_share, prune"):
        search(files, found.out, "dev_share=0.3", "prune=false", resume=True)


def test_a_search_goes_on_with_whatever_a_run_may_change_and_else_names_what_differs(tmp_path: Path) -> None:
    begin_search(make_search(VALUES, ["epochs=2"]), tmp_path, {})
    may_change = ["hardware.threads=1", "log_every=5", "micro_batch_tokens=256", "guard.action=skip"]
    assert open_search(make_search(VALUES, ["epochs=2", *may_change]), tmp_path, resume=True) == []
    for change, name in (
        ("epochs=3", "epochs"),
        ("batch_size=32", "batch_size"),  # as by default, but no longer searched
        ("dev_share=0.1", "dev_share"),  # the same, but a dev is held out whatever the rows
        ("optimizer.learning_rate=1e-3", r"optimizer\.learning_rate"),
        ("search.layer_decay=[0.8,0.9]", r"search\.layer_decay"),
        ("search.batch_size=[16,32,64]", r"search\.batch_size"),  # as by default, but no longer widened
    ):
        with pytest.raises(RecipeError, match=rf"begun with other settings: {name}\. Resume"):
            open_search(make_search(VALUES, ["epochs=2", change]), tmp_path, resume=True)


def test_a_search_does_not_go_on_with_other_rows(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(run: TaskRun) -> None:
        raise Killed

    monkeypatch.setattr(TaskRun, "run", killed)
    train = tmp_path / "train.jsonl"
    rows = Path(files["train"]).read_text()
    train.write_text(rows)
    mine = files | {"train": str(train)}
    with pytest.raises(Killed):
        search(mine, tmp_path / "search")
    train.write_text(rows.replace("\n", "\n\n", 1))
    with pytest.raises(RecipeError, match="The file given as train has changed since the search in"):
        search(mine, tmp_path / "search", resume=True)
    train.write_text(rows)
    with pytest.raises(Killed):
        search(mine, tmp_path / "search", resume=True)


# -- what is searched --------------------------------------------------------------------------------------


def test_what_is_given_is_not_searched() -> None:
    given = make_search(VALUES, ["batch_size=8", "optimizer.learning_rate=1e-3", "trials=3"])
    assert given.baseline(4).keys() == NAMES - {"batch_size", "optimizer.learning_rate"}
    assert given.recipe_of({"epochs": 5}).batch_size == 8
    assert given.settings.trials == 3
    with_lora = make_search(VALUES, ["lora.rank=4"])
    assert with_lora.baseline(4).keys() == NAMES - {"freeze_layers"}


def test_what_is_given_in_a_table_is_not_searched() -> None:
    given = {"optimizer": {"learning_rate": 3e-5, "weight_decay": 0.1}}
    for search in (make_search(VALUES | given, []), make_search(VALUES, ["optimizer={learning_rate=3e-5}"])):
        assert search.baseline(4).keys() == NAMES - {"optimizer.learning_rate"}
        assert search.recipe_of({"optimizer.layer_decay": 0.9}).optimizer.learning_rate == 3e-5


def of_minilm(*changes: str) -> SettingSearch:
    """On 60 rows: rates for 384 by 6 layers, and 10 epochs."""
    search = make_search(VALUES, list(changes))
    return replace(search, recipe=search.recipe.complete(384, 6, 2))


def test_bounds_that_are_given_are_kept_and_the_baseline_is_the_nearest_within() -> None:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    search = of_minilm(
        "search.learning_rate=[1e-6,1e-5]",
        "search.layer_decay=[0.9,1]",
        "search.epochs=[1,2]",
        "search.batch_size=[8,16,64]",
        "search.freeze_layers=[2,3]",
    )
    assert search.distributions(6) == {
        "optimizer.learning_rate": FloatDistribution(1e-6, 1e-5, log=True),
        "optimizer.layer_decay": FloatDistribution(0.9, 1.0, log=True),
        "epochs": IntDistribution(1, 2),
        "batch_size": CategoricalDistribution((8, 16, 64)),
        "freeze_layers": IntDistribution(2, 3),
    }
    assert search.baseline(6) == {
        "optimizer.learning_rate": 1e-5,
        "optimizer.layer_decay": 0.9,
        "epochs": 2,
        "batch_size": 16,  # of 32
        "freeze_layers": 2,
    }


def test_a_limit_of_less_than_an_epoch_is_searched_as_one_epoch() -> None:
    search = of_minilm()
    few = search.recipe.model_copy(update={"epochs": 0.12})  # as for 2,100 rows by BERT-base
    limited = replace(search, recipe=few)
    baseline, space = limited.baseline(6), limited.distributions(6)
    assert baseline["epochs"] == 1 and (space["epochs"].low, space["epochs"].high) == (1, 6)
    assert limited.shortest_recipe(space).epochs == 1


def test_bounds_by_default_are_widened_to_the_baseline() -> None:
    search = of_minilm("freeze_embeddings=true")
    baseline, space = search.baseline(6), search.distributions(6)
    assert baseline["epochs"] == 10 and (space["epochs"].low, space["epochs"].high) == (2, 10)
    assert space["batch_size"].choices == (16, 32, 64)
    assert (space["freeze_layers"].low, space["freeze_layers"].high) == (0, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["epochs=1", "search.epochs=[5,6]"], "search.epochs has no effect, since epochs is given"),
        (
            ["optimizer={learning_rate=1e-3}", "search.learning_rate=[1e-4,1e-3]"],
            "since optimizer.learning_rate",
        ),
        (
            ["lora.rank=4", "search.freeze_layers=[0,2]"],
            "search.freeze_layers has no effect: freeze_layers isn't",
        ),
    ],
)
def test_bounds_of_what_is_not_searched_are_refused(changes: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        make_search(VALUES, changes)


def test_bounds_of_frozen_layers_are_refused_for_a_model_of_one_layer() -> None:
    with pytest.raises(
        RecipeError, match=r"search\.freeze_layers has no effect: freeze_layers isn't searched"
    ):
        of_minilm("search.freeze_layers=[0,1]").distributions(1)


def test_a_choice_becomes_the_recipe_of_its_trial() -> None:
    choice = {"optimizer.learning_rate": 1e-3, "epochs": 5, "freeze_layers": 2}
    recipe = make_search(VALUES, ["optimizer.weight_decay=0.1"]).recipe_of(choice)
    adam = recipe.optimizer
    assert (adam.learning_rate, adam.weight_decay, recipe.epochs, recipe.freeze_layers) == (1e-3, 0.1, 5, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("trails=3", "unknown key 'trails'. Did you mean 'trials'"),
        ("lr=3e-5", "unknown key 'lr'. Did you mean 'optimizer.learning_rate'?"),
        ("device=cpu", "unknown key 'device'. Did you mean 'hardware.device'?"),
        ("layer_decay=0.9", "Did you mean 'search.layer_decay' or 'optimizer.layer_decay'?"),
        ("search.epoch=[1,2]", "unknown key 'search.epoch'. Did you mean 'search.epochs'"),
        ("search.learning_rate=[1e-3,1e-5]", "needs two bounds"),
        ("search.layer_decay=[0.5,1.5]", "at most 1"),
        ("search.learning_rate=[1e-4,5]", "learning_rate is at most 1"),
        ("trials=0", "trials"),
        ("restarts=3", "restarts are not searched"),
        ("unlabelled=texts.txt", "trials don't learn from unlabelled texts"),
    ],
)
def test_an_impossible_search_is_refused(change: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message.replace("?", r"\?")):
        make_search(VALUES, [change])


def test_more_frozen_layers_than_the_model_has_are_refused_before_anything_is_written(
    files: dict[str, str], tmp_path: Path
) -> None:
    expected = r"^search\.freeze_layers = \[0,12\], but the model has 2 layers\. Give bounds up to 2\.$"
    with pytest.raises(RecipeError, match=expected):
        search(files, tmp_path / "search", "search.freeze_layers=[0,12]")
    assert not (tmp_path / "search").exists()


@pytest.mark.parametrize("learn", [tune, finetune])
@pytest.mark.parametrize("judge", ["dev", "folds"])
def test_a_model_that_finds_no_room_on_the_disk_is_refused_before_anything_is_trained(
    learn: Callable[..., object],
    judge: str,
    files: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = files if judge == "dev" else {name: path for name, path in files.items() if name != "dev"}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    monkeypatch.setattr(LinearProbe, "of", None)
    with pytest.raises(DiskFull, match=r"^Saving the model needs about 0\.\d MB in .*, but 0\.0 MB are free"):
        learn("classification", "max_length=32", **given, out=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", ["freeze_layers=2", "search.freeze_layers=[0,2]"])
@pytest.mark.parametrize("judge", ["dev", "folds"])
def test_a_search_that_may_freeze_all_that_is_trained_is_refused_before_anything_is_written(
    given: str, judge: str, files: dict[str, str], tmp_path: Path
) -> None:
    rows = {name: str(write_rows(tmp_path / f"{name}.jsonl", "similarity", 40)) for name in ("train", "dev")}
    if judge == "folds":
        del rows["dev"]
    settings = ("trials=1", "max_length=32", "hardware.threads=1", given)
    with pytest.raises(RecipeError, match=r"^freeze_layers = 2 leaves nothing to train: similarity has no"):
        tune("similarity", *settings, model=files["model"], **rows, out=str(tmp_path / "search"))
    assert not (tmp_path / "search").exists()


def test_a_search_that_may_leave_a_row_of_retrieval_without_negatives_is_refused(
    files: dict[str, str], tmp_path: Path
) -> None:
    rows = [json.dumps({"query": f"bano {n}", "positive": f"delo {n}"}) for n in range(40)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(rows))
    places = {"train": str(tmp_path / "pairs.jsonl"), "out": str(tmp_path / "search")}
    settings = ("trials=1", "max_length=32", "hardware.threads=1", "search.batch_size=[1,8]")
    with pytest.raises(
        RecipeError, match=r"^batch_size = 1 leaves .*pairs\.jsonl, line 1 without a negative"
    ):
        tune("retrieval", *settings, model=files["model"], **places)
    assert not (tmp_path / "search").exists()


def test_without_optuna_the_install_line_is_given(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"pip install 'bertsmith\[tune\]'"):
        search(files, tmp_path / "search")
    assert not (tmp_path / "search").exists()


# -- trials as optuna sees them ----------------------------------------------------------------------------


def trial(number: int, rate: float, score: float | None, state: str = COMPLETE, *scores: float) -> Trial:
    return Trial(number, {"rate": rate}, state, score, 1.0, 10, list(scores))


def test_of_equal_trials_the_first_leads_and_only_finished_ones_can() -> None:
    some = [trial(0, 0.1, 0.5), trial(1, 0.2, 0.7), trial(2, 0.3, 0.7), trial(3, 0.4, 0.9, PRUNED)]
    assert best_trial(some) == some[1]
    assert best_trial([trial(0, 0.1, None, DIVERGED)]) is None


def test_a_trial_below_the_median_at_its_second_evaluation_is_given_up() -> None:
    from optuna.distributions import FloatDistribution

    space = {"rate": FloatDistribution(0.0, 1.0)}
    known = [trial(number, 0.1 * number, 0.8, COMPLETE, 0.5, 0.8) for number in range(4)]
    asked = build_study(known, space, 0).ask(fixed_distributions=space)
    asked.report(0.1, 1)
    assert not asked.should_prune(), "the first evaluation says too little"
    asked.report(0.6, 2)
    assert asked.should_prune()


def test_a_seed_beyond_optunas_is_as_good_as_any() -> None:
    from optuna.distributions import FloatDistribution

    space = {"rate": FloatDistribution(0.0, 1.0)}
    known = [trial(number, 0.1 * number, 0.8, COMPLETE) for number in range(4)]
    for seed in (2**32 - 2, 5_000_000_000):
        drawn = build_study(known, space, seed).ask(fixed_distributions=space).params
        assert drawn == build_study(known, space, seed % 2**32).ask(fixed_distributions=space).params
        measure_importance(known, space, seed)


def test_importance_names_the_setting_that_decides() -> None:
    from optuna.distributions import FloatDistribution

    space = {"rate": FloatDistribution(0.0, 1.0), "idle": FloatDistribution(0.0, 1.0)}
    known = [
        Trial(n, {"rate": n / 20, "idle": (n * 7 % 20) / 20}, COMPLETE, n / 20, 1.0, 10) for n in range(20)
    ]
    shares = measure_importance(known, space, 0)
    assert shares["rate"] > 0.8 and sum(shares.values()) == pytest.approx(1)
    assert measure_importance(known[:2], space, 0) == {}


def test_the_command_line_tells_of_each_trial_and_goes_on_to_more(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "search")
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    command = ["tune", "classification", *options, "--out", out, *SMALL[1:]]
    assert main([*command, "trials=1"]) == 0
    told = capsys.readouterr().out
    assert "trial 0: " in told and "optimizer.learning_rate=0.014" in told
    assert main([*command, "trials=2", "--resume"]) == 0
    told = capsys.readouterr().out
    assert "trial 1: " in told and "trial 0: " not in told
    assert len(json.loads((tmp_path / "search" / "trials.json").read_text())) == 2

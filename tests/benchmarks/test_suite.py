"""A benchmark run whole: seeds, what is kept, that it goes on where it was, the search, several processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmark_toys import QUICK, write_mrpc, write_sst2, write_stsb
from safetensors.numpy import load_file, save_file
from sklearn.metrics import accuracy_score

from bertsmith.benchmarks import seed_run, suite
from bertsmith.benchmarks.glue import glue_suite
from bertsmith.benchmarks.results import BenchmarkResult, TaskResult, published_table
from bertsmith.benchmarks.seed_run import ChosenSettings, SeedScore, finetune_arguments, search_settings
from bertsmith.benchmarks.suite import Share, SuiteSettings, find_own_share, run_suite
from bertsmith.cli.main import main
from bertsmith.errors import RecipeError
from bertsmith.training.settings import read_toml

SUITE = glue_suite()
SETTINGS = SuiteSettings(("SST-2", "MRPC"), seeds=2, overrides=QUICK)


@pytest.fixture(scope="module")
def glue_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glue_data")
    for write in (write_sst2, write_mrpc, write_stsb):
        write(folder)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, glue_data: Path, model: str) -> Path:
    out = tmp_path_factory.mktemp("finished") / "glue"
    run_suite(SUITE, glue_data, model, out, SETTINGS, command="bertsmith benchmark glue")
    return out


def results(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


def without_times(record: Any) -> Any:
    """The same for two runs of the same seeds."""
    if isinstance(record, dict):
        return {key: without_times(value) for key, value in record.items() if key != "seconds"}
    return [without_times(value) for value in record] if isinstance(record, list) else record


def test_figures_are_those_of_the_predictions_that_lie_there(finished: Path, glue_data: Path) -> None:
    record = results(finished)
    assert list(record["tasks"]) == ["SST-2", "MRPC"]
    for seed in record["tasks"]["SST-2"]["seeds"]:
        lines = (finished / f"SST-2/seed-{seed['seed']}/predictions/dev.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        gold = [line.split("\t")[1] for line in (glue_data / "SST-2/dev.tsv").read_text().splitlines()[1:]]
        assert seed["figures"]["dev"]["accuracy"] == accuracy_score(gold, [row["label"] for row in rows])
    assert {*record["tasks"]["MRPC"]["seeds"][0]["figures"]} == {"dev", "test"}
    means = [task["mean"] for task in record["tasks"].values()]
    assert record["average"] == pytest.approx(sum(means) / 2)


def test_what_is_handed_in_has_a_line_a_row(finished: Path, glue_data: Path) -> None:
    for name, rows in (("SST-2", 5), ("MRPC", 48)):
        lines = (finished / f"submission/{name}.tsv").read_text().splitlines()
        assert lines[0] == "index\tprediction"
        assert [line.split("\t")[0] for line in lines[1:]] == [str(number) for number in range(rows)]


def test_only_the_leading_seeds_model_is_kept(finished: Path) -> None:
    for name, task in results(finished)["tasks"].items():
        kept = [number for number in (1, 2) if (finished / name / f"seed-{number}/model").exists()]
        assert kept == [task["best_seed"]]
        assert not list((finished / name).glob("seed-*/restarts"))


def test_the_page_has_our_figures_and_the_published_with_their_sources(finished: Path) -> None:
    page = (finished / "report.html").read_text(encoding="utf-8")
    record = results(finished)
    assert f"{100 * record['tasks']['MRPC']['mean']:.1f}" in page
    for words in ("BERT-large", "Turc et al. 2019", "Warner et al. 2024", "bertsmith benchmark glue"):
        assert words in page


@pytest.mark.slow
def test_it_goes_on_where_it_was_to_the_same_figures(
    finished: Path, glue_data: Path, model: str, tmp_path: Path
) -> None:
    out = tmp_path / "glue"
    heard: list[str] = []

    def stop(name: str, found: SeedScore) -> None:
        heard.append(f"{name} {found.seed}")
        if len(heard) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_suite(SUITE, glue_data, model, out, SETTINGS, on_seed=stop)
    assert heard == ["SST-2 1", "SST-2 2", "MRPC 1"]
    done = (out / "SST-2/seed-1/score.json").stat().st_mtime_ns
    with pytest.raises(RecipeError, match=r"already holds a benchmark.*--resume"):
        run_suite(SUITE, glue_data, model, out, SETTINGS)
    run_suite(SUITE, glue_data, model, out, SETTINGS, resume=True)
    assert (out / "SST-2/seed-1/score.json").stat().st_mtime_ns == done
    assert without_times(results(out)) == without_times(results(finished))
    for path in (finished / "submission").iterdir():
        assert (out / "submission" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_a_killed_benchmark_goes_on_in_the_middle_of_a_seed(
    finished: Path, glue_data: Path, model: str, tmp_path: Path
) -> None:
    out = tmp_path / "glue"
    words = ["benchmark", "glue", str(glue_data), *QUICK, "--model", model, "--seeds", "2", "--out", str(out)]
    words += ["--tasks", "SST-2,MRPC"]
    process = subprocess.Popen([sys.executable, "-m", "bertsmith", *words], stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not list((out / "SST-2").glob("seed-*/log.jsonl")) and not list(out.glob("*/seed-*/restarts")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "submission").exists()
    assert main([*words, "--resume"]) == 0
    assert without_times(results(out))["tasks"] == without_times(results(finished))["tasks"]


def test_seeds_and_tasks_may_be_added_but_settings_not_changed(
    finished: Path, glue_data: Path, model: str, tmp_path: Path
) -> None:
    out = tmp_path / "glue"
    shutil.copytree(finished, out)
    more = SuiteSettings(("SST-2",), seeds=3, overrides=QUICK)
    found = run_suite(SUITE, glue_data, model, out, more, resume=True)
    assert [len(task.seeds) for task in found.tasks] == [3, 2]
    record = results(out)
    assert record["tasks"]["MRPC"] == results(finished)["tasks"]["MRPC"]
    assert record["average"] == pytest.approx(sum(task.mean() for task in found.tasks) / 2)
    assert "MRPC, of an earlier call, has 2 seeds, not 3" in record["notes"]
    assert "2 tasks, 2 to 3 seeds each" in (out / "report.html").read_text(encoding="utf-8")
    fewer = SuiteSettings(("SST-2",), seeds=1, overrides=QUICK)
    with pytest.raises(RecipeError, match="more than 1 seeds of SST-2 already"):
        run_suite(SUITE, glue_data, model, out, fewer, resume=True)
    write_sst2(tmp_path, rows=40)
    with pytest.raises(RecipeError, match="The file given as train, dev has changed"):
        run_suite(SUITE, tmp_path, model, out, more, resume=True)
    elsewhere = tmp_path / "other test"
    write_sst2(elsewhere, test=6)
    with pytest.raises(RecipeError, match="The file given as test has changed"):
        run_suite(SUITE, elsewhere, model, out, more, resume=True)
    other = SuiteSettings(("SST-2",), seeds=3, overrides=(*QUICK, "optimizer.weight_decay=0.1"))
    with pytest.raises(RecipeError, match="begun with other settings: overrides"):
        run_suite(SUITE, glue_data, model, out, other, resume=True)


def test_another_model_in_the_same_folder_is_not_gone_on_with(
    finished: Path, glue_data: Path, model: str, tmp_path: Path
) -> None:
    """Its seeds would be averaged with those of the old one."""
    out, folder = tmp_path / "glue", tmp_path / "model"
    shutil.copytree(model, folder)
    one = SuiteSettings(("SST-2",), seeds=1, overrides=QUICK)
    run_suite(SUITE, glue_data, str(folder), out, one)
    run_suite(SUITE, glue_data, str(folder), out, one, resume=True)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: 0.9 * tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(RecipeError, match="begun with other settings: model_files"):
        run_suite(SUITE, glue_data, str(folder), out, one, resume=True)


def test_what_was_noted_of_the_rows_of_an_earlier_call_stays(
    finished: Path, glue_data: Path, model: str, tmp_path: Path
) -> None:
    out, folder = tmp_path / "glue", tmp_path / "data"
    shutil.copytree(finished, out)
    shutil.copytree(glue_data, folder)
    (folder / "SST-2/test.tsv").unlink()
    first = SuiteSettings(("SST-2",), seeds=2, overrides=QUICK)
    run_suite(SUITE, folder, model, out, first, resume=True)
    assert any("SST-2: nothing to hand in" in note for note in results(out)["notes"])
    run_suite(SUITE, folder, model, out, SuiteSettings(("MRPC",), seeds=2, overrides=QUICK), resume=True)
    assert any("SST-2: nothing to hand in" in note for note in results(out)["notes"])


def test_all_seeds_are_judged_on_the_same_parts(model: str, tmp_path: Path) -> None:
    """The models of all but the leading seed are gone: a part with labels that comes later has no figures of
    theirs.
    """
    folder, out = tmp_path / "data", tmp_path / "glue"
    write_mrpc(folder)
    test = (folder / "MRPC/msr-para-test.tsv").rename(tmp_path / "labelled.tsv")
    once = SuiteSettings(("MRPC",), seeds=1, overrides=QUICK)
    run_suite(SUITE, folder, model, out, once)
    shutil.copy(test, folder / "MRPC/msr-para-test.tsv")
    twice = SuiteSettings(("MRPC",), seeds=2, overrides=QUICK)
    with pytest.raises(RecipeError, match=r"MRPC/seed-1 was judged on dev, and .* labels for dev, test"):
        run_suite(SUITE, folder, model, out, twice, resume=True)
    assert not (out / "MRPC/seed-2").exists()
    (folder / "MRPC/msr-para-test.tsv").unlink()
    assert len(run_suite(SUITE, folder, model, out, once, resume=True).tasks[0].seeds) == 1


def test_labels_that_are_gone_are_missed_before_anything_is_trained(
    finished: Path, glue_data: Path, model: str, tmp_path: Path
) -> None:
    out, folder = tmp_path / "glue", tmp_path / "data"
    shutil.copytree(finished, out)
    shutil.copytree(glue_data, folder)
    (folder / "MRPC/msr-para-test.tsv").unlink()
    more = SuiteSettings(SETTINGS.tasks, seeds=3, overrides=QUICK)
    with pytest.raises(RecipeError, match=r"MRPC/seed-1 was judged on dev, test, and .* labels for dev\."):
        run_suite(SUITE, folder, model, out, more, resume=True)
    assert not list(out.glob("*/seed-3"))


def test_a_score_of_dev_is_not_shown_as_one_of_test() -> None:
    """MNLI's other half is measured on dev alone, beside a task whose test has labels."""

    def task(name: str, **parts: float) -> TaskResult:
        figures = {part.replace("_", "-"): {"score": score} for part, score in parts.items()}
        return TaskResult(name, "accuracy", (SeedScore(1, figures, 0.03, {"dev": 100}, 1.0, []),))

    tasks = task("SST-2", dev=0.9, test=0.88), task("MNLI", dev=0.7, dev_mm=0.72)
    columns, rows = published_table(BenchmarkResult("glue", "mine", tasks, {}, (), ()))
    assert columns == ["", "part", "SST-2", "MNLI", "MNLI-mm"]
    assert rows == [["mine, mean", "dev", "90.0", "70.0", "72.0"], ["mine, mean", "test", "88.0", "–", "–"]]


def test_settings_are_searched_on_dev_within_the_budget_and_taken_for_every_seed(
    glue_data: Path, model: str, tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    given = ("epochs=1", "max_length=32", "dropout=0", "hardware.threads=1")
    given = (*given, "search.batch_size=[8]", "prune=false")  # of the search alone
    out = tmp_path / "glue"
    settings = SuiteSettings(("SST-2",), seeds=2, hours=1e-6, overrides=given)
    found = run_suite(SUITE, glue_data, model, out, settings)
    searched = found.tasks[0].searched
    assert searched is not None
    assert searched["trials"] == 1  # the budget is spent after the first, which is the baseline
    assert "epochs" not in searched["choice"]
    for number in (1, 2):
        recipe = read_toml(out / f"SST-2/seed-{number}/recipe.toml", "recipe")
        assert recipe["epochs"] == 1
        assert recipe["optimizer"]["learning_rate"] == searched["choice"]["optimizer.learning_rate"]
        assert recipe["batch_size"] == searched["choice"]["batch_size"]
    before = (out / "SST-2/search/chosen.json").stat().st_mtime_ns
    run_suite(SUITE, glue_data, model, out, settings, resume=True)
    assert (out / "SST-2/search/chosen.json").stat().st_mtime_ns == before


def test_a_search_that_is_killed_while_it_clears_up_is_not_lost(
    glue_data: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    task, out = SUITE.tasks[1], tmp_path / "search"
    files = task.prepare(glue_data, tmp_path / "data", None)
    given = ["epochs=1", "max_length=32", "dropout=0", "hardware.threads=1", "search.batch_size=[8]"]

    def search() -> ChosenSettings:
        return search_settings(
            task.head, given, finetune_arguments(task, files, model), out, 1e-6, lambda _: None
        )

    def killed(folder: Path, **how: Any) -> None:
        shutil.rmtree(folder, **how)
        if folder.name == "trials":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(seed_run, "shutil", SimpleNamespace(rmtree=killed))
        with pytest.raises(KeyboardInterrupt):
            search()
    assert not (out / "trials").exists()
    assert search().choice == json.loads((out / "trials.json").read_text())[0]["choice"]
    assert not (out / "model").exists()


def test_a_task_that_is_added_is_searched_as_long_as_the_first_ones(
    glue_data: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    asked = []

    def search(*given: Any) -> None:
        asked.append(given[4])
        raise KeyboardInterrupt

    monkeypatch.setattr(suite, "search_settings", search)
    for names, resume in ((("SST-2", "MRPC"), False), (("STS-B",), True)):
        with pytest.raises(KeyboardInterrupt):
            settings = SuiteSettings(names, hours=4, overrides=QUICK)
            run_suite(SUITE, glue_data, model, tmp_path / "glue", settings, resume=resume)
    assert asked == [2, 2]


@pytest.mark.slow
def test_processes_take_tasks_of_their_own_and_the_last_one_has_the_whole_table(
    finished: Path, glue_data: Path, model: str, tmp_path: Path
) -> None:
    out, once = tmp_path / "glue", SuiteSettings(SETTINGS.tasks, seeds=1, overrides=QUICK)
    run_suite(SUITE, glue_data, model, out, once, share=Share(0, 2))
    assert list(results(out)["tasks"]) == ["SST-2"]
    assert any(note.startswith("still to come: MRPC") for note in results(out)["notes"])
    run_suite(SUITE, glue_data, model, out, once, share=Share(1, 2), resume=True)
    assert not any("still to come" in note for note in results(out)["notes"])
    for name, task in results(finished)["tasks"].items():
        assert without_times(results(out)["tasks"][name]["seeds"]) == without_times(task["seeds"][:1])


def started_by_torchrun(
    monkeypatch: pytest.MonkeyPatch, *, local: int, processes: int, gpus: int | None, visible: str | None
) -> None:
    """As its process `local` of so many on a machine with so many GPUs; None where the driver doesn't say."""
    monkeypatch.setattr(suite, "_count_gpus", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    told = {"RANK": 8 + local, "WORLD_SIZE": 16, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": processes}
    for name, value in (told | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})).items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    ("gpus", "visible", "own"),
    [
        (4, None, "1"),
        (2, "4,6", "6"),
        (None, "4,6", "6"),
        (None, None, "1"),
        (None, "", ""),  # all are hidden
        (0, "", ""),
        (0, "-1", "-1"),
        (0, None, None),
    ],
)
def test_a_process_of_torchrun_has_a_device_of_its_own(
    gpus: int | None, visible: str | None, own: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_by_torchrun(monkeypatch, local=1, processes=2, gpus=gpus, visible=visible)
    assert find_own_share() == Share(9, 16)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == own


@pytest.mark.parametrize(("gpus", "visible"), [(4, None), (None, "0,1,2,3"), (4, "0,1,2,3,4,5,6,7")])
def test_more_processes_than_devices_are_refused(
    gpus: int | None, visible: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for local in (0, 7):
        started_by_torchrun(monkeypatch, local=local, processes=8, gpus=gpus, visible=visible)
        with pytest.raises(RecipeError, match=r"8 processes .* has 4 GPUs for them.*--nproc-per-node 4"):
            find_own_share()


def test_a_process_alone_has_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.delenv("RANK", raising=False)
    assert find_own_share() == Share(0, 1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,6"


@pytest.mark.slow
def test_torchrun_gives_each_process_tasks_of_its_own(
    finished: Path, glue_data: Path, model: str, tmp_path: Path
) -> None:
    words = [str(glue_data), *QUICK, "--model", model, "--seeds", "1", "--tasks", "SST-2,MRPC"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "bertsmith", "benchmark", "glue", *words, "--out", str(tmp_path / "out")]
    subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
    for name, task in results(finished)["tasks"].items():
        found = results(tmp_path / "out")["tasks"][name]
        assert without_times(found["seeds"]) == without_times(task["seeds"][:1])


def test_the_interval_counts_rows_and_seeds() -> None:
    def seed(number: int, score: float) -> SeedScore:
        return SeedScore(number, {"dev": {"score": score}}, 0.03, {"dev": 100}, 1.0, [])

    task = TaskResult("RTE", "accuracy", (seed(1, 0.6), seed(2, 0.68)))
    interval = task.interval()
    assert interval is not None
    half = 1.96 * (0.03**2 + (0.08 / 2**0.5) ** 2 / 2) ** 0.5
    assert tuple(interval) == pytest.approx((0.64 - half, 0.64 + half))
    assert task.best.seed == 2
    almost = TaskResult("SST-2", "accuracy", (seed(1, 0.99),)).interval()
    assert almost is not None and almost.high == 1.0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--tasks", "SST2"], "GLUE has no task 'SST2'. Did you mean 'SST-2'?"),
        (["--tasks", "RTE"], "has no RTE. Expected RTE/ with train.tsv"),
        (["--tasks", " ,"], "--tasks names nothing"),
        (["--seeds", "0"], "seeds must be 1 or more"),
        (["--hours", "-1"], "hours of search must be 0 or more"),
        (["--rows", "5"], "rows must be 50 or more"),
        (["restarts=3"], "restarts is the benchmark's to set"),
        (["epoks=3"], "unknown key 'epoks'. Did you mean 'epochs'?"),
        (["lora.rank=2", "freeze_layers=1"], "lora.rank freezes the whole encoder"),
        (["max_length=999"], "the model has positions for 64 tokens"),
        (["--hours", "1", "max_length=999"], "the model has positions for 64 tokens"),
        (["search.epochs=[1,2]"], "search.epochs is for the search alone. Give --hours, or leave out"),
        (["prune=false"], "prune is for the search alone"),
        (["--hours", "1", "search.epochs=[2,1]"], "search.epochs needs two bounds"),
        (["--hours", "1", "search.epoks=[1,2]"], "epoks"),
        (["--hours", "1", "method=linear"], "method = linear has none of the settings that are searched"),
        (["--hours", "1", "trials=3"], "trials is the benchmark's to set"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_trained(
    words: list[str],
    complaint: str,
    glue_data: Path,
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "--hours" in words:
        pytest.importorskip("optuna")
    out = tmp_path / "out"
    assert main(["benchmark", "glue", str(glue_data), *words, "--model", model, "--out", str(out)]) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_a_folder_without_any_task_says_what_there_should_be(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", model, "--out", str(tmp_path / "out")]
    assert main(["benchmark", "glue", str(tmp_path), *words]) == 2
    assert "CoLA/ with train.tsv, and dev.tsv" in capsys.readouterr().err
    assert main(["benchmark", "glue", str(tmp_path / "nowhere"), *words]) == 2
    assert "is not a folder" in capsys.readouterr().err
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    write_sst2(tmp_path)
    assert main(["benchmark", "glue", str(tmp_path), *words]) == 2
    assert "exists and holds no benchmark" in capsys.readouterr().err


def test_the_command_prints_our_row_above_the_published(
    glue_data: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--tasks", "sts-b", "--seeds", "1", "--model", model, "--out", str(tmp_path / "out"), *QUICK]
    assert main(["benchmark", "glue", str(glue_data), *words]) == 0
    page = capsys.readouterr().out
    score = 100 * results(tmp_path / "out")["tasks"]["STS-B"]["mean"]
    ours = next(line for line in page.splitlines() if ", mean" in line)
    assert f"{score:.1f}" in ours
    assert page.index(", mean") < page.index("BERT-tiny") < page.index("ModernBERT-large")

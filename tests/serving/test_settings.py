"""Where a service's settings come from, and what is said of wrong ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from bertsmith.cli.main import main
from bertsmith.errors import BertsmithError, InputError, RecipeError
from bertsmith.serving.app import make_app
from bertsmith.serving.settings import ENVIRONMENT, ModelSettings, ServingSettings, read_settings, usual_name


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "serving.toml"
    path.write_text(text)
    return path


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, 'models = ["a"]\nport = 1\nhost = "::1"\ntimeout_ms = 5\nlog_texts = true\n')
    environment = {
        "BERTSMITH_SERVE_PORT": "2",
        "BERTSMITH_SERVE_TIMEOUT_MS": "6",
        "BERTSMITH_SERVE_PAGE": "false",
        "PORT": "9",
    }
    found = read_settings([], file, {"port": 3, "host": None}, environment)
    assert (found.port, found.timeout_ms, found.host, found.page, found.log_texts) == (
        3,
        6,
        "::1",
        False,
        True,
    )
    assert read_settings(["b"], file, {}, environment).models == (ModelSettings(name="b", path="b"),)
    found = read_settings([], None, {}, {"BERTSMITH_SERVE_MODELS": "a n=b"})
    assert [(each.name, each.path) for each in found.models] == [("a", "a"), ("n", "b")]


@pytest.mark.parametrize("line", ["port = true", "timeout_ms = true", "workers = true"])
def test_truth_is_no_number(tmp_path: Path, line: str) -> None:
    name = line.partition(" ")[0]
    with pytest.raises(RecipeError, match=f"{name}: expected a number, found True"):
        read_settings(["minilm"], written(tmp_path, line), {}, {})


@pytest.mark.parametrize("name", [name for name in ServingSettings.model_fields if name != "models"])
def test_every_setting_may_stand_in_the_environment(name: str) -> None:
    value = getattr(read_settings(["a"], None, {}, {}), name)
    texts = {
        "host": "::1",
        "task": "a:B",
        "routes": "a:B",
        "root_path": "/b",
        "trusted_proxies": "10.0.0.0/8",
    }
    texts |= {"cors_origins": "https://a.example"}
    texts |= dict.fromkeys(("keys_file", "pid_file", "uds", "tls_cert", "tls_key"), "file")
    other: Any = texts.get(name)
    if other is None:
        other = not value if isinstance(value, bool) else (value or 0) + 9
    pair = {"BERTSMITH_SERVE_TLS_CERT": "file", "BERTSMITH_SERVE_TLS_KEY": "file"} if "tls" in name else {}
    found = getattr(read_settings(["a"], None, {}, pair | {ENVIRONMENT + name.upper(): str(other)}), name)
    if isinstance(found, tuple | Path):
        found = ",".join(found) if isinstance(found, tuple) else str(found)
    assert found == other


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("minilm", "minilm"),
        ("runs/intents/model", "intents"),
        ("../model", "model"),
        ("./a/b/", "b"),
        ("/x/model", "x"),
    ],
)
def test_a_model_is_called_as_its_folder(path: str, name: str) -> None:
    assert usual_name(path) == name


def test_a_folder_of_models_and_runs_is_all_of_them(tmp_path: Path) -> None:
    for place in (
        "b/config.json",
        "c/model/config.json",
        "c/adapter/adapter_config.json",
        "a/adapter_config.json",
    ):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).touch()
    (tmp_path / "notes").mkdir()
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "config.json").touch()
    models = read_settings([str(tmp_path), "minilm"], None, {}, {}).models
    assert [(model.name, Path(model.path)) for model in models] == [
        ("a", tmp_path / "a"),
        ("b", tmp_path / "b"),
        ("c", tmp_path / "c" / "model"),
        ("minilm", Path("minilm")),
    ]
    for one in ("b", "c", "notes"):  # a model, a run, and what is neither
        (model,) = read_settings([str(tmp_path / one)], None, {}, {}).models
        assert model.path == str(tmp_path / one)


def test_a_table_of_a_model_is_read_from_toml(tmp_path: Path) -> None:
    file = written(tmp_path, '[[models]]\nname = "n"\npath = "p"\ncompute_dtype = "int16"\n')
    (model,) = read_settings([], file, {}, {}).models
    assert model == ModelSettings(name="n", path="p", compute_dtype="int16")


@pytest.mark.parametrize(
    ("toml", "models", "given", "said"),
    [
        ("", [], {}, "There is nothing to serve. Name a model"),
        ("port = ", ["a"], {}, "is no TOML"),
        ("prot = 1", ["a"], {}, "port"),
        ("port = 99999", ["a"], {}, "port"),
        ('workers = "many"', ["a"], {}, "workers"),
        ("timeout_ms = nan", ["a"], {}, "timeout_ms"),
        ("drain_seconds = inf", ["a"], {}, "drain_seconds: expected less than or equal to 86400"),
        ("", ["a/b", "c/b"], {}, "two models are called 'b'"),
        ("", ["../=x"], {}, "name"),
        ("", ["a b=x"], {}, "name"),
        ("", ["runs/my model/model"], {}, "write NAME=FOLDER, found 'my model'"),
        ('[[models]]\nname = "n"\npath = "p"\ndtype = "int16"\n', [], {}, "dtype"),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    tmp_path: Path, toml: str, models: list[str], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(BertsmithError) as caught:
        read_settings(models, written(tmp_path, toml), given, {})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_in_place_of_the_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"can't be read: .*Expected a TOML file"):
        read_settings(["a"], tmp_path, {}, {})


def test_the_nearest_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(BertsmithError, match="Did you mean 'drain_delay'"):
        read_settings(["a"], written(tmp_path, "drain_dellay = 1"), {}, {})


def test_the_command_shows_all_settings_and_opens_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTSMITH_SERVE_PORT", "7")
    assert main(["serve", "n=absent", "--show-settings", "--no-page"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == set(ServingSettings.model_fields)
    assert (shown["port"], shown["page"]) == (7, False)
    assert shown["models"] == [{"name": "n", "path": "absent", "compute_dtype": None, "task": None}]
    for arguments in (["--config", tmp_path / "absent.toml"], ["--timeout-ms", "-1"], ["--prot", "1"]):
        assert main(["serve", "a", *map(str, arguments)]) == 2
        assert capsys.readouterr().err.startswith(("Error: ",))


def test_a_model_called_as_a_route_is_refused_before_any_is_opened(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever routes there are: each literal path that /v1/{model} would have."""
    app = make_app(read_settings(["free=absent"], None, {}, {}))
    paths = app.openapi()["paths"]
    taken = {path.split("/")[2] for path in paths if path.startswith("/v1/") and not path.startswith("/v1/{")}
    assert {"models", "embeddings", "rerank", "systemone", "decisions"} <= taken
    for name in taken:
        assert main(["serve", f"{name}=absent", "--port", "0"]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"A model can't be called '{name}': /v1/{name} is a route of the service." in said
        assert f"Not free are {', '.join(sorted(taken))}." in said
    assert main(["serve", "score=absent", "--port", "0"]) == 2
    assert "absent" in capsys.readouterr().err

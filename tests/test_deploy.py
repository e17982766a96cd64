"""The files in deploy/ are what their readers take, name only what there is, and start a service; nginx's is
started in tests/serving/test_proxies.py.
"""

import configparser
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from bertsmith.serving.admission import ApiKeys
from bertsmith.serving.app import make_app
from bertsmith.serving.settings import ENVIRONMENT, ServingSettings, read_settings
from live_server import START, Load, live_server
from served_models import save_fine_tuned

REPOSITORY = Path(__file__).parent.parent
DEPLOY = REPOSITORY / "deploy"
PAGE = (REPOSITORY / "docs" / "deployment.md").read_text("utf-8")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
SMALL = (DEPLOY / "Dockerfile.run").read_text("utf-8")
UNIT = (DEPLOY / "bertsmith.service").read_text("utf-8")


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    found = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))
    return {each["kind"]: each for each in found}


@pytest.fixture(scope="module")
def container(manifests: dict[str, Any]) -> dict[str, Any]:
    (found,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.fixture(scope="module")
def routes() -> set[str]:
    return set(make_app(read_settings(["a"], None, {}, {})).openapi()["paths"])


def instructions(text: str) -> list[tuple[str, str]]:
    """Of a Dockerfile: each with its argument, continued lines joined."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [
        (word, rest) for word, _, rest in (line.partition(" ") for line in lines if line and line[0] != "#")
    ]


def test_the_image_has_no_root_and_no_compiler() -> None:
    stages = DOCKERFILE.split("FROM ")[1:]
    last = dict(instructions("FROM " + stages[-1]))
    assert set(last) <= {
        "FROM",
        "COPY",
        "RUN",
        "USER",
        "ENV",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
    }
    assert int(last["USER"]) > 0
    assert "gcc" in stages[0]
    assert "gcc" not in stages[-1]
    assert "[serving]" in stages[-1]
    assert last["ENTRYPOINT"] == '["bertsmith", "serve"]'
    assert last["STOPSIGNAL"] == "SIGTERM"


def test_the_image_names_settings_that_there_are() -> None:
    named = re.findall(rf"{ENVIRONMENT}(\w+)=(\S+)", DOCKERFILE)
    assert len(named) == 2
    environment = {ENVIRONMENT + name: value for name, value in named}
    assert {name.lower() for name, _ in named} <= set(ServingSettings.model_fields)
    assert read_settings(["a"], None, {}, environment).host == "0.0.0.0"


def test_the_health_check_of_the_image_tells_ready_from_stopping(tmp_path: Path) -> None:
    """Its own Python, against a server of this process."""
    import http.server
    import threading

    (command,) = [rest for word, rest in instructions(DOCKERFILE) if word == "HEALTHCHECK"]
    code = yaml.safe_load(command.partition("CMD ")[2])[2]
    status = 200

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health/ready" else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        code = code.replace(":8000", f":{server.server_port}")
        try:
            for given, expected in ((200, 0), (503, 1)):
                status = given
                done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
                assert done.returncode == expected
        finally:
            server.shutdown()
            thread.join()
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 1


def test_the_torch_of_the_image_is_the_pinned_one() -> None:
    pinned = re.search(r"^torch==(\S+)", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert f"torch=={pinned[1]} " in DOCKERFILE


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT)
    return parser


def test_the_unit_starts_a_command_that_there_is() -> None:
    service = unit()["Service"]
    words = service["ExecStart"].split()
    assert words[0].endswith("/bertsmith")
    assert words[1] == "serve"
    options = [word for word in words if word.startswith("--")]
    assert {option[2:].replace("-", "_") for option in options} <= set(ServingSettings.model_fields) | {
        "config"
    }
    assert service["ExecReload"].endswith("-HUP $MAINPID")
    assert service["DynamicUser"] == "yes"


def test_a_stop_has_time_for_what_was_accepted(manifests: dict[str, Any], container: dict[str, Any]) -> None:
    settings = settings_of(manifests)
    needed = settings.drain_delay + settings.drain_seconds
    assert needed < manifests["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert needed < int(unit()["Service"]["TimeoutStopSec"])
    (stop,) = re.findall(r"--stop-timeout (\d+)", PAGE)
    assert needed < int(stop)
    readiness = container["readinessProbe"]
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < settings.drain_delay


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / "bertsmith.service"
    copy.write_text(UNIT.replace("/opt/bertsmith/bin/bertsmith", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60
    )
    about = [line for line in done.stderr.splitlines() if "bertsmith" in line]
    assert (about, done.returncode) == ([], 0)


def settings_of(manifests: dict[str, Any]) -> ServingSettings:
    toml = tomllib.loads(manifests["ConfigMap"]["data"]["serving.toml"])
    return read_settings([], None, toml, {})


def test_the_manifest_fits_together(
    manifests: dict[str, Any], container: dict[str, Any], routes: set[str]
) -> None:
    deployment = manifests["Deployment"]["spec"]
    pod = deployment["template"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["replicas"] == 2
    for selected in (
        deployment["selector"]["matchLabels"],
        manifests["Service"]["spec"]["selector"],
        manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selected.items() <= labels.items()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert manifests["Service"]["spec"]["ports"][0]["targetPort"] in ports
    assert f"{ENVIRONMENT}PORT={ports['http']}" in DOCKERFILE
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in routes
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    settings = settings_of(manifests)
    assert settings.keys_file is not None
    assert str(settings.keys_file.parent) == mounts["keys"]
    assert container["args"][1] == mounts["config"]
    assert pod["securityContext"]["runAsUser"] == int(dict(instructions(DOCKERFILE))["USER"])
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False


def read_status(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def write_keys(path: Path) -> dict[str, str]:
    """A file of keys; the headers of a client with one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"web {'w' * 24}\n")
    return {"authorization": f"Bearer {'w' * 24}"}


def test_the_units_commands_start_reload_and_stop_the_service(tmp_path: Path) -> None:
    """As systemd runs them: with its rights for new files, its copy of the keys, and its signal."""
    service = unit()["Service"]
    folder = save_fine_tuned(tmp_path / "models" / "tickets", "classification")
    bearer = write_keys(tmp_path / "credentials" / "keys")
    assert service["LoadCredential"].startswith("keys:")
    settings = f'models = ["tickets={folder}"]\ntimeout_ms = 5000\n'
    (tmp_path / "serving.toml").write_text(settings)
    command = service["ExecStart"].replace("/etc/bertsmith", str(tmp_path))
    program, word, *options = command.replace(
        "${CREDENTIALS_DIRECTORY}", str(tmp_path / "credentials")
    ).split()
    assert (program, word) == ("/opt/bertsmith/bin/bertsmith", "serve")
    mask = os.umask(int(service["UMask"], 8))
    try:
        with live_server(*options) as server:
            assert server.ask("/v1/tickets", {"inputs": "bano"}, bearer).status == 200
            assert server.ask("/v1/tickets", {"inputs": "bano"}).status == 401
            shutil.rmtree(folder)
            save_fine_tuned(folder, "classification", seed=5)
            reload = service["ExecReload"].replace("$MAINPID", str(server.process.pid))
            subprocess.run(reload.split(), check=True, timeout=60)
            server.said("version 2 is served")
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(float(service["TimeoutStopSec"])) == 0
    finally:
        os.umask(mask)
    early = [sys.executable, "-m", "bertsmith", "serve", *options, "--port", "0"]
    with subprocess.Popen(early, stderr=subprocess.DEVNULL) as process:
        process.send_signal(signal.SIGTERM)  # before there is a server
        assert -process.wait(START) + 128 in {int(each) for each in service["SuccessExitStatus"].split()}


def test_the_pod_is_ready_drains_and_ends_as_kubernetes_asks_it(
    manifests: dict[str, Any], container: dict[str, Any], tmp_path: Path
) -> None:
    """The image's entry with the container's arguments, the ConfigMap's file, the probes, and SIGTERM under
    load.
    """
    folder = save_fine_tuned(tmp_path / "models" / "intents", "classification")
    bearer = write_keys(tmp_path / "keys" / "keys")
    settings = manifests["ConfigMap"]["data"]["serving.toml"]
    for place, here in {
        "/models/intents": folder,
        "/etc/bertsmith/keys/keys": tmp_path / "keys" / "keys",
    }.items():
        assert place in settings
        settings = settings.replace(place, str(here))
    (tmp_path / "serving.toml").write_text(settings)
    last = dict(instructions(DOCKERFILE))
    assert json.loads(last["ENTRYPOINT"]) == ["bertsmith", "serve"]
    image = dict(each.split("=", 1) for each in last["ENV"].split())
    (port,) = [port["containerPort"] for port in container["ports"] if port["name"] == "http"]
    arguments = [each.replace("/etc/bertsmith", str(tmp_path)) for each in container["args"]]
    delay, grace = settings_of(manifests).drain_delay, manifests["Deployment"]["spec"]["template"]["spec"]
    (health,) = [rest for word, rest in instructions(DOCKERFILE) if word == "HEALTHCHECK"]
    _, option, code = json.loads(health.partition("CMD ")[2])
    with live_server(*arguments, environment=image) as server:
        code = code.replace(f":{port}", f":{server.port}")

        def probe(name: str) -> int:
            assert container[name]["httpGet"]["port"] == "http"
            return read_status(f"http://127.0.0.1:{server.port}{container[name]['httpGet']['path']}")

        assert [probe(f"{kind}Probe") for kind in ("startup", "readiness", "liveness")] == [200, 200, 200]
        assert subprocess.run([sys.executable, option, code], timeout=60).returncode == 0
        load = Load(server, "/v1/intents", {"inputs": ["bano delo", "kano"]}, bearer)
        with load.running(8):
            load.wait(100)
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            server.said("stopping")
            red = time.monotonic() - began
            readiness = container["readinessProbe"]
            for _ in range(readiness["failureThreshold"]):
                assert probe("readinessProbe") == 503
                time.sleep(readiness["periodSeconds"])
            assert probe("livenessProbe") == 200  # it isn't restarted meanwhile
            done = subprocess.run([sys.executable, option, code], stderr=subprocess.DEVNULL, timeout=60)
            assert done.returncode == 1
            load.wait(100)  # who hasn't noticed yet is still answered
            assert server.process.wait(grace["terminationGracePeriodSeconds"]) == 0
            seconds = time.monotonic() - began
    assert red < 2 and delay < seconds < delay + 20
    assert {answer.status for answer in load.answers.values()} == {200}
    read = {line.get("id") for line in server.log}
    assert [name for name in load.failures if name in read] == []


def test_the_page_leads_to_the_files_and_names_metrics_that_there_are() -> None:
    for name in ("Dockerfile", "bertsmith.service", "kubernetes.yaml", "nginx.conf"):
        assert f"](../deploy/{name})" in PAGE
    page = make_app(read_settings(["a"], None, {}, {}))
    metrics = page.state.metrics.render().decode()
    for metric in set(re.findall(r"bertsmith_\w+", PAGE)):
        family = re.sub(r"_(sum|count|bucket|total)$", "", metric)
        assert f"# TYPE {family} " in metrics or f"# TYPE {family}_total " in metrics, metric


def test_the_alerts_are_rules_about_reasons_and_routes_that_there_are(routes: set[str]) -> None:
    from bertsmith.serving.refusals import list_refusal_classes

    (block,) = re.findall(r"^```yaml\n(groups:.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    rules = yaml.safe_load(block)["groups"][0]["rules"]
    assert len(rules) == 3
    codes = {kind.code for kind in list_refusal_classes()}
    for rule in rules:
        assert set(rule) == {"alert", "expr", "for"}
        assert rule["expr"].count("(") == rule["expr"].count(")")
        for reasons in re.findall(r'reason=~?"([^"]+)"', rule["expr"]):
            assert set(reasons.split("|")) <= codes
        for route in re.findall(r'route="([^"]+)"', rule["expr"]):
            assert route in routes


def test_the_keys_of_the_page_are_read(tmp_path: Path) -> None:
    (lines,) = re.findall(r"^```text keys\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "keys").write_text(lines)
    keys = ApiKeys(tmp_path / "keys")
    assert keys.find_client("Bearer c4d17b9b4b0f4c7f9a53a84be1a0e6b2").admin
    assert keys.find_client("Bearer test").name == "batch"  # whose SHA-256 the page shows


def test_the_image_without_torch_serves_a_folder_until_it_is_stopped(tmp_path: Path) -> None:
    assert "gcc" not in SMALL.split("FROM ")[-1]
    last = dict(instructions("FROM " + SMALL.split("FROM ")[-1]))
    assert int(last["USER"]) > 0
    (program, *arguments), (folder,) = json.loads(last["ENTRYPOINT"]), json.loads(last["CMD"])
    assert program == "bertsmith-run" and f"{folder}:ro" in SMALL
    (health,) = [rest for word, rest in instructions(SMALL) if word == "HEALTHCHECK"]
    _, option, code = json.loads(health.partition("CMD ")[2])
    port = arguments[arguments.index("--port") + 1]
    assert port == last["EXPOSE"] and f"127.0.0.1:{port}/" in code
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        free = str(listening.getsockname()[1])
    model = save_fine_tuned(tmp_path / "model", "classification")
    started = [sys.executable, "-m", "bertsmith.runtime", *arguments, str(model)]
    started = [free if argument == port else argument for argument in started]
    with subprocess.Popen(started, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None and "serves" in server.stderr.readline()
        answered = [sys.executable, option, code.replace(f":{port}/", f":{free}/")]
        assert subprocess.run(answered, timeout=60).returncode == 0
        server.send_signal(signal.Signals[last["STOPSIGNAL"]])
        assert server.wait(timeout=60) == 0
    assert subprocess.run(answered, stderr=subprocess.DEVNULL, timeout=60).returncode == 1

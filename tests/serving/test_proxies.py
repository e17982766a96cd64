"""Behind a reverse proxy with a prefix, nginx among them; and asked by web pages of other origins."""

import http.server
import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin
from urllib.request import urlopen

import httpx
import pytest
from fastapi import FastAPI

from bertsmith.errors import BertsmithError, InputError
from bertsmith.serving.app import make_app
from bertsmith.serving.settings import read_settings
from certificates import write_certificate
from chromium import Browser
from live_server import START, LiveServer, live_server, threaded_server
from served_models import save_encoder, save_fine_tuned

KEY = "w" * 20
SLASHED = "org/team/intents-v1.5"
NGINX = shutil.which("nginx")
CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"
BODY = {"inputs": "bano delo"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "keys").write_text(f"web {KEY}\nboss {'b' * 20} admin\n")
    return {
        "intents": save_fine_tuned(folder / "intents", "classification"),
        SLASHED: save_fine_tuned(folder / "slashed", "classification", seed=5),
        "encoder": save_encoder(folder / "encoder"),
        "keys": folder / "keys",
    }


def make(folders: dict[str, Path], *names: str, **settings: Any) -> FastAPI:
    named = [f"{name}={folders[name]}" for name in names or ("intents",)]
    return make_app(read_settings(named, None, settings, {}))


# -- the prefix ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prefixed(folders: dict[str, Path]) -> Iterator[LiveServer]:
    app = make(folders, "intents", SLASHED, root_path="/team/bert/", keys_file=folders["keys"])
    with threaded_server(app) as server:
        yield server


@pytest.mark.parametrize("prefix", ["", "/team/bert"])
def test_a_path_is_the_same_with_its_prefix_and_without(prefixed: LiveServer, prefix: str) -> None:
    assert prefixed.ask(f"{prefix}/health/ready").json() == {"status": "ready"}
    page = prefixed.ask(f"{prefix}/")
    assert page.status == 200 and b"<!doctype html>" in page.body
    assert prefixed.ask(f"{prefix}/page/static/page.js").status == 200
    bearer = {"authorization": f"Bearer {KEY}"}
    for name in ("intents", SLASHED, SLASHED.replace("/", "%2F")):
        answer = prefixed.ask(f"{prefix}/v1/{name}", BODY, bearer)
        assert answer.status == 200
        assert answer.json()["model"] == name.replace("%2F", "/")
    assert prefixed.ask(f"{prefix}/openapi.json", headers=bearer).json()["servers"] == [{"url": "/team/bert"}]


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/team/bert/metrics",
        "/team/bert/health/../metrics",
        "/team/bert/health/%2e%2e/metrics",
        "/team/bert//health",
        "/team/bert/team/bert/health",
        "/team/berthealth",
        "/team/bert/page/static/../../metrics",
        "/team/bert/page/models",
        "/team%2Fbert/metrics",
    ],
)
def test_no_spelling_of_the_prefix_passes_by_the_keys(prefixed: LiveServer, path: str) -> None:
    for spoofed in ({}, {"x-forwarded-prefix": "/metrics"}, {"x-forwarded-prefix": "/team/bert/metrics/.."}):
        status = prefixed.ask(path, headers=spoofed).status
        assert status in ((401, 404) if "static" in path else (401,))  # the page's files are everybody's


def test_the_prefix_alone_leads_to_the_page_whose_addresses_are_relative_to_it(prefixed: LiveServer) -> None:
    answer = prefixed.ask("/team/bert")
    assert (answer.status, answer.headers["location"]) == (308, "/team/bert/")
    page = prefixed.ask("/team/bert/").body.decode()
    addresses = re.findall(r'(?:href|src)="([^"#]+)"', page)
    assert len(addresses) >= 4
    for address in addresses:
        joined = urljoin("http://x/team/bert/", address)
        assert joined.startswith("http://x/team/bert/"), address
    scripts = Path(make_app.__code__.co_filename).parent / "page" / "static"
    for script in scripts.glob("*.js"):  # what they ask for is relative to where they came from
        assert not re.search(r"(?:ask|fetch)\(\s*[\"'`]/", script.read_text("utf-8")), script


@pytest.mark.parametrize("prefix", ["/v1", "/page", "/models/x", "/openai", "/openapi.json", "/health"])
def test_a_prefix_where_the_service_has_paths_is_refused(folders: dict[str, Path], prefix: str) -> None:
    with pytest.raises(InputError, match=f"root_path can't begin with /{prefix.split('/')[1]}, where"):
        make(folders, root_path=prefix)


@pytest.mark.parametrize("prefix", ["bert", "//bert", "/a/../b", "/a b", "/a%2Fb", "/a?b", "/./a", "/é"])
def test_what_is_no_prefix_is_one_sentence(folders: dict[str, Path], prefix: str) -> None:
    with pytest.raises(BertsmithError, match=r"root_path: expected a prefix such as /bert") as caught:
        make(folders, root_path=prefix)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("models/x", "POST /v1/models/x"),
        ("chat/completions", "POST /v1/chat/completions"),
        ("a/pipeline/b", "POST /models/a/pipeline/b"),
        ("engines/a/embeddings", "POST /v1/engines/a/embeddings"),
    ],
)
def test_a_name_with_which_a_path_is_another_routes_is_refused(name: str, path: str) -> None:
    with pytest.raises(InputError, match=rf"A model can't be called '{name}': {path} would be"):
        make_app(read_settings([f"{name}=absent"], None, {}, {}))


def test_a_folder_with_a_sign_of_equality_and_a_name_with_a_slash_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "lr=1" / "model").mkdir(parents=True)
    given = ["runs/lr=1/model", "org/name=runs/lr=1/model", "org/alias=minilm"]
    found = read_settings(["m=x", given[1], given[2]], None, {}, {}).models
    assert [(model.name, model.path) for model in found[1:]] == [
        ("org/name", "runs/lr=1/model"),
        ("org/alias", "minilm"),
    ]
    with pytest.raises(BertsmithError, match="found 'lr=1'"):  # a folder, whose name is none
        read_settings([given[0]], None, {}, {})


# -- what a proxy says -----------------------------------------------------------------------------------


def location_of(server: LiveServer, headers: dict[str, str]) -> str:
    """Of a redirect that the service writes itself."""
    answer = server.ask("/health/", headers=headers)
    assert answer.status == 307
    return answer.headers["location"]


def test_a_trusted_proxy_says_what_the_address_is(folders: dict[str, Path]) -> None:
    with threaded_server(make(folders)) as server:
        usual = f"http://127.0.0.1:{server.port}/health"
        assert location_of(server, {}) == usual
        told = {
            "x-forwarded-proto": "https",
            "x-forwarded-host": "example.com",
            "x-forwarded-prefix": "/bert",
        }
        assert location_of(server, told) == "https://example.com/bert/health"
        assert server.ask("/openapi.json", headers=told).json()["servers"] == [{"url": "/bert"}]
        assert "servers" not in server.ask("/openapi.json").json()  # nothing stays of what one request said
        chain = {**told, "x-forwarded-proto": "http, https", "x-forwarded-host": "evil.example, example.com"}
        assert location_of(server, chain) == "https://example.com/bert/health"
        for name, value in {
            "x-forwarded-proto": "javascript",
            "x-forwarded-host": 'a"><script>',
            "x-forwarded-prefix": "//evil.example",
        }.items():
            assert location_of(server, {name: value}) == usual
        for prefix in ("/../x", "/a b", "\\evil", "https://evil.example"):
            assert location_of(server, {"x-forwarded-prefix": prefix}) == usual


@pytest.mark.parametrize("path", ["/x/metrics", "/x/v1/intents", "/x/health", "/x", "/x/"])
def test_no_prefix_that_a_header_names_is_taken_off_the_path(folders: dict[str, Path], path: str) -> None:
    """A client could make one up, and so pass by a proxy's rule for /metrics; and pass by that of
    deploy/nginx.conf as /bert/bert/metrics.
    """
    with threaded_server(make(folders)) as server:
        for client in ({}, {"x-forwarded-prefix": "/x"}, {"x-forwarded-prefix": "/y, /x"}):
            assert server.ask(path, headers=client).status == 404
        assert server.ask("/health", headers={"x-forwarded-prefix": "/x"}).status == 200
    with threaded_server(make(folders, root_path="/bert")) as server:
        assert server.ask(f"/bert{path}", headers={"x-forwarded-prefix": "/bert/x"}).status == 404
        inner = server.ask("/bert/openapi.json", headers={"x-forwarded-prefix": "/outer/bert"})
        assert inner.json()["servers"] == [{"url": "/outer/bert"}]


def test_what_others_say_of_the_address_is_passed_over(folders: dict[str, Path]) -> None:
    with threaded_server(make(folders, trusted_proxies="10.0.0.0/8, 192.168.0.7")) as server:
        told = {
            "x-forwarded-proto": "https",
            "x-forwarded-host": "evil.example",
            "x-forwarded-prefix": "/evil",
        }
        assert location_of(server, told) == f"http://127.0.0.1:{server.port}/health"


def test_no_header_of_a_proxy_lets_another_page_in(folders: dict[str, Path]) -> None:
    """Without keys, the page of another name is refused, whatever the request says of itself."""
    with threaded_server(make(folders)) as server:
        evil = {"origin": "http://evil.example"}
        for headers in ({}, {"x-forwarded-host": "evil.example"}, {"x-forwarded-for": "127.0.0.1"}):
            assert server.ask("/v1/intents", BODY, {**evil, **headers}).status == 403


@pytest.mark.parametrize("address", ["localhost", "10.0.0.0/33", "*", "10.0.0"])
def test_what_is_no_address_of_a_proxy_is_one_sentence(folders: dict[str, Path], address: str) -> None:
    with pytest.raises(BertsmithError, match=r"trusted_proxies: .* is no address or network"):
        make(folders, trusted_proxies=address)


# -- nginx -----------------------------------------------------------------------------------------------


@contextmanager
def nginx(folder: Path, service: int) -> Iterator[tuple[int, int]]:
    """nginx with the file of deploy/ in front of a service; its ports for https and http."""
    assert NGINX is not None
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    write_certificate(folder / "cert.pem", folder / "key.pem")
    site = CONFIGURATION.read_text("utf-8")
    for shipped, here in {
        "server 127.0.0.1:8000;": f"server 127.0.0.1:{service};",
        "listen 443 ssl;": f"listen 127.0.0.1:{ports[0]} ssl; listen 127.0.0.1:{ports[1]};",
        "/etc/ssl/certs/example.com.pem": str(folder / "cert.pem"),
        "/etc/ssl/private/example.com.key": str(folder / "key.pem"),
    }.items():
        assert site.count(shipped) == 1, shipped
        site = site.replace(shipped, here)
    (folder / "site.conf").write_text(site)
    places = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/log; worker_processes 1; user root;"
        f"events {{}} http {{ access_log off; {places} include {folder}/site.conf; }}"
    )
    process = subprocess.Popen([NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        end = time.monotonic() + START
        while True:
            assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()
            try:
                socket.create_connection(("127.0.0.1", ports[0])).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        yield ports[0], ports[1]
    finally:
        process.terminate()
        process.wait(START)


@pytest.mark.skipif(NGINX is None, reason="needs nginx")
def test_nginx_offers_the_service_under_a_prefix(folders: dict[str, Path], tmp_path: Path) -> None:
    models = [f"{name}={folders[name]}" for name in ("intents", SLASHED)]
    with (
        live_server(*models, "--keys-file", folders["keys"], "--root-path", "/bert") as server,
        nginx(tmp_path, server.port) as (port, _),
    ):
        base = f"https://127.0.0.1:{port}"
        spoofed = {"x-forwarded-prefix": "/evil", "x-forwarded-host": "evil.example"}
        trust = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        with httpx.Client(base_url=base, verify=trust, headers=spoofed) as client:
            assert client.get("/bert/health/ready").json() == {"status": "ready"}
            leads = client.get("/bert")
            assert (leads.status_code, leads.headers["location"]) == (301, f"{base}/bert/")
            page = client.get("/bert/")
            for address in re.findall(r'(?:href|src)="(page/[^"]+)"', page.text):
                asset = client.get(urljoin("/bert/", address))
                assert asset.status_code == 200 and asset.content
            bearer = {"authorization": f"Bearer {KEY}"}
            redirect = client.get("/bert/health/", headers=bearer)
            assert redirect.headers["location"] == f"{base}/bert/health"
            described = client.get("/bert/openapi.json", headers=bearer).json()
            assert described["servers"] == [{"url": "/bert"}]
            for name in ("intents", SLASHED, SLASHED.replace("/", "%2F")):
                answer = client.post(f"/bert/v1/{name}", json=BODY, headers=bearer)
                assert answer.json()["model"] == name.replace("%2F", "/")
            by_azures = client.post("/bert/v1/intents", json=BODY, headers={"api-key": KEY})
            assert by_azures.status_code == 200
            assert client.post("/bert/v1/intents", json=BODY).status_code == 401
            admin = {"authorization": f"Bearer {'b' * 20}"}
            reload = "/admin/models/intents/reload"
            for path in (reload, f"/{reload}", f"/x/..{reload}", "/%61dmin/models/", f"/bert{reload}"):
                assert client.post(f"/bert{path}", headers=admin).status_code == 403
            for path in ("/bert/metrics", "/bert/bert/metrics", "/bert//bert/bert/metrics"):
                assert client.get(path, headers=bearer).status_code == 403
            assert client.get("/v1/models", headers=bearer).status_code == 404  # nginx's own
            assert (
                client.post("/bert/v1/intents", content=b"x" * 2_100_000, headers=bearer).status_code == 413
            )
    requests = [line for line in server.log if line.get("route") == "/v1/{model}" and line["status"] == 200]
    assert {len(line["id"]) for line in requests} == {32}  # nginx's $request_id


@pytest.mark.skipif(NGINX is None, reason="needs nginx")
def test_a_browser_opens_the_page_behind_nginx(
    folders: dict[str, Path], tmp_path: Path, browser: Browser
) -> None:
    models = [f"{name}={folders[name]}" for name in ("intents", SLASHED)]
    with live_server(*models) as server, nginx(tmp_path, server.port) as (_, port):
        address = f"http://127.0.0.1:{port}/bert/"
        browser.open(f"{address}#org%2Fteam%2Fintents-v1.5/predict")
        browser.wait_for("document.querySelector('#field-text')")
        browser.fill("#field-text", "bano delo")
        browser.click("#send")
        browser.wait_for("document.querySelector('.verdict strong')")
        expected = server.ask(f"/v1/{SLASHED}", BODY).json()["results"]["label"]
        assert browser.text(".verdict strong") == expected
        command = browser.run("document.querySelector('#same pre').textContent")
        assert f"{address}v1/{SLASHED}" in command
        asked = [url for url in browser.requested if url.startswith("http")]
        assert len(asked) > 5 and all(url.startswith(address) for url in asked), asked
        assert [line for line in browser.logged if "favicon" not in line] == []


# -- pages of other origins ------------------------------------------------------------------------------


def preflight(server: LiveServer, origin: str, **more: str) -> Any:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    return server.ask("/v1/intents", None, {**headers, **more}, "OPTIONS")


def test_a_preflight_is_answered_without_a_key_and_an_answer_readable(folders: dict[str, Path]) -> None:
    app = make(
        folders, cors_origins="https://app.example.com,http://localhost:3000", keys_file=folders["keys"]
    )
    with threaded_server(app) as server:
        for origin in ("https://app.example.com", "http://localhost:3000"):
            asked = preflight(server, origin)
            assert asked.status == 200
            assert asked.headers["access-control-allow-origin"] == origin
            assert "POST" in asked.headers["access-control-allow-methods"]
            allowed = asked.headers["access-control-allow-headers"]
            assert allowed == "authorization,content-type,x-stainless-os"
            assert "access-control-allow-credentials" not in asked.headers
            bearer = {"origin": origin, "authorization": f"Bearer {KEY}"}
            answer = server.ask("/v1/intents", BODY, bearer)
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, origin)
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
            assert answer.headers["vary"] == "Origin"
            refused = server.ask("/v1/intents", BODY, {"origin": origin})  # the page learns why
            assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, origin)
        for origin in (
            "https://app.example.com.evil.example",
            "http://app.example.com",
            "https://APP.example.com",
            "null",
            "https://evil.example",
        ):
            asked = preflight(server, origin)
            assert asked.status == 400
            assert "access-control-allow-origin" not in asked.headers
            answer = server.ask("/v1/intents", BODY, {"origin": origin, "authorization": f"Bearer {KEY}"})
            assert "access-control-allow-origin" not in answer.headers


def test_a_named_origin_may_ask_a_service_without_keys_and_others_may_not(folders: dict[str, Path]) -> None:
    with threaded_server(make(folders, cors_origins="http://intranet:8080")) as server:
        assert preflight(server, "http://intranet:8080").status == 200
        assert server.ask("/v1/intents", BODY, {"origin": "http://intranet:8080"}).status == 200
        assert server.ask("/v1/intents", BODY, {"origin": "http://evil.example"}).status == 403


def test_without_the_setting_no_page_of_another_origin_is_let_in(folders: dict[str, Path]) -> None:
    with threaded_server(make(folders, keys_file=folders["keys"])) as server:
        assert preflight(server, "https://app.example.com").status == 401
        answer = server.ask("/health", headers={"origin": "https://app.example.com"})
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_all_origins_need_keys(folders: dict[str, Path]) -> None:
    with pytest.raises(BertsmithError, match=r"cors_origins = \* needs keys_file"):
        make(folders, cors_origins="*")
    with threaded_server(make(folders, cors_origins="*", keys_file=folders["keys"])) as server:
        assert preflight(server, "https://any.example").headers["access-control-allow-origin"] == "*"
        answer = server.ask("/v1/intents", BODY, {"origin": "https://any.example", "cookie": f"key={KEY}"})
        assert answer.status == 401
        assert "access-control-allow-credentials" not in answer.headers


NO_ORIGINS = (
    *(
        "app.example.com",
        "https://a.example/",
        "https://a.example/x",
        "null",
        "https://A.example",
        "https://*",
    ),
    *(
        "https://a.example:443",
        "http://a.example:80",
        "https://u@a.example",
        "https://a.example:",
        "https://",
    ),
)


@pytest.mark.parametrize("origin", NO_ORIGINS)
def test_what_is_no_origin_is_one_sentence(folders: dict[str, Path], origin: str) -> None:
    with pytest.raises(BertsmithError, match=r"cors_origins: .* is no origin") as caught:
        make(folders, cors_origins=origin)
    assert "\n" not in str(caught.value)


@contextmanager
def site(folder: Path) -> Iterator[int]:
    """A web site of another origin, with one empty page."""
    (folder / "index.html").write_text("<!doctype html><title>Another site</title>")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *_: Any) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_a_browser_on_another_origin_calls_the_service_with_a_key(
    folders: dict[str, Path], tmp_path: Path, browser: Browser
) -> None:
    with site(tmp_path) as port:
        app = make(folders, cors_origins=f"http://localhost:{port}", keys_file=folders["keys"])
        with threaded_server(app) as server:
            script = f"""fetch("http://127.0.0.1:{server.port}/v1/intents", {{
                method: "POST",
                headers: {{"content-type": "application/json", HEADER}},
                body: {json.dumps(json.dumps(BODY))},
            }}).then(async (answer) => [answer.status, answer.headers.get("x-model"), await answer.json()])
              .catch((error) => [error.name])"""
            browser.open(f"http://localhost:{port}/")
            for header in (f'"authorization": "Bearer {KEY}"', f'"api-key": "{KEY}"'):
                status, model, answer = browser.run(script.replace("HEADER", header))
                assert (status, model, answer["model"]) == (200, "intents", "intents")
            status, _, answer = browser.run(script.replace("HEADER", '"x-other": "1"'))
            assert (status, answer["error"]["code"]) == (401, "unauthorized")
            browser.open(f"http://127.0.0.1:{port}/")  # the same site, by a name that isn't listed
            assert browser.run(script.replace("HEADER", f'"api-key": "{KEY}"')) == ["TypeError"]
            with urlopen(f"http://127.0.0.1:{server.port}/health/ready") as ready:
                assert ready.status == 200

"""Nobody without a key gets past the health; and a file of keys says what is wrong with it."""

import hashlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from bertsmith.errors import InputError
from bertsmith.serving import admission
from bertsmith.serving.admission import ApiKeys, Client
from bertsmith.serving.app import make_app
from bertsmith.serving.refusals import AuthenticationError
from bertsmith.serving.settings import read_settings
from live_server import LiveServer, threaded_server
from served_models import save_fine_tuned

WEB, OPERATOR = "w" * 20, "o#" * 10
PUBLIC = {"/health", "/health/live", "/health/ready", "/ping", "/"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_fine_tuned(tmp_path_factory.mktemp("served") / "model", "classification")


@pytest.fixture(scope="module")
def app(folder: Path) -> FastAPI:
    keys = folder.parent / "keys"
    keys.write_text(f"web {WEB}\noperator {OPERATOR} admin\n")
    return make_app(read_settings([f"intents={folder}"], None, {"keys_file": keys}, {}))


@pytest.fixture(scope="module")
def server(app: FastAPI) -> Iterator[LiveServer]:
    with threaded_server(app) as found:
        yield found


def routes_of(app: FastAPI) -> list[tuple[str, str]]:
    paths: dict[str, dict[str, Any]] = app.openapi()["paths"]
    found = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    return [*found, ("GET", "/openapi.json"), ("GET", "/nowhere"), ("POST", "/health"), ("GET", "/health/")]


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {WEB}x",
        f"Bearer {WEB[:-1]}",
        WEB,
        f"Basic {WEB}",
        "Bearer ключ",
    ],
)
def test_without_a_key_there_is_nothing_but_health(
    app: FastAPI, server: LiveServer, given: str | None
) -> None:
    headers = {} if given is None else {"authorization": given.encode()}
    tried = 0
    for method, path in routes_of(app):
        if method == "GET" and path in PUBLIC:
            continue
        concrete = re.sub(r"\{\w+\}", "intents", path)
        for variant in (concrete, f"{concrete}?x=/health", f"{concrete};/health"):
            answer = server.ask(variant, b"{}" if method != "GET" else None, headers, method)
            assert answer.status == 401, (method, variant)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "unauthorized"
            tried += 1
    assert tried > 15


@pytest.mark.parametrize(
    "path",
    ["/health/../metrics", "/health/%2e%2e/metrics", "//health", "/HEALTH", "/page/static/../../metrics"],
)
def test_a_path_that_only_looks_like_health_needs_a_key(server: LiveServer, path: str) -> None:
    assert server.ask(path).status in (401, 404)
    assert b"bertsmith_requests" not in server.ask(path).body


def test_health_needs_no_key_and_everything_else_takes_one(server: LiveServer) -> None:
    for path in PUBLIC - {"/"}:
        assert server.ask(path).status == 200
    for given in (f"Bearer {WEB}", f"bearer  {WEB} ", f"Bearer {OPERATOR}"):
        answer = server.ask("/v1/intents", {"inputs": "bano"}, {"authorization": given})
        assert answer.status == 200, given
    assert server.ask("/metrics", headers={"authorization": f"Bearer {WEB}"}).status == 200


def test_without_a_file_everybody_may_ask_and_nobody_may_replace_models(folder: Path) -> None:
    with threaded_server(make_app(read_settings([f"intents={folder}"], None, {}, {}))) as server:
        assert server.ask("/v1/intents", {"inputs": "bano"}).status == 200
        assert server.ask("/admin/models/intents/reload", b"").status == 403


def test_without_keys_other_peoples_pages_are_refused_on_this_machine_alone(folder: Path) -> None:
    """A page whose name is bound anew to 127.0.0.1 is of the same origin, whatever its content-type."""

    def statuses(host: str, origins: list[str]) -> set[int]:
        settings = read_settings([f"intents={folder}"], None, {"host": host}, {})
        with threaded_server(make_app(settings)) as server:
            return {
                server.ask("/v1/intents", {"inputs": "bano"}, {"origin": origin}).status for origin in origins
            }

    others = ["http://evil.example:8000", "null", "http://[", "", "http://127.0.0.1.evil.example"]
    others += ["https://evil.example", "https://127.0.0.1.evil.example"]
    ours = ["http://127.0.0.1:8000", "http://localhost", "http://[::1]:8000", "https://localhost:8000"]
    assert statuses("127.0.0.1", others) == {403}
    assert statuses("127.0.0.1", ours) == {200}
    assert statuses("0.0.0.0", others) == {200}


def test_without_keys_a_page_over_https_is_the_proxys_own(folder: Path) -> None:
    """Another site's page may send a request that needs no preflight, though it can't read the answer."""
    page = {"origin": "https://models.example"}
    with threaded_server(make_app(read_settings([f"intents={folder}"], None, {}, {}))) as server:
        for headers, status in (
            ({"sec-fetch-site": "same-origin"}, 200),  # nginx hands on its own name of the service by default
            ({"host": "models.example"}, 200),
            ({}, 403),
            ({"sec-fetch-site": "cross-site"}, 403),
            ({"sec-fetch-site": "same-site"}, 403),
            ({"sec-fetch-site": "none"}, 403),
            ({"host": "models.example", "sec-fetch-site": "cross-site"}, 403),
        ):
            assert server.ask("/v1/intents", {"inputs": "bano"}, {**page, **headers}).status == status, (
                headers
            )


def test_one_of_several_processes_replaces_no_model(folder: Path, app: FastAPI) -> None:
    settings = app.state.service.settings.model_copy(update={"workers": 2})
    with threaded_server(make_app(settings)) as server:
        for what in ("reload", "rollback"):
            path, operator = f"/admin/models/intents/{what}", {"authorization": f"Bearer {OPERATOR}"}
            answer = server.ask(path, b"", operator)
            assert answer.status == 422
            assert "SIGHUP" in answer.json()["error"]["message"]


def test_keys_are_read_again_when_their_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admission, "_RELOAD_SECONDS", 0.0)
    path = tmp_path / "keys"
    path.write_text(f"one {'1' * 16}\n")
    keys = ApiKeys(path)
    assert keys.find_client(f"Bearer {'1' * 16}") == Client("one")

    path.write_text(f"two {'2' * 16} admin\n")
    assert keys.find_client(f"Bearer {'2' * 16}") == Client("two", True)
    with pytest.raises(AuthenticationError):
        keys.find_client(f"Bearer {'1' * 16}")

    replacement, times = tmp_path / "new", path.stat().st_mtime
    replacement.write_text(f"six {'6' * 16} admin\n")  # as long as it, as old as it: another file though
    os.utime(replacement, (times, times))
    replacement.replace(path)
    assert keys.find_client(f"Bearer {'6' * 16}").name == "six"

    path.write_text("nonsense\n")
    for _ in range(3):
        assert keys.find_client(f"Bearer {'6' * 16}").name == "six"
    path.unlink()
    assert keys.find_client(f"Bearer {'6' * 16}").name == "six"
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [error.startswith("the keys stay as they were") for error in errors] == [True, True]
    assert "6" * 16 not in caplog.text


def test_a_key_may_stand_as_its_hash_and_have_signs_in_it(tmp_path: Path) -> None:
    path, key, signs = tmp_path / "keys", "k" * 20, "a#b=c:d/é-0123456789"
    digest = hashlib.sha256(key.encode()).hexdigest()
    path.write_text(
        f"# all of them\n\nhashed sha256:{digest}  # of the team\nsigns {signs} admin # x\n", "utf-8"
    )
    keys = ApiKeys(path)
    assert keys.find_client(f"Bearer {key}") == Client("hashed")
    assert keys.find_client(f"Bearer {signs}".encode().decode("latin-1")) == Client("signs", True)
    for wrong in (f"sha256:{digest}", digest, "a#b=c:d/", "a"):
        with pytest.raises(AuthenticationError):
            keys.find_client(f"Bearer {wrong}")


def test_a_byte_order_mark_is_no_part_of_a_file_of_keys(tmp_path: Path) -> None:
    """With the mark before its #, a key that was taken out was still a key."""
    path = tmp_path / "keys"
    path.write_text(f"#old {OPERATOR}\nweb {WEB}\n", "utf-8-sig")
    keys = ApiKeys(path)
    with pytest.raises(AuthenticationError):
        keys.find_client(f"Bearer {OPERATOR}")
    path.write_text(f"web {WEB}\n", "utf-8-sig")
    assert ApiKeys(path).find_client(f"Bearer {WEB}") == Client("web")


def test_a_hash_is_read_in_capitals_and_a_cut_one_is_refused(tmp_path: Path) -> None:
    """As a key it would be known to everybody who reads the file."""
    path, key = tmp_path / "keys", "k" * 20
    digest = hashlib.sha256(key.encode()).hexdigest()
    path.write_text(f"web SHA256:{digest.upper()}\n", "utf-8")
    assert ApiKeys(path).find_client(f"Bearer {key}") == Client("web")
    path.write_text(f"web sha256:{digest[:-1]}\n", "utf-8")
    with pytest.raises(InputError, match=r"line 1: expected sha256: and 64 hexadecimal digits .* found 63"):
        ApiKeys(path)


def test_a_key_may_come_in_azures_header(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"web {WEB}\nother {'o' * 20}\n")
    keys = ApiKeys(path)
    assert keys.find_client("", WEB) == Client("web")
    assert keys.find_client("Basic dXNlcjpwYXNz", WEB) == Client("web")  # what a proxy in front asks for
    assert keys.find_client(f"Bearer {WEB}", "wrong") == Client("web")
    for authorization, api_key in (
        ("Bearer wrong", WEB),
        ("", ""),
        ("", "wrong"),
        (WEB, ""),
        ("", f"Bearer {WEB}"),
    ):
        with pytest.raises(AuthenticationError):
            keys.find_client(authorization, api_key)


def test_a_key_may_end_with_any_letter(tmp_path: Path) -> None:
    """The header's bytes are read as Latin-1, in which those of some letters are blanks."""
    path = tmp_path / "keys"
    for key in ("voilà" * 4, "x" * 16 + "Å"):  # they end with the bytes A0, 85
        path.write_text(f"web {key}x\nother {key}\n", "utf-8")
        keys = ApiKeys(path)
        given = f"Bearer {key} \t".encode().decode("latin-1")
        assert keys.find_client(given) == Client("other")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("web\n", "line 1: expected NAME KEY, or NAME KEY admin."),
        (f"web {WEB} root\n", "line 1: expected NAME KEY, or NAME KEY admin."),
        (f"web {WEB}\n\nother short\n", "line 3: the key of other is shorter than 16 characters."),
        (f"web {WEB}\nweb {'x' * 20}\n", "line 2: web has a key already."),
        (f"web {WEB}\nother {WEB}\n", "line 2: other has the key of web."),
        ("# nothing\n", "has no keys."),
        ("\udcff", "can't be read as a file of keys"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        ApiKeys(path)
    assert "\n" not in str(caught.value)
    assert WEB not in str(caught.value)


def test_finding_a_key_takes_as_long_for_the_first_as_for_none(tmp_path: Path) -> None:
    """All are compared: the last of a thousand is not found later than the first, beyond noise."""
    path = tmp_path / "keys"
    path.write_text("".join(f"n{number} {number:020}\n" for number in range(1000)))
    keys = ApiKeys(path)

    def seconds(key: str) -> float:
        best = 1.0
        for _ in range(30):
            began = time.perf_counter()
            try:
                keys.find_client(f"Bearer {key}")
            except AuthenticationError:
                assert key == "absent"
            best = min(best, time.perf_counter() - began)
        return best

    first, last, absent = seconds(f"{0:020}"), seconds(f"{999:020}"), seconds("absent")
    assert max(first, last, absent) < 2 * min(first, last, absent)

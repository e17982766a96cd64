"""Whatever a body, a path or a name holds is refused in a sentence, and reaches no file."""

import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import bertsmith
from bertsmith.serving.app import make_app
from bertsmith.serving.settings import read_settings
from live_server import live_server
from served_models import TASKS, save_fine_tuned, save_pretrained

JSON = {"content-type": "application/json"}
LIMIT = 100_000  # bytes of a body


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("served")
    found = {name: save_fine_tuned(folder / name, name) for name in TASKS}
    return found | {"masked": save_pretrained(folder / "masked")}


@pytest.fixture(scope="module")
def app(folders: dict[str, Path]) -> FastAPI:
    named = [f"{name}={folder}" for name, folder in folders.items()]
    return make_app(read_settings(named, None, {"max_body_bytes": LIMIT}, {}))


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as found:
        yield found


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


NO_JSON = {
    "nothing": b"",
    "half": b'{"inputs": "ba',
    "broken UTF-8": b'{"inputs": "ba\xff\xfeno"}',
    "UTF-16": '{"inputs": "bano"}'.encode("utf-16"),
    "UTF-16 without a mark": '{"inputs": "bano"}'.encode("utf-16-le"),
    "a mark of UTF-8": '\ufeff{"inputs": "bano"}'.encode(),
    "a lone surrogate": rb'{"inputs": "\ud800"}',
    "a surrogate in UTF-8": b'{"inputs": "\xed\xa0\x80"}',
    "a NUL": b'{"inputs": "ba\x00no"}',
    "NaN": b'{"inputs": "a", "timeout_ms": NaN}',
    "Infinity": b'{"inputs": "a", "timeout_ms": Infinity}',
    "two documents": b'{"inputs": "a"}{"inputs": "b"}',
    "65 deep": f'{{"inputs": {nested(64)}}}'.encode(),
    "1,000 deep": f'{{"inputs": {nested(1000)}}}'.encode(),
    "40,000 deep": b"[" * 40_000,
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
}


@pytest.mark.parametrize("body", NO_JSON.values(), ids=NO_JSON)
def test_what_is_no_json_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post("/v1/classification", content=body, headers=JSON)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["code"] == "invalid_request"
    assert error["message"].startswith(("The body", "body"))
    assert "\n" not in error["message"]


ASKED = b'{"inputs": "bano delo"}'
_gzip = partial(
    gzip.compress, mtime=0
)  # or a test's name would hold the time, and two workers have other tests
RAW_DEFLATE = zlib.compressobj(wbits=-15)
COMPRESSED = {
    "gzip": _gzip(ASKED),
    "x-gzip": _gzip(ASKED),
    "GZip": _gzip(ASKED),
    "deflate": zlib.compress(ASKED),
    "deflate ": RAW_DEFLATE.compress(ASKED) + RAW_DEFLATE.flush(),
    "identity": ASKED,
    "": ASKED,
}


@pytest.mark.parametrize(("coding", "body"), COMPRESSED.items(), ids=COMPRESSED)
def test_a_compressed_body_is_read(client: TestClient, coding: str, body: bytes) -> None:
    plain = client.post("/v1/classification", content=ASKED, headers=JSON)
    found = client.post("/v1/classification", content=body, headers={**JSON, "content-encoding": coding})
    assert found.status_code == 200 and found.json() == plain.json()


@pytest.mark.parametrize(
    ("headers", "body", "status", "said"),
    [
        ({"content-encoding": "br"}, ASKED, 415, "'br'"),
        ({"content-encoding": "zstd"}, ASKED, 415, "'zstd'"),
        ({"content-encoding": "gzip, gzip"}, _gzip(_gzip(ASKED)), 415, "'gzip, gzip'"),
        ({"content-type": "application/json; charset=utf-16"}, ASKED, 415, "'utf-16'"),
        ({"content-type": 'application/json;charset="ISO-8859-1"'}, ASKED, 415, "'ISO-8859-1'"),
        ({"content-encoding": "gzip"}, ASKED, 422, "can't be read as gzip"),
        ({"content-encoding": "gzip"}, _gzip(ASKED)[:-9], 422, "cut short"),
        ({"content-encoding": "gzip"}, _gzip(ASKED) * 2, 422, "more follows"),
        ({"content-encoding": "deflate"}, _gzip(ASKED), 422, "can't be read as deflate"),
        ({"content-encoding": "gzip"}, _gzip(b" " * 50_000_000), 413, "The body has 100,001 bytes"),
        ({"content-encoding": "deflate"}, zlib.compress(b" " * 50_000_000), 413, "The body has 100,001"),
        ({"content-encoding": "gzip"}, _gzip(b"") * 4000, 422, "more follows"),
    ],
    ids=range(12),
)
def test_a_coding_or_a_charset_that_is_not_read_is_named_and_a_bomb_is_bounded(
    client: TestClient, headers: dict[str, str], body: bytes, status: int, said: str
) -> None:
    answer = client.post("/v1/classification", content=body, headers={**JSON, **headers})
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]["message"]
    assert answer.headers.get("accept-encoding") == ("gzip, deflate" if status == 415 else None)


@pytest.mark.parametrize("charset", ["utf-8", "UTF-8", '"utf-8"', "us-ascii"])
def test_a_charset_that_json_may_have_is_read(client: TestClient, charset: str) -> None:
    headers = {"content-type": f"application/json; charset={charset}"}
    assert client.post("/v1/classification", content=ASKED, headers=headers).status_code == 200


STRANGE = [
    *("null", "true", "3", "1e400", "-1e400", "1" + "0" * 400, "1.5", "{}", "[[]]", "[null]", nested(60)),
    *('{"text": {"text": "a"}}', '{"question": "", "context": ""}', '[["a", "b", "c"]]', '[["bano", ["a"]]]'),
    *('""', '[""]', '["", ""]', r'"\u0000"', r'"a\u0000b"', r'"\ud83d\ude00\u202e"', '"[MASK][MASK]"'),
    *('{"a": "' + "x" * 60_000 + '"}', '"' + "x" * 90_000 + '"', "[[" + ",".join("1" * 20_000) + "]]"),
]
OPTIONS = [
    *(
        "{}",
        '{"query": "a"}',
        '{"source": "a"}',
        '{"top": 1e400}',
        '{"top": -1}',
        '{"top": true}',
        '{"k": 0}',
    ),
    *('{"kind": []}', '{"dimensions": 1e9}', '{"normalise": "x"}', '{"query": {}}', '{"mode": null}'),
]


@pytest.mark.parametrize("model", [*TASKS, "masked"])
def test_no_input_is_a_failure_of_the_service(app: FastAPI, client: TestClient, model: str) -> None:
    """Every operation of every task, with inputs and options that it may or may not read."""
    statuses = set()
    for operation in app.state.service.models[model].operations:
        for number, inputs in enumerate(STRANGE):
            for options in OPTIONS[number % 4 :: 4]:
                body = f'{{"inputs": {inputs}, "operation": "{operation}", "options": {options}}}'
                answer = client.post(f"/v1/{model}", content=body.encode(), headers=JSON)
                assert answer.status_code in (200, 413, 422), (body[:200], answer.text)
                assert answer.status_code == 200 or len(answer.content) < 3000
                statuses.add(answer.status_code)
    assert {200, 422} <= statuses


# What bodies of the protocols have in them, by name; each gets each of STRANGE, alone or beside the rest.
NAMED = {
    **dict.fromkeys(("inputs", "input", "texts", "documents", "text", "ids", "questions"), "bano"),
    **dict.fromkeys(("query", "context", "question"), "bano"),
    "parameters": {},
    "model": "classification",
}


@pytest.mark.parametrize("name", NAMED)
def test_no_field_of_any_protocol_is_a_failure_of_the_service(
    app: FastAPI, client: TestClient, name: str
) -> None:
    paths = [path for path, methods in app.openapi()["paths"].items() if "post" in methods]
    others = json.dumps({other: value for other, value in NAMED.items() if other != name})[1:]
    for turn, path in enumerate(paths):
        for number, strange in list(enumerate(STRANGE))[turn % 2 :: 2]:
            body = f'{{"{name}": {strange}' + ("}" if number % 3 == 0 else f", {others}")
            place = path.replace("{model}", "masked").replace("{name}", "masked")
            answer = client.post(place, content=body.encode(), headers=JSON)
            assert answer.status_code < 500, (path, body[:200], answer.text)


WATCHED = """
import json, os, sys
from bertsmith.cli.main import main

def watch(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.mkdir"):
        os.write(2, json.dumps({"event": event, "what": repr(arguments[0])}).encode() + b"\\n")

sys.addaudithook(watch)
sys.exit(main())
"""
PLACES = [
    *("/v1/../../etc/passwd", "/v1/..%2f..%2fetc%2fpasswd", "/v1/%2e%2e/%2e%2e/etc/passwd", "/etc/passwd"),
    *("/v1/%2fetc%2fpasswd", "/v1/..", "/v1/.", "/v1/%00", "/v1/m%00.txt", "/v1/~root", "/v1/C:%5Cboot.ini"),
    *(
        "/page/static/../../../../etc/passwd",
        "/page/static/%2e%2e/%2e%2e/etc/passwd",
        "/page/static//etc/passwd",
    ),
    *("/admin/models/..%2f..%2fetc%2fpasswd/reload", "/openapi.json/../../etc/passwd", "/v1/" + "a/" * 2000),
    *(
        "/v1/" + "a" * 5000,
        "/v1/%ff%fe",
        "/v1/%c0%ae%c0%ae",
        "/v1/file:%2f%2f%2fetc%2fpasswd",
        "//etc/passwd",
    ),
]
NAMES = [
    "../../etc/passwd",
    "/etc/passwd",
    "m/../m",
    "\x00",
    "m\x00",
    "file:///etc/passwd",
    "minilm",
    "a" * 9000,
    ".",
]


def test_a_path_and_a_model_name_never_reach_the_file_system(folders: dict[str, Path]) -> None:
    """An audit hook in the service's process says what it opens, after it began."""
    with live_server(f"m={folders['classification']}", before=("-c", WATCHED)) as server:
        assert server.ask("/v1/m", {"inputs": "bano"}).status == 200
        paths = server.ask("/openapi.json").json()["paths"]
        assert server.ask("/metrics").status == 200
        assert any("model.safetensors" in str(line.get("what")) for line in server.log)  # it does watch
        server.log.clear()
        for path in PLACES:
            for body in (None, {"inputs": "bano"}):
                answer = server.ask(path, body)
                assert answer.status in (401, 403, 404, 405, 422), (path, answer)
                assert b"root:" not in answer.body
        for name in NAMES:
            for path in (path for path, methods in paths.items() if "post" in methods):
                body = {
                    "inputs": "bano",
                    "input": "bano",
                    "model": name,
                    "operation": name,
                    "options": {"kind": name},
                }
                answer = server.ask(path.replace("{model}", "m").replace("{name}", "m"), body)
                assert 400 <= answer.status < 500, (path, name, answer)
        touched = [line["what"] for line in server.log if "event" in line]
        source = str(Path(bertsmith.__file__).parent)  # of which FastAPI reads on which line a route stands
        ours = tuple(f"'{place}/" for place in ("/proc", sys.prefix, sys.base_prefix, source))
        strange = [what for what in touched if not what.startswith(ours)]
        assert strange == []

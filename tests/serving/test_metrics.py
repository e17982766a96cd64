"""What operators see: metrics that Prometheus reads, a log without texts and keys, ids, and traces."""

import asyncio
import gzip
import http.server
import io
import json
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fastapi import FastAPI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from bertsmith.serving import LOG
from bertsmith.serving.app import make_app
from bertsmith.serving.http_server import JsonFormatter
from bertsmith.serving.monitoring import Metrics
from bertsmith.serving.queue import WorkQueue
from bertsmith.serving.settings import read_settings
from live_server import START, live_server
from served_models import save_fine_tuned, save_pretrained

KEY = "k" * 24
BEARER = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "keys").write_text(f"web {KEY}\n")
    classes = save_fine_tuned(folder / "classification", "classification")
    return [f"intents={classes}", f"masked={save_pretrained(folder / 'masked')}"]


@pytest.fixture(scope="module")
def keys(folders: list[str]) -> Path:
    return Path(folders[0].partition("=")[2]).parent / "keys"


def app_of(folders: list[str], **more: Any) -> FastAPI:
    return make_app(read_settings(folders, None, more, {}))


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All that the service logs, as the command writes it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    before = LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    yield stream
    LOG.removeHandler(handler)
    LOG.setLevel(before)


def test_what_is_true_of_a_moment_is_looked_at_again_after_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics, looks = Metrics(WorkQueue(10)), list[int]()

    def refresh() -> None:
        looks.append(1)
        if len(looks) == 1:
            raise RuntimeError("changed while it was read")

    monkeypatch.setattr(metrics, "_refresh", refresh)
    monkeypatch.setattr("bertsmith.serving.monitoring._REFRESH_SECONDS", 0.001)

    async def ask() -> None:
        measuring = asyncio.ensure_future(metrics.keep_fresh())
        await asyncio.sleep(0.2)
        assert not measuring.done()
        measuring.cancel()

    asyncio.run(ask())
    assert len(looks) > 2
    assert "can't be read" in caplog.text


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def samples(client: TestClient, **more: Any) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    page = client.get("/metrics", **more).text
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def labels(**given: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(given.items()))


def test_prometheus_own_parser_reads_what_happened(folders: list[str]) -> None:
    with TestClient(app_of(folders)) as client:
        for _ in range(3):
            client.post("/v1/intents", json={"inputs": ["bano", "delo kano"]})
        client.post("/v1/intents", json={"inputs": 3})
        client.post("/v1/nobody", json={"inputs": "a"})
        found = samples(client)
    route = "/v1/{model}"
    requests = found["bertsmith_requests_total"]
    assert requests[labels(model="intents", route=route, status="200")] == 3
    assert requests[labels(model="", route=route, status="422")] == 1
    refusals = found["bertsmith_refusals_total"]
    assert refusals == {
        labels(route=route, reason="invalid_request"): 1,
        labels(route=route, reason="model_not_found"): 1,
    }
    one = labels(model="intents")
    assert found["bertsmith_request_tokens_sum"][one] == 3 * 7
    for name in ("tokenizing_seconds", "queue_seconds", "computing_seconds", "request_tokens"):
        assert found[f"bertsmith_{name}_count"][one] == 3
        assert found[f"bertsmith_{name}_bucket"][labels(model="intents", le="+Inf")] == 3
    assert found["bertsmith_batch_tokens_sum"][one] == 3 * 7
    assert 0 < found["bertsmith_computing_seconds_sum"][one] < 30
    assert found["bertsmith_queue_requests"] == found["bertsmith_queue_tokens"] == {(): 0}
    rss = psutil.Process().memory_info().rss
    assert found["bertsmith_resident_bytes"][()] == pytest.approx(rss, rel=0.2)
    assert found["process_resident_memory_bytes"][()] == pytest.approx(rss, rel=0.2)


def test_strangers_can_not_make_labels(folders: list[str]) -> None:
    with TestClient(app_of(folders)) as client:

        def ask(number: int) -> None:
            client.get(f"/nowhere/{number}")
            client.request(f"VERB{number}", "/health/live")
            client.post(f"/v1/m{number}", json={"inputs": "a", "operation": f"o{number}"})
            client.post(f"/admin/models/m{number}/reload")
            client.post("/v1/intents", json={"inputs": "a"}, headers={"x-request-id": f"r{number}"})

        ask(0)
        samples(client)
        before = {name: set(each) for name, each in samples(client).items()}
        for number in range(1, 50):
            ask(number)
        after = {name: set(each) for name, each in samples(client).items()}
    assert after == before
    assert max(len(each) for name, each in after.items() if not name.endswith("_bucket")) < 12


def test_the_log_has_neither_texts_nor_keys(
    folders: list[str], keys: Path, log: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "rosebud"
    with TestClient(app_of(folders, keys_file=keys)) as client:
        for path in (
            "/v1/intents",
            "/v1/masked",
            f"/v1/{secret}",
            f"/{secret}?q={secret}",
            "/admin/models/a/reload",
        ):
            for body in ({"inputs": secret}, {"inputs": {secret: 1}}, {"inputs": secret, secret: 2}):
                for given in (BEARER, {"authorization": f"Bearer {KEY}x"}, {"cookie": f"{secret}={secret}"}):
                    client.post(path, json=body, headers=given)
        client.post("/v1/intents", content=f'{{"inputs": "{secret}', headers=BEARER)
    found = lines(log)
    assert len(found) > 30
    written = log.getvalue() + "".join(capfd.readouterr())
    assert secret not in written
    assert KEY not in written
    assert {line["key"] for line in found if "key" in line} == {"web"}
    assert {line["refused"] for line in found if "refused" in line} >= {
        "unauthorized",
        "invalid_request",
        "forbidden",
    }


def test_the_log_has_texts_where_it_is_told_to(folders: list[str], log: io.StringIO) -> None:
    with TestClient(app_of(folders, log_texts=True)) as client:
        client.post(
            "/v1/intents", content=b'{"inputs": "rosebud"}', headers={"content-type": "application/json"}
        )
        client.post("/v1/intents", json={"inputs": "a" * 100_000})
    first, second = lines(log)
    assert first["body"] == '{"inputs": "rosebud"}'
    assert len(second["body"]) == 10_000


def test_a_line_says_what_a_request_was_and_took(folders: list[str], log: io.StringIO) -> None:
    with TestClient(app_of(folders)) as client:
        answer = client.post(
            "/v1/intents", json={"inputs": ["bano", "delo"]}, headers={"x-request-id": "abc-1"}
        )
        client.get("/health")
        client.get("/metrics")
    (line,) = lines(log)
    assert answer.headers["x-request-id"] == line["id"] == "abc-1"
    expected = {"method": "POST", "route": "/v1/{model}", "status": 200, "model": "intents"}
    expected |= {"version": 1, "inputs": 2, "tokens": 6}
    assert {name: line[name] for name in expected} == expected
    assert 0 <= line["tokenizing_ms"] + line["queue_ms"] + line["computing_ms"] <= line["ms"]
    with TestClient(app_of(folders, log_requests=False)) as client:
        client.post("/v1/intents", json={"inputs": "bano"})
    assert len(lines(log)) == 1


@pytest.mark.parametrize("given", [None, "", "a b", "a" * 200, "x\ty"])
def test_every_answer_has_an_id_and_never_a_strange_one(folders: list[str], given: str | None) -> None:
    app = app_of(folders)
    with TestClient(app, raise_server_exceptions=False) as client:
        ids = set()
        for path in ("/health/live", "/nowhere", "/metrics"):
            headers = {} if given is None else {"x-request-id": given}
            ids.add(client.get(path, headers=headers).headers["x-request-id"])
    assert len(ids) == 3
    assert all(len(each) == 32 and each.isalnum() for each in ids)


def test_a_bug_is_answered_without_its_details_and_logged_with_them(
    folders: list[str], log: io.StringIO
) -> None:
    app = app_of(folders)
    with TestClient(app, raise_server_exceptions=False) as client:
        operation = app.state.service.models["intents"].operations["predict"]
        object.__setattr__(operation, "prepare", lambda *_: 1 / 0)
        answer = client.post("/v1/intents", json={"inputs": "rosebud"})
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "The service failed. Its log says why."
    bug, request = lines(log)
    assert "ZeroDivisionError" in bug["traceback"]
    assert (request["status"], request["refused"]) == (500, "internal_error")
    assert "rosebud" not in log.getvalue()


def test_a_trace_has_our_facts_and_no_text(folders: list[str]) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app = app_of(folders)
    app._telemetry["tracer_provider"] = provider  # as the global one would be, of which a process has one
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with TestClient(app) as client:
        client.post("/v1/intents", json={"inputs": "bano"}, headers={"traceparent": parent})
        client.post("/v1/intents", json={"inputs": {"rosebud": 1}})
    spans = exporter.get_finished_spans()
    (ours,) = [each for each in spans if "bertsmith.model" in (each.attributes or {})]
    assert ours.attributes is not None
    assert (ours.attributes["bertsmith.model"], ours.attributes["bertsmith.tokens"]) == ("intents", 3)
    for name in ("bertsmith.queue_ms", "bertsmith.computing_ms"):
        assert isinstance(ours.attributes[name], float)
    assert ours.context is not None
    assert f"{ours.context.trace_id:032x}" == parent.split("-")[1]
    assert "rosebud" not in "".join(each.to_json() for each in spans)


class Collector(http.server.ThreadingHTTPServer):
    """A collector of OpenTelemetry in this process, which reads OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.bodies: list[tuple[str, bytes, dict[str, str]]] = []
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    def spans(self) -> list[tuple[str, Any, dict[str, Any]]]:
        """Of each span that arrived: the service's name, the span, and its attributes."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        found = []
        for path, body, _ in self.bodies:
            if path != "/v1/traces":
                continue
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                (name,) = [
                    each.value.string_value
                    for each in group.resource.attributes
                    if each.key == "service.name"
                ]
                for scope in group.scope_spans:
                    for span in scope.spans:
                        values = {
                            each.key: getattr(each.value, str(each.value.WhichOneof("value")))
                            for each in span.attributes
                        }
                        found.append((name, span, values))
        return found

    def close(self) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


class CollectorHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.bodies.append((self.path, body, dict(self.headers)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_spans_are_sent_where_opentelemetrys_usual_variables_say(folders: list[str], workers: int) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the exporter")
    collector = Collector()
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=blue",
        "OTEL_METRICS_EXPORTER": "none",
    }
    try:
        with live_server(*folders, "--workers", workers, environment=variables) as server:
            headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "x-request-id": "traced"}
            assert server.ask("/v1/intents", {"inputs": "rosebud bano"}, headers).status == 200
            assert server.ask("/v1/intents", {"inputs": {"rosebud": 1}}).status == 422
            server.ask("/health/ready")
            server.ask("/metrics")
            line = server.wait_for(lambda line: line.get("id") == "traced")
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(START) == 0
        # Two workers send theirs in any order.
        spans = sorted(collector.spans(), key=lambda span: span[2]["http.response.status_code"])
    finally:
        collector.close()
    assert {values["http.route"] for _, _, values in spans} == {"/v1/{model}"}
    assert [values["http.response.status_code"] for _, _, values in spans] == [200, 422]
    name, span, values = spans[0]
    assert name == "bertsmith"
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, "b7ad6b7169203331")
    assert (values["bertsmith.model"], values["bertsmith.tokens"]) == ("intents", 4)
    assert (line["trace_id"], line["span_id"]) == (TRACE, span.span_id.hex())
    assert all(headers["x-tenant"] == "blue" for _, _, headers in collector.bodies)
    assert not any(b"rosebud" in body for _, body, _ in collector.bodies)
    assert "rosebud" not in str(server.log)


def test_traces_that_cant_be_sent_are_warned_of_and_the_service_goes_on(
    folders: list[str], tmp_path: Path
) -> None:
    """Without the exporter; and with a collector that isn't there."""
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_METRICS_EXPORTER": "none"}
    absent = (
        "import sys; sys.modules['opentelemetry.exporter'] = None; import bertsmith.__main__ as b; b.main()"
    )
    with live_server(*folders, environment=variables, before=("-c", absent)) as server:
        assert server.said(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, and no traces are sent: pip install opentelemetry-sdk"
        )
        assert server.ask("/v1/intents", {"inputs": "bano"}).status == 200
    with live_server(*folders, environment=variables) as server:
        assert server.ask("/v1/intents", {"inputs": "bano"}).status == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(START) == 0

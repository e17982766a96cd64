"""Where a real service listens beside a port: a Unix socket, and https with files of TLS."""

import http.client
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from bertsmith.cli.main import main
from bertsmith.serving.http_server import UnixListener
from certificates import write_certificate
from live_server import START, Answer, ask, live_server
from served_models import save_fine_tuned

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs the signals of Unix")
BODY = {"inputs": ["bano delo", "kano"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_fine_tuned(tmp_path_factory.mktemp("served") / "model", "classification")


# -- Unix sockets ----------------------------------------------------------------------------------------


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def ask_unix(path: Path, *arguments: Any) -> Answer:
    with closing(UnixConnection(path)) as connection:
        return ask(connection, *arguments)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short name: a socket's path has at most 107 bytes."""
    folder = Path(f"/tmp/bertsmith-{os.getpid()}")
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_unix_socket_answers_its_owner_and_group_and_is_gone_at_the_end(
    folder: Path, place: Path, workers: int
) -> None:
    path = place / "serve.sock"
    with live_server("--uds", path, f"intents={folder}", "--workers", workers) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert list(place.iterdir()) == [path]
        assert ask_unix(path, "/health/ready").json() == {"status": "ready"}
        assert ask_unix(path, "/v1/intents", BODY).status == 200
        told = {"x-forwarded-proto": "https", "x-forwarded-host": "a.example", "x-forwarded-prefix": "/b"}
        redirect = ask_unix(path, "/health/", None, told)  # who may open the socket is believed
        assert redirect.headers["location"] == "https://a.example/b/health"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(START) == 0
    assert list(place.iterdir()) == []


def test_a_socket_that_a_killed_service_left_is_replaced_and_one_in_use_or_anothers_file_is_not(
    folder: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place / "serve.sock"
    with live_server("--uds", path, f"intents={folder}") as server:
        server.process.kill()
        server.process.wait(START)
    assert path.is_socket()
    with live_server("--uds", path, f"intents={folder}") as server:
        assert ask_unix(path, "/v1/intents", BODY).status == 200
        inode = path.stat().st_ino
        assert main(["serve", f"m={folder}", "--uds", str(path)]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"--uds {path} can't be listened on: another service listens there. Name another path." in said
        assert path.stat().st_ino == inode
        assert ask_unix(path, "/v1/intents", BODY).status == 200
        path.unlink()
        path.write_text("another's")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(START) == 0
    assert path.read_text() == "another's"


def test_a_socket_that_another_container_is_about_to_move_stays(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each container has a process 1, and they may share a folder."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    first, second = UnixListener(place / "a.sock"), UnixListener(place / "b.sock")
    usual = Path.replace

    def listen_meanwhile(before: Path, after: Path) -> Path:
        monkeypatch.setattr(Path, "replace", usual)
        second.listen()
        return usual(before, after)

    monkeypatch.setattr(Path, "replace", listen_meanwhile)
    first.listen()
    assert {path.name for path in place.iterdir()} == {"a.sock", "b.sock"}
    for listener in (first, second):
        listener.close()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "problem", ["a file", "a folder", "a link to a file", "no parent", "too long", "rights"]
)
def test_a_path_that_is_no_place_for_a_socket_is_one_sentence(
    place: Path, capsys: pytest.CaptureFixture[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place / "serve.sock"
    (place / "text").write_text("kept")
    if problem == "a file":
        path.write_text("kept")
    elif problem == "a folder":
        path.mkdir()
    elif problem == "a link to a file":
        path.symlink_to(place / "text")
    elif problem == "no parent":
        path = place / "absent" / "serve.sock"
    elif problem == "too long":
        path = place / ("x" * 100)
    else:
        monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, who may all
    before = sorted(place.iterdir())
    assert main(["serve", "m=absent", "--uds", str(path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    reasons = ("no socket", "there is no folder", "more than 107 bytes", "can't be written")
    assert f"--uds {path} can't be listened on: " in said and any(reason in said for reason in reasons)
    assert sorted(place.iterdir()) == before
    assert (place / "text").read_text() == "kept"


# -- TLS -------------------------------------------------------------------------------------------------


def ask_tls(port: int, trusted: Path, *arguments: Any) -> Answer:
    context = ssl.create_default_context(cafile=trusted)
    with closing(http.client.HTTPSConnection("localhost", port, timeout=60, context=context)) as connection:
        return ask(connection, *arguments)


def serial_number(port: int) -> int:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as raw,
        context.wrap_socket(raw) as connection,
    ):
        return x509.load_der_x509_certificate(connection.getpeercert(True) or b"").serial_number


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_https_is_served_and_a_renewed_certificate_taken_at_sighup(
    folder: Path, tmp_path: Path, workers: int
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(certificate, key)
    first = tmp_path / "first.pem"
    shutil.copy(certificate, first)
    options = ("--tls-cert", certificate, "--tls-key", key, "--workers", workers)
    with live_server(f"intents={folder}", *options) as server:
        assert server.log[-1]["address"] == f"https://127.0.0.1:{server.port}"
        assert ask_tls(server.port, first, "/v1/intents", BODY).status == 200
        redirect = ask_tls(server.port, first, "/health/")
        assert redirect.headers["location"] == f"https://localhost:{server.port}/health"
        with pytest.raises((http.client.HTTPException, OSError)):
            server.ask("/health/ready")  # without TLS
        # A key alone that changes leaves the pair from before.
        write_certificate(tmp_path / "other.pem", key)
        server.process.send_signal(signal.SIGHUP)
        server.said("the certificate stays as it was", workers)
        assert ask_tls(server.port, first, "/health/ready").status == 200
        # Another kind of key: no client is shown the certificate from before.
        write_certificate(certificate, key, kind="rsa")
        before = serial_number(server.port)
        server.process.send_signal(signal.SIGHUP)
        server.said("the certificate was read again", workers)
        assert {serial_number(server.port) for _ in range(8)} == {serial_number(server.port)} != {before}
        assert ask_tls(server.port, certificate, "/v1/intents", BODY).status == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(START) == 0


PROBLEMS = {
    "absent": r"--tls-cert .*absent.pem can't be read: No such file or directory. Name a PEM file\.",
    "folder": r"--tls-cert .* can't be read: Is a directory\.",
    "no pem": r"--tls-cert .* is no PEM file with a certificate",
    "swapped": r"--tls-cert .* is no PEM file with a certificate",
    "other key": r"--tls-key .*other.pem is not the key of the certificate in --tls-cert .*cert.pem",
    "locked": r"--tls-key .* is locked by a password.* openssl pkey -in",
    "damaged": r"--tls-cert .* and --tls-key .* can't be used: .* Expected PEM files",
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_wrong_files_of_tls_are_one_sentence_before_models_are_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], problem: str
) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(certificate, key)
    if problem == "absent":
        certificate = tmp_path / "absent.pem"
    elif problem == "folder":
        certificate = tmp_path
    elif problem == "no pem":
        certificate.write_bytes(b"\xff\x00 no PEM")
    elif problem == "swapped":
        certificate, key = key, certificate
    elif problem == "other key":
        key = tmp_path / "other.pem"
        write_certificate(tmp_path / "others.pem", key)
    elif problem == "locked":
        key.write_text(key.read_text().replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"))
    else:
        certificate.write_text(certificate.read_text().replace("M", "N"))
    assert (
        main(["serve", "m=absent", "--tls-cert", str(certificate), "--tls-key", str(key), "--port", "0"]) == 2
    )
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(PROBLEMS[problem], said), said
    assert "Traceback" not in said and "PRIVATE" not in said.replace("PRIVATE KEY-----", "")


@pytest.mark.parametrize("option", ["--tls-cert", "--tls-key"])
def test_one_file_of_tls_without_the_other_is_one_sentence(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert main(["serve", "m=absent", option, "x.pem"]) == 2
    other = {"--tls-cert": "tls_key", "--tls-key": "tls_cert"}[option]
    assert f"needs {other}: a certificate and its key" in " ".join(capsys.readouterr().err.split())


def test_a_client_that_never_finishes_its_handshake_keeps_nobody_out(folder: Path, tmp_path: Path) -> None:
    """And a key that everybody can read is warned of."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(certificate, key)
    key.chmod(0o644)
    options = ("--tls-cert", certificate, "--tls-key", key, "--drain-seconds", "5")
    with live_server(f"intents={folder}", *options) as server:
        assert server.said(f"every user of this machine can read {key}")["level"] == "warning"
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
        idle[0].sendall(b"GET / HTTP/1.1\r\n\r\n")  # no TLS at all
        assert ask_tls(server.port, certificate, "/v1/intents", BODY).status == 200
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(START) == 0
        assert time.monotonic() - began < 35  # within drain_seconds
        for connection in idle:
            connection.close()

"""A real PostgreSQL, from the system's packages, in a folder of its own."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_NOT_ROOT = ("postgres", "nobody")


def _program(name: str) -> str:
    """Debian keeps them out of PATH."""
    found = shutil.which(name) or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)), None
    )
    if found is None:
        pytest.skip("needs PostgreSQL's server, which this machine doesn't have (apt-get install postgresql)")
    return str(Path(found).resolve())


def _user() -> str | None:
    """PostgreSQL won't run as root."""
    if os.geteuid() != 0:
        return None
    for name in _NOT_ROOT:
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    pytest.skip("PostgreSQL won't run as root, and there is no other user")


@contextmanager
def postgresql_server() -> Iterator[str]:
    """Yields its URL. Ended and removed with the block."""
    initdb, server = _program("initdb"), _program("postgres")
    user = _user()
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        if user is not None:
            shutil.chown(folder, user)
        data = str(Path(folder) / "data")
        making = [initdb, "-D", data, "-U", "tester", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        subprocess.run(making, check=True, capture_output=True, user=user, cwd="/")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": folder,
            "fsync": "off",  # nothing outlives the tests, and each begins with a new schema
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        process = subprocess.Popen(
            [server, "-D", data, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=user,
            cwd="/",
        )
        try:
            _wait_for(port, process)
            yield f"postgresql://tester@127.0.0.1:{port}/postgres"
        finally:
            process.terminate()  # "smart": it would wait for clients
            process.send_signal(2)  # "fast"
            process.wait(60)


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    import psycopg
    from running_mirror import wait_until

    def answers() -> bool:
        assert process.poll() is None
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="tester", dbname="postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    wait_until(answers)


def emptied(url: str) -> str:
    """Whatever another test left there is gone."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return url

"""What needs no cluster: an engine that isn't there is refused before anything is begun."""

import socket
import subprocess
import sys

import pytest

from bertsmith.errors import InputError, MissingExtra
from bertsmith.text.workers import map_in_order_by_ray, require_engine


def test_an_unknown_engine_is_refused() -> None:
    require_engine("local")
    with pytest.raises(InputError, match="engine must be local or ray, found 'spark'"):
        require_engine("spark")


def test_a_missing_ray_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    sentence = r"--engine ray needs the package ray: pip install 'bertsmith\[ray\]'"
    with pytest.raises(MissingExtra, match=sentence):
        require_engine("ray")
    with pytest.raises(MissingExtra, match=sentence):
        next(map_in_order_by_ray(abs, [(1,)]))


def test_help_imports_neither_ray_nor_arrow() -> None:
    code = (
        "import sys; from bertsmith.cli.main import main; main(['embed', '--help']);"
        "sys.exit(bool({'ray', 'pyarrow', 'torch'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


def test_a_cluster_that_does_not_answer_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # taken, but nobody listens
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(InputError, match=r"^No Ray cluster could be joined \(.*refused.*RAY_ADDRESS"):
            next(map_in_order_by_ray(abs, [(1,)]))

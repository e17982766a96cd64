"""A model for all benchmarks of the tests, and a machine whose speed needs no measuring."""

import pytest
from benchmark_toys import tiny_encoder

from bertsmith.training import machine


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "matmul_flops", lambda *_, **__: 1e11)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_encoder(tmp_path_factory.mktemp("benchmark") / "encoder"))

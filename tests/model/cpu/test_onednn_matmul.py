"""Fast float32 matrix products: as exact as the usual ones, and nobody else's setting."""

from pathlib import Path

import pytest
import torch

from bertsmith.model.cpu import onednn_matmul
from bertsmith.model.cpu.onednn_matmul import fast_matmul, onednn_is_faster

ZEN_5 = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f avx512_bf16\n"
SAPPHIRE_RAPIDS = "vendor_id\t: GenuineIntel\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16\n"


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor where oneDNN is."""
    monkeypatch.setattr(onednn_matmul, "onednn_is_faster", lambda: True)


def precision() -> str:
    return str(torch.backends.mkldnn.matmul.fp32_precision)  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", [(25, 384, 1536), (512, 64, 64), (7, 33, 129)])
def test_they_are_as_exact_as_float32_is(shape: tuple[int, int, int]) -> None:
    """On this machine, whichever way it goes. bfloat16 would be off by 0.3 %."""
    rows, inner, columns = shape
    one, other = torch.randn(rows, inner), torch.randn(inner, columns)
    expected = one.double() @ other.double()
    with fast_matmul():
        found = one @ other
    assert float((found.double() - expected).norm() / expected.norm()) < 2e-6


@pytest.mark.usefixtures("faster")
def test_they_are_not_for_few_tokens() -> None:
    with fast_matmul(30):
        assert precision() != "bf16"
    with fast_matmul(300):
        assert precision() == "bf16"


@pytest.mark.usefixtures("faster")
def test_the_setting_is_left_as_it_was() -> None:
    before = precision()

    @fast_matmul()
    def fails() -> None:
        assert precision() == "bf16"
        raise ValueError("within")

    with pytest.raises(ValueError, match="within"):
        fails()
    assert precision() == before != "bf16"


@pytest.mark.usefixtures("faster")
def test_of_two_threads_the_last_one_puts_it_back() -> None:
    before = precision()
    one, other = fast_matmul(), fast_matmul()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert precision() == "bf16"
    other.__exit__(None, None, None)
    assert precision() == before != "bf16"


@pytest.mark.parametrize(
    ("capability", "cpuinfo", "expected"),
    [
        ("AVX512", ZEN_5, True),
        ("AVX2", ZEN_5, False),  # torch was told to use no more
        ("AVX512", SAPPHIRE_RAPIDS, False),  # MKL is fast, and oneDNN would compute in bfloat16
        ("AVX512", ZEN_5.replace("avx512_bf16", "amx_bf16"), False),
    ],
)
def test_they_are_for_processors_of_amd_with_avx512(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capability: str, cpuinfo: str, expected: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(onednn_matmul, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert onednn_is_faster.__wrapped__() is expected

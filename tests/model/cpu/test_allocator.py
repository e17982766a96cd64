import platform
import sys

import psutil
import pytest

from bertsmith.model.cpu.process import give_back_memory, keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked")
def test_freed_memory_goes_back_to_the_system() -> None:
    blocks = [bytes([1]) * 100_000 for _ in range(1000)]
    del blocks[1::2], blocks[-1]  # what is left keeps the rest from going back by itself
    before = psutil.Process().memory_info().rss
    assert give_back_memory()
    assert before - psutil.Process().memory_info().rss > 30e6
    assert len(blocks) == 499


def test_another_system_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert not keep_freed_memory()
    assert not give_back_memory()

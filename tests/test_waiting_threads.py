"""Threads of a product leave the core to whom they wait for."""

import os
import subprocess
import sys

import pytest

# Both threads have been on cores of their own, and then share one, as beside another program.
PRODUCTS = """
import os, time
import bertsmith, torch
torch.set_num_threads(2)
x = torch.randn(300, 300)
x @ x
for task in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(task), {min(os.sched_getaffinity(0))})
started = time.perf_counter()
for _ in range(10):
    torch.add(x, x).mul_(2).mm(x)
print(os.environ.get("GOMP_SPINCOUNT"), time.perf_counter() - started)
"""


COUNT = 'import os, bertsmith; print(os.environ.get("GOMP_SPINCOUNT"))'


def run(program: str, **environment: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=kept | environment, check=True, capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="moves threads from two cores to one, as Linux lets one",
)
def test_two_threads_on_one_core_do_not_wait_out_their_turns() -> None:
    count, seconds = run(PRODUCTS)
    asked, usual = run(PRODUCTS, GOMP_SPINCOUNT="300000")
    assert (count, asked) == ("3000", "300000"), "what the user says is kept"
    assert float(seconds) < float(usual) / 2
    assert run(COUNT, OMP_WAIT_POLICY="passive") == ["None"]

"""A machine that nothing is wrong with; tests replace what they are about."""

from bertsmith.machine import Hardware

PLAIN = Hardware(
    processor="test",
    visible_cores=8,
    cores=4,
    cpu_limit=None,
    instructions=("avx2",),
    memory=16 * 10**9,
    memory_available=8 * 10**9,
    gpus=(),
)

"""What a pre-training run will take, before it is paid for. Nothing is trained and nothing is written.

In: a recipe, as `bertsmith pretrain` takes it, and the name of a GPU (or `here`, this machine, measured).
Out: a Plan, with hours, cost, memory, steps and tokens, what they rest on, and how far they may be off.
Begin with plan.py, which asks workload.py what a step holds, cost.py for the seconds it takes, and
accelerators.py, a reader of accelerators.toml, what the hardware reaches.
"""

"""Training: the one loop, with its optimiser, schedule, precision, distribution, checkpoints and report."""

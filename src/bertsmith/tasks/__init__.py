"""Tasks: one file per head with its examples, loss, metric and decoding. Pre-training is a task too."""

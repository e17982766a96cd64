"""What a model is trained for: one file a task, with its examples, head, loss, metrics and decoding.

In: rows of a file, and an encoder. Out: a head on it, predictions, figures, and what other parts ask of a
task (a graph, a student, an explanation). Pre-training is a task too. Below: `examples` (rows → tokens),
`heads`, `losses`, `evaluating`, `checkpoints` (a model's folder), `golden` (its answers when it was written),
`pretraining`. Read first: task.py, the contract; then classification.py.
"""

"""A smaller model learns what a larger one says of texts of its task. `encoders`: the same of raw text,
without a task. Read first: distil_task.py.
"""

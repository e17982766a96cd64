"""Checks whether a model, index or graph answers as it did when it was written, or as other tools do.

In: a folder with golden answers, or any model's folder and the name of another tool. Out: a Check, which says
at which stage and by how much answers differ. Read check.py first. Only oracles.py imports transformers and
sentence-transformers, and only check.py calls it.
"""

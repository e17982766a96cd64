"""Whether a folder's model, index or graph answers as it did when it was written, or as other tools do.

In: a folder with golden answers, or any model's folder and the name of another tool. Out: a Check, which says
at which stage and by how much answers differ. Read check.py first; oracles.py is the one door to transformers
and sentence-transformers, and only check.py may open it.
"""

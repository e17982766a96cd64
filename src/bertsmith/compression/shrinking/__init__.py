"""How small a fine-tuned model can be, and still answer well enough.

In: a model, and rows and texts of its task. Out: a folder with each candidate (a pruned vocabulary, fewer
layers, a static table), the figures of all, and the one that keeps the score and computes least. Read first:
shrink.py, then candidates.py.
"""

"""Searches for the smallest model that still answers as well as is asked for.

In: a fine-tuned model, and rows and texts of its task. Out: a folder with every candidate (a pruned
vocabulary, fewer layers, a static table), their figures, and the chosen one: the least work among those that
keep the score. Read first: shrink.py, then candidates.py.
"""

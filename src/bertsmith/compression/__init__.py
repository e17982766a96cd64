"""A model → a smaller one that answers nearly as well.

In: a fine-tuned model, an encoder or an embedding model, and texts. Out: a folder with the smaller model, and
what it costs and keeps. `distilling`: fewer or narrower layers learn what the whole model says.
distil_static.py: a table of an embedding model, by the steps in static_learning.py. vocabulary_pruning.py:
the same model without the pieces that its texts don't have. `shrinking`: a search among all of these.
Read first: distilling/distil.py.
"""

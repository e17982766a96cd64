"""Makes a model smaller while it keeps most of its quality.

In: a fine-tuned model, an encoder or an embedding model, and texts. Out: a folder with the smaller model, its
score and its cost. `distilling` trains a student of fewer or narrower layers on the model's outputs;
distil_static.py turns an embedding model into a static table, by the steps in static_learning.py;
vocabulary_pruning.py removes tokens that the texts don't use; `shrinking` searches among all of these.
Read first: distilling/distil.py.
"""

"""Explains a model's answer to one input: Explainer, look() and the service's page.

In: a model folder and an input as its task reads it. Out: each token's share of the answer by integrated
gradients, and attention weights (attribution.py); a word's neighbours in every layer (word_neighbours.py);
one page with all of it (look.py). Read attribution.py first; explained_model.py opens the model with
gradients, and says for each kind of model which number is explained.
"""

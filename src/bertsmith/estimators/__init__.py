"""Fine-tuning and frozen features as estimators of scikit-learn, for its pipelines and searches.

In: X, texts or pairs of texts as a list or as columns, and y. Out: fitted estimators with predict, transform
and save; a pickle of one holds its model as files. One file, estimators.py.
"""

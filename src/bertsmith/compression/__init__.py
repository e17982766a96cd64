"""A model → a smaller one that answers nearly as well.

In: a fine-tuned model or an encoder, and texts. Out: a student of fewer layers, a static table, a model with
a smaller vocabulary, and what each costs and keeps. Read first: distilling/distil_task.py; then
shrinking/shrink.py, which searches among them.
"""

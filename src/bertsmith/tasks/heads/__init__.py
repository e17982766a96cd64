"""Heads on an encoder: a classifier or a vector for each text, a tag for each word, and how a head is
initialised.

Read first: classifier_head.py.
"""

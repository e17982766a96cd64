"""Finds the texts of test files in a corpus, and removes them from it.

A model that has read its test questions is measured on its memory. A corpus is compared with test files of
any format: the result is findings with examples, and a corpus without what was found. Read contamination.py
first, then removal.py. evaluation_texts.py reads the test files, scanning.py reads the corpus, and
matching.py decides what is a copy.
"""

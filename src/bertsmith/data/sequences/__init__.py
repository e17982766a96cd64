"""Sequences that are no text: integers, symbols, series, images and rows of tables, as tokens of a store.

In: files of rows. Out: a token store with its tokenizer, and a codec that writes labelled rows in the same
symbols. Read first: building.py.
"""

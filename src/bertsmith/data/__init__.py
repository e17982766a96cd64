"""Turns tokens into training batches, in an order that can be replayed.

A corpus and a tokenizer become packed batches with their masks, and a cursor that marks the position in the
stream.

    tokenizing → store → pairs → stream → batch → masking

`sequences` makes a token store from rows that are no text. Read first: store.py, then stream.py.
"""

"""Tokens become batches, in an order that can be replayed.

In: a corpus and a tokenizer. Out: packed batches with their masks, and a cursor that names the place.

    tokenizing → store → pairs → stream → batch → masking

`sequences` makes a store of what is no text. Read first: store.py, then stream.py.
"""

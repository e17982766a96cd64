"""Token ids → hidden states, and weights in and out.

In: packed batches, and folders of ours or of others. Out: hidden states (N, H), and folders that transformers
and sentence-transformers open. `families` has one record a family; `layers` are the bricks of an encoder;
`cpu` is the door to the compiled kernels, with a way without them. Read first: config.py, then bert.py; for
folders checkpoint.py.
"""

"""Token ids → hidden states, and weights in and out.

In: packed batches, and model folders by Bertsmith or other tools. Out: hidden states (N, H), and folders that
transformers and sentence-transformers open. `families` has one record for each family; `layers` has the
modules of an encoder; `cpu` has the compiled kernels and what runs in their place. Read first: config.py,
then bert.py; for folders checkpoint.py.
"""

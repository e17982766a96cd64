"""The operations of served models: predict, rerank, embed, similarity, embed_tokens, fill_mask and search.
Read operation.py first, which is their contract.

An operation's `prepare` takes a request's inputs and options. It returns the sequences to compute, the
forward pass that computes them, and a function that turns their outputs into the results. Nothing here waits,
queues or knows HTTP. served_model.py decides which model has which operations.
"""

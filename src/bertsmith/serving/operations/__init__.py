"""What a served model can be asked for: predict, rerank, embed, similarity, embed_tokens, fill_mask, search.
Read operation.py first, which is the contract.

In: a request's inputs and options. Out, from `prepare`: sequences to compute, the pass that computes them,
and what makes the answer of their outputs. Nothing here waits, queues or knows HTTP; served_model.py says
which model has which operations.
"""

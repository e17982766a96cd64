"""A model folder → answers: predictions, vectors, filled masks, searches and explanations; and its exports.

In: folders that training, or anyone else, wrote. Nothing here trains, and nothing is imported from what does.
All that computes begins in engine.py. Read predictor.py first, or embedding/embedder.py for vectors; index/
and ranking/ search by them, explaining/ and suggesting/ look at a model's answers, export/ writes it as a
graph, and checking/ holds it to what it answered when it was written.
"""

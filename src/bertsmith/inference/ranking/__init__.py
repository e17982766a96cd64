"""Compares ways to search one collection: `bertsmith rank`, and benchmarks of retrieval.

In: queries, documents and judgements (text.retrieval), an embedder, perhaps a re-ranker. Out: rankings by
BM25, by vectors, by both and re-ranked; their figures beside the baseline's; a folder that shows them. Read
ranking.py first; the single searches are in search.py, the figures in results.py. mining.py has a search
bring up hard negatives.
"""

"""Embedding: texts → vectors, of a few texts in memory or a table of any size on disk."""

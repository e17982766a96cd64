"""Index: documents → passages → vectors and words in one table, and how it is searched."""

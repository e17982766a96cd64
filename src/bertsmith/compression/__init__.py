"""Compression: a model → a smaller one that answers nearly as well."""

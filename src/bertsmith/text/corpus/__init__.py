"""Corpus: sources → documents → sentences, cleaned and without duplicates → a folder with a manifest."""

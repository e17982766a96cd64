"""Ranking: ways to search one collection, and what each is worth."""

"""Sequences that are no text: integers and symbols, and rows of tables, as tokens of an ordinary store."""

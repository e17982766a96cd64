"""Rows as examples, and examples as tokens."""

"""A model's golden answers: what it answered when it was written, so that whatever changes it shows.

fixed texts → subject (a model opened from its folder) → records of every stage → golden.json, and comparison
"""

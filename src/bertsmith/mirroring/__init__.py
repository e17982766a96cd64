"""A student of an LLM: recorded calls understood, learned from, and what is proven of it."""

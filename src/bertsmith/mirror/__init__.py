"""A mirror in front of an LLM: calls are relayed, recorded, learned from, and answered in its place."""

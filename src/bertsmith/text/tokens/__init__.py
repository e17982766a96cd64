"""Tokens: a vocabulary from a corpus, and the tokenizer that reads text by it."""

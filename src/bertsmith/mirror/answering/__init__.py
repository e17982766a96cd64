"""Answering in an LLM's place: stages, audits, and what follows from their evidence."""

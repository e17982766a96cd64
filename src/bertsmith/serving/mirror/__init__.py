"""The mirror: calls of an LLM with structured answers, relayed and recorded."""

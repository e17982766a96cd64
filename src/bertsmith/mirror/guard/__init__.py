"""A guardrail: what goes to an LLM and what comes back is allowed, reviewed or blocked by a classifier."""

"""A guardrail: what goes to an LLM and what comes back is allowed, reviewed or blocked by a classifier.

In: requests and answers on their way through, and policy.toml (policy.py). Out: the same bytes, or a refusal
in the protocol's envelope, and a line of the log for each decision. Read app.py first; guarded_texts.py finds
the texts that judge.py judges, and asks a call's format where they stand.
"""

"""Hugging Face's pipelines: what each reads and answers."""

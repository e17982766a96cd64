"""Inference: checkpoint → predictions."""

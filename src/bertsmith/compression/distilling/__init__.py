"""Distillation: a smaller model learns what a larger one says."""

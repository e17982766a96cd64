"""Benchmarks run whole: official files, splits, metrics and submissions, beside the published tables."""

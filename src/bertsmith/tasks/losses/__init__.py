"""Losses on vectors and scores."""

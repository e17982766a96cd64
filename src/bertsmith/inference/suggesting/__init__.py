"""Suggesting: which rows to label next, and which labels to look at again."""

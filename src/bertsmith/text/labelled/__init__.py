"""Labelled data: rows of tables, sentences of tagged words, questions about passages."""

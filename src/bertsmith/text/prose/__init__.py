"""Prose: what a document says, freed of markup, as paragraphs and sentences.

In come documents with the layout that they were read in, pages of HTML, and the documentation of installed
Python packages; out go clean paragraphs and sentences. Read sentences.py first: every document passes it.
"""

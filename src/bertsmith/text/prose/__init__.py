"""Turns documents into clean paragraphs and sentences of prose, without markup.

sentences.py cleans text and splits it: every document of a corpus passes through it, so read it first.
html_text.py extracts the text of HTML pages, pydocs.py reads the documentation of installed Python packages,
and markup.py finds the prose in reStructuredText, Markdown and docstrings.
"""

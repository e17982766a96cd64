"""What a corpus and test files have in common, found and taken out.

A model that has read its test questions is measured on its memory. In come a corpus and test files of any
format; out go findings with examples, and a corpus without what was found. Read contamination.py first, then
removal.py. Below them, evaluation_texts.py reads the test files, scanning.py goes through the corpus, and
matching.py says what a copy is.
"""

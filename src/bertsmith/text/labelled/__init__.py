"""Labelled data other than rows of a table: sentences with a tag for each word, and questions about passages.

conll.py reads CoNLL's columns and JSON lines, squad.py reads SQuAD's JSON; their records have the file and
the line for messages. span_texts.py checks marked spans against their text, label_names.py finds labels that
look like mistakes, and labelled_files.py lists the files of a folder that have labelled rows. Read conll.py
first.
"""

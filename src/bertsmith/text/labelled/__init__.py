"""Labelled data that is more than a table's rows: sentences of tagged words, questions about passages.

In come CoNLL columns, JSON lines and SQuAD's files; out go records with their file and line, by conll.py and
squad.py. span_texts.py holds marked spans against their text, label_names.py looks for labels that can't be
meant, and labelled_files.py says which files of a folder hold labelled rows. Read conll.py first.
"""

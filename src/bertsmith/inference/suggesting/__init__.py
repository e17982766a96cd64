"""Suggests what to do with the next hour of labelling: `bertsmith suggest`.

In: a file of which some rows have labels, and a fine-tuned model or any encoder. Out: rows to label next,
labels that are probably wrong, near copies that disagree; as a value or a folder. Read suggest.py first;
label_doubts.py judges the labels, near_copies.py compares texts by their characters, folder.py writes what
was found.
"""

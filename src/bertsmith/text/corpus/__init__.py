"""Corpus: sources → documents → sentences, cleaned and without duplicates → a folder with a manifest.

In come files, folders, addresses and installed packages; out goes a folder of Parquet files in two splits,
train and heldout, that accounts for each source and document. Read building.py first: it tells the three
passes, whose steps are in reading.py, preparing.py and selection.py. corpus.py opens what they left.
"""

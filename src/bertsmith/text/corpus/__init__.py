"""Corpora: sources → documents → sentences, cleaned and without duplicates → a folder with a manifest.

The sources are files, folders, addresses and installed packages. The result is a folder of Parquet files in
two splits, train and heldout, with a manifest that accounts for every source and document. Read building.py
first: it has the three passes, whose steps are in reading.py, preparing.py and selection.py. corpus.py opens
a corpus.
"""

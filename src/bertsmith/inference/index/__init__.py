"""A folder of passages to be searched by meaning and by words: `bertsmith index`, and a service's searches.

In: files, folders and tables of documents, and an embedder. Out: a folder with index.json (manifest.py), a
LanceDB table of passages (passage_table.py) and what damage is found by (integrity.py); and hits for a query
(search.py). Read index.py first, whose Index is all that others use; then build.py, which keeps a folder in
step with its sources, and writer.py, which commits.
"""

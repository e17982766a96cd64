"""Retrieval: documents and passages to be searched, and the questions that search is measured on.

In come files and tables of any kind; out go documents with their place and hash, cut into passages that
stand in them exactly as they are, and test collections of queries, documents and judgements. Read
documents.py first; of the collections retrieval_data.py, then layouts.py.
"""

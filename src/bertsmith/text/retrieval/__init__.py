"""Reads documents to be searched, and the test collections by which search is evaluated.

documents.py reads files and tables as documents, each with its position in the file and a hash; passages.py
splits them into passages. retrieval_data.py is a test collection: queries, documents and relevance
judgements; layouts.py reads one in any of its published layouts. Read documents.py first, then
retrieval_data.py.
"""

"""Retrieval: documents and their passages, and the layouts of data that search is measured on."""

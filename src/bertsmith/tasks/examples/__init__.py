"""Rows as examples, and examples as tokens: texts and pairs, tagged sentences, queries with their documents,
columns beside a text. Read first: encoding.py, then text_task.py.
"""

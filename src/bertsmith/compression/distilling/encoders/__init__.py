"""Distils an encoder or an embedding model on raw text. In each step the student learns the teacher's masked
words, hidden states, self-attention relations or text vectors of the batch. Read first: distiller.py.
"""

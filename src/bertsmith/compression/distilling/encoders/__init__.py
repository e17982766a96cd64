"""An encoder, or an embedding model, teaches what it makes of raw text, asked anew in each step: masked
words, hidden states, relations of self-attention, vectors of texts. Read first: lesson.py.
"""

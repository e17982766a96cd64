"""An encoder taught to a smaller one on raw text: its hidden states, its masked words, or its vectors. Read
first: distil_encoder.py.
"""

"""The bricks of an encoder, on packed sequences: embeddings, layers, attention, rotary positions. Read first:
layer.py.
"""

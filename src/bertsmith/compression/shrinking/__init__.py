"""How small a fine-tuned model can be and still answer well enough: candidates, each made and judged, and
the one chosen. Read first: shrink.py.
"""

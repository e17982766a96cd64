"""Distils fine-tuned models, or a file of answers, into a smaller model of the same task. The teachers'
outputs for labelled rows and texts are computed once and cached. Read first: distiller.py.
"""

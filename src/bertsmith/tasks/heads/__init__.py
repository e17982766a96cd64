"""What stands on an encoder: a classifier or a vector for each text, a tag for each word; how a head begins.

Read first: classifier_head.py.
"""

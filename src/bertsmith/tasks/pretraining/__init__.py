"""Pre-training as tasks of the loop: masked language modelling, replaced tokens, patches and table rows. Read
first: masked_task.py, then pretraining.py.
"""

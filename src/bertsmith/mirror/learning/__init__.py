"""Recorded calls become a student, and it is proven how often it agrees with the LLM.

In: a store's calls (../store.py). Out: a folder with student.json, the model and report.html, which the
mirror serves (../student.py); and, of asking.py, more calls.

    understand.py → learned_calls.py → tiers.py → proving.py → report.py, in the order of train.py

Read train.py first. It is started as a process of its own, by hand or by ../answering/training_process.py:
what relays and answers imports nothing of this folder, of training or of compression.
"""

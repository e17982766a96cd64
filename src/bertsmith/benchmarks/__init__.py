"""Runs benchmarks with their official files, splits, metrics and submissions, and compares with published
scores.

In: a folder of a benchmark's official files, and a model. Out: a folder with every figure, a report, and the
files for the benchmark's server. Read benchmark.py first, the contract of a task, then suite.py, which
runs GLUE, SuperGLUE and SQuAD: seed_run.py trains and judges, results.py collects. retrieval.py runs BEIR and
NanoBEIR, and mteb_model.py is a model for the package mteb.
"""

"""Benchmarks run whole: official files, splits, metrics and submissions, beside the published tables.

In: a folder of a benchmark's official files, and a model. Out: a folder with every figure, a report, and the
files that the benchmark's server takes. Read benchmark.py first, the contract of a task, then suite.py, which
runs GLUE, SuperGLUE and SQuAD: seed_run.py trains and judges, results.py gathers. retrieval.py runs BEIR and
NanoBEIR, and mteb_model.py is a model for the package mteb.
"""

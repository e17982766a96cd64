"""What is special to CPUs: when a compiled kernel is asked and what happens without it, oneDNN's products, a
process's memory and threads. Read first: inference.py.
"""

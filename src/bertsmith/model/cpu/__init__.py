"""Computing on a CPU: the compiled kernels and the conditions under which they are used, oneDNN's products,
and a process's memory and threads. Read first: inference.py.
"""

"""Fine-tuned models from folders and into them, and what sentence-transformers needs beside them. Read first:
task_checkpoint.py.
"""

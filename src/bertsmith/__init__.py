"""Bertsmith: the whole life of a BERT, from raw text to a checkpoint that other tools open.

The public names are those of `__init__.pyi`; docs/coming-from-transformers.md shows them at work. Each is
imported when it is first used, so that `import bertsmith` costs no torch.
"""

import os

import lazy_loader

__version__ = "0.3.0"

# Threads that wait for each other turn round for milliseconds before they sleep, by GNU OpenMP's default, and
# take the core from the one that they wait for where another program has the other. Read once, with torch.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # some 50 microseconds

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

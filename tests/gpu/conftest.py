"""bench/gpu.py's parts can be imported."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))
sys.path.extend(str(folder) for folder in (Path(__file__).parents[2] / "bench").iterdir() if folder.is_dir())

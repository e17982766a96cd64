"""The scripted LLM of the mirror's own tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "serving" / "mirror"))

from databases import address, postgresql, server  # noqa: F401

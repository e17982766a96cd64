"""`python -m bertsmith`, which is what torchrun starts."""

import sys

from bertsmith.cli.main import main

sys.exit(main())

"""`python -m bertsmith` is `bertsmith`."""

import sys

from bertsmith.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

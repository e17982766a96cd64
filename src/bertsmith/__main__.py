"""What `bertsmith`, `python -m bertsmith` and torchrun start."""

import signal
import sys


def main() -> int:
    """As bertsmith.cli.main.main, and quiet if Ctrl-C comes while that is still being imported."""
    unwinds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if unwinds:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from bertsmith.cli.main import main as run

    if unwinds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


if __name__ == "__main__":
    sys.exit(main())

"""The first lines of the `covey` process.

It imports the command inside its own `try`: importing takes up to a second, and Ctrl-C in it must not end in a trace.
"""

import sys


def main() -> None:
    """Run the command; 130 when interrupted, as shells report it."""
    try:
        from covey.main import main as run  # here, so that an interrupt while importing is caught

        run()
    except KeyboardInterrupt:
        sys.exit(130)

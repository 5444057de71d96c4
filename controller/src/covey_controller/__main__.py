"""`python -m covey_controller`."""

import sys

from covey_controller.main import main

if __name__ == "__main__":
    sys.exit(main())

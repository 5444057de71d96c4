"""`python -m covey_gateway`."""

import sys

from covey_gateway.main import main

sys.exit(main())

"""`python -m covey_agent`."""

import sys

from covey_agent.main import main

sys.exit(main())

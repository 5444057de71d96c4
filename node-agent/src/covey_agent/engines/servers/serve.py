"""The start of an engine in Python:

    python -I [-S] serve.py ENGINE [--packages FOLDER] (--version | OPTIONS…)

Everything of ours is imported first and the agent's folder taken off the path again before the engine is: an engine
sees its own packages and no others.
"""

import os
import sys

if __name__ == "__main__":
    ours = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
    sys.path.append(ours)
    from covey_agent.engines.servers.options import main

    sys.path.remove(ours)
    sys.exit(main(sys.argv[1:]))

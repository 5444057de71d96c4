"""The first lines of the `covey` process, also under the name by which kubectl finds it.

It imports the command inside its own `try`: importing takes up to a second, and Ctrl-C in it must not end in a trace.
"""

import sys


def main() -> None:
    """`covey`."""
    _run("covey")


def kubectl_main() -> None:
    """`kubectl-covey`, which `kubectl covey` starts: the kubeconfig is meant before anything on this machine."""
    _run("kubectl covey")


def _run(program: str) -> None:
    """Run the command; 130 when interrupted, as shells report it."""
    try:
        from covey.main import main as run  # here, so that an interrupt while importing is caught

        run(program)
    except KeyboardInterrupt:
        sys.exit(130)

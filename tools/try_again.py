"""Try tests of real processes that have just failed once more, alone; see ADR 46.

`python tools/try_again.py`, after a whole run of pytest that ended with failures. Reads the failed tests from pytest's
cache. Exit code: pytest's own of the second run; 1 without one, when more failed than chance explains, or one that
runs in this process alone.
"""

import json
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
# One in a thousand may be chance on a crowded machine. More is a fault.
MOST = 3
# Real processes and real sockets. What other tests decide, they decide the same each time.
REAL = ("tests/integration/", "tests/contract/")


def choose_again(failed: list[str]) -> list[str]:
    """Which of the failed tests may be tried again: all, or none."""
    may = len(failed) <= MOST and all(one.startswith(REAL) and "::" in one for one in failed)
    return sorted(failed) if may else []


def main() -> int:
    path = CHECKOUT / LAST_FAILED
    failed: list[str] = list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []
    again = choose_again(failed)
    if not again:
        return 1
    print("Failed among others, tried again alone:", *again, sep="\n  ", flush=True)
    command = [sys.executable, "-m", "pytest", "-n", "0", *again]
    code = subprocess.run(command, cwd=CHECKOUT, check=False, timeout=1800).returncode
    if code == 0:
        print("Passed alone. Each is a race to find, in the test or in Covey:", *again, sep="\n  ")
    return code


if __name__ == "__main__":
    sys.exit(main())

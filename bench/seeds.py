"""How long 300 seeds of the simulator take, on all cores. One JSON line a figure. Usage: `seeds.py [SEEDS]`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
SEEDS = 300


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    command = [sys.executable, "-m", "sim", "--seeds", str(count), "--afresh"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(TESTS)}, stdout=subprocess.PIPE, text=True, check=False
    )
    if found := re.search(rf"^{count} seeds in (?P<seconds>[\d.]+) s: passed", done.stdout, re.MULTILINE):
        print(json.dumps({"bench": "seeds", "seeds": count, "seconds": float(found["seconds"])}), flush=True)
        return 0
    print(done.stdout, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

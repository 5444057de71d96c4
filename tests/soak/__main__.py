"""`make soak`: whole fleets under traffic, edits and faults for so many minutes, and a page of what came of it."""

import argparse
import random
import sys
import time
from pathlib import Path

from soak.report import render_report
from soak.story import Story

PAGE = Path(__file__).parents[2] / "build" / "soak.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--page", type=Path, default=PAGE, help="where the report goes (default: %(default)s)")
    given = parser.parse_args()
    print(f"Soaking for {given.minutes:g} minutes with seed {given.seed}", flush=True)
    began = time.time()
    story = Story(given.seed, given.minutes * 60)
    try:
        story.run()
    finally:
        given.page.parent.mkdir(parents=True, exist_ok=True)
        given.page.write_text(render_report(story, began), encoding="utf-8")
        print(f"The report is in {given.page}")
    print("\n".join(story.findings) or "Nothing was lost beyond what was in flight on what was struck; nothing leaked.")
    return 0 if story.holds else 1


if __name__ == "__main__":
    sys.exit(main())

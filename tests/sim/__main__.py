"""`python -m sim`: runs seeds and tells how they went; of one that failed, its story and how to run it again.

What passed is written down with a digest of the code that it passed with, so that a long run which was cut off goes on
where it was. One process for each core, forked when everything is imported; each takes the next seed when it is done.
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path

from kit.sim.run import LONG_QUIET_EVERY, Result, run_seed
from kit.sim.seeded import FIRST_OF_GROUPS

from sim.passed import Passed, digest_code

DONE, FAILED = 0, 1
PASSED = "passed"
ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sim", description="Run seeds of the simulator.")
    parser.add_argument("--seeds", type=int, default=300, help="run seeds 0 to N-1 (default: 300)")
    parser.add_argument("--seed", type=int, help="run this seed alone, and tell its story as it happens")
    parser.add_argument("--groups", type=int, help="run the first N seeds of groups instead")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--afresh", action="store_true", help="run also what passed with this very code before")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    given = parser.parse_args()
    # A run makes much that lives to its end: looking through it again and again is a fifth of the time.
    gc.disable()
    if given.seed is not None:
        result = run_seed(given.seed, is_told=True)
        print(render_result(result))
        return FAILED if result.failure else DONE
    passed = Passed(ROOT / ".sim", digest_code(ROOT))
    before = frozenset[int]() if given.afresh else passed.read()
    wanted = range(given.first, given.seeds)
    if given.groups is not None:
        wanted = range(FIRST_OF_GROUPS, FIRST_OF_GROUPS + given.groups)
    return run_seeds(wanted, before, passed, given.jobs)


def run_seeds(wanted: range, before: frozenset[int], passed: Passed, jobs: int) -> int:
    """Long ones first, so that all processes end together."""
    begun = time.monotonic()
    seeds = sorted(
        (seed for seed in wanted if seed not in before), key=lambda seed: (seed % LONG_QUIET_EVERY > 0, seed)
    )
    failed = 0
    with start_pool(jobs) as pool:
        for result in pool.imap_unordered(run_and_collect, seeds):
            if result.failure:
                failed += 1
                print("\n".join((*result.story, render_result(result))), flush=True)
            else:
                passed.add(result.seed)
    skipped = len(wanted) - len(seeds)
    rest = f" ({skipped} more passed before with this code)" if skipped else ""
    verdict = f"{failed} failed" if failed else PASSED
    print(f"{len(seeds)} seeds in {time.monotonic() - begun:.1f} s: {verdict}{rest}")
    return FAILED if failed else DONE


def run_and_collect(seed: int) -> Result:
    result = run_seed(seed)
    gc.collect()
    return result


@contextmanager
def start_pool(jobs: int) -> Generator[Pool]:
    """Whatever was imported here is there already in its processes."""
    gc.freeze()
    with get_context("fork").Pool(jobs) as pool:
        yield pool
        pool.close()
        pool.join()


def render_result(result: Result) -> str:
    if result.failure:
        return f"seed {result.seed} failed: {result.failure}\nrun it again: make sim SEED={result.seed}"
    asked = ", ".join(f"{count} x {outcome}" for outcome, count in result.outcomes.items())
    return (
        f"seed {result.seed} {PASSED}: {result.virtual_seconds:.0f} virtual seconds, converged "
        f"{result.converged_seconds:.0f} s after all healed; requests: {asked}; trace {result.trace}"
    )


if __name__ == "__main__":
    sys.exit(main())

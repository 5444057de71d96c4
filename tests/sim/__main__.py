"""`python -m sim`: runs seeds and tells how they went; of one that failed, its story and how to run it again."""

import argparse
import gc
import os
import subprocess
import sys
import time

from kit.sim.run import Result, run_seed

# A run makes much that lives to its end: looking through it all the time is a tenth of the time.
GENERATION_SIZES = (50_000, 20, 100)
DONE, FAILED = 0, 1
PASSED = "passed"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sim", description="Run seeds of the simulator.")
    parser.add_argument("--seeds", type=int, default=300, help="run seeds 0 to N-1 (default: 300)")
    parser.add_argument("--seed", type=int, help="run this seed alone, and tell its story as it happens")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--step", type=int, default=1, help="from one seed to the next")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    given = parser.parse_args()
    gc.set_threshold(*GENERATION_SIZES)
    if given.seed is not None:
        result = run_seed(given.seed, is_told=True)
        print(render_result(result))
        return FAILED if result.failure else DONE
    if given.jobs > 1:
        return run_jobs(given.first, given.seeds, given.jobs)
    return run_here(range(given.first, given.seeds, given.step))


def run_jobs(first: int, last: int, jobs: int) -> int:
    """Each process takes every so-manyth seed, so that long ones are spread."""
    begun = time.monotonic()
    arguments = (sys.executable, "-m", "sim", "--jobs", "1", "--seeds", str(last), "--step", str(jobs))
    running = [subprocess.Popen((*arguments, "--first", str(first + job))) for job in range(jobs)]
    statuses = [process.wait() for process in running]
    print(f"{last - first} seeds in {time.monotonic() - begun:.1f} s: {'failed' if any(statuses) else PASSED}")
    return FAILED if any(statuses) else DONE


def run_here(seeds: range) -> int:
    status = DONE
    for seed in seeds:
        result = run_seed(seed)
        if result.failure:
            status = FAILED
            print("\n".join(result.story))
            print(render_result(result), flush=True)
    return status


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

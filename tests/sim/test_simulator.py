"""Fleets in trouble: each stays safe, comes back to what is wished, and is quiet then. `make sim` runs hundreds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.sim.run import run_seed
from kit.sim.seeded import FIRST_OF_GROUPS

from sim.passed import Passed, digest_code
from sim.seeds import FAILED_ONCE

TESTS = Path(__file__).parents[1]
# Enough to notice a simulator that is broken itself.
FEW = (*range(1, 5), *range(FIRST_OF_GROUPS, FIRST_OF_GROUPS + 3))


@pytest.mark.parametrize("seed", FEW)
def test_fleet_in_trouble_stays_safe_and_comes_back(seed: int) -> None:
    result = run_seed(seed)
    assert not result.failure, "\n".join(result.story)


@pytest.mark.parametrize("seed", sorted(FAILED_ONCE))
def test_seed_that_failed_once_passes(seed: int) -> None:
    result = run_seed(seed)
    assert not result.failure, "\n".join(result.story)


def test_same_seed_tells_the_same_story_whatever_the_hash_seed() -> None:
    """Nothing depends on the order of a set or on addresses in memory."""
    traces = {trace_of(7, hash_seed) for hash_seed in (1, 2)}
    assert len(traces) == 1


def trace_of(seed: int, hash_seed: int) -> str:
    source = f"from kit.sim.run import run_seed; print(run_seed({seed}).trace)"
    environment = os.environ | {"PYTHONPATH": str(TESTS), "PYTHONHASHSEED": str(hash_seed)}
    command = (sys.executable, "-c", source)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout


def test_seeds_that_passed_are_remembered_for_this_very_code(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").touch()
    source = tmp_path / "planner" / "src" / "made.py"
    source.parent.mkdir(parents=True)
    source.write_text("X = 1\n")
    before = digest_code(tmp_path)
    passed = Passed(tmp_path / ".sim", before)
    assert passed.read() == frozenset()
    passed.add(3)
    passed.add(12)
    assert Passed(tmp_path / ".sim", digest_code(tmp_path)).read() == {3, 12}
    source.write_text("X = 2\n")
    assert digest_code(tmp_path) != before

"""The simulator catches what it is there for: each planted bug makes the seed that its patch names fail."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("crds", "planner", "fleet-client", "controller", "node-agent", "gateway")
PATCHES = sorted((ROOT / "tests" / "sim" / "planted").glob("*.patch"))
# A seed takes a second; this is for a machine that does much else.
PATIENCE_SECONDS = 120
# Two runs of one seed differ when something depends on the order of a set.
COMPARES_TRACES = "Caught by comparing"


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_planted_bug_is_caught_by_its_seed(patch: Path, tmp_path: Path) -> None:
    text = patch.read_text()
    found = re.search(r"^Seed: (\d+)$", text, re.MULTILINE)
    assert found is not None, f"'{patch.name}' must name the seed that catches it, as a line `Seed: N`"
    plant(patch, tmp_path)
    if COMPARES_TRACES in text:
        assert run_seed(tmp_path, found[1], hash_seed=1).stdout != run_seed(tmp_path, found[1], hash_seed=2).stdout
    else:
        answer = run_seed(tmp_path, found[1], hash_seed=1)
        assert answer.returncode == 1, f"seed {found[1]} must fail with '{patch.name}': {answer.stdout[-500:]}"
        assert f"seed {found[1]} failed: " in answer.stdout, answer.stdout + answer.stderr


def test_seven_bugs_are_planted() -> None:
    assert [patch.stem[:2] for patch in PATCHES] == ["01", "02", "03", "04", "05", "06", "07"]


def plant(patch: Path, folder: Path) -> None:
    """A copy of the tree with the bug in it. A patch that doesn't apply any more fails."""
    without_caches = shutil.ignore_patterns("__pycache__", "planted")
    for part in PARTS:
        shutil.copytree(ROOT / part / "src", folder / part / "src", ignore=without_caches)
    for name in ("kit", "sim"):
        shutil.copytree(ROOT / "tests" / name, folder / "tests" / name, ignore=without_caches)
    command = ("git", "apply", str(patch))
    alone = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    answer = subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, f"'{patch.name}' must apply to the tree as it is: {answer.stderr}"


def run_seed(folder: Path, seed: str, hash_seed: int) -> subprocess.CompletedProcess[str]:
    paths = [str(folder / part / "src") for part in PARTS] + [str(folder / "tests")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": str(hash_seed)}
    command = (sys.executable, "-m", "sim", "--seed", seed)
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )

"""The simulator catches what it is there for: each planted bug makes the seed that its patch names fail."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("crds", "planner", "fleet-client", "controller", "node-agent", "gateway", "simulator")
PATCHES = sorted((ROOT / "tests" / "sim" / "planted").glob("*.patch"))
# A seed takes a second; this is for a machine that does much else.
PATIENCE_SECONDS = 120
# Two runs of one seed differ when something depends on the order of a set.
COMPARES_TRACES = "Caught by comparing"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, for all of them: each takes its patch out again."""
    folder = tmp_path_factory.mktemp("planted")
    without_patches = shutil.ignore_patterns("planted")
    for part in PARTS:
        shutil.copytree(ROOT / part / "src", folder / part / "src")
    for name in ("kit", "sim"):
        shutil.copytree(ROOT / "tests" / name, folder / "tests" / name, ignore=without_patches)
    return folder


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_planted_bug_is_caught_by_its_seed(patch: Path, tree: Path) -> None:
    text = patch.read_text()
    found = re.search(r"^Seed: (\d+)$", text, re.MULTILINE)
    assert found is not None, f"'{patch.name}' must name the seed that catches it, as a line `Seed: N`"
    with planted(patch, tree):
        if COMPARES_TRACES in text:
            assert run_seed(tree, found[1], hash_seed=1).stdout != run_seed(tree, found[1], hash_seed=2).stdout
            return
        answer = run_seed(tree, found[1], hash_seed=1)
    assert answer.returncode == 1, f"seed {found[1]} must fail with '{patch.name}': {answer.stdout[-500:]}"
    assert f"seed {found[1]} failed: " in answer.stdout, answer.stdout + answer.stderr


def test_bugs_are_numbered_one_after_the_other() -> None:
    assert [patch.stem[:2] for patch in PATCHES] == [f"{number:02}" for number in range(1, len(PATCHES) + 1)]


@contextmanager
def planted(patch: Path, folder: Path) -> Generator[None]:
    """The bug is in the copy. A patch that doesn't apply any more fails."""
    apply_patch(patch, folder)
    try:
        yield
    finally:
        apply_patch(patch, folder, "--reverse")


def apply_patch(patch: Path, folder: Path, *options: str) -> None:
    command = ("git", "apply", *options, str(patch))
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

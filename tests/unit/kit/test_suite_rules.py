"""The suite's own fixtures do what they say: run on a small suite of their own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).resolve().parents[2] / "conftest.py"


def run_suite(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, folder)
    (folder / "test_inner.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), *options]
    # No plugin is needed, and they take a second to load; what the conftest imports lies beside it.
    plain = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(CONFTEST.parent)}
    return subprocess.run(command, env=plain, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def test_a_test_that_leaves_a_child_behind_fails_and_the_child_ends(tmp_path: Path) -> None:
    source = (
        "import subprocess, sys, conftest\n"
        "conftest.CHILDREN_END_SECONDS = 0.2\n"
        "def test_leaves():\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "    open('pid', 'w').write(str(child.pid))\n"
    )
    answer = run_suite(tmp_path, source)
    assert answer.returncode == 1
    assert "a test must end every process that it starts" in answer.stdout
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists() or "zombie" in Path(f"/proc/{pid}/status").read_text()


def test_a_test_that_ends_its_child_passes(tmp_path: Path) -> None:
    source = (
        "import subprocess, sys\ndef test_ends():\n    subprocess.run([sys.executable, '-c', 'pass'], check=True)\n"
    )
    assert run_suite(tmp_path, source).returncode == 0


def test_golden_file_is_compared_and_refreshed_on_demand(tmp_path: Path) -> None:
    source = "def test_text(golden):\n    golden('deep/a.txt', 'new\\n')\n"
    assert "`make golden` writes it" in run_suite(tmp_path, source).stdout
    assert run_suite(tmp_path, source, "--golden-refresh").returncode == 0
    assert run_suite(tmp_path, source).returncode == 0
    (tmp_path / "golden" / "files" / "deep" / "a.txt").write_text("old\n")
    assert "differs" in run_suite(tmp_path, source).stdout

"""What `covey up` writes while it runs for months: logs and words that may find no room."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from covey.up.part import LOG_BYTES, BoundedLog

LINE = b"x" * (LOG_BYTES // 4) + b"\n"
FULL = Path("/dev/full")

needs_full_device = pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")


@needs_full_device
def test_full_disk_costs_lines_of_a_log_and_raises_nothing(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    path.symlink_to(FULL)
    log = BoundedLog(path)
    log.write_line(b"first\n")
    assert list(log.last) == ["first"]
    log.close()


def test_log_that_was_removed_is_begun_anew_when_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    log = BoundedLog(path)
    path.unlink()
    for _ in range(5):
        log.write_line(LINE)
    log.close()
    assert path.stat().st_size == 2 * len(LINE)


def test_log_that_can_not_be_begun_is_begun_when_it_can(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log" / "agent.log")
    log.write_line(b"lost\n")
    (tmp_path / "log").mkdir()
    log.write_line(b"kept\n")
    log.close()
    assert list(log.last) == ["lost", "kept"]
    assert (tmp_path / "log" / "agent.log").read_text() == "kept\n"


def test_log_whose_folder_was_removed_raises_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log" / "agent.log"
    path.parent.mkdir()
    log = BoundedLog(path)
    path.unlink()
    path.parent.rmdir()
    for _ in range(9):
        log.write_line(LINE)
    log.close()
    assert len(log.last) == 9


def test_log_takes_two_files_of_its_bound(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "agent.log")
    for _ in range(40):
        log.write_line(LINE)
    log.close()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert sum(sizes) <= 2 * LOG_BYTES


def test_words_that_nobody_can_read_any_more_end_nothing() -> None:
    """In a process of its own: rich redirects the standard output of one whose pipe broke."""
    script = (
        "import sys; from covey.up.front import say; from rich.console import Console\n"
        "console = Console(stderr=True)\n"
        "for _ in range(3): say(console, 'nobody reads this')\n"
        "sys.exit(7)"
    )
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run([sys.executable, "-c", script], stderr=writer, timeout=60, check=False)
    finally:
        os.close(writer)
    assert ended.returncode in (7, 120)  # 120: the interpreter's own, for words that it could not flush

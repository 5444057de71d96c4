"""What every part does at its start."""

import logging
import resource
import subprocess
import sys

import pytest
from covey_fleet_client.process import ENOUGH_FILES, MACOS_FILES, raise_file_limit, start_logging

START = (
    "import resource; from covey_fleet_client.process import raise_file_limit, start_logging; "
    "resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); "
    "start_logging('part'); raise_file_limit(); print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
)


def test_log_line_holds_no_escape_sequence_and_no_second_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    start_logging("part")
    logging.getLogger("test").error("found %s", "\x1b[2J\x9b1m\r\n2026 part INFO all is well")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith(r"found \x1b[2J\x9b1m\r\n2026 part INFO all is well")


@pytest.mark.parametrize("hard", [1000, ENOUGH_FILES])
def test_as_many_files_as_may_be_are_opened_and_too_few_are_told_once(hard: int) -> None:
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:  # -1: unlimited
        pytest.skip("this process may not open so many itself")
    program = START.format(soft=256, hard=hard)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{hard}\n"
    told = [line for line in done.stderr.splitlines() if "may open 1000 files" in line and "LimitNOFILE" in line]
    assert len(told) == (1 if hard < ENOUGH_FILES else 0)
    assert len(done.stderr.splitlines()) == len(told)


def test_where_no_limit_is_refused_as_a_limit_the_most_that_is_granted_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As macOS does with its usual hard limit."""
    unlimited = 2**63 - 1
    limits = [(256, unlimited)]

    def grant(which: int, wished: tuple[int, int]) -> None:
        assert which == resource.RLIMIT_NOFILE
        if wished[0] > MACOS_FILES:
            raise ValueError("current limit exceeds maximum limit")
        limits.append(wished)

    def tell(which: int) -> tuple[int, int]:
        assert which == resource.RLIMIT_NOFILE
        return limits[-1]

    monkeypatch.setattr(resource, "getrlimit", tell)
    monkeypatch.setattr(resource, "setrlimit", grant)
    raise_file_limit()
    assert limits[-1] == (MACOS_FILES, unlimited)
    assert caplog.records == []

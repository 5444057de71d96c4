"""What every part does at its start."""

import logging

import pytest
from covey_fleet_client.process import start_logging


def test_log_line_holds_no_escape_sequence_and_no_second_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    start_logging("part")
    logging.getLogger("test").error("found %s", "\x1b[2J\x9b1m\r\n2026 part INFO all is well")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith(r"found \x1b[2J\x9b1m\r\n2026 part INFO all is well")

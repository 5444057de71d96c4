"""One agent per state folder: who is told what, and what a full disk costs."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from covey_agent.main import run_agent
from covey_agent.options import parse_options
from covey_agent.single import AlreadyRunning, take_folder
from covey_fleet_client.files import describe_refusal

HOLD = """
import sys, time
from pathlib import Path
from covey_agent.single import take_folder
lock = take_folder(Path(sys.argv[1]))
print(1, flush=True)
time.sleep(60)
"""


def test_disk_that_takes_nothing_more_keeps_no_agent_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "agent.lock").write_text("12345\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        lock = take_folder(tmp_path)
        with pytest.raises(AlreadyRunning):
            take_folder(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    os.close(lock)
    os.close(take_folder(tmp_path))
    assert (tmp_path / "agent.lock").read_text() == f"{os.getpid()}\n"


def test_second_agent_is_told_of_the_first_and_that_it_is_paused(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as first:
        try:
            assert first.stdout is not None
            first.stdout.readline()
            with pytest.raises(AlreadyRunning, match=f"the one with process id {first.pid} runs."):
                take_folder(tmp_path)
            first.send_signal(signal.SIGSTOP)
            os.waitpid(first.pid, os.WUNTRACED)
            with pytest.raises(AlreadyRunning, match=f"is paused .SIGSTOP.: `kill -CONT {first.pid}` lets it go on"):
                take_folder(tmp_path)
        finally:
            first.kill()


def test_refusal_of_a_disk_names_file_cause_and_what_to_do() -> None:
    with pytest.raises(OSError, match="No space") as refused, open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")
    assert "no space left. Free some space on its disk" in describe_refusal(refused.value)
    with pytest.raises(OSError, match="nowhere") as missing:
        os.open("/nowhere/file", os.O_RDONLY)
    assert describe_refusal(missing.value) == "'/nowhere/file' can't be used: No such file or directory"


def test_a_state_folder_that_cannot_be_read_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "agent" / "key.pem").mkdir(parents=True)
    options = parse_options(["--controller", "https://127.0.0.1:1", "--state", str(tmp_path)])
    assert asyncio.run(run_agent(options, tmp_path / "agent")) == 1
    assert "the state folder can't be used" in caplog.text

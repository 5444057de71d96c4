"""A part of `covey up` as a child process: when it is started again, and when that is given up."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from covey.errors import CommandError
from covey.up import part as part_module
from covey.up.part import Part
from kit.processes import wait_for

# Its first life is long where it is told so; of the others it ends at once, until it lives on.
PART = """
import sys, time
from pathlib import Path
lives, first_seconds, quick_ends = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
with lives.open("a") as file:
    file.write("x")
count = len(lives.read_text())
if count == 1 and first_seconds:
    print("2026-01-01 flaky INFO runs", file=sys.stderr, flush=True)
    time.sleep(first_seconds)
time.sleep(float(sys.argv[4]))
if count <= 1 + quick_ends:
    sys.exit("no space left on device")
time.sleep(60)
"""


@pytest.fixture
def lifeline() -> Generator[int]:
    reader, writer = os.pipe()
    yield reader
    os.close(reader)
    os.close(writer)


@pytest.fixture
def lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "covey_flaky.py").write_text(PART)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "lives"


def flaky(
    lives: Path,
    lifeline: int,
    first_seconds: float,
    quick_ends: int,
    on_line: Callable[[str, str], None],
    start_seconds: float = 0,
) -> Part:
    arguments = [str(lives), str(first_seconds), str(quick_ends), str(start_seconds)]
    return Part("flaky", lambda: arguments, lives.with_name("flaky.log"), lifeline, on_line)


def test_part_that_never_ran_is_given_up_with_its_last_words(lives: Path, lifeline: int) -> None:
    with pytest.raises(CommandError, match=r"3 times:\n(.*\n)*  no space left on device"):
        asyncio.run(flaky(lives, lifeline, 0, 9, lambda _, line: None).run())
    assert lives.read_text() == "xxx"


def test_part_that_takes_long_to_fail_has_not_run(lives: Path, lifeline: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an interpreter takes seconds to start: that is no life that a part has had."""
    monkeypatch.setattr(part_module, "SETTLED_SECONDS", 0.2)
    with pytest.raises(CommandError, match="3 times"):
        asyncio.run(flaky(lives, lifeline, 0, 9, lambda _, line: None, start_seconds=0.5).run())
    assert lives.read_text() == "xxx"


def test_part_that_is_cancelled_waits_for_the_process_that_is_stopped(lives: Path, lifeline: int) -> None:
    """As when another part is given up."""

    async def scenario() -> None:
        is_up = asyncio.Event()
        part = flaky(lives, lifeline, 60, 0, lambda _, line: is_up.set())
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            running = group.create_task(part.run())
            await is_up.wait()
            running.cancel()
            await asyncio.sleep(0.3)
            assert not running.done()
            part.stop(signal.SIGTERM)
            await part.wait_idle()

    asyncio.run(scenario())


def test_part_that_has_run_is_started_again_for_ever(
    lives: Path, lifeline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of `covey up` would be the end of the gateway."""
    monkeypatch.setattr(part_module, "LONGEST_DELAY_SECONDS", 0.2)
    monkeypatch.setattr(part_module, "SETTLED_SECONDS", 1.0)  # far below its first life

    async def scenario() -> None:
        ends: list[str] = []
        many = asyncio.Event()

        def count(_: str, line: str) -> None:
            if line.startswith("ended with code 1"):
                ends.append(line)
            if len(ends) == 5:
                many.set()

        part = flaky(lives, lifeline, 6.0, 4, count)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(part.run())
            await many.wait()
            part.stop(signal.SIGKILL)

    asyncio.run(scenario())


def test_part_that_can_not_be_started_for_a_moment_is_started_then(
    lives: Path, lifeline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No memory or no process left: as a quick end of its own."""
    lines: list[str] = []

    async def scenario() -> None:
        part = flaky(lives, lifeline, 60, 0, lambda _, line: lines.append(line))
        monkeypatch.setattr(sys, "executable", str(lives))
        async with asyncio.timeout(90), asyncio.TaskGroup() as group:
            group.create_task(part.run())
            await asyncio.to_thread(wait_for, lambda: lines, "it could not be started")
            monkeypatch.undo()
            monkeypatch.setenv("PYTHONPATH", str(lives.parent))
            await asyncio.to_thread(wait_for, lambda: lives.exists() and lives.read_text(), "it lives")
            part.stop(signal.SIGKILL)

    asyncio.run(scenario())
    assert lines[0] == "ended with code 127; starting again in 0.2 s"
    assert lives.read_text() == "x"

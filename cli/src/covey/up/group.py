"""What parents have in common: a lock on the state folder, parts on one lifeline, an end in order, a sweep of engines.

The order of stopping: the gateway, which lets streams end, while their engines run; then the agent, which stops every
engine; where engines go on, both together. Then what is left. Whatever an agent that died could not stop is swept at
the end.

The rule a maintainer would break by accident: engines are stopped when somebody asked for it (Ctrl-C, SIGTERM), and by
nothing else. A parent that can't get its parts going ends them alone: engines that serve, also those that came up in
this very run, stay with their keepers for their grace, and the next parent adopts them. Rejected: to stop what this run
started and leave what it found (a start that half succeeds is tried again at once, and would load every model again).
"""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TextIO

from covey_fleet_client.files import describe_refusal, ensure_private_folder, write_private
from rich.console import Console

from covey.errors import CommandError, ExitCode
from covey.up.front import say
from covey.up.part import Part

# An agent that stops every engine gets this long.
AGENT_STOP_SECONDS = 11.0
# What a gateway does after its last answers: it reports, its workers end.
GATEWAY_LEAVE_SECONDS = 2.0
SWEEP_SECONDS = 10.0
# Looks of commands at the lock are over in microseconds; a parent holds it for as long as it lives.
_LOCK_TRIES = 10
_LOCK_PAUSE_SECONDS = 0.02


class Held(Protocol):
    """Who holds a state folder."""

    @property
    def state(self) -> Path: ...

    @property
    def record(self) -> dict[str, str]:
        """What others find in `up.json`."""
        ...


class AlreadyRunning(Exception):
    """Another parent holds the state folder; `record` is what it wrote of itself."""

    def __init__(self, record: dict[str, str]) -> None:
        super().__init__("already running")
        self.record = record


@contextmanager
def hold_state_folder(settings: Held) -> Generator[bool]:
    """The lock of one parent per state folder, and the record that others find it by. AlreadyRunning if held;
    CommandError if the folder can't be used.

    Gives whether the last one was killed: its parts may still be ending.
    """
    record_path = settings.state / "up.json"
    with _open_lock(settings.state) as lock:
        if not _takes_lock(lock.fileno()):
            raise AlreadyRunning(_read_record(record_path))
        was_killed = record_path.exists()
        _write_record(record_path, {"pid": str(os.getpid())} | settings.record)
        try:
            yield was_killed
        finally:
            with contextlib.suppress(OSError):
                record_path.unlink(missing_ok=True)


def _open_lock(state: Path) -> TextIO:
    try:
        ensure_private_folder(state)
        return (state / "up.lock").open("a")
    except OSError as error:
        raise CommandError(f"the state folder can't be used: {describe_refusal(error)}", ExitCode.WRONG_USE) from None


def _write_record(path: Path, record: dict[str, str]) -> None:
    """The lock says that a parent is there, the record which: a full disk costs others that, and nobody the start."""
    content = json.dumps(record)
    try:
        write_private(path, content)
    except OSError:
        try:
            path.unlink(missing_ok=True)  # it names one that is gone, and takes the space that this one needs
            write_private(path, content)
        except OSError as error:
            words = f"WARNING: {describe_refusal(error)} Until then others can't see whose this state folder is."
            say(Console(stderr=True), words)


def _takes_lock(descriptor: int) -> bool:
    """False when another parent holds it. A command that looks whether one does holds it for some microseconds."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE_SECONDS)
        else:
            return True
    return False


def _read_record(path: Path) -> dict[str, str]:
    try:
        return {str(key): str(value) for key, value in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return {}


class PartGroup:
    """Parts of one state folder. `on_line(part, line)` gets each line that a part logs."""

    def __init__(self, state: Path, on_line: Callable[[str, str], None]) -> None:
        self._state = state
        self._on_line = on_line
        self.ending = asyncio.Event()
        """Somebody asked for the end: engines end too."""
        self.left_engines = False
        """After the end: whether an engine could not be stopped."""
        self._lifeline, self._lifeline_end = os.pipe()
        self._logs = state / "log"
        ensure_private_folder(self._logs)

    def make_part(self, name: str, arguments: Callable[[], Sequence[str]]) -> Part:
        return Part(name, arguments, self._logs / f"{name}.log", self._lifeline, self._on_line)

    def close(self) -> None:
        """Parts that still run end within 5 s."""
        os.close(self._lifeline)
        os.close(self._lifeline_end)

    async def stop_serving(self, agent: Part, gateway: Part | None, drain_seconds: float) -> None:
        """End gateway and agent, and every engine if that was asked for. `drain_seconds`: what the gateway gives to
        answers in flight."""
        was_asked = self.ending.is_set()
        parts = [agent] if gateway is None else [agent, gateway]
        seconds = drain_seconds + GATEWAY_LEAVE_SECONDS
        if gateway is not None:
            gateway.stop(signal.SIGTERM)
        if gateway is not None and was_asked:  # its answers come from engines that the agent is about to stop
            await self.wait_for_end((gateway,), seconds)
        agent.stop(signal.SIGINT if was_asked else signal.SIGTERM)
        await self.wait_for_end(parts, AGENT_STOP_SECONDS if was_asked else max(seconds, AGENT_STOP_SECONDS))
        # It may be asked for while the parts end by themselves.
        if self.ending.is_set() and (agent.exit_status != 0 or not was_asked):
            self.left_engines = not await self._sweep()

    async def wait_for_end(self, parts: Sequence[Part], seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for part in parts:
                    await part.wait_idle()
        for part in parts:
            part.signal(signal.SIGKILL)

    async def _sweep(self) -> bool:
        """Stop what the agent left: it died, or was never started in this run. False when something may still run."""
        arguments = ("-m", "covey_agent", "--stop-all", "--state", str(self._state))
        process = await asyncio.create_subprocess_exec(sys.executable, *arguments, start_new_session=True)
        try:
            return await asyncio.wait_for(process.wait(), SWEEP_SECONDS) == 0
        except TimeoutError:
            process.kill()
            await process.wait()
            return False

"""From `keeper.py FOLDER` to a detached keeper: the second fork, the lock, the word to whoever waits.

It detaches by a second fork: the agent waits only for the short-lived launcher, whose exit says whether the engine
runs, and an adopted keeper is then no different from one's own (a child process of the agent would have to be reaped,
and asyncio kills children whose loop closes).
"""

import json
import os
import signal
import subprocess
import sys
import time

from covey_agent.keeper.keeping import Keeper
from covey_agent.keeper.observed import take_lock

# How long the launcher waits for its keeper to say that the engine was started.
LAUNCH_SECONDS = 10
# The launcher's exit status when another keeper holds the member's lock.
LOCKED_STATUS = 75
STARTED = b"started"
# Who looks whether the lock is held takes it for an instant: it is tried so often, so long apart.
_LOCK_TRIES, _LOCK_PAUSE_SECONDS = 6, 0.01


def lock_folder() -> int:
    """The lock of the current folder, held until this process ends. BlockingIOError when another keeper has it."""
    lock = os.open("keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(_LOCK_TRIES):
        if take_lock(lock):
            return lock
        time.sleep(_LOCK_PAUSE_SECONDS)
    os.close(lock)
    raise BlockingIOError


def start_keeper(folder: str) -> Keeper:
    """Lock, then read, then start: whoever has the lock acts on the newest `launch.json`."""
    os.setsid()
    os.umask(0o077)
    os.chdir(folder)
    lock = lock_folder()
    with open("launch.json", "rb") as file:
        launch = json.load(file)
    for stale in ("exit.json", "keeper.json"):
        if os.path.lexists(stale):
            os.unlink(stale)
    return Keeper(launch, lock)


def keep(folder: str, told: int) -> int:
    """Be the keeper: start the engine, tell the launcher through the pipe `told`, stay until it is over."""
    try:
        keeper = start_keeper(folder)
    except BlockingIOError:
        os.write(told, b"another keeper holds this member's lock")
        return LOCKED_STATUS
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        words = (
            f"'{error.filename}': {error.strerror}" if isinstance(error, OSError) and error.filename else repr(error)
        )
        os.write(told, words.encode())
        return 1
    os.write(told, STARTED)
    os.close(told)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    keeper.run()
    os.unlink("k.sock")
    return 0


def _run_out(number: int, frame: object) -> None:
    raise TimeoutError


def main() -> int:
    """The launcher: exit status 0 once the engine was started; else words on standard error."""
    if len(sys.argv) != 2:
        print("use: keeper.py FOLDER", file=sys.stderr)
        return 2
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 1
        try:
            status = keep(sys.argv[1], writer)
        finally:
            os._exit(status)
    os.close(writer)
    signal.signal(signal.SIGALRM, _run_out)
    signal.alarm(LAUNCH_SECONDS)
    try:
        words = os.read(reader, 4096)
    except TimeoutError:
        os.kill(child, signal.SIGKILL)  # its engine, if it has one, is ended by whoever waits for this launcher
        print(f"its keeper did not start it within {LAUNCH_SECONDS} s, and was killed", file=sys.stderr)
        return 1
    if words == STARTED:
        return 0
    print(words.decode(errors="replace") or "the keeper ended before it started the engine", file=sys.stderr)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or 1

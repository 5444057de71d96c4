"""PID 1 of the agent's pod: starts the agent, starts it again when it dies, and reaps whatever ends.

`python -m covey_agent.reaper -- COMMAND…`. Keepers outlive the agent; in a container they outlive it only if PID 1 is
somebody else, for the end of PID 1 is the end of all. They live as long as the pod and no longer: when the pod is told
to end, the agent is told, and the container ends with it, engines included. So a pod is replaced only after its node
was drained.

It must not know what an agent is, nor hold anything that could fail: no imports beyond the interpreter's own, no files,
no threads. `tini` and its like reap, but end with their child; a supervisor such as runit is one more thing to install.
Signals are blocked and waited for: no handler runs between two steps, and PID 1 gets them all the same.
"""

import os
import signal
import sys
import time

FIRST_DELAY_SECONDS = 0.2
# An agent that can't start costs little at this pace, and one that can again is soon back.
LONGEST_DELAY_SECONDS = 10.0
# An agent that lived this long had started: its next death is a new story.
STEADY_SECONDS = 60.0
# The agent needs a moment to write its state; kubelet gives the pod 15 s.
END_SECONDS = 10.0
WRONG_USE = 2
# As shells number them.
NOT_STARTED, KILLED = 127, 128 + signal.SIGKILL
_ENDING = frozenset({signal.SIGTERM, signal.SIGINT})
_WAITED = _ENDING | {signal.SIGCHLD}
_PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> int:
    """Exit status: the agent's when it ended as told, 2 for wrong use."""
    if len(arguments) < 2 or arguments[0] != "--":
        _say("usage: python -m covey_agent.reaper -- COMMAND [ARGUMENT...]")
        return WRONG_USE
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    if os.getpid() != 1:
        _become_subreaper()
    return keep_running(arguments[1:])


def keep_running(command: list[str]) -> int:
    """Run the command until a signal ends it; its exit status then."""
    delay = 0.0
    while True:
        started = time.monotonic()
        status, is_asked = _run(command)
        if is_asked:
            return status
        delay = next_delay_seconds(delay, time.monotonic() - started)
        _say(f"the agent ended with status {status}; it starts again in {delay:g} s, and what it left runs on")
        if _pause(delay):
            return 0


def next_delay_seconds(delay: float, lived_seconds: float) -> float:
    """How long to wait before the next start: doubled by each early death."""
    if not delay or lived_seconds >= STEADY_SECONDS:
        return FIRST_DELAY_SECONDS
    return min(2 * delay, LONGEST_DELAY_SECONDS)


def _run(command: list[str]) -> tuple[int, bool]:
    """Start the agent and wait for its end: its status, and whether a signal asked for it."""
    try:
        agent = os.posix_spawnp(command[0], command, os.environ, setsigmask=())
    except OSError as error:  # also for want of memory, which may be there again later
        _say(f"'{command[0]}' can't be started: {error}")
        return NOT_STARTED, False
    while (status := _reap(agent)) is None:
        told = signal.sigwaitinfo(_WAITED)
        if told.si_signo in _ENDING:
            return _end(agent, signal.Signals(told.si_signo)), True
    return status, False


def _end(agent: int, asked: signal.Signals) -> int:
    """Pass the signal on and wait for the agent's end, by force if it must be; its status."""
    os.kill(agent, asked)
    status = _wait(agent, END_SECONDS)
    if status is None:
        _say(f"the agent must end within {END_SECONDS:g} s of {asked.name}; it did not, and is killed")
        os.kill(agent, signal.SIGKILL)
        status = _wait(agent, END_SECONDS)
    return KILLED if status is None else status


def _wait(agent: int, seconds: float) -> int | None:
    """Reap until the agent has ended: its status, None after so long."""
    deadline = time.monotonic() + seconds
    while (status := _reap(agent)) is None and (left := deadline - time.monotonic()) > 0:
        signal.sigtimedwait((signal.SIGCHLD,), left)
    return status


def _pause(seconds: float) -> bool:
    """Reap for so long; True at once when a signal asks to end."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        told = signal.sigtimedwait(_WAITED, left)
        _reap(None)
        if told is not None and told.si_signo in _ENDING:
            return True
    return False


def _reap(agent: int | None) -> int | None:
    """Take the status of every child that has ended; the agent's if it is among them (128 + signal if by one)."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not pid:
            return found
        if pid == agent:
            code = os.waitstatus_to_exitcode(status)
            found = code if code >= 0 else 128 - code


def _become_subreaper() -> None:
    """Orphans come to this process also where another one is PID 1 (pods that share their processes, tests)."""
    import ctypes  # costs a megabyte that PID 1 doesn't need

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _say(words: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} reaper: {words}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""One engine under its keeper: starts it once, keeps its process group and its output, records its exit.

Owns, for the life of one engine process: the engine's process group, its output, its exit record, the lock that proves
who runs this member. Must not know: assignments, goals, restarts, readiness, what an engine is.

It parks on one selector: no threads, so that the engine's parent-death signal, which Linux ties to the thread that
forked, is tied to the keeper's life.

The rule a maintainer would break by accident: nothing here may raise out of the loop, and no write may block it. A full
disk, a vanished folder or a stuck agent must never cost an engine.
"""

import contextlib
import ctypes
import errno
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from covey_agent.keeper.asking import Asking
from covey_agent.keeper.group import open_group
from covey_agent.keeper.memory import stand_in_front
from covey_agent.keeper.observed import explain_status, observe_oom_kills, observe_start_time, write_record
from covey_agent.keeper.output import OUTPUT_FILE_BYTES, Ring
from covey_agent.keeper.strays import end_all, reap, take_in

if TYPE_CHECKING:
    from covey_agent.keeper.front import Front
    from covey_agent.keeper.neighbours import Neighbours

# Grace of a stop that the keeper decides by itself.
OWN_STOP_GRACE_SECONDS = 5.0
# Of a stop for a neighbour's end: nothing that is in flight can be finished without it.
NEIGHBOUR_STOP_GRACE_SECONDS = 0.5
# An engine that ends because a neighbour's did may end before that neighbour's word is here.
LAST_WORD_SECONDS = 0.5
# From a rank's word that it waited in vain: whoever waited too ends by itself, some tenths of a second later.
STUCK_SECONDS = 1.5
# The word of whose end it was comes after that, or nobody knows.
NAMED_SECONDS = 4.0
# While no agent is there: how often it looks whether one could still find it, and mends what it is found by.
FOLDER_LOOK_SECONDS = 3.0
# Children of the engine may hold its output pipe open after its end; they are killed, this is for the pipe to drain.
DRAIN_SECONDS = 1.0

PR_SET_PDEATHSIG = 1


class Keeper:
    """One engine and those who ask about it. All times are monotonic unless named otherwise."""

    def __init__(self, launch: dict[str, Any], lock: int) -> None:
        self.launch = launch
        self.lock = lock
        self.selector = selectors.DefaultSelector()
        self.output = Ring("output.log", OUTPUT_FILE_BYTES)
        self.exit: dict[str, Any] | None = None
        self.is_over = False
        self.stop_reason = ""
        self.why = ""
        """Why it was stopped or ended, where others know better than the engine."""
        self.record_at: float | None = None
        self.waited_by = ""
        """The member whose engine waited for this one's, or for another's, in vain."""
        self.stuck_at = float("inf")
        """From when on it was this one's, if that lives and does nothing."""
        self.has_told_wait = False
        self.kill_at: float | None = None
        self.look_at = 0.0
        self.has_child_ended = False
        """Since the last look at who ended: the kernel tells it by SIGCHLD, also of who was taken in."""
        self.group = open_group(launch["instanceId"], launch.get("memoryBytes", 0))
        self.oom_kills = observe_oom_kills()
        self.started_at, self.started = time.time(), time.monotonic()
        self.asking = Asking(self.selector, self)
        self._watch_signals()
        take_in()
        try:
            self.neighbours = self._meet_neighbours()
            self.front = self._open_front()
            self.engine = self._start_engine()
        except BaseException:
            if self.group is not None:
                self.group.remove()
            raise
        self._write_keeper()

    # ----- start

    def _watch_signals(self) -> None:
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        self._wakeup = writer
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)

        def read_signals() -> None:
            numbers = reader.recv(4096)
            self.has_child_ended = self.has_child_ended or signal.SIGCHLD in numbers
            if signal.SIGTERM in numbers:
                self.stop("Terminated", OWN_STOP_GRACE_SECONDS)

        self.selector.register(reader, selectors.EVENT_READ, read_signals)

    def _start_engine(self) -> subprocess.Popen[bytes]:
        keeper = os.getpid()
        libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

        def die_with_keeper() -> None:
            # macOS has no such signal: there the agent ends an engine whose keeper is gone, when it finds it.
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            stand_in_front()
            if self.group is not None:
                with contextlib.suppress(OSError):  # then it runs without a limit
                    self.group.enter()
            if libc is not None:
                libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != keeper:
                    os._exit(1)  # the keeper died before the signal was set

        reader, writer = os.pipe()
        try:
            engine = subprocess.Popen(
                self.launch["argv"],
                env=self.launch["environment"],
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                start_new_session=True,
                preexec_fn=die_with_keeper,
            )
        finally:
            os.close(writer)
        os.set_blocking(reader, False)
        self.pipe = reader
        self.selector.register(reader, selectors.EVENT_READ, self.read_output)
        return engine

    def _meet_neighbours(self) -> "Neighbours | None":
        """Before the engine starts: it finds them on ports of loopback. OSError when one can't be had."""
        group = self.launch.get("group")  # of an agent of the version before there is none
        if group is None:
            return None
        from covey_agent.keeper.neighbours import Neighbours

        return Neighbours(self.selector, group, self._hear_neighbours_end, self._hear_wait)

    def _hear_neighbours_end(self, words: str) -> None:
        if not self.stop_reason:
            self.why = words
            if self.neighbours is not None:
                self.neighbours.tell_end(words, is_own=False)
        self.stop("Neighbour", NEIGHBOUR_STOP_GRACE_SECONDS)

    def _hear_wait(self, who: str) -> None:
        is_rank = bool(self.launch["group"].get("stuckStatus", 0))
        if is_rank and not self.waited_by:
            self.waited_by, self.stuck_at = who, time.monotonic() + STUCK_SECONDS

    def _check_stuck(self, now: float) -> None:
        """Of ranks of which one waited in vain: this is the one that was waited for, if its engine neither ended nor
        had a byte for the next one in half of that time."""
        if now < self.stuck_at:
            return
        self.stuck_at = float("inf")
        seconds = self.launch["group"].get("stepSeconds", 0.0)
        is_there = self.engine.poll() is None and not self.stop_reason
        if self.neighbours is None or not is_there or now - self.neighbours.engine_spoke_at < seconds / 2:
            return
        self.why = f"did not answer within {seconds:.0f} s while {self.waited_by} waited for it"
        self.neighbours.tell_end(self.why, is_own=True)
        self.stop("Stuck", NEIGHBOUR_STOP_GRACE_SECONDS)

    def _open_front(self) -> "Front | None":
        """Where this node's engines are reached from elsewhere. What goes wrong costs the way in, not the engine.

        OSError where other members come in by it: without it they never do, and the attempt would wait for ever.
        """
        if self.launch["front"] is None:
            return None
        from covey_agent.keeper.front import Front  # TLS is some MB that a keeper on its own has no use for

        front, why = None, ""
        try:
            front = Front(self.selector, self.launch, self.neighbours)
            why = front.problem
        except Exception as error:
            self.output.write(f"keeper: no front: {traceback.format_exc()}".encode())
            why = f"no front: {error}"
        if (front is None or not front.port) and self.neighbours is not None and self.neighbours.admitted:
            raise OSError(errno.EADDRNOTAVAIL, f"the other members must reach this one: {why}", "front")
        return front

    def _write_keeper(self) -> None:
        self.record = {
            "pid": os.getpid(),
            "startTime": observe_start_time(os.getpid()),
            "enginePid": self.engine.pid,
            "engineStartTime": observe_start_time(self.engine.pid),
            "instanceId": self.launch["instanceId"],
            "attempt": self.launch["attempt"],
            "port": self.launch["port"],
            "frontPort": self.front.port if self.front else 0,
            "startedAt": self.started_at,
        }
        try:
            write_record("keeper.json", self.record)
        except OSError:
            self.engine.kill()  # it could not be adopted: better none than one that nobody can find
            raise

    # ----- the loop

    def run(self) -> None:
        while not self.is_over:
            for key, _ in self.selector.select(self._wait_seconds()):
                self._guard(key.data)
            self._guard(self.check)

    def _guard(self, step: Callable[[], object]) -> None:
        """Run one step; a mistake in it ends neither keeper nor engine, and is found in the output."""
        try:
            step()
        except Exception:
            self.output.write(f"keeper: {traceback.format_exc()}".encode())
            time.sleep(0.1)  # so that one that repeats doesn't spin

    def _wait_seconds(self) -> float | None:
        """Until the next deadline; None: only an event can change anything."""
        deadlines = [at for at in (self.kill_at,) if at is not None]
        if self.asking.unclaimed_since is not None:
            deadlines.append(self.asking.unclaimed_since + self.launch["orphanGraceSeconds"])
            deadlines.append(time.monotonic() + FOLDER_LOOK_SECONDS)
        if self.front is not None and self.front.due is not None:
            deadlines.append(self.front.due)
        if self.neighbours is not None and self.exit is None:
            deadlines += (self.neighbours.due, self.stuck_at)
        if self.record_at is not None and self.exit is None:
            deadlines.append(self.record_at)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def check(self) -> None:
        """What time and the engine's state ask for."""
        now = time.monotonic()
        if self.front is not None:
            self.front.check(now)
        if self.neighbours is not None and self.exit is None:
            self.neighbours.check(now)
            self._check_stuck(now)
        if self.exit is None and self.engine.poll() is not None and self._has_last_word(now):
            self._record_exit()
        if self.has_child_ended:  # most turns are a connection's, and it looks at the whole machine at worst
            self.has_child_ended = False
            reap(self.engine.pid)
        if self.exit is None and self.kill_at is not None and now >= self.kill_at:
            self._signal_group(signal.SIGKILL)
            self.kill_at = None
        if self.asking.unclaimed_since is not None and now >= self.look_at:
            self.look_at = now + FOLDER_LOOK_SECONDS
            self._restore()
        grace = self.launch["orphanGraceSeconds"] if self._can_be_found() else 0
        if self.asking.unclaimed_since is not None and now >= self.asking.unclaimed_since + grace:
            self.asking.unclaimed_since = now
            if self.exit is not None:
                self.is_over = True  # the exit record stays; whoever comes later reads it
            else:
                self.stop("Orphaned", OWN_STOP_GRACE_SECONDS)

    def _can_be_found(self) -> bool:
        """False once the folder was deleted: no agent that starts finds this keeper, so it waits for none."""
        return os.fstat(self.lock).st_nlink > 0

    def _restore(self) -> None:
        """Put back what an agent finds this keeper by. What the disk refuses is tried again at the next look."""
        if not self._can_be_found():
            return
        with contextlib.suppress(OSError):
            if not os.path.lexists("keeper.json"):
                write_record("keeper.json", self.record)
        with contextlib.suppress(OSError):
            self.asking.restore()

    @property
    def status(self) -> dict[str, Any]:
        return {**self.record, "exit": self.exit}

    def end(self) -> None:
        self.is_over = True

    def stop(self, reason: str, grace_seconds: float) -> None:
        """SIGTERM to the engine's group now, SIGKILL after the grace. A later stop can only shorten the grace."""
        if self.exit is not None:
            return
        kill_at = time.monotonic() + grace_seconds
        if not self.stop_reason:
            self.stop_reason = reason
            self.kill_at = kill_at
            self._signal_group(signal.SIGTERM)
        elif self.kill_at is not None:
            self.kill_at = min(self.kill_at, kill_at)

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.engine.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # gone already (macOS says EPERM for a group of zombies)

    def _has_last_word(self, now: float) -> bool:
        """Whether it is known who ended first. Neighbours are told of this end at once."""
        if self.neighbours is None:
            return True
        if self.record_at is None:
            self.record_at = now + LAST_WORD_SECONDS
            if not self._ended_for_another:
                self._tell_end()
        if self._ended_for_another and not self.has_told_wait and (self._has_waited or self.waited_by):
            self.has_told_wait = True
            self.neighbours.tell_wait()
            self.record_at = now + NAMED_SECONDS
        if not self.stop_reason and now < self.record_at:
            return False
        if self._ended_for_another:  # and nobody said whose end it was
            self._tell_end()
        return True

    @property
    def _ended_for_another(self) -> bool:
        """Whether the engine says so itself by its status: then the word of whose end it was is on its way."""
        status = self.launch["group"].get("lostStatus", 0)
        is_lost = bool(status) and self.engine.returncode == status
        return (is_lost or self._has_waited) and not self.stop_reason

    @property
    def _has_waited(self) -> bool:
        """Whether the engine ended since a step with the others took too long."""
        status = self.launch["group"].get("stuckStatus", 0)
        return bool(status) and self.engine.returncode == status

    def _tell_end(self) -> None:
        if self.neighbours is not None:
            words = f"was stopped ({self.stop_reason})" if self.stop_reason else "lost its engine"
            own = f"{words}: it {explain_status(self.engine.returncode)}"
            self.neighbours.tell_end(self.why or own, is_own=not self.why)

    def _record_exit(self) -> None:
        self._signal_group(signal.SIGKILL)  # whatever the engine started ends with it
        end_all()
        if self.front is not None:
            self.front.close()
        if self.neighbours is not None:
            self.neighbours.close()
            self.why = self.why or self.neighbours.met
        self._drain()
        status = self.engine.returncode
        self.kill_at = None
        self.exit = {
            "instanceId": self.launch["instanceId"],
            "attempt": self.launch["attempt"],
            "enginePid": self.record["enginePid"],
            "engineStartTime": self.record["engineStartTime"],
            "status": status,
            "endedBy": self.stop_reason or "Engine",
            "why": self.why,
            "outOfMemory": status == -signal.SIGKILL and not self.stop_reason and self._was_out_of_memory(),
            "startedAt": self.started_at,
            "endedAt": time.time(),
            "uptimeSeconds": time.monotonic() - self.started,
            "tail": self.output.tail.decode(errors="replace"),
        }
        with contextlib.suppress(OSError):  # connected agents are still told; a later one finds a lost keeper
            write_record("exit.json", self.exit)
        self.asking.tell({"event": "exited", "exit": self.exit})
        if self.group is not None:
            self.group.remove()

    def _was_out_of_memory(self) -> bool:
        """Its own group knows; else the machine has ended somebody, and a killed engine stood in front."""
        if self.group is not None:
            return self.group.has_killed()
        oom_kills = observe_oom_kills()
        return None not in (oom_kills, self.oom_kills) and oom_kills != self.oom_kills

    def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while self.pipe >= 0 and time.monotonic() < deadline:
            if not self.read_output():
                time.sleep(0.01)

    def read_output(self) -> bool:
        """Take what the engine printed; False when there was nothing."""
        try:
            data = os.read(self.pipe, 65_536)
        except BlockingIOError:
            return False
        if data:
            self.output.write(data)
        else:
            self.selector.unregister(self.pipe)
            os.close(self.pipe)
            self.pipe = -1
        return True

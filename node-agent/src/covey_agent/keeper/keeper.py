"""The keeper: parent of one member's engine. It outlives the agent.

    python -I -S keeper.py FOLDER

Owns, for the life of one engine process: the engine's process group, its output (a ring on disk), its exit record, the
lock that proves who runs this member, and a Unix socket through which agents ask. Must not know: assignments, goals,
restarts, readiness, what an engine is. It starts exactly one engine, once, and ends after it.

Everything it needs is in FOLDER, so that nothing secret is in an argument list and a dead agent changes nothing:

    launch.json   read    instanceId, attempt, port, argv, environment, orphanGraceSeconds
    keeper.lock   flock   held for the keeper's whole life; the lock is the proof, the file's content means nothing
    keeper.json   written who runs: pids with their start times
    k.sock        bound   newline-delimited JSON, see `Keeper.answer`
    output.log    written the last 1 to 2 MiB of output, with output.log.1
    exit.json     written how the engine ended, before anybody is told

Decisions. It detaches by a second fork: the agent waits only for the short-lived launcher, whose exit says whether the
engine runs, and an adopted keeper is then no different from one's own (a child process of the agent would have to be
reaped, and asyncio kills children whose loop closes). It is a plain script of the standard library, without
site-packages (`-I -S`), since there is one per member: about 10 MB each. It parks on one selector: no threads, so that
the engine's parent-death signal, which Linux ties to the thread that forked, is tied to the keeper's life.

The rule a maintainer would break by accident: nothing here may raise out of the loop, and no write may block it. A full
disk, a vanished folder or a stuck agent must never cost an engine.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

# Half of what output may take on disk: one file is written, the one before it is kept.
OUTPUT_FILE_BYTES = 1024 * 1024
# Last output kept in the exit record: enough for the error that an engine prints before it ends.
EXIT_TAIL_BYTES = 8 * 1024
# Largest `tail` answer: what an answer to an ask may hold.
MAX_TAIL_BYTES = 256 * 1024
# A request is one short line; more than this without a newline is not a request.
MAX_REQUEST_BYTES = 4 * 1024
# Unsent answer bytes per connection (a tail as JSON, several times over); a peer that reads less is dropped.
MAX_UNSENT_BYTES = 4 * 1024 * 1024
# The agent, a doctor and a test may connect at a time; more is a mistake.
MAX_CONNECTIONS = 16
# Grace of a stop that the keeper decides by itself.
OWN_STOP_GRACE_SECONDS = 5.0
# While no agent is there: how often it looks whether one could still find it.
FOLDER_LOOK_SECONDS = 3.0
# Children of the engine may hold its output pipe open after its end; they are killed, this is for the pipe to drain.
DRAIN_SECONDS = 1.0
# How long the launcher waits for its keeper to say that the engine was started.
LAUNCH_SECONDS = 10

PR_SET_PDEATHSIG = 1
# The launcher's exit status when another keeper holds the member's lock.
LOCKED_STATUS = 75
STARTED = b"started"


def observe_start_time(pid: int) -> str:
    """What tells this process from a later one with the same id; empty when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        # A zombie runs nothing and holds nothing.
        return "" if fields[0] == b"Z" else f"{boot}:{fields[19].decode()}"
    except OSError:
        if sys.platform == "linux":
            return ""
    try:
        answer = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()


def is_locked(folder: str) -> bool:
    """True while a living keeper holds the member's lock."""
    try:
        lock = os.open(os.path.join(folder, "keeper.lock"), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def read_tail(folder: str, count: int) -> str:
    """The last `count` bytes of output, across the rotation; empty when there are none."""
    data = b""
    for name in ("output.log", "output.log.1"):
        missing = count - len(data)
        try:
            with open(os.path.join(folder, name), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - missing))
                data = file.read(missing) + data
        except OSError:
            continue
    return data.decode(errors="replace")


def write_record(name: str, record: dict[str, Any]) -> None:
    """Write a JSON file of the current folder whole or not at all. OSError when the disk refuses."""
    temporary = f"{name}.new"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, name)


def observe_oom_kills() -> int | None:
    """How many processes the kernel has ended for lack of memory since boot; None where it doesn't say."""
    try:
        with open("/proc/vmstat", "rb") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(b"oom_kill ")), None)
    except OSError:
        return None


class Output:
    """The engine's output: a ring of two files, and the last bytes for the exit record."""

    def __init__(self) -> None:
        self.tail = bytearray()
        self._size = 0
        # What an earlier engine of this member printed stays readable for one more start.
        self._file = self._rotate()

    def _rotate(self) -> int:
        """A new file, or -1: output is then dropped, since an engine must never wait for a disk."""
        try:
            if os.path.exists("output.log"):
                os.replace("output.log", "output.log.1")
            return os.open("output.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        except OSError:
            return -1

    def write(self, data: bytes) -> None:
        self.tail += data
        del self.tail[:-EXIT_TAIL_BYTES]
        if self._size + len(data) > OUTPUT_FILE_BYTES:
            if self._file >= 0:
                os.close(self._file)
            self._file, self._size = self._rotate(), 0
        self._size += len(data)
        try:
            os.write(self._file, data)
        except OSError:
            return  # disk full or file gone: the tail in memory is what remains


class Connection:
    """One peer on the socket."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.claimed = False
        self.unread = b""
        self.unsent = b""


class Keeper:
    """One engine and those who ask about it. All times are monotonic unless named otherwise."""

    def __init__(self, launch: dict[str, Any], lock: int) -> None:
        self.launch = launch
        self.lock = lock
        self.selector = selectors.DefaultSelector()
        self.connections: dict[int, Connection] = {}
        self.output = Output()
        self.exit: dict[str, Any] | None = None
        self.is_over = False
        self.stop_reason = ""
        self.kill_at: float | None = None
        self.unclaimed_since: float | None = time.monotonic()
        self.oom_kills = observe_oom_kills()
        self.started_at, self.started = time.time(), time.monotonic()
        self.listener = self._bind()
        self._watch_signals()
        self.engine = self._start_engine()
        self._write_keeper()

    # ----- start

    def _bind(self) -> socket.socket:
        """The socket, bound by its relative name: the folder's own path may be longer than a socket address may be."""
        if os.path.lexists("k.sock"):
            os.unlink("k.sock")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind("k.sock")
        listener.listen(MAX_CONNECTIONS)
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, self.accept)
        return listener

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
            if signal.SIGTERM in reader.recv(4096):
                self.stop("Terminated", OWN_STOP_GRACE_SECONDS)

        self.selector.register(reader, selectors.EVENT_READ, read_signals)

    def _start_engine(self) -> subprocess.Popen[bytes]:
        keeper = os.getpid()
        libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

        def die_with_keeper() -> None:
            # macOS has no such signal: there the agent ends an engine whose keeper is gone, when it finds it.
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
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

    def _write_keeper(self) -> None:
        self.record = {
            "pid": os.getpid(),
            "startTime": observe_start_time(os.getpid()),
            "enginePid": self.engine.pid,
            "engineStartTime": observe_start_time(self.engine.pid),
            "instanceId": self.launch["instanceId"],
            "attempt": self.launch["attempt"],
            "port": self.launch["port"],
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
        if self.unclaimed_since is not None:
            deadlines.append(self.unclaimed_since + self.launch["orphanGraceSeconds"])
            deadlines.append(time.monotonic() + FOLDER_LOOK_SECONDS)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def check(self) -> None:
        """What time and the engine's state ask for."""
        now = time.monotonic()
        if self.exit is None and self.engine.poll() is not None:
            self._record_exit()
        if self.exit is None and self.kill_at is not None and now >= self.kill_at:
            self._signal_group(signal.SIGKILL)
            self.kill_at = None
        grace = self.launch["orphanGraceSeconds"] if self._can_be_found() else 0
        if self.unclaimed_since is not None and now >= self.unclaimed_since + grace:
            self.unclaimed_since = now
            if self.exit is not None:
                self.is_over = True  # the exit record stays; whoever comes later reads it
            else:
                self.stop("Orphaned", OWN_STOP_GRACE_SECONDS)

    def _can_be_found(self) -> bool:
        """False once the folder was deleted: no agent that starts finds this keeper, so it waits for none."""
        return os.fstat(self.lock).st_nlink > 0

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

    def _record_exit(self) -> None:
        self._signal_group(signal.SIGKILL)  # whatever the engine started ends with it
        self._drain()
        oom_kills = observe_oom_kills()
        status = self.engine.returncode
        self.kill_at = None
        self.exit = {
            "instanceId": self.launch["instanceId"],
            "attempt": self.launch["attempt"],
            "enginePid": self.record["enginePid"],
            "engineStartTime": self.record["engineStartTime"],
            "status": status,
            "endedBy": self.stop_reason or "Engine",
            "outOfMemory": status == -signal.SIGKILL
            and not self.stop_reason
            and None not in (oom_kills, self.oom_kills)
            and oom_kills != self.oom_kills,
            "startedAt": self.started_at,
            "endedAt": time.time(),
            "uptimeSeconds": time.monotonic() - self.started,
            "tail": self.output.tail.decode(errors="replace"),
        }
        with contextlib.suppress(OSError):  # connected agents are still told; a later one finds a lost keeper
            write_record("exit.json", self.exit)
        for connection in list(self.connections.values()):
            if connection.claimed:
                self._send(connection, {"event": "exited", "exit": self.exit})

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

    # ----- those who ask

    def accept(self) -> None:
        try:
            peer, _ = self.listener.accept()
        except OSError:
            return
        if len(self.connections) >= MAX_CONNECTIONS:
            peer.close()
            return
        peer.setblocking(False)
        connection = Connection(peer)
        self.connections[peer.fileno()] = connection
        self.selector.register(peer, selectors.EVENT_READ, lambda: self.exchange(connection))

    def exchange(self, connection: Connection) -> None:
        """Send what waits, read what came, answer each whole line."""
        try:
            self._flush(connection)
            data = connection.peer.recv(MAX_REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.unread += data
        if not data or len(connection.unread) > 2 * MAX_REQUEST_BYTES:
            self._close(connection)
            return
        *lines, connection.unread = connection.unread.split(b"\n")
        for line in lines:
            self._send(connection, self.answer(connection, line))

    def answer(self, connection: Connection, line: bytes) -> dict[str, Any]:
        """One request, one answer.

        status                  who runs: keeper.json, with `exit` once the engine ended
        claim                   the same; while this connection is open an agent is there, and it is told of the exit
        stop   graceSeconds     SIGTERM, and SIGKILL after the grace; the exit follows as an event to those who claimed
        tail   bytes            the last output
        bye                     the exit is known: the keeper may end. Refused while the engine runs
        """
        try:
            request = json.loads(line)
            verb = request["do"]
            if verb in ("status", "claim"):
                if verb == "claim":
                    connection.claimed, self.unclaimed_since = True, None
                return {**self.record, "exit": self.exit}
            if verb == "stop":
                self.stop("Stop", float(request["graceSeconds"]))
                return {"stopping": self.exit is None}
            if verb == "tail":
                return {"text": read_tail(".", max(0, min(int(request["bytes"]), MAX_TAIL_BYTES)))}
            if verb == "bye":
                if self.exit is None:
                    return {"error": "the engine still runs: stop it first"}
                self.is_over = True
                return {"over": True}
            return {"error": f"'do' must be one of status, claim, stop, tail, bye; got '{verb}'"}
        except (ValueError, KeyError, TypeError) as error:
            return {"error": f"a request must be one JSON object with 'do' and its arguments; got {error!r}"}

    def _send(self, connection: Connection, message: dict[str, Any]) -> None:
        connection.unsent += json.dumps(message).encode() + b"\n"
        if len(connection.unsent) > MAX_UNSENT_BYTES:
            self._close(connection)
            return
        try:
            self._flush(connection)
        except OSError:
            self._close(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.unsent:
                connection.unsent = connection.unsent[connection.peer.send(connection.unsent) :]
        except BlockingIOError:
            pass
        if connection.peer.fileno() in self.connections:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
            self.selector.modify(connection.peer, events, lambda: self.exchange(connection))

    def _close(self, connection: Connection) -> None:
        if self.connections.pop(connection.peer.fileno(), None) is None:
            return
        self.selector.unregister(connection.peer)
        connection.peer.close()
        if self.unclaimed_since is None and not any(other.claimed for other in self.connections.values()):
            self.unclaimed_since = time.monotonic()


def take_lock() -> int:
    """The lock of the current folder, held until this process ends. BlockingIOError when another keeper has it."""
    lock = os.open("keeper.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def start_keeper(folder: str) -> Keeper:
    """Lock, then read, then start: whoever has the lock acts on the newest `launch.json`."""
    os.setsid()
    os.umask(0o077)
    os.chdir(folder)
    lock = take_lock()
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
        words = f"'{error.filename}': {error.strerror}" if isinstance(error, OSError) else repr(error)
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
    signal.alarm(LAUNCH_SECONDS)
    words = os.read(reader, 4096)
    if words == STARTED:
        return 0
    print(words.decode(errors="replace") or "the keeper ended before it started the engine", file=sys.stderr)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or 1


if __name__ == "__main__":
    sys.exit(main())

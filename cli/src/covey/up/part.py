"""One part as a child process: started, logged, started again when it dies, stopped.

The parent knows nothing of what a part does. A part that dies by a signal is started again at once; one that ends by
itself right after its start three times in a row can't be helped by a fourth: that ends `covey up` with its last words.
But not once it has run: what keeps it from starting (a full disk, say) may pass, and the end of `covey up` would be the
end of the gateway that serves meanwhile.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path

from covey.errors import CommandError

FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 10.0
# A part that lived this long after it said that it is up has started properly: its next death begins a new series, and
# it is back without a delay. Not after its start: on a busy machine Python alone takes longer than this.
SETTLED_SECONDS = 5.0
# What a part that is up logs; one that can't be says so in a warning, an error or a trace.
UP_LEVEL = " INFO "
QUICK_ENDS_LIMIT = 3
# Two files of this size per part: enough for days of a quiet fleet, bounded for a noisy one.
LOG_BYTES = 4 * 1024 * 1024
LAST_LINES = 12
# As shells number a program that can't be started.
NOT_STARTED = 127


class BoundedLog:
    """Lines of one part in `NAME.log`, and those before them in `NAME.log.1`.

    A full disk, or a folder that was removed, costs lines and ends nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._file: FileIO | None = None
        with contextlib.suppress(OSError):
            self._file = FileIO(path, "a")

    def write_line(self, line: bytes) -> None:
        self.last.append(line.decode(errors="replace").rstrip())
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = FileIO(self.path, "a")
            if self._file.tell() + len(line) > LOG_BYTES:
                self._rotate()
            self._file.write(line)

    def _rotate(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # somebody tidied up
            self.path.replace(self.path.with_suffix(".log.1"))
        full, self._file = self._file, FileIO(self.path, "a")
        if full is not None:
            full.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Part:
    """A child process that is kept running until `stop`."""

    def __init__(
        self,
        name: str,
        arguments: Callable[[], Sequence[str]],
        log_path: Path,
        lifeline: int,
        on_line: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self._arguments = arguments
        self._log = BoundedLog(log_path)
        self._lifeline = lifeline
        self._on_line = on_line
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._up_since: float | None = None
        self.exit_status: int | None = None

    @property
    def log_path(self) -> Path:
        return self._log.path

    async def wait_idle(self) -> None:
        """Return once no process of this part runs."""
        await self._idle.wait()

    async def run(self) -> None:
        """Keep it running until `stop`. CommandError when it can't be.

        Cancelled, as when another part is given up, it waits for its process, which is `stop`'s to end: whoever stops
        the parts in their order must know when each has ended.
        """
        try:
            await self._keep_running()
        finally:
            self._log.close()

    async def _keep_running(self) -> None:
        quick_ends = 0
        has_settled = False
        delay_seconds = FIRST_DELAY_SECONDS
        while not self._stopping.is_set():
            self._up_since = None
            self._idle.clear()
            try:
                self.exit_status = await self._run_once()
            except OSError as error:  # no memory or no process left, maybe for a moment
                self._log.write_line(f"it can't be started: {error}\n".encode())
                self.exit_status = NOT_STARTED
            finally:
                self._idle.set()
            if self._stopping.is_set():
                break
            if self._up_since is not None and time.monotonic() - self._up_since >= SETTLED_SECONDS:
                has_settled, delay_seconds = True, 0.0
            if self.exit_status >= 0:
                quick_ends += 1
            if quick_ends >= QUICK_ENDS_LIMIT and not has_settled:
                words = "\n".join(f"  {line}" for line in self._log.last)
                raise CommandError(f"the {self.name} ended right after its start, {quick_ends} times:\n{words}")
            when = f"in {delay_seconds:g} s" if delay_seconds else "now"
            self._on_line(self.name, f"ended {_describe(self.exit_status)}; starting again {when}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_seconds)
            delay_seconds = min(max(FIRST_DELAY_SECONDS, delay_seconds * 2), LONGEST_DELAY_SECONDS)

    async def _run_once(self) -> int:
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"covey_{self.name}",
            *self._arguments(),
            "--lifeline",
            str(self._lifeline),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(self._lifeline,),
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then stops the parts in order
        )
        if self._stopping.is_set():
            process.terminate()
        stream = process.stderr
        if stream is None:
            raise AssertionError("stderr was asked for as a pipe")
        async with asyncio.TaskGroup() as group:
            copying = group.create_task(self._copy_lines(stream))
            try:
                status = await process.wait()
            except asyncio.CancelledError:
                await process.wait()
                raise
            # A grandchild may hold the pipe open: what the part itself said has arrived by then.
            await asyncio.wait([copying], timeout=0.5)
            copying.cancel()
        return status

    async def _copy_lines(self, stream: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # a line beyond the reader's 64 KiB: its rest is dropped
                continue
            if not line:
                return
            self._log.write_line(line)
            words = line.decode(errors="replace").rstrip()
            if self._up_since is None and UP_LEVEL in words:
                self._up_since = time.monotonic()
            self._on_line(self.name, words)

    def stop(self, signal_number: signal.Signals) -> None:
        """Ask it to end, and don't start it again."""
        self._stopping.set()
        self.signal(signal_number)

    def signal(self, signal_number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal_number)


def _describe(status: int) -> str:
    return f"by signal {signal.Signals(-status).name}" if status < 0 else f"with code {status}"

"""`kubectl proxy` on a private Unix socket, for as long as one command runs.

kubectl does the logging in: exec plugins, OIDC, certificates, impersonation. A shell stands between, because nothing
else ends kubectl however this process dies: it waits on a pipe whose other end only this process holds, and then ends
kubectl by its pid and removes the folder. Rejected: `prctl(PR_SET_PDEATHSIG)` (Linux only), a signal from here (a
killed process sends none).
"""

import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import httpx

from covey.errors import CommandError, ExitCode
from covey.kube.context import Context, find_kubectl

# An idle machine needs a tenth of a second.
START_SECONDS = 30.0
STOP_SECONDS = 5.0
# The first call may wait for a person who logs in with a browser.
CALL_SECONDS = 120.0
_LAST_LINES = 20
_LOG_LINE = re.compile(r"^[EWIF]\d{4} ")
# $0: the folder; the rest: kubectl with its arguments. Ctrl-C reaches this process alone, which then ends the others.
_SCRIPT = """
trap "" INT HUP QUIT
"$@" <&3 3<&- &
child=$!
exec 1>&- 2>&- 3<&-
read -r _
kill "$child"
wait "$child"
rm -rf "$0"
"""


@contextmanager
def running_proxy(context: Context) -> Generator["Proxy"]:
    """A way to the API server during the block. CommandError when kubectl doesn't come up."""
    folder = Path(tempfile.mkdtemp(prefix="covey-"))  # 0700
    path = folder / "s"
    command = [find_kubectl(), *context.flags, "proxy", f"--unix-socket={path}", "--keepalive=10s"]
    lifeline, lifeline_end = os.pipe()
    try:
        process = _start(folder, command, lifeline)
    except OSError:
        os.close(lifeline_end)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(lifeline)
    proxy = Proxy(path, process)
    try:
        proxy.wait_ready()
        yield proxy
    finally:
        os.close(lifeline_end)
        proxy.close()


def _start(folder: Path, command: list[str], lifeline: int) -> "subprocess.Popen[bytes]":
    """The shell. An exec plugin may ask on the terminal, if there is one; text that is piped in is not for it."""
    asked = os.dup(0) if sys.stdin is not None and sys.stdin.isatty() else os.open(os.devnull, os.O_RDONLY)
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", 'exec 3<&"$1"; shift\n' + _SCRIPT, str(folder), str(asked), *command],
            stdin=lifeline,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(asked,),
        )
    finally:
        os.close(asked)


class Proxy:
    """The child and the last that it said."""

    def __init__(self, path: Path, process: "subprocess.Popen[bytes]") -> None:
        self.path = path
        self._process = process
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        if process.stdout is None or process.stderr is None:
            raise AssertionError("both were asked for as pipes")
        self._output = process.stdout
        self._reading = threading.Thread(target=self._copy_words, args=(process.stderr,), daemon=True)
        self._reading.start()

    def wait_ready(self) -> None:
        """kubectl says where it listens, or ends."""
        if not select.select([self._output], [], [], START_SECONDS)[0]:
            raise CommandError(f"`kubectl proxy` did not start within {START_SECONDS:.0f} s", ExitCode.TIMED_OUT)
        if not self._output.readline():
            self._reading.join(1.0)
            raise CommandError(f"`kubectl proxy` ended at its start: {' '.join(self.last_lines) or 'without a word'}")

    def open_client(self) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=str(self.path))
        return httpx.Client(transport=transport, base_url="http://localhost", timeout=CALL_SECONDS)

    def close(self) -> None:
        """Once the lifeline is closed: the shell has ended kubectl and removed the folder when this returns."""
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reading.join(1.0)
        for stream in (self._output, self._process.stderr):
            if stream is not None:
                stream.close()
        shutil.rmtree(self.path.parent, ignore_errors=True)

    def _copy_words(self, stream: IO[bytes]) -> None:
        """What a login says is for the person ("open this page"); kubectl's own log is for error messages."""
        with suppress(ValueError):  # the stream is closed
            for line in stream:
                text = line.decode(errors="replace").rstrip()
                if _LOG_LINE.match(text):
                    self.last_lines.append(text)
                    continue
                self.last_lines.append(text)
                print(text, file=sys.stderr, flush=True)

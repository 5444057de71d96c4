"""Asking a program something, bounded in time and output. A probe that hangs is killed and never delays serving."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# What a probe prints is a version or a list of devices, after some lines of a driver's talk.
_MAX_OUTPUT_BYTES = 256 * 1024
# A killed child that doesn't end sits in the kernel (a dead GPU driver): it is left behind.
_REAP_SECONDS = 1.0
# Exit status of what could not be started, as a shell has it.
CANNOT_START = 126


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` is the exit status; `text` is standard output and standard error together."""

    status: int
    text: str


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """What a program may see of ours: where programs and home are, no index settings, no credentials."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return kept | {"LANG": "C.UTF-8"} | dict(extra)


async def ask(
    program: Path, *arguments: str, environment: Mapping[str, str], seconds: float, locks: Sequence[int] = ()
) -> Answer | None:
    """The answer, or None when it doesn't end in time. What can't be started answers as a shell would, and says why.

    `locks`: descriptors that it and its children hold too, so that these stay locked for as long as they live."""
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            env=clean_environment(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            pass_fds=locks,
        )
    except OSError as error:
        return Answer(CANNOT_START, error.strerror or type(error).__name__)
    output = bytearray()
    try:
        async with asyncio.timeout(seconds):
            if process.stdout is not None:
                while piece := await process.stdout.read(65_536):
                    output += piece[: _MAX_OUTPUT_BYTES - len(output)]
            status = await process.wait()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            await _end(process)
    return Answer(status, output.decode("utf-8", "replace"))


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        # The whole session: a wrapper script may have children.
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REAP_SECONDS):
            await process.wait()

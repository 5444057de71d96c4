"""Runs git: one command at a time, on a bare repository, with a deadline, and never with a prompt.

Git's own program, not a library (ADR 13): it has the user's credential helpers, SSH configuration, proxies and
certificates. What must hold at every call, and would break by accident:

1. No prompt: no terminal (a session of its own), no askpass program, SSH in batch mode.
2. No code of the repository runs: no work tree, so no checkout, filter or LFS; no hooks; no submodules.
3. Only what the address asks for is dialled; commands that need no network can't use it.
4. The deadline kills the whole process group: transport helpers and SSH too.
5. No secret in an argument. Words of git's are passed on without what could be a user or password.
"""

import asyncio
import contextlib
import os
import re
import shlex
import signal
import tempfile
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import IO

# A local command reads some thousand objects; this is for a busy disk.
LOCAL_SECONDS = 30.0
# Listing the refs asked for is one request and its answer.
LOOK_SECONDS = 20.0
# The largest clone allowed (256 MiB) at 20 Mbit/s.
FETCH_SECONDS = 120.0
# Under this many bytes a second for so many seconds, a server is as good as gone.
LOW_SPEED_BYTES, LOW_SPEED_SECONDS = 1000, 15
CONNECT_SECONDS = 10
# More than any listing that is within the bounds of a source.
MAX_OUTPUT_BYTES = 80 << 20
# Of git's words, the last: they say why.
_MAX_WORDS_BYTES = 16_384
_CHUNK_BYTES = 1 << 16
# What of the user's GIT_* variables still counts: how to reach and to trust a server, and the user's configuration.
_KEPT = ("GIT_SSH", "GIT_SSL_", "GIT_CONFIG_", "GIT_PROXY_", "GIT_HTTP_PROXY", "GIT_EXEC_PATH")
# The user's configuration may send one of the first two by way of the other (`url.*.insteadOf`).
_PROTOCOLS = {"https": "https:ssh", "ssh": "ssh:https", "file": "file"}
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.alternateRefsCommand=",
    "fetch.recurseSubmodules=false",
    "submodule.recurse=false",
    "push.recurseSubmodules=no",
    "push.gpgSign=false",
    "gc.autoDetach=false",
    "gc.pruneExpire=1.hour",
    f"http.lowSpeedLimit={LOW_SPEED_BYTES}",
    f"http.lowSpeedTime={LOW_SPEED_SECONDS}",
)
# `get` alone: git asks a helper to erase what a server refused, and a server may refuse by mistake.
_CREDENTIALS_HELPER = '!f() { test "$1" = get && git credential-store --file="$COVEY_GIT_CREDENTIALS" get; }; f'
CREDENTIALS_VARIABLE = "COVEY_GIT_CREDENTIALS"
_DURATION = re.compile(r" after \d+ ms")
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s'\"]+@")


class Fault(StrEnum):
    """Why a git command did not do what it was asked."""

    DENIED = "Denied"
    """The server wants other credentials, or its host key isn't known."""
    GONE = "Gone"
    """There is no such repository, branch, tag or commit."""
    UNREACHABLE = "Unreachable"
    """No answer, or none in time."""
    TOO_LARGE = "TooLarge"
    REJECTED = "Rejected"
    """The remote has moved on since: a push must be planned anew."""
    DAMAGED = "Damaged"
    """The local clone can't be used."""
    UNUSABLE = "Unusable"
    """Git itself, or a file that was named to it, can't be used."""


class GitFault(Exception):
    """A git command failed; the words can be shown."""

    def __init__(self, fault: Fault, words: str, *, may_be_ours: bool = False) -> None:
        """`may_be_ours`: it is a call of the remote that failed, and the words fit a clone that is damaged, too."""
        super().__init__(words)
        self.fault = fault
        self.may_be_ours = may_be_ours


# The remote may say the same of itself: no proof.
_DAMAGE = re.compile(r"corrupt|bad object|packfile|loose object|shallow file|not a git repository: '/|did not send all")
_FAULTS = (
    (re.compile(r"\[rejected\]|(cannot|failed to) lock|non-fast-forward|stale info"), Fault.REJECTED),
    (
        re.compile(
            r"Authentication failed|could not read (Username|Password)|terminal prompts disabled|Permission denied"
            r"|Host key verification failed|returned error: 40[13]|dubious ownership|Access denied"
        ),
        Fault.DENIED,
    ),
    (
        re.compile(
            r"couldn't find remote ref|not our ref|[Rr]epository '?.*not found|does not appear to be a git repository"
            r"|does not exist|returned error: 404|no such ref|unadvertised object"
        ),
        Fault.GONE,
    ),
)


class Git:
    """Git on one bare repository. Not for two commands at once."""

    def __init__(self, folder: Path, scheme: str, environment: Mapping[str, str], lock: int) -> None:
        """`lock`: a descriptor that every child inherits, and whose file names the child (see `clone_lock`)."""
        self._folder = folder
        self._scheme = scheme
        self._lock = lock
        credentials = environment.get(CREDENTIALS_VARIABLE, "")
        self._credentials = Path(credentials) if credentials else None
        kept = {name: value for name, value in environment.items() if not name.startswith("GIT_")}
        kept |= {name: value for name, value in environment.items() if name.startswith(_KEPT)}
        self._environment = kept | {
            "GIT_DIR": str(folder),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "",
            "GCM_INTERACTIVE": "never",
            "SSH_ASKPASS_REQUIRE": "never",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "LC_ALL": "C",
        }
        self._has_own_ssh = "GIT_SSH_COMMAND" in kept or "GIT_SSH" in kept

    async def local(
        self,
        *arguments: str,
        given: bytes = b"",
        environment: Mapping[str, str] | None = None,
        nothing_status: int = 0,
    ) -> bytes:
        """A command that needs no network; `nothing_status` is how it ends when there is nothing to print.

        GitFault with DAMAGED when it fails: it can only be the clone.
        """
        variables = {**self._environment, **(environment or {}), "GIT_ALLOW_PROTOCOL": "none"}
        status, output, words = await self._run(arguments, given, variables, LOCAL_SECONDS)
        if status not in (0, nothing_status):
            raise GitFault(Fault.DAMAGED, f"'git {arguments[0]}' failed on the clone '{self._folder}': {words}")
        return output

    async def remote(self, *arguments: str, seconds: float) -> bytes:
        """A command that speaks to the remote. GitFault says what stands in the way; never DAMAGED."""
        variables = self._environment | {"GIT_ALLOW_PROTOCOL": _PROTOCOLS[self._scheme]}
        settings: tuple[str, ...] = ()
        if self._credentials is not None:
            _require_private(self._credentials)
            settings = ("-c", f"credential.helper={_CREDENTIALS_HELPER}")
        if self._scheme == "ssh" and not self._has_own_ssh:
            variables["GIT_SSH_COMMAND"] = await self._ssh_command()
        status, output, words = await self._run((*settings, *arguments), b"", variables, seconds)
        if status != 0:
            own = "\n".join(line for line in words.splitlines() if not line.startswith("remote:"))
            may_be_ours = str(self._folder) in own or _DAMAGE.search(own) is not None
            raise GitFault(_classify(words), _choose_words(words), may_be_ours=may_be_ours)
        return output

    async def _ssh_command(self) -> str:
        """The user's own, else OpenSSH in batch mode; without a terminal neither of them can ask."""
        status, own, _ = await self._run(("config", "--get", "core.sshCommand"), b"", self._environment, LOCAL_SECONDS)
        if status == 0 and own.strip():
            return own.decode().strip()
        return shlex.join(["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"])

    async def _run(
        self, arguments: tuple[str, ...], given: bytes, variables: Mapping[str, str], seconds: float
    ) -> tuple[int, bytes, str]:
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        # Files instead of pipes: nothing to feed while reading, and who keeps them open (an SSH master) delays nobody.
        with tempfile.TemporaryFile() as fed, tempfile.TemporaryFile() as words:
            fed.write(given)
            fed.seek(0)
            try:
                process = await asyncio.create_subprocess_exec(
                    "git",
                    *settings,
                    *arguments,
                    stdin=fed,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=words,
                    env=variables,
                    cwd=self._folder,
                    start_new_session=True,
                    pass_fds=(self._lock,),
                )
            except OSError as error:
                message = f"git must be on PATH for a git source, and '{self._folder}' be there: {error.strerror}"
                raise GitFault(Fault.UNUSABLE, message) from error
            output = await self._collect(process, seconds)
            return await process.wait(), output, _tail(words)

    async def _collect(self, process: asyncio.subprocess.Process, seconds: float) -> bytes:
        """All output. The process has ended after it, however it goes."""
        os.pwrite(self._lock, f"{process.pid:<20d}".encode(), 0)
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        output = bytearray()
        try:
            async with asyncio.timeout(seconds):
                while chunk := await process.stdout.read(_CHUNK_BYTES):
                    output += chunk
                    if len(output) > MAX_OUTPUT_BYTES:
                        raise GitFault(Fault.TOO_LARGE, f"git printed more than {MAX_OUTPUT_BYTES} bytes")
                await process.wait()
        except TimeoutError:
            raise GitFault(Fault.UNREACHABLE, f"no answer within {seconds:.0f} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            os.pwrite(self._lock, b" " * 20, 0)
        return bytes(output)


def _classify(words: str) -> Fault:
    return next((fault for pattern, fault in _FAULTS if pattern.search(words)), Fault.UNREACHABLE)


def _tail(words: IO[bytes]) -> str:
    words.seek(0, os.SEEK_END)
    words.seek(max(0, words.tell() - _MAX_WORDS_BYTES))
    return _USER_IN_URL.sub("…@", words.read().decode(errors="replace")).strip()


def _choose_words(words: str) -> str:
    """The lines that say why: what the other side said first, and what git made of it."""
    lines = [line.strip() for line in words.splitlines() if line.strip() and "failed to push some refs" not in line]
    told = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ERROR:", "! "))] or lines
    chosen = "; ".join(dict.fromkeys([*lines[:1], *told[-1:]])) or "git gave no reason"
    # The same fault must have the same words each time: it is told once.
    return _DURATION.sub("", chosen)


def _require_private(path: Path) -> None:
    """GitFault unless the credentials are this user's alone."""
    try:
        found = path.stat()
    except OSError as error:
        message = f"{CREDENTIALS_VARIABLE} must name a readable file; '{path}': {error.strerror}"
        raise GitFault(Fault.UNUSABLE, message) from None
    if found.st_mode & 0o077:
        message = f"'{path}' ({CREDENTIALS_VARIABLE}) must be readable by its owner only: chmod 600 '{path}'"
        raise GitFault(Fault.UNUSABLE, message)

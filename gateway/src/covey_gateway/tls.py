"""TLS for clients: a certificate that is read again when its files change, and handshakes that are counted.

Both files are looked at with each connection (two `stat`): a gateway that nobody asks wakes for nothing, and the next
client sees the new certificate. A pair that can't be used leaves the one before in force, and is told in the log, once.
It is tried again meanwhile: what was in the way need not be in the files (no descriptor free, a folder's permission).
Rejected: `load_cert_chain` on the context that serves, which takes a certificate before it finds that the key is
another's; and a task that looks every few seconds.

Connections are accepted here. asyncio's own TLS servers call a protocol only after the handshake, so those in it would
count nowhere, and could take all descriptors.
"""

import asyncio
import errno
import logging
import math
import os
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from covey_gateway.failures import StartError
from covey_gateway.limits import FILES_AGAIN_SECONDS, HANDSHAKE_SECONDS

# `close_notify` answered or not, the connection is over.
_SHUTDOWN_SECONDS = 1.0
# Between two tries to read a pair that could not be used.
_AGAIN_SECONDS = 5.0

_Stamp = tuple[int, int, int, int] | None

_log = logging.getLogger(__name__)


class ServedCertificate:
    """The newest pair that could be used. StartError when there is none. `clock` is monotonic."""

    def __init__(self, certificate: Path, key: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._paths = (certificate, key)
        self._clock = clock
        self._seen = self._observe_stamp()
        self._told = ""
        self._again_at = math.inf
        try:
            self._context = self._make_context()
        except (OSError, ValueError) as error:
            raise StartError(self._explain(error)) from None

    def observe_context(self) -> ssl.SSLContext:
        """For the next connection."""
        stamp = self._observe_stamp()
        if stamp != self._seen:
            self._seen = stamp
            self._told = ""
            self._load()
        elif self._clock() >= self._again_at:
            self._load()
        return self._context

    def _load(self) -> None:
        try:
            self._context = self._make_context()
        except (OSError, ValueError) as error:
            self._again_at = self._clock() + _AGAIN_SECONDS
            if (words := self._explain(error)) != self._told:
                self._told = words
                _log.error("the certificate before stays in force: %s", words)
        else:
            self._again_at = math.inf
            _log.info("clients get the certificate that is in %s now", self._paths[0])

    def _observe_stamp(self) -> tuple[_Stamp, ...]:
        return tuple(_stamp(path) for path in self._paths)

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # An encrypted key would be asked for on a terminal.
        context.load_cert_chain(*self._paths, password=lambda: "")
        return context

    def _explain(self, error: OSError | ValueError) -> str:
        certificate, key = self._paths
        for flag, path in (("--tls-cert", certificate), ("--tls-key", key)):
            if not os.access(path, os.R_OK):
                return f"`{flag}` must be a readable file; '{path}' is none"
        # Only those that OpenSSL itself raised have a reason.
        found: str = getattr(error, "reason", None) or str(error) or type(error).__name__
        reason = "the key is not this certificate's" if found == "KEY_VALUES_MISMATCH" else found
        return (
            "`--tls-cert` and `--tls-key` must be a certificate with its chain and its key without a password, in PEM; "
            f"'{certificate}' and '{key}' can't be used: {reason}"
        )


def _stamp(path: Path) -> _Stamp:
    """With the time its owner or mode changed: who may not read a key now may be allowed to a moment later."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)


class TlsDoor:
    """Accepts connections and has them speak TLS. Each counts from its first moment on. `spawn` starts a task."""

    def __init__(
        self, certificate: ServedCertificate, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        self._certificate = certificate
        self._spawn = spawn
        self._tasks: set[asyncio.Task[None]] = set()

    def open(
        self,
        bound: socket.socket,
        backlog: int,
        make_protocol: Callable[[], asyncio.Protocol],
        has_room: Callable[[int], bool],
    ) -> None:
        """`has_room`: whether there is any for one more connection beside so many in their handshake."""
        bound.listen(backlog)
        bound.setblocking(False)
        self._accepting = self._spawn(self._accept(bound, make_protocol, has_room))

    def close(self) -> None:
        """Accept nothing more; who isn't through its handshake is no client."""
        self._accepting.cancel()
        for task in self._tasks:
            task.cancel()

    async def _accept(
        self, bound: socket.socket, make_protocol: Callable[[], asyncio.Protocol], has_room: Callable[[int], bool]
    ) -> None:
        loop = asyncio.get_running_loop()
        with bound:
            while True:
                try:
                    accepted, _ = await loop.sock_accept(bound)
                except OSError as error:
                    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                        await asyncio.sleep(FILES_AGAIN_SECONDS)
                    continue  # else it was gone before it was accepted
                if not has_room(len(self._tasks)):
                    accepted.close()
                    continue
                task = self._spawn(self._secure(accepted, make_protocol))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _secure(self, accepted: socket.socket, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                make_protocol,
                accepted,
                ssl=self._certificate.observe_context(),
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
        except (OSError, TimeoutError):
            # Who speaks something else, or nothing, is not worth a line in the log.
            accepted.close()
        except Exception:
            # This task shares the process's TaskGroup: a bug met by one client must not end all others.
            _log.exception("a connection could not be taken")
            accepted.close()

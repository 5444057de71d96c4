"""TLS to keepers' fronts: this gateway's certificate, and the proof that the other end is the node that is meant.

It owns what a dial to a front must show and see. The certificate's host names mean nothing here (nodes are reached by
addresses that come and go); its URI does: `covey://agent/NODE`, of this fleet's authority.

The identity's files are looked at with each dial (three `stat`), so a renewed certificate is shown by the next
connection, and those that are open go on. Sessions are not resumed: a resumed one would outlive the check of the
certificate, and connections are kept open between requests anyway.
"""

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from covey_gateway.routing.table import Front

# `close_notify` answered or not, the connection is over: nothing is waited for that anybody needs.
_SHUTDOWN_SECONDS = 1.0
_FILES = ("certificate.pem", "key.pem", "authorities.pem")

P = TypeVar("P", bound=asyncio.BaseProtocol)


class NoWay(OSError):
    """There is no connection to be had; the words say why."""

    def __str__(self) -> str:
        return str(self.args[0])


class Fronts:
    """`folder`: of this gateway's identity."""

    def __init__(self, folder: Path) -> None:
        self._certificate, self._key, self._authorities = (folder / name for name in _FILES)
        self._context: ssl.SSLContext | None = None
        self._read_at: tuple[tuple[int, int], ...] = ()

    async def connect(self, loop: asyncio.AbstractEventLoop, make_protocol: Callable[[], P], front: Front) -> P:
        """An open connection to this very attempt, on this very node. OSError when there is none."""
        try:
            transport, protocol = await loop.create_connection(
                make_protocol,
                front.host,
                front.port,
                ssl=self._observe_context(),
                server_hostname=front.name,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
        except UnicodeError as error:
            raise NoWay(f"the address '{front.host}' of node '{front.node}' can't be used: {error}") from None
        certificate: dict[str, Any] = transport.get_extra_info("peercert") or {}
        names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
        if names != [f"covey://agent/{front.node}"]:
            transport.abort()
            raise NoWay(f"it shows the certificate of '{', '.join(names) or 'nobody'}', not of node '{front.node}'")
        return protocol

    def _observe_context(self) -> ssl.SSLContext:
        """A torn identity (a power cut between two writes) leaves the one before in force."""
        stats = [os.stat(path) for path in (self._certificate, self._key, self._authorities)]
        stamp = tuple((status.st_mtime_ns, status.st_ino) for status in stats)
        if self._context is None or stamp != self._read_at:
            try:
                self._context = self._make_context()
            except (OSError, ValueError) as error:
                if self._context is None:
                    raise NoWay(f"this gateway's certificate can't be read: {error}") from None
            self._read_at = stamp
        return self._context

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.load_verify_locations(self._authorities)
        context.load_cert_chain(self._certificate, self._key)
        return context


def explain_dial(error: OSError) -> str:
    """Why no connection was made, in words that don't change from one try to the next."""
    if isinstance(error, NoWay):
        return str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not of this fleet: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        # Only those that OpenSSL itself raised have a reason.
        reason: str = getattr(error, "reason", None) or "it was cut off"
        if "UNRECOGNIZED_NAME" in reason:
            return "another attempt or Instance is served there"
        return f"the TLS handshake failed: {reason}"
    if error.errno is not None and error.errno > 0:
        return f"it took no connection: {os.strerror(error.errno)}"
    return f"it took no connection: {error}"

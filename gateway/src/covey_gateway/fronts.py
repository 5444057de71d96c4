"""Dials to keepers' fronts (`covey_fleet_client.dialling`), and why there is no connection.

Sessions are not resumed: a resumed one would outlive the check of the certificate, and connections are kept open
between requests anyway.
"""

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from covey_fleet_client.dialling import DialContext, find_other

from covey_gateway.routing.table import Front

# `close_notify` answered or not, the connection is over: nothing is waited for that anybody needs.
_SHUTDOWN_SECONDS = 1.0

P = TypeVar("P", bound=asyncio.BaseProtocol)


class NoWay(OSError):
    """There is no connection to be had; the words say why."""

    def __str__(self) -> str:
        return str(self.args[0])


class Fronts:
    """`folder`: of this gateway's identity."""

    def __init__(self, folder: Path) -> None:
        self._identity = DialContext(folder)

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
        if other := find_other(certificate, front.node):
            transport.abort()
            raise NoWay(f"it shows the certificate of {other}, not of node '{front.node}'")
        return protocol

    def _observe_context(self) -> ssl.SSLContext:
        try:
            return self._identity.observe()
        except (OSError, ValueError) as error:
            raise NoWay(f"this gateway's certificate can't be read: {error}") from None


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

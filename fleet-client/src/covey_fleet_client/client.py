"""The fleet API's client: one per process, mutual TLS over HTTP/1.1, bounded streams.

A renewed certificate is loaded into the same TLS context: connections that are open keep going, new ones show the new
certificate, so no stream is dropped for a renewal.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from email.utils import parsedate_to_datetime
from typing import Self

from covey_api.messages import KEEPALIVE, JoinAnswer, JoinRequest
from covey_api.meta import Message
from cryptography import x509

from covey_fleet_client.calls import (
    Answer,
    call,
    open_client,
    open_stream,
    parse_answer,
    parse_controller_url,
    read_lines,
)
from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.http import Answer as HttpAnswer
from covey_fleet_client.identity import Identity
from covey_fleet_client.join import NOTABLE_SKEW_SECONDS, log_skew, trusting_context

# The wall clock is looked at this often: a machine that slept notices within it, and it costs nothing.
_CHECK_SECONDS = 3600.0
# Two thirds of a certificate's lifetime remain for these tries.
_RETRY_SECONDS = 60.0

_log = logging.getLogger(__name__)


class FleetClient:
    """Paths are relative to `/fleet/v1`: `nodes/a/report`. Everything raises FleetError and has a deadline."""

    def __init__(self, identity: Identity, controller_url: str) -> None:
        """`identity` as `ensure_joined` returned it."""
        self._identity = identity
        self._context = trusting_context(identity.authorities)
        self._context.load_cert_chain(identity.certificate_path, identity.key_path)
        self._told_skew = 0.0
        """Seconds by which the controller's clock was ahead when that was told last."""
        self._http = open_client(parse_controller_url(controller_url), self._context)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def stream(self, path: str) -> AsyncGenerator[bytes]:
        """Lines without their end, keep-alives left out; FleetError when it breaks or is silent for 15 s.

        Ends only by an error (a clean end of the body is one too: UNREACHABLE). Who leaves it early closes it with
        `contextlib.aclosing`.
        """
        self._check_expiry()
        async with open_stream(self._http, path) as answer, aclosing(read_lines(answer)) as lines:
            async for line in lines:
                if line != KEEPALIVE.strip():
                    yield line

    async def post(self, path: str, message: Message, answer: type[Answer]) -> Answer:
        self._check_expiry()
        return parse_answer(await call(self._http, "POST", path, body=message), answer, path)

    async def put(self, path: str, message: Message) -> None:
        self._check_expiry()
        await call(self._http, "PUT", path, body=message)

    async def watch_certificate(self) -> None:
        """Renew the certificate whenever it is due or the fleet's authorities are others, until cancelled. Tell skew.

        Run it in the process's TaskGroup. Whoever replaces an authority waits for an hour between the steps.
        """
        while True:
            try:
                if time.time() >= self._identity.renew_at or not await self._has_current_authorities():
                    await self.renew()
            except (FleetError, OSError) as error:
                # That the controller is away, whoever follows a stream says, once; each try to connect comes by here.
                is_away = isinstance(error, FleetError) and error.kind is FleetErrorKind.UNREACHABLE
                level = logging.DEBUG if is_away else logging.WARNING
                _log.log(level, "the certificate could not be checked or renewed, next try in a minute: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            remaining_seconds = self._identity.renew_at - time.time()
            await asyncio.sleep(min(max(remaining_seconds, 0), _CHECK_SECONDS))

    async def _has_current_authorities(self) -> bool:
        """The order counts too: the first one signs."""
        content = await call(self._http, "GET", "authority", on_head=self._read_clock)
        try:
            return tuple(x509.load_pem_x509_certificates(content)) == self._identity.authorities
        except ValueError as error:
            raise FleetError(FleetErrorKind.INVALID, f"the fleet's authorities must be PEM: {error}") from None

    def _read_clock(self, answer: HttpAnswer) -> None:
        with suppress(ValueError):
            self._note_clock(parsedate_to_datetime(answer.date).timestamp(), time.time())

    def _note_clock(self, theirs: float, ours: float) -> None:
        """A skew is told once, and again when it is another."""
        if abs(theirs - ours - self._told_skew) > NOTABLE_SKEW_SECONDS:
            self._told_skew = theirs - ours
            log_skew(theirs, ours)

    def _check_expiry(self) -> None:
        """An expired certificate ends in a broken handshake, which doesn't say why: so it is said here."""
        if time.time() >= self._identity.expires_at:
            raise FleetError(
                FleetErrorKind.DENIED,
                f"the certificate in '{self._identity.certificate_path}' has expired. Join again with a new token; "
                "if it can't be, check this machine's clock.",
            )

    async def renew(self) -> None:
        """A new certificate, and the fleet's authorities as they are now."""
        identity = self._identity
        role = identity.role
        request = JoinRequest(role=role, name=identity.name, signing_request=identity.render_signing_request())
        answer = await self.post("renew", request, JoinAnswer)
        now = time.time()
        self._note_clock(answer.now, now)
        self._identity = identity.accept(answer, role, identity.name, now)
        # Authorities are added; who is trusted no more is forgotten with this process.
        self._context.load_verify_locations(cafile=self._identity.authorities_path)
        self._context.load_cert_chain(self._identity.certificate_path, self._identity.key_path)
        _log.info("certificate of %s '%s' renewed", role, identity.name)

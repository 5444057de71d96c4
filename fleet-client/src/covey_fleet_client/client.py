"""The fleet API's client: one per process, mutual TLS over HTTP/1.1, bounded streams."""

from collections.abc import AsyncIterator
from typing import Self, TypeVar

from covey_api.meta import Message

from covey_fleet_client.identity import Identity

Answer = TypeVar("Answer", bound=Message)


class FleetClient:
    """Paths are relative to `/fleet/v1`: `nodes/a/report`. Everything raises FleetError and has a deadline."""

    def __init__(self, identity: Identity, controller_url: str) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(self, *_: object) -> None:
        raise NotImplementedError

    def stream(self, path: str) -> AsyncIterator[bytes]:
        """Lines without their end, keep-alives left out; FleetError when it breaks or is silent for 15 s.

        Ends only by an error (a clean end of the body is one too: UNREACHABLE). Who leaves it early closes it with
        `contextlib.aclosing`.
        """
        raise NotImplementedError

    async def post(self, path: str, message: Message, answer: type[Answer]) -> Answer:
        raise NotImplementedError

    async def put(self, path: str, message: Message) -> None:
        raise NotImplementedError

    async def watch_certificate(self) -> None:
        """Renew the certificate whenever it is due, until cancelled. Run it in the process's TaskGroup."""
        raise NotImplementedError

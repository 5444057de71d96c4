"""Other nodes of the fleet, for a command on one of its machines: by the identity of that machine's agent, which
needn't run. What has an origin is fetched there; what has none (`store://`) is asked of them (ADR 62).

Only looked at: a command makes, renews and mends no identity, and takes nobody's turn at an origin.
"""

import random
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path

from covey_agent.artifacts.download import Elsewhere, Readable
from covey_agent.artifacts.partial import PartialFile
from covey_agent.artifacts.web import Web, unavailable
from covey_agent.peers.sources import Peers
from covey_agent.ports import AgentError, OnTransfer
from covey_api.messages import CertificateRole, Wanted, WantedAnswer
from covey_fleet_client.client import FleetClient
from covey_fleet_client.dialling import DialContext
from covey_fleet_client.errors import FleetError
from covey_fleet_client.files import describe_refusal
from covey_fleet_client.identity import Identity, read_controller_url, read_identity


class _Nobody:
    """`Elsewhere` of a machine that can ask no node; `why` ends a sentence that begins with what is looked for."""

    def __init__(self, why: str) -> None:
        self._why = why

    def open(self, sha256: str, name: str) -> Readable:
        raise self._refuse(name)

    async def fill(
        self,
        name: str,
        sha256: str,
        size_bytes: int,
        partial: PartialFile,
        tell: OnTransfer,
        *,
        has_origin: bool = True,
    ) -> None:
        raise self._refuse(f"'{name}'")

    def at_origin(self, sha256: str, tell: OnTransfer) -> AbstractContextManager[OnTransfer]:
        return nullcontext(tell)

    def _refuse(self, what: str) -> AgentError:
        words = f"{what} is not in this machine's cache, and no other node can be asked for it: {self._why}"
        return unavailable(words)


class _Leader:
    """`Directory`, as the controller answers a command. It says why it can't: a person waits, and nothing else does."""

    def __init__(self, fleet: FleetClient, node: str, url: str) -> None:
        self._fleet = fleet
        self._node = node
        self._url = url

    async def ask(self, wanted: Wanted) -> WantedAnswer | None:
        asked = wanted.model_copy(update={"by_command": True})
        try:
            return await self._fleet.post(f"nodes/{self._node}/wanted", asked, WantedAnswer)
        except FleetError as error:
            raise unavailable(
                f"the controller at '{self._url}' doesn't say which nodes have it: {error.message}"
            ) from error


@asynccontextmanager
async def open_neighbours(state: Path, web: Web) -> AsyncGenerator[Elsewhere]:
    """`state`: the state folder of this machine's agent. Whatever keeps it from asking is said when it is to ask."""
    folder, url = state / "agent", read_controller_url(state / "agent")
    identity = _read(folder)
    if isinstance(identity, str) or not url:
        words = identity if isinstance(identity, str) else "it has never reached its controller."
        yield _Nobody(
            f"{words} Give the `--state` of this machine's agent, or ask on a node; of a Model that names it, `covey "
            "fit model/NAME` says what it needs."
        )
        return
    try:
        fleet = FleetClient(identity, url)
    except (OSError, ValueError, FleetError) as error:
        words = describe_refusal(error) if isinstance(error, OSError) else str(error)
        yield _Nobody(f"the identity in '{folder}' can't be used: {words}.")
        return
    async with fleet:
        directory = _Leader(fleet, identity.name, url)
        jitter = random.SystemRandom().random
        peers = Peers(directory, DialContext(folder).observe, web.pace, web.patience.stall_seconds, jitter)
        try:
            yield peers
        finally:
            peers.close()


def _read(folder: Path) -> Identity | str:
    """Who this machine is to the fleet, or why it is nobody."""
    try:
        identity = read_identity(folder)
    except OSError as error:
        return f"{describe_refusal(error)}."
    if identity is None or not identity.name:
        return f"this machine is no node of a fleet by '{folder}'."
    if not identity.is_valid(CertificateRole.AGENT, identity.name, time.time()):
        return f"the certificate in '{folder}' is not valid now; `covey doctor` says why."
    return identity

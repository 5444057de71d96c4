"""The parent of `covey join`: agent and gateway of this machine, in the fleet of a controller elsewhere.

It joins for both before it starts either: a token that isn't taken is then this command's error, and not a line in a
log. Each part renews its certificate itself, so that a second start needs neither a token nor the controller.
"""

import asyncio
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from covey_api.messages import CertificateRole
from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.identity import Identity, load_identity, read_identity, render_name
from covey_fleet_client.join import ensure_joined

from covey.commands.gateway_options import choose_scheme, find_drain_seconds
from covey.errors import CommandError, ExitCode
from covey.paths import TOKEN_SEPARATOR
from covey.up.group import PartGroup
from covey.up.part import Part

# A whole handshake with a busy controller, twice: the authority, then the join.
JOIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """What `covey join` was asked for."""

    controller: str
    state: Path
    cache: Path | None
    name: str
    listen: str
    """HOST:PORT of the gateway; empty: no gateway."""
    is_open: bool
    """The gateway serves without keys, whoever reaches it."""
    gateway_flags: tuple[str, ...] = ()

    @property
    def gateway_url(self) -> str:
        return f"{choose_scheme(self.gateway_flags)}://{self.listen}" if self.listen else ""

    @property
    def record(self) -> dict[str, str]:
        return {"gatewayUrl": self.gateway_url, "controller": self.controller}

    def fleet_arguments(self) -> list[str]:
        return ["--controller", self.controller, "--state", str(self.state)]

    def gateway_arguments(self) -> list[str]:
        is_open = ["--insecure"] if self.is_open else []
        return [*self.fleet_arguments(), "--listen", self.listen, *is_open, *self.gateway_flags]

    def identities(self) -> list[tuple[Identity, CertificateRole, str]]:
        """Who this machine is to the fleet: `(identity, role, name)` of each part."""
        agent = load_identity(self.state / "agent")
        host = render_name(socket.gethostname())
        found = [(agent, CertificateRole.AGENT, self.name or agent.name or host)]
        if self.listen:
            gateway = load_identity(self.state / "gateway")
            name = choose_gateway_name(self.name, agent.name, gateway.name) or host
            found.append((gateway, CertificateRole.GATEWAY, name))
        return found

    def needs_token(self) -> bool:
        """Whether a part has no valid certificate."""
        return not all(identity.is_valid(role, name, time.time()) for identity, role, name in self.identities())


def choose_gateway_name(given: str, agent: str, gateway: str) -> str:
    """From the name that is given and those that the parts joined by; empty: none of them.

    A new name is both parts', so that two machines of one host name can be told apart. A machine that joined by this
    name when its gateway was still called after the host keeps that: its token is long used up.
    """
    return given if given and given != agent else gateway or given


def has_joined(state: Path, name: str, *, has_gateway: bool) -> bool:
    """Whether `covey join` would need no token there. Nothing is made or mended. OSError where it can't be read."""
    agent = read_identity(state / "agent")
    if agent is None or not agent.is_valid(CertificateRole.AGENT, name or agent.name, time.time()):
        return False
    if not has_gateway:
        return True
    gateway = read_identity(state / "gateway")
    if gateway is None:
        return False
    chosen = choose_gateway_name(name, agent.name, gateway.name)
    return gateway.is_valid(CertificateRole.GATEWAY, chosen, time.time())


def join_fleet(settings: JoinSettings, token: str | None) -> None:
    """Certificates for all parts. CommandError says why the controller takes no token, or where there is none."""
    identities = settings.identities()
    tokens = [each.strip() for each in token.split(TOKEN_SEPARATOR)] if token else []
    if tokens and len(tokens) < len(identities) and settings.needs_token():
        raise CommandError(
            "the token lets one part join, and this machine has two. Make one for both with "
            "`covey token create --role machine`, or give --no-gateway.",
            ExitCode.WRONG_USE,
        )
    # The agent last: what it is called tells whether a name is new, also to the next try if this one breaks off.
    for index, (identity, role, name) in reversed(list(enumerate(identities))):
        given = tokens[index] if index < len(tokens) else None
        try:
            joining = ensure_joined(identity, settings.controller, role, name, given, takes_new_token=True)
            asyncio.run(asyncio.wait_for(joining, JOIN_SECONDS))
        except FleetError as error:
            code = ExitCode.TIMED_OUT if error.kind is FleetErrorKind.UNREACHABLE else ExitCode.FAILED
            raise CommandError(f"{role} '{name}' could not join the fleet: {error.message}", code) from None
        except TimeoutError:
            words = f"the controller at {settings.controller} did not answer within {JOIN_SECONDS:.0f} s"
            raise CommandError(words, ExitCode.TIMED_OUT) from None


class JoinedParent(PartGroup):
    """The running parts of this machine."""

    def __init__(self, settings: JoinSettings, on_line: Callable[[str, str], None]) -> None:
        super().__init__(settings.state, on_line)
        self._settings = settings
        self.agent = self.make_part("agent", self._agent_arguments)
        self.gateway: Part | None = self.make_part("gateway", settings.gateway_arguments) if settings.listen else None

    def _agent_arguments(self) -> list[str]:
        cache = ["--cache", str(self._settings.cache)] if self._settings.cache else []
        name = ["--name", self._settings.name] if self._settings.name else []
        return [*self._settings.fleet_arguments(), *cache, *name]

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        """All parts started, until the block ends; then all stopped."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.agent.run())
                if self.gateway is not None:
                    group.create_task(self.gateway.run())
                try:
                    yield
                finally:
                    await self.stop_serving(self.agent, self.gateway, find_drain_seconds(self._settings.gateway_flags))
        finally:
            self.close()

    def hurry(self) -> None:
        """A second interrupt: end the parts now; the sweep still runs."""
        for part in (self.agent, self.gateway):
            if part is not None:
                part.stop(signal.SIGKILL)

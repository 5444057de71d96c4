"""The parent of `covey up`: starts the parts in order, stops them in order.

The order of starting: the controller, because the others need its address and a token each; then agent and gateway
together. The controller is stopped last, so that the last states are recorded.
"""

import asyncio
import contextlib
import json
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from covey_controller.stores.git.address import GitAddress
from covey_fleet_client.files import describe_refusal, ensure_private_folder, write_private
from covey_fleet_client.identity import load_identity

from covey.commands.gateway_options import choose_scheme, find_drain_seconds
from covey.control import Control
from covey.errors import CommandError, ExitCode
from covey.up.group import PartGroup
from covey.up.left import has_controller, observe_agent
from covey.up.sources import forget_last_source

CONTROLLER_START_SECONDS = 60.0
CONTROLLER_STOP_SECONDS = 2.0
POLL_SECONDS = 0.05
# Parts whose parent was killed end within 5 s.
PREDECESSOR_SECONDS = 6.0
TOKEN_USES = 8
# A part joins at its start and then has a certificate. The controller holds 256 open tokens and each start makes two:
# one that something starts again and again must not lock itself out.
TOKEN_TTL_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Settings:
    """What `covey up` was asked for."""

    source: Path | GitAddress
    state: Path
    cache: Path | None
    port: int
    allow_empty: bool
    source_flags: tuple[str, ...] = ()
    """What else the controller is told about the source."""
    gateway_flags: tuple[str, ...] = ()
    metrics_listen: str = ""
    """HOST:PORT of the controller's figures; empty: nowhere."""

    @property
    def gateway_url(self) -> str:
        return f"{choose_scheme(self.gateway_flags)}://127.0.0.1:{self.port}"

    @property
    def record(self) -> dict[str, str]:
        return {"gatewayUrl": self.gateway_url, "source": str(self.source)}


def is_taken(port: int) -> bool:
    """Whether somebody listens on this port of loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


class Parent(PartGroup):
    """The running parts.

    `follows_killed`: parts of a parent that was killed may still be ending.
    """

    def __init__(self, settings: Settings, on_line: Callable[[str, str], None], *, follows_killed: bool) -> None:
        super().__init__(settings.state, on_line)
        self._settings = settings
        self._follows_killed = follows_killed
        self._fleet_listen = "127.0.0.1:0"
        self._hurried = False
        self.controller = self.make_part("controller", self._controller_arguments)
        self.agent = self.make_part("agent", self._agent_arguments)
        self.gateway = self.make_part("gateway", self._gateway_arguments)

    def _controller_arguments(self) -> list[str]:
        settings = self._settings
        extra = ["--allow-empty"] if settings.allow_empty else []
        listen = ["--fleet-listen", self._fleet_listen]
        return [
            "--source",
            str(settings.source),
            "--state",
            str(settings.state),
            *listen,
            *extra,
            *settings.source_flags,
            *(["--metrics-listen", settings.metrics_listen] if settings.metrics_listen else []),
        ]

    def _agent_arguments(self) -> list[str]:
        cache = ["--cache", str(self._settings.cache)] if self._settings.cache else []
        # Several of these run on one machine.
        return [*self._fleet_arguments("agent"), *cache, "--blobs-port", "0"]

    def _gateway_arguments(self) -> list[str]:
        return [
            *self._fleet_arguments("gateway"),
            "--listen",
            f"127.0.0.1:{self._settings.port}",
            *self._settings.gateway_flags,
        ]

    def _fleet_arguments(self, part: str) -> list[str]:
        state = self._settings.state
        token = state / part / "token"
        # As it was at first, and is ever since: the file may be gone by now.
        return ["--controller", f"https://{self._fleet_listen}", "--token-file", str(token), "--state", str(state)]

    def _fleet_url(self) -> str:
        return str(json.loads((self._settings.state / "controller" / "fleet.json").read_text())["url"])

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        """All parts started, until the block ends; then all stopped."""
        try:
            async with asyncio.TaskGroup() as group:
                await self._wait_for_predecessor(lambda: has_controller(self._settings.state))
                group.create_task(self.controller.run())
                try:
                    await self._wait_for_controller()
                    for part in ("agent", "gateway"):
                        await self._give_token(part)
                    await self._wait_for_predecessor(self._has_predecessor)
                    await asyncio.to_thread(forget_last_source, self._settings.state, str(self._settings.source))
                    self._fleet_listen = self._fleet_url().removeprefix("https://")
                    group.create_task(self.agent.run())
                    group.create_task(self.gateway.run())
                    yield
                finally:
                    await self._stop()
        finally:
            self.close()

    async def _wait_for_controller(self) -> None:
        try:
            async with asyncio.timeout(CONTROLLER_START_SECONDS):
                with Control(self._settings.state) as control:
                    while not (self._hurried or self.ending.is_set()):
                        if await asyncio.to_thread(control.is_ready):
                            return
                        await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise CommandError(
                f"the controller was not ready within {CONTROLLER_START_SECONDS:.0f} s; its log is "
                f"'{self.controller.log_path}'",
                ExitCode.TIMED_OUT,
            ) from None
        raise CommandError("interrupted before the controller was ready")

    def _has_predecessor(self) -> bool:
        """A gateway whose parent was killed keeps the port while its last answers end, an agent its folder."""
        return is_taken(self._settings.port) or bool(observe_agent(self._settings.state))

    async def _wait_for_predecessor(self, is_there: Callable[[], bool]) -> None:
        """What doesn't go, as another program's port or a part that is paused, is said by the part that starts then.

        Who follows nobody hears it at once.
        """
        if not self._follows_killed:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PREDECESSOR_SECONDS):
                while True:
                    if not is_there():
                        return
                    await asyncio.sleep(POLL_SECONDS)

    async def _give_token(self, part: str) -> None:
        """A new one at each start. Where none can be made, on a full disk say, a part's certificate does."""
        folder = self._settings.state / part
        try:
            ensure_private_folder(folder)
            with Control(self._settings.state) as control:
                token = await asyncio.to_thread(control.create_token, part, TOKEN_USES, TOKEN_TTL_SECONDS)
            write_private(folder / "token", token)
        except (OSError, CommandError) as error:
            words = describe_refusal(error) if isinstance(error, OSError) else str(error)
            if load_identity(folder).expires_at < time.time():
                raise CommandError(f"the {part} can't be let into the fleet: {words}") from None
            self._on_line(part, f"covey WARNING no join token was made, the certificate is used: {words}")

    async def _stop(self) -> None:
        await self.stop_serving(self.agent, self.gateway, find_drain_seconds(self._settings.gateway_flags))
        self.controller.stop(signal.SIGTERM)
        await self.wait_for_end((self.controller,), CONTROLLER_STOP_SECONDS)

    def hurry(self) -> None:
        """A second interrupt: end the parts now; the sweep still runs."""
        self._hurried = True
        for part in (self.gateway, self.agent, self.controller):
            part.stop(signal.SIGKILL)

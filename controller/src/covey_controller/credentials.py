"""What one fleet's controllers share behind the vault, opened together; and what the loop gets of it."""

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version

from covey_api.messages import CertificateRole

from covey_controller.authority import derive_engine_key
from covey_controller.denials import Denials, open_denials
from covey_controller.loop import Surroundings
from covey_controller.ports import Conflict, Vault, VaultUnavailable
from covey_controller.seal import seal_instance
from covey_controller.tokens import Tokens
from covey_controller.trust import RELOAD_SECONDS, Trust, ensure_fleet_secret, hold_fleet_secret, open_trust
from covey_controller.vault import AUTHORITY_CERTIFICATES, FLEET_SECRET

# One read of a small object. Whoever starts where the identity is gone waits longer than this before it makes another.
WATCH_SECONDS = 2.0
_CONSEQUENCES = {
    FLEET_SECRET: "every engine that runs is stopped and started with a new key",
    AUTHORITY_CERTIFICATES: "agents and gateways must join anew; under `covey up` a restart of it does that",
}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Credentials:
    vault: Vault
    trust: Trust
    tokens: Tokens
    denials: Denials
    fleet_secret: bytes

    @property
    def fleet_id(self) -> str:
        """Which fleet this is, for ever: unlike the authority, the secret isn't replaced. It tells nothing of it."""
        return hashlib.sha256(b"covey fleet " + self.fleet_secret).hexdigest()

    async def reload(self) -> None:
        """What a leader before this one may have written; what was lost of it is written again, as it is known here.

        The fleet secret is for ever. ValueError for another one: another fleet's identity is where this one's was.
        """
        await hold_fleet_secret(self.vault, self.fleet_secret)
        await self.trust.reload()
        await self.denials.reload()

    async def watch(self) -> None:
        """For replicas, until cancelled: where the identity is gone it is written again at once, whoever leads.

        Refused certificates are the leader's to write again: it alone knows the last of them.
        """
        complaint, reloaded_at = "", time.monotonic()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                is_gone = await hold_fleet_secret(self.vault, self.fleet_secret)
                if is_gone or time.monotonic() - reloaded_at >= RELOAD_SECONDS:
                    await self.trust.reload()
                    reloaded_at = time.monotonic()
                complaint = ""
            except (Conflict, VaultUnavailable, ValueError) as error:
                if str(error) != complaint:
                    _log.warning("the fleet's identity can't be read anew, the known one stays in force: %s", error)
                complaint = str(error)

    async def deny_agent(self, name: str) -> None:
        await self.denials.deny(CertificateRole.AGENT, name, time.time())

    def surround(
        self, on_turn: Callable[[float, Exception | None], None], *, allow_empty: bool = False
    ) -> Surroundings:
        return Surroundings(
            holder=secrets.token_hex(8),
            engine_key=partial(derive_engine_key, self.fleet_secret),
            seal_of=partial(seal_instance, self.fleet_secret),
            mint_id=partial(secrets.token_hex, 8),
            utc_now=partial(datetime.now, UTC),
            deny_agent=self.deny_agent,
            prepare=self.reload,
            allow_empty=allow_empty,
            on_turn=on_turn,
            version=version("covey-controller"),
        )


async def open_credentials(vault: Vault) -> Credentials:
    """Made where there are none yet. ValueError if a document can't be read, VaultUnavailable if the vault can't."""
    await _tell_losses(vault)
    trust = await open_trust(vault, time.time())
    tokens = Tokens(vault, lambda: trust.current.digest)
    await tokens.check()
    return Credentials(vault, trust, tokens, await open_denials(vault), await ensure_fleet_secret(vault))


async def _tell_losses(vault: Vault) -> None:
    """What is made anew though the fleet is not: nobody should learn of that from its consequences."""
    is_there = {name: await vault.read(name) is not None for name in _CONSEQUENCES}
    if any(is_there.values()):
        for name, words in _CONSEQUENCES.items():
            if not is_there[name]:
                _log.error(
                    "'%s' of this fleet is gone and is made anew: %s. A backup of it is put back by hand", name, words
                )

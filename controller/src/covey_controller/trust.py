"""The authority in force in this process: made once for a fleet, read anew, replaced while the fleet serves.

It owns which document is written when. Certificates and keys are two documents; every state between two writes, and
every death of a writer there, leaves an authority that signs and is trusted:

| step       | `authority.key` | `authority.pem` | who is trusted where                                          |
|------------|-----------------|-----------------|---------------------------------------------------------------|
| (before)   | A               | A               | A signs, A is trusted                                         |
| Announced  | A B             | A B             | A signs; members learn to trust B                             |
| Signing    | A B             | B A             | B signs, also the controller's certificate; A's are good still |
| Finished   | B               | B               | A is refused                                                  |

A member asks for the bundle when it starts and every hour, and renews when it differs: so each step is safe once the
members that are to stay have been connected for an hour after the one before. Rejected: one step with a cross
certificate (B signed by A). Authorities in use may not sign authorities (`path_length=0`).
"""

import asyncio
import logging
import secrets
from enum import StrEnum

from cryptography.hazmat.primitives.asymmetric import ec

from covey_controller.authority import Authority, make_certificate, make_key, parse_authority, parse_keys, render_key
from covey_controller.ports import Conflict, Vault, VaultUnavailable
from covey_controller.vault import AUTHORITY_CERTIFICATES, AUTHORITY_KEYS, FLEET_SECRET, MAX_TRIES

# A replica that doesn't lead learns of a replaced authority this late; it is one read.
RELOAD_SECONDS = 60.0
_SECRET_BYTES = 32
_log = logging.getLogger(__name__)


class RotationStep(StrEnum):
    ANNOUNCED = "Announced"
    SIGNING = "Signing"
    FINISHED = "Finished"


class Trust:
    """`current` is replaced, never changed: who signs or serves asks for it each time."""

    def __init__(self, vault: Vault, authority: Authority) -> None:
        self._vault = vault
        self._changed = asyncio.Event()
        self.current = authority

    async def reload(self) -> None:
        """What is written down; where nothing is any more, what is in force is written down again."""
        self._put_in_force(await _read_authority(self._vault) or await self._put_back())

    async def watch(self) -> None:
        """Reload every minute, until cancelled."""
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            try:
                self._put_in_force(await _read_authority(self._vault) or self.current)
            except (VaultUnavailable, ValueError) as error:
                _log.warning("the authority can't be read anew, the known one stays in force: %s", error)

    async def wait_changed(self) -> None:
        await self._changed.wait()

    async def rotate(self, now: float) -> RotationStep:
        """The next step of the table. Conflict if another replica made it in this moment."""
        seen = {name: await self._vault.read(name) for name in (AUTHORITY_CERTIFICATES, AUTHORITY_KEYS)}
        authority = await ensure_authority(self._vault, now)
        step, wished = plan_rotation(authority, now)
        content = {AUTHORITY_KEYS: wished.keys_pem.encode(), AUTHORITY_CERTIFICATES: wished.bundle_pem.encode()}
        # A key is there before its certificate, and goes after it.
        for name in reversed(content) if step is RotationStep.FINISHED else content:
            await self._vault.replace(name, content[name], seen=seen[name])
        self._put_in_force(wished)
        _log.info("the fleet's authority is being replaced: %s, '%s…' signs", step, wished.digest[:12])
        return step

    async def _put_back(self) -> Authority:
        """A new authority would lock out every member: the vault was emptied, and the fleet is the same."""
        content = {AUTHORITY_KEYS: self.current.keys_pem, AUTHORITY_CERTIFICATES: self.current.bundle_pem}
        for name, text in content.items():
            await self._vault.replace(name, text.encode(), seen=await self._vault.read(name))
        _log.warning("the fleet's authority was gone from where it is kept: written again as it is in force here")
        return self.current

    def _put_in_force(self, authority: Authority) -> None:
        if authority.bundle != self.current.bundle:
            self.current = authority
            self._changed.set()
            self._changed = asyncio.Event()


def plan_rotation(authority: Authority, now: float) -> tuple[RotationStep, Authority]:
    """1. One certificate: announce the next one, by the key that an interrupted try left, or a new one.
    2. An older key than the last signs: the last one signs from now on. 3. Otherwise the others go.
    """
    signing, last = authority.key, authority.keys[-1]
    is_last = signing.public_key() == last.public_key()
    if len(authority.bundle) == 1:
        following = make_key() if is_last else last
        bundle = (authority.certificate, make_certificate(following, now))
        return RotationStep.ANNOUNCED, Authority((signing, following), bundle)
    if not is_last:
        first = [each for each in authority.bundle if each.public_key() == last.public_key()]
        rest = [each for each in authority.bundle if each.public_key() != last.public_key()]
        return RotationStep.SIGNING, Authority(authority.keys, (*first, *rest))
    return RotationStep.FINISHED, Authority((signing,), (authority.certificate,))


async def open_trust(vault: Vault, now: float) -> Trust:
    return Trust(vault, await ensure_authority(vault, now))


async def ensure_authority(vault: Vault, now: float) -> Authority:
    """The fleet's authority, made at the first start. Of replicas that start at once one makes it, all use it.

    1. The certificates are there: loaded with their keys. ValueError without: a new authority would lock out every
       agent; that is for a person.
    2. None: nothing was ever signed that anybody trusts. The key is written first (one alone is what a start that was
       cut off leaves, and is used), then its certificate; whoever finds another's write begins anew.
    """
    for _ in range(MAX_TRIES):
        if (found := await _read_authority(vault)) is not None:
            return found
        try:
            key = await _ensure_key(vault)
            made = Authority((key,), (make_certificate(key, now),))
            await vault.replace(AUTHORITY_CERTIFICATES, made.bundle_pem.encode(), seen=None)
        except Conflict:
            continue
        return made
    raise VaultUnavailable("other controllers keep changing the fleet's authority; stop all but those of this fleet")


async def _read_authority(vault: Vault) -> Authority | None:
    certificates = await vault.read(AUTHORITY_CERTIFICATES)
    if certificates is None:
        return None
    # After the certificates: a key is there before its certificate is.
    keys = await vault.read(AUTHORITY_KEYS)
    try:
        return parse_authority(certificates, keys or b"")
    except ValueError as error:
        raise ValueError(
            f"'{AUTHORITY_CERTIFICATES}' and '{AUTHORITY_KEYS}' must be the fleet's authority and its key; found: "
            f"{error}. Restore both, or remove both and join every agent and gateway again."
        ) from None


async def _ensure_key(vault: Vault) -> ec.EllipticCurvePrivateKey:
    content = await vault.read(AUTHORITY_KEYS)
    if content is not None:
        try:
            return parse_keys(content)[-1]
        except ValueError:
            _log.warning("'%s' holds no key that can be used, and signed nothing: a new one is made", AUTHORITY_KEYS)
    key = make_key()
    await vault.replace(AUTHORITY_KEYS, render_key(key).encode(), seen=content)
    return key


async def hold_fleet_secret(vault: Vault, secret: bytes) -> bool:
    """Write it again where it is gone; True if it was. ValueError for another one, Conflict if there is one by now."""
    content = await vault.read(FLEET_SECRET)
    if content is None:
        await vault.replace(FLEET_SECRET, secret.hex().encode(), seen=None)
        return True
    if content.decode(errors="replace").strip().lower() != secret.hex():
        raise ValueError(
            f"'{FLEET_SECRET}' isn't this fleet's any more: another identity was written in its place, to which no "
            "agent or gateway belongs. Put back a backup of this fleet's; or, if the other one is wanted, restart "
            "every controller and join every machine anew."
        )
    return False


async def ensure_fleet_secret(vault: Vault) -> bytes:
    """The 32 bytes that engine keys and seals derive from, made at the first start. ValueError if it is damaged."""
    content = await vault.read(FLEET_SECRET)
    if content is None:
        content = secrets.token_hex(_SECRET_BYTES).encode()
        try:
            await vault.replace(FLEET_SECRET, content, seen=None)
        except Conflict:
            content = await vault.read(FLEET_SECRET) or b""
    try:
        secret = bytes.fromhex(content.decode())
    except ValueError:
        secret = b""
    if len(secret) != _SECRET_BYTES:
        raise ValueError(
            f"'{FLEET_SECRET}' must hold {2 * _SECRET_BYTES} hex digits; it doesn't. Restore it, or remove it: "
            "then every engine that runs is started anew with a new key, and an emptied store adopts none of them."
        )
    return secret

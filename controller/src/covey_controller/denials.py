"""Certificates that are refused although they are valid: those of nodes and gateways that were removed.

Kept beside the authority and not in the store: an emptied store must not let anybody back in. Whoever is removed is
refused by name, with every certificate issued up to then; the next join under that name gets a later one. Rejected: a
list of serial numbers. It needs every serial that was ever issued, and whoever renews often enough outgrows any bound.

Both dates of a name go when the certificates they speak of have expired, so the file is bounded by the joins of one
lifetime, each of which took a use of a token. They are whole seconds, as certificates have them. Pods take none, and
each rollout of the gateways brings new names: those that are gone go with the next join.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable

from covey_api.messages import CertificateRole, RefusedPeer
from pydantic import BaseModel, ValidationError

from covey_controller.authority import BACKDATED, CERTIFICATE_LIFETIME
from covey_controller.ports import Vault, VaultUnavailable
from covey_controller.serving.protocol import Peer
from covey_controller.vault import DENIALS, change_document

# A pod that joined so lately may not have been heard yet.
JOINING_SECONDS = 600
# A vault that is away keeps each change for half a minute; who waits behind more than one is told so instead.
TURN_SECONDS = 30.0


class CertificateDenied(Exception):
    """A renewal with a certificate that is refused by now."""


class _Dates(BaseModel):
    """By `role/name`, in seconds since the epoch."""

    issued: dict[str, int] = {}
    """When the newest certificate was issued: a clock that went back must not spare it."""
    denied: dict[str, int] = {}
    """Certificates issued up to then are refused."""
    pods: tuple[str, ...] = ()
    """Of `issued`, those that joined as pods: once gone they never come back under their names."""


class Denials:
    """One event loop. One change at a time: of two that came back out of order the older list would be in force.

    Another leader's are known after `reload`.
    """

    def __init__(self, vault: Vault) -> None:
        """`reload` before anything else."""
        self._vault = vault
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._dates = _Dates()

    async def reload(self) -> None:
        """ValueError if the list can't be read: guessing 'nobody' would let the removed back in. VaultUnavailable.

        One that is gone is written again, for the same reason.
        """
        async with self._one_at_a_time():
            content = await self._vault.read(DENIALS)
            if content is None and self._dates != _Dates():
                content = self._dates.model_dump_json().encode()
                await self._vault.replace(DENIALS, content, seen=None)
            self._put_in_force(_parse(content))

    async def record_issue(
        self,
        role: CertificateRole,
        name: str,
        now: float,
        *,
        renewed: Peer | None = None,
        is_pod: bool | None = None,
        may_be_there: Callable[[str], bool] = lambda gateway: True,
    ) -> int:
        """The date to issue a certificate with now: after all that is refused of this name. Written down first.

        `renewed`: who asks by a certificate. CertificateDenied if that is refused in the very list that is written:
        when the call was let in it may still have been good, and a later date would let the removed back in.

        `is_pod`: joined as one or not; None for a renewal, which says nothing of it. What isn't known of a renewal was
        forgotten, and only gateways that are pods are, when `may_be_there` says no of one.
        """
        key = f"{role}/{name}"
        issued = 0

        def record(dates: _Dates) -> _Dates:
            nonlocal issued
            if renewed is not None and _issued_at(renewed) <= dates.denied.get(key, 0):
                raise CertificateDenied
            issued = max(int(now), dates.denied.get(key, 0) + 1)
            newest = max(issued, dates.issued.get(key, 0))
            was_pod = key in dates.pods or (role is CertificateRole.GATEWAY and key not in dates.issued)
            pods = {*dates.pods, key} if is_pod or (is_pod is None and was_pod) else {*dates.pods} - {key}
            made = _Dates(issued=dates.issued | {key: newest}, denied=dates.denied, pods=tuple(sorted(pods)))
            return _forget_gone(made, key, may_be_there, now)

        await self._change(record, now)
        return issued

    async def deny(self, role: CertificateRole, name: str, now: float) -> None:
        """Refuse every certificate of this name from now on, written down first. Those of later joins are good."""
        key = f"{role}/{name}"

        def record(dates: _Dates) -> _Dates:
            newest = max(int(now), dates.issued.get(key, 0), dates.denied.get(key, 0))
            return dates.model_copy(update={"denied": dates.denied | {key: newest}})

        await self._change(record, now)

    def observe_issued(self, role: CertificateRole, connected: Iterable[str] = ()) -> dict[str, int]:
        """Names that may be let in by a certificate, with the newest one's date in seconds since the epoch.

        With those that are `connected`: one that was taken for gone and is back is let in, by a date not known (0).
        """
        dates = self._dates
        prefix = f"{role}/"
        forgotten = {name: 0 for name in connected if f"{prefix}{name}" not in {**dates.issued, **dates.denied}}
        return forgotten | {
            key.removeprefix(prefix): issued
            for key, issued in dates.issued.items()
            if key.startswith(prefix) and issued > dates.denied.get(key, 0)
        }

    def is_pod(self, role: CertificateRole, name: str) -> bool:
        return f"{role}/{name}" in self._dates.pods

    def is_denied(self, peer: Peer) -> bool:
        return _issued_at(peer) <= self._dates.denied.get(f"{peer.role}/{peer.name}", 0)

    @property
    def refused_gateways(self) -> tuple[RefusedPeer, ...]:
        """What agents are told, for the way past the controller: by name."""
        return self._refused(CertificateRole.GATEWAY)

    @property
    def refused_nodes(self) -> tuple[RefusedPeer, ...]:
        """Likewise, for the way from one to another."""
        return self._refused(CertificateRole.AGENT)

    def _refused(self, role: CertificateRole) -> tuple[RefusedPeer, ...]:
        backdated = int(BACKDATED.total_seconds())
        prefix = f"{role}/"
        return tuple(
            RefusedPeer(name=key.removeprefix(prefix), begins_until=latest - backdated)
            for key, latest in sorted(self._dates.denied.items())
            if key.startswith(prefix)
        )

    async def wait_denied(self, peer: Peer) -> None:
        """Return once this certificate is refused: its open streams end then."""
        while not self.is_denied(peer):
            await self._changed.wait()

    async def _change(self, change: Callable[[_Dates], _Dates], now: float) -> None:
        def render(content: bytes | None) -> bytes:
            return _forget_expired(change(_parse(content)), now).model_dump_json().encode()

        async with self._one_at_a_time():
            self._put_in_force(_parse(await change_document(self._vault, DENIALS, render)))

    @contextlib.asynccontextmanager
    async def _one_at_a_time(self) -> AsyncGenerator[None]:
        """VaultUnavailable when those before take too long."""
        if self._turn.locked():
            try:
                async with asyncio.timeout(TURN_SECONDS):
                    await self._turn.acquire()
            except TimeoutError:
                raise VaultUnavailable(f"'{DENIALS}' is still being changed for others; try again") from None
        else:
            await self._turn.acquire()
        try:
            yield
        finally:
            self._turn.release()

    def _put_in_force(self, dates: _Dates) -> None:
        is_news = dates.denied != self._dates.denied
        self._dates = dates
        if is_news:
            self._changed.set()
            self._changed = asyncio.Event()


async def open_denials(vault: Vault) -> Denials:
    """ValueError and VaultUnavailable as `reload`."""
    denials = Denials(vault)
    await denials.reload()
    return denials


def _issued_at(peer: Peer) -> float:
    return peer.not_before + BACKDATED.total_seconds()


def _parse(content: bytes | None) -> _Dates:
    if content is None:
        return _Dates()
    try:
        return _Dates.model_validate_json(content)
    except ValidationError:
        raise ValueError(f"'{DENIALS}' must be the list of refused certificates; restore it or remove it") from None


def _forget_gone(dates: _Dates, joining: str, may_be_there: Callable[[str], bool], now: float) -> _Dates:
    """Without the gateways' pods that are gone: none comes back under its name. Refusals stay."""
    prefix = f"{CertificateRole.GATEWAY}/"
    gone = {
        key
        for key in dates.pods
        if key.startswith(prefix)
        and key != joining
        and dates.issued.get(key, 0) < now - JOINING_SECONDS
        and not may_be_there(key.removeprefix(prefix))
    }
    issued = {key: date for key, date in dates.issued.items() if key not in gone}
    return _Dates(issued=issued, denied=dates.denied, pods=tuple(key for key in dates.pods if key not in gone))


def _forget_expired(dates: _Dates, now: float) -> _Dates:
    oldest = now - CERTIFICATE_LIFETIME.total_seconds()
    issued = {key: date for key, date in dates.issued.items() if date >= oldest}
    denied = {key: date for key, date in dates.denied.items() if date >= oldest}
    return _Dates(issued=issued, denied=denied, pods=tuple(each for each in dates.pods if each in issued))

"""Certificates that are refused although they are valid: those of nodes and gateways that were removed.

Kept beside the authority and not in the store: an emptied store must not let anybody back in. Whoever is removed is
refused by name, with every certificate issued up to then; the next join under that name gets a later one. Rejected: a
list of serial numbers. It needs every serial that was ever issued, and whoever renews often enough outgrows any bound.

Both dates of a name go when the certificates they speak of have expired, so the file is bounded by the joins of one
lifetime, each of which took a use of a token. They are whole seconds, as certificates have them.
"""

import asyncio
from pathlib import Path

from covey_api.messages import CertificateRole, RefusedGateway
from covey_fleet_client.files import write_private
from pydantic import BaseModel, ValidationError

from covey_controller.authority import BACKDATED, CERTIFICATE_LIFETIME
from covey_controller.serving.protocol import Peer


class _Dates(BaseModel):
    """By `role/name`, in seconds since the epoch."""

    issued: dict[str, int] = {}
    """When the newest certificate was issued: a clock that went back must not spare it."""
    denied: dict[str, int] = {}
    """Certificates issued up to then are refused."""


class Denials:
    """One event loop, no locks."""

    def __init__(self, path: Path) -> None:
        """ValueError if the file is there and can't be read: guessing 'nobody' would let the removed back in."""
        self._path = path
        self._changed = asyncio.Event()
        try:
            self._dates = _Dates.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            self._dates = _Dates()
        except ValidationError:
            raise ValueError(f"'{path}' must be the list of refused certificates; restore it or remove it") from None

    def record_issue(self, role: CertificateRole, name: str, now: float) -> int:
        """The date to issue a certificate with now: after all that is refused of this name. Remembered on the disk."""
        key = f"{role}/{name}"
        issued = max(int(now), self._dates.denied.get(key, 0) + 1)
        newest = max(issued, self._dates.issued.get(key, 0))
        self._keep(_Dates(issued=self._dates.issued | {key: newest}, denied=self._dates.denied), now)
        return issued

    def deny(self, role: CertificateRole, name: str, now: float) -> None:
        """Refuse every certificate of this name from now on, on the disk too. Those of later joins are good."""
        key = f"{role}/{name}"
        newest = max(int(now), self._dates.issued.get(key, 0), self._dates.denied.get(key, 0))
        self._keep(_Dates(issued=self._dates.issued, denied=self._dates.denied | {key: newest}), now)
        self._changed.set()
        self._changed = asyncio.Event()

    def is_denied(self, peer: Peer) -> bool:
        issued = peer.not_before + BACKDATED.total_seconds()
        return issued <= self._dates.denied.get(f"{peer.role}/{peer.name}", 0)

    @property
    def refused_gateways(self) -> tuple[RefusedGateway, ...]:
        """What agents are told, for the way past the controller: by name."""
        backdated = int(BACKDATED.total_seconds())
        prefix = f"{CertificateRole.GATEWAY}/"
        return tuple(
            RefusedGateway(name=key.removeprefix(prefix), begins_until=latest - backdated)
            for key, latest in sorted(self._dates.denied.items())
            if key.startswith(prefix)
        )

    async def wait_denied(self, peer: Peer) -> None:
        """Return once this certificate is refused: its open streams end then."""
        while not self.is_denied(peer):
            await self._changed.wait()

    def _keep(self, dates: _Dates, now: float) -> None:
        oldest = now - CERTIFICATE_LIFETIME.total_seconds()
        issued = {key: date for key, date in dates.issued.items() if date >= oldest}
        denied = {key: date for key, date in dates.denied.items() if date >= oldest}
        kept = _Dates(issued=issued, denied=denied)
        write_private(self._path, kept.model_dump_json().encode())
        self._dates = kept

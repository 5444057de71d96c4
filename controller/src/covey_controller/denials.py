"""Certificates that are refused although they are valid: those of nodes and gateways that were removed.

Serial numbers, kept beside the authority and not in the store: an emptied store must not let anybody back in. An entry
goes when its certificate has expired anyway.
"""

import asyncio
from pathlib import Path

from covey_fleet_client.files import write_private
from pydantic import BaseModel, ValidationError


class _Denials(BaseModel):
    serials: dict[str, float] = {}
    """Hexadecimal serial number → when the certificate expires, seconds since the epoch."""


class Denials:
    """One event loop, no locks."""

    def __init__(self, path: Path) -> None:
        """ValueError if the file is there and can't be read: guessing 'nobody' would let the removed back in."""
        self._path = path
        self._changed = asyncio.Event()
        try:
            self._serials = _Denials.model_validate_json(path.read_bytes()).serials
        except FileNotFoundError:
            self._serials = {}
        except ValidationError:
            raise ValueError(f"'{path}' must be the list of refused certificates; restore it or remove it") from None

    def deny(self, serial: int, expires_at: float, now: float) -> None:
        """Refuse this certificate from now on, on the disk too."""
        kept = {known: until for known, until in self._serials.items() if until > now}
        self._serials = kept | {f"{serial:x}": expires_at}
        write_private(self._path, _Denials(serials=self._serials).model_dump_json().encode())
        self._changed.set()
        self._changed = asyncio.Event()

    def is_denied(self, serial: int) -> bool:
        return f"{serial:x}" in self._serials

    async def wait_denied(self, serial: int) -> None:
        """Return once this certificate is refused: its open streams end then."""
        while not self.is_denied(serial):
            await self._changed.wait()

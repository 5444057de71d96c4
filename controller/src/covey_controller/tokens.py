"""Join tokens: `covey-ID.SECRET.AUTHORITY-DIGEST`, bound to a role, a number of uses and a time.

Only the SHA-256 of a secret is kept. The secret has 256 bits, so a slow hash would protect nothing. Everything here
runs without a pause on one event loop; that is what makes a use count exact.
"""

import hashlib
import hmac
import re
import secrets
from enum import StrEnum
from pathlib import Path

from covey_api.messages import CertificateRole
from covey_fleet_client.files import write_private
from pydantic import BaseModel, ConfigDict, ValidationError

MAX_USES = 1000
MAX_TTL_SECONDS = 30 * 24 * 3600
# Far more than anybody hands out at once; a script in a loop is stopped before the file is large.
MAX_TOKENS = 256
_SECRET_BYTES = 32
_TOKEN = re.compile(r"^covey-(?P<id>[0-9a-f]{12})\.(?P<secret>[A-Za-z0-9_-]{43})\.[0-9a-f]{64}$")
# Compared with when there is no such id, so that both refusals take the same time.
_NO_HASH = "0" * 64


class _Token(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: str
    role: CertificateRole
    hash: str
    uses_left: int
    expires_at: float
    """Seconds since the epoch."""


class _TokenFile(BaseModel):
    tokens: tuple[_Token, ...] = ()


class TokenRefusal(StrEnum):
    UNKNOWN = "TokenUnknown"
    EXPIRED = "TokenExpired"
    USED_UP = "TokenUsedUp"
    WRONG_ROLE = "TokenForOtherRole"


class TokenRefused(Exception):
    """Why a token doesn't let its bearer in. Only who knows the secret hears more than `UNKNOWN`."""

    def __init__(self, refusal: TokenRefusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.message = message


class Tokens:
    def __init__(self, path: Path, authority_digest: str) -> None:
        """ValueError if the file is there and can't be read."""
        self._path = path
        self._authority_digest = authority_digest
        try:
            self._tokens = {one.id: one for one in _TokenFile.model_validate_json(path.read_bytes()).tokens}
        except FileNotFoundError:
            self._tokens = {}
        except ValidationError:
            raise ValueError(f"'{path}' must be the list of join tokens; remove it and make new tokens") from None

    def mint(self, role: CertificateRole, uses: int, ttl_seconds: int, now: float) -> str:
        """A new token, whole; nobody can show it again. ValueError names the bound that doesn't hold."""
        if not 1 <= uses <= MAX_USES:
            raise ValueError(f"`uses` must be between 1 and {MAX_USES}; got {uses}")
        if not 1 <= ttl_seconds <= MAX_TTL_SECONDS:
            raise ValueError(f"`ttlSeconds` must be between 1 and {MAX_TTL_SECONDS}; got {ttl_seconds}")
        self._prune(now)
        if len(self._tokens) >= MAX_TOKENS:
            raise ValueError(f"there must be fewer than {MAX_TOKENS} open tokens; wait until some expire")
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        token = _Token(
            id=secrets.token_hex(6), role=role, hash=_hash(secret), uses_left=uses, expires_at=now + ttl_seconds
        )
        self._tokens[token.id] = token
        self._save()
        return f"covey-{token.id}.{secret}.{self._authority_digest}"

    def redeem(self, text: str, role: CertificateRole, now: float) -> None:
        """Take one use, on the disk before this returns. TokenRefused otherwise.

        1. Not a token, no such id, or another secret: UNKNOWN.
        2. Its time has passed: EXPIRED. 3. No use is left: USED_UP. 4. It is for another role: WRONG_ROLE.
        """
        match = _TOKEN.match(text)
        token = self._tokens.get(match["id"]) if match else None
        is_equal = hmac.compare_digest(_hash(match["secret"] if match else ""), token.hash if token else _NO_HASH)
        if token is None or not is_equal:
            raise TokenRefused(
                TokenRefusal.UNKNOWN, "the join token is not known here; make one with `covey token create`"
            )
        if token.expires_at <= now:
            raise TokenRefused(
                TokenRefusal.EXPIRED, f"join token '{token.id}' has expired; make one with `covey token create`"
            )
        if token.uses_left < 1:
            raise TokenRefused(
                TokenRefusal.USED_UP, f"join token '{token.id}' is used up; make one with `covey token create`"
            )
        if token.role is not role:
            raise TokenRefused(
                TokenRefusal.WRONG_ROLE,
                f"join token '{token.id}' is for role '{token.role}'; got '{role}'. "
                f"Make one with `covey token create --role {role}`.",
            )
        self._tokens[token.id] = token.model_copy(update={"uses_left": token.uses_left - 1})
        self._save()

    def _prune(self, now: float) -> None:
        """Expired tokens go. Used-up ones stay until then, so that their bearers hear why."""
        self._tokens = {one.id: one for one in self._tokens.values() if one.expires_at > now}

    def _save(self) -> None:
        content = _TokenFile(tokens=tuple(self._tokens.values())).model_dump_json()
        write_private(self._path, content.encode())


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()

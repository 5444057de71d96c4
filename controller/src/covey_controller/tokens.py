"""Join tokens: `covey-ID.SECRET.AUTHORITY-DIGEST`, bound to a role, a number of uses and a time.

Only the SHA-256 of a secret is kept. The secret has 256 bits, so a slow hash would protect nothing. Nothing is
remembered here: each call reads the list anew and replaces it only as it was read, which makes a use count exact, also
between two controllers.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from enum import StrEnum

from covey_api.messages import CertificateRole
from pydantic import BaseModel, ConfigDict, ValidationError

from covey_controller.ports import Vault
from covey_controller.vault import TOKENS, change_document

MAX_USES = 1000
MAX_TTL_SECONDS = 30 * 24 * 3600
# Far more than anybody hands out at once; a script in a loop is stopped before the file is large.
MAX_TOKENS = 256
_SECRET_BYTES = 32
TOKEN_PREFIX = "covey-"  # noqa: S105 - how every token begins
_TOKEN = re.compile(r"^covey-(?P<id>[0-9a-f]{12})\.(?P<secret>[A-Za-z0-9_-]{43})\.[0-9a-f]{64}$")
# Compared with when there is no such id, so that both refusals take the same time.
_NO_HASH = "0" * 64


class Token(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: str
    role: CertificateRole
    hash: str
    uses_left: int
    expires_at: float
    """Seconds since the epoch."""


class _TokenFile(BaseModel):
    tokens: tuple[Token, ...] = ()


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
    """Every method raises VaultUnavailable too."""

    def __init__(self, vault: Vault, authority_digest: Callable[[], str]) -> None:
        self._vault = vault
        self._authority_digest = authority_digest

    async def check(self) -> None:
        """ValueError if the list is there and can't be read."""
        _parse(await self._vault.read(TOKENS))

    async def mint(self, role: CertificateRole, uses: int, ttl_seconds: int, now: float) -> str:
        """A new token, whole; nobody can show it again. ValueError names the bound that doesn't hold."""
        if not 1 <= uses <= MAX_USES:
            raise ValueError(f"`uses` must be between 1 and {MAX_USES}; got {uses}")
        if not 1 <= ttl_seconds <= MAX_TTL_SECONDS:
            raise ValueError(f"`ttlSeconds` must be between 1 and {MAX_TTL_SECONDS}; got {ttl_seconds}")
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        token = Token(
            id=secrets.token_hex(6), role=role, hash=_hash(secret), uses_left=uses, expires_at=now + ttl_seconds
        )

        def add(content: bytes | None) -> bytes:
            # Expired tokens go. Used-up ones stay until then, so that their bearers hear why.
            open_ones = tuple(one for one in _parse(content) if one.expires_at > now)
            if len(open_ones) >= MAX_TOKENS:
                raise ValueError(f"there must be fewer than {MAX_TOKENS} open tokens; wait until some expire")
            return _render((*open_ones, token))

        await change_document(self._vault, TOKENS, add)
        return f"covey-{token.id}.{secret}.{self._authority_digest()}"

    async def redeem(self, text: str, role: CertificateRole, now: float) -> None:
        """Take one use, written down before this returns. TokenRefused otherwise."""

        def take(content: bytes | None) -> bytes:
            tokens = _parse(content)
            found = find_token(tokens, text, role, now)
            used = found.model_copy(update={"uses_left": found.uses_left - 1})
            return _render(tuple(used if one is found else one for one in tokens))

        await change_document(self._vault, TOKENS, take)


def find_token(tokens: tuple[Token, ...], text: str, role: CertificateRole, now: float) -> Token:
    """The token that may be redeemed. TokenRefused:

    1. Not a token, no such id, or another secret: UNKNOWN.
    2. Its time has passed: EXPIRED. 3. No use is left: USED_UP. 4. It is for another role: WRONG_ROLE.
    """
    match = _TOKEN.match(text)
    token = next((one for one in tokens if match and one.id == match["id"]), None)
    is_equal = hmac.compare_digest(_hash(match["secret"] if match else ""), token.hash if token else _NO_HASH)
    if token is None or not is_equal:
        raise TokenRefused(TokenRefusal.UNKNOWN, "the join token is not known here; make one with `covey token create`")
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
    return token


def _parse(content: bytes | None) -> tuple[Token, ...]:
    if content is None:
        return ()
    try:
        return _TokenFile.model_validate_json(content).tokens
    except ValidationError:
        raise ValueError(f"'{TOKENS}' must be the list of join tokens; remove it and make new tokens") from None


def _render(tokens: tuple[Token, ...]) -> bytes:
    return _TokenFile(tokens=tokens).model_dump_json().encode()


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()

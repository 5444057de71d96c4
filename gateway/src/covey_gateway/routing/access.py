"""Who may ask: the local-origin rule and keys.

On loopback no key is needed, but any web page can reach loopback too: `Host` must be local (a rebound DNS name isn't)
and `Origin` absent, local or on the list (`--cors-origin`). On any other address a key is needed. A key that looks like
one of ours is checked wherever it is sent, so that a deleted one is refused at once; another is ignored where none is
needed, since SDKs always send one.

Keys are found by the SHA-256 of what was sent. How long a lookup takes tells about a digest's bits at most, and whoever
could choose a digest's bits would have broken SHA-256; the comparison itself takes constant time.
"""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from covey_api.access_key import KEY_PREFIX
from covey_api.messages import Cancel
from covey_api.reasons import ErrorCode

from covey_gateway.routing.cors import is_allowed
from covey_gateway.routing.table import Caller, Key
from covey_gateway.wire.errors import ApiError
from covey_gateway.wire.head import RequestHead

# Probes of a supervisor carry no key; they tell nothing but that the gateway runs.
_OPEN_PATHS = frozenset((b"/healthz", b"/readyz"))
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^:\[\]/@\s]+)(:[0-9]{1,5})?")
_ORIGIN = re.compile(r"https?://(?P<host>[^/]+)")


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    needs_local_origin: bool
    needs_key: bool
    cors_origins: frozenset[bytes] = frozenset()
    """Of web pages that may read answers."""


def choose_policy(listen_host: str, insecure: bool, cors_origins: frozenset[bytes] = frozenset()) -> AccessPolicy:
    """`insecure` lifts both rules: whoever says so answers for the network."""
    if is_local_host(listen_host):
        return AccessPolicy(not insecure, needs_key=False, cors_origins=cors_origins)
    return AccessPolicy(needs_local_origin=False, needs_key=not insecure, cors_origins=cors_origins)


def admit(policy: AccessPolicy, head: RequestHead, keys: Mapping[bytes, Key], now: float) -> Caller | ApiError:
    """1. Host and Origin, where the rule holds. 2. Health checks pass. 3. A key that is needed or looks like ours."""
    if policy.needs_local_origin and (error := _check_origin(head, policy.cors_origins)) is not None:
        return error
    if head.path in _OPEN_PATHS:
        return Caller()
    is_ours = head.credential is not None and head.credential.startswith(KEY_PREFIX)
    if policy.needs_key and not keys:
        return _no_key("this gateway has no access keys, and serves nobody without; `covey key create` makes one")
    if policy.needs_key or is_ours:
        return _check_key(head.credential, keys, now)
    return Caller()


def find_key(head: RequestHead, keys: Mapping[bytes, Key]) -> Key | None:
    """The key that was sent, where one that is known was."""
    if head.credential is None:
        return None
    return keys.get(hashlib.sha256(head.credential.encode("latin-1")).digest())


def is_operator(policy: AccessPolicy, caller: Caller) -> bool:
    """Whether who asks without a key is at this machine: nobody else reaches a gateway that listens on loopback."""
    return policy.needs_local_origin and not caller.key


def may_cancel(cancel: Cancel, owner: Caller) -> bool:
    """A request is its key's to end; one without a key is whoever's that knows its id and has none either."""
    return cancel.key == owner.key


def _check_origin(head: RequestHead, allowed: frozenset[bytes]) -> ApiError | None:
    host = None if head.host is None else head.host.decode("latin-1")
    if host is not None and not is_local_authority(host):
        found = f"`Host` must be local on this address (localhost, 127.0.0.1, [::1]); got '{host[:100]}'"
    elif is_allowed(allowed, head.origin):
        return None
    elif head.origin is not None and not is_local_origin(origin := head.origin.decode("latin-1")):
        found = f"a request from a web page must come from a local one; `Origin` is '{origin[:100]}'"
    else:
        return None
    words = f"{found}. To serve others let the gateway listen on another address, with keys."
    return ApiError(403, ErrorCode.FORBIDDEN_ORIGIN, words)


def _check_key(credential: str | None, keys: Mapping[bytes, Key], now: float) -> Caller | ApiError:
    if credential is None:
        return _no_key("no key was sent; send `Authorization: Bearer sk-covey-…` or `x-api-key`")
    digest = hashlib.sha256(credential.encode("latin-1")).digest()
    key = keys.get(digest)
    if key is None or not hmac.compare_digest(key.digest, digest):
        return _no_key("the key that was sent is not known here; `covey key create` makes one")
    if key.expires_at is not None and now >= key.expires_at:
        return _no_key(f"the key '{key.full_name}' has expired; `covey key create` makes another")
    return Caller(key.namespace, can_cross=False, key=key.full_name, models=key.models, priority=key.priority)


def _no_key(message: str) -> ApiError:
    return ApiError(401, ErrorCode.INVALID_API_KEY, message)


@lru_cache(maxsize=256)  # the few hosts and origins that clients here use, and a bound for those they shouldn't
def is_local_authority(authority: str) -> bool:
    """Whether `host[:port]` of a Host header or an origin names this machine's loopback."""
    match = _HOST.fullmatch(authority.lower())
    return match is not None and is_local_host(match["name"].strip("[]"))


@lru_cache(maxsize=256)
def is_local_origin(origin: str) -> bool:
    match = _ORIGIN.fullmatch(origin.lower())
    return match is not None and is_local_authority(match["host"])


def is_local_host(host: str) -> bool:
    """`localhost`, 127.0.0.0/8 or ::1. Another name isn't looked up: what it means may change."""
    if host.rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

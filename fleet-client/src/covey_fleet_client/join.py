"""Join: from a token to a certificate, without ever showing the token's secret to anybody but the pinned authority.

A token is `covey-ID.SECRET.AUTHORITY-DIGEST`. The authority's certificate is fetched first, over a connection that
proves nothing and carries no secret; only one whose SHA-256 is the token's digest becomes the sole trust of the second
connection, which carries the secret. Reading the presented chain off one connection was the alternative: Python gives
the chain of an unverified peer only from 3.13 on, and a pin checked after the handshake is easily bypassed by a retry.
"""

import logging
import re
import ssl
import time
from dataclasses import dataclass

from covey_api.messages import CertificateRole, JoinAnswer, JoinRequest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from covey_fleet_client.calls import call, open_client, parse_answer, parse_controller_url
from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.identity import Identity

# Certificates and reports tolerate more; a person should hear of it before they don't.
_NOTABLE_SKEW_SECONDS = 30.0
_TOKEN = re.compile(r"^covey-[0-9a-f]{1,64}\.[A-Za-z0-9_-]{1,128}\.(?P<digest>[0-9a-f]{64})$")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class _Token:
    text: str
    authority_digest: str


async def ensure_joined(
    identity: Identity, controller_url: str, role: CertificateRole, name: str, token: str | None
) -> Identity:
    """A valid identity for this role and name: the stored one, else a new one by the token. One try; raises FleetError.

    1. A stored certificate that is valid is used, unless the token is of an authority that isn't pinned: that is
       another fleet, or the same one made anew.
    2. Without a token there is nothing else to show: DENIED.
    3. Join with the token.

    Callers retry `FleetErrorKind.UNREACHABLE` with `Backoff`.
    """
    parsed = _parse_token(token) if token is not None else None
    if identity.is_valid(role, name, time.time()) and (parsed is None or _is_pinned(identity, parsed)):
        return identity
    if parsed is None:
        raise FleetError(
            FleetErrorKind.DENIED,
            f"there is no valid certificate for {role} '{name}' in '{identity.folder}' and no token to join with. "
            f"Make one with `covey token create --role {role}`.",
        )
    return await _join(identity, parse_controller_url(controller_url), role, name, parsed)


async def _join(identity: Identity, url: str, role: CertificateRole, name: str, token: _Token) -> Identity:
    authority = await _fetch_authority(url, token)
    request = JoinRequest(role=role, name=name, signing_request=identity.render_signing_request())
    async with open_client(url, trusting_context((authority,))) as client:
        content = await call(client, "POST", "join", body=request, bearer=token.text)
    answer = parse_answer(content, JoinAnswer, "join")
    now = time.time()
    log_skew(answer, now)
    return identity.accept(answer, role, name, now)


async def _fetch_authority(url: str, token: _Token) -> x509.Certificate:
    """The authority that the token names. Nothing secret is sent here, and nothing received is trusted unchecked."""
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    async with open_client(url, unverified) as client:
        content = await call(client, "GET", "authority")
    try:
        offered = x509.load_pem_x509_certificates(content)
    except ValueError:
        offered = []
    for certificate in offered:
        if digest_of(certificate) == token.authority_digest:
            return certificate
    raise FleetError(
        FleetErrorKind.DENIED,
        f"the controller at {url} must be of the authority that the token names ({token.authority_digest[:12]}…); "
        f"it offers {', '.join(digest_of(one)[:12] + '…' for one in offered) or 'none'}. The token was not sent. "
        "Check the address, or make a new token at that controller.",
    )


def trusting_context(authorities: tuple[x509.Certificate, ...]) -> ssl.SSLContext:
    """A client's TLS that trusts exactly these authorities and checks the controller's names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Nodes choose their own common names, and may be called as the controller's host is; what counts is what the
    # authority wrote beside it.
    context.hostname_checks_common_name = False
    context.load_verify_locations(
        cadata="".join(one.public_bytes(serialization.Encoding.PEM).decode() for one in authorities)
    )
    return context


def log_skew(answer: JoinAnswer, now: float) -> None:
    if abs(skew := answer.now - now) > _NOTABLE_SKEW_SECONDS:
        _log.warning("the controller's clock is %+.0f s from this machine's; set both by NTP", skew)


def digest_of(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate's DER, in hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def _is_pinned(identity: Identity, token: _Token) -> bool:
    return token.authority_digest in {digest_of(authority) for authority in identity.authorities}


def _parse_token(text: str) -> _Token:
    match = _TOKEN.match(text.strip())
    if match is None:
        raise FleetError(
            FleetErrorKind.DENIED,
            "the token must be 'covey-ID.SECRET.AUTHORITY-DIGEST' as `covey token create` printed it; this one isn't "
            "(its text is not shown). Check that it was copied whole.",
        )
    return _Token(text.strip(), match["digest"])

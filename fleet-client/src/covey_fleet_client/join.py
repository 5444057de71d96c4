"""Join: from a token to a certificate, without ever showing the token's secret to anybody but the pinned authority.

A token is `covey-ID.SECRET.AUTHORITY-DIGEST`. The authority's certificate is fetched first, over a connection that
proves nothing and carries no secret; only one whose SHA-256 is the token's digest becomes the sole trust of the second
connection, which carries the secret. Reading the presented chain off one connection was the alternative: Python gives
the chain of an unverified peer only from 3.13 on, and a pin checked after the handshake is easily bypassed by a retry.

A pod has a token of its ServiceAccount instead, which pins nothing: it is shown only to a controller of the authorities
in a file that is mounted beside it. It stays good for as long as the pod lives, so a pod whose certificate is refused
may join anew by it; who doesn't want that takes the pod away.
"""

import logging
import re
import ssl
import time
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from covey_api.messages import CertificateRole, JoinAnswer, JoinRequest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from covey_fleet_client.calls import call, open_client, parse_answer, parse_controller_url
from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.files import describe_refusal
from covey_fleet_client.identity import Identity

# Certificates and reports tolerate more; a person should hear of it before they don't.
NOTABLE_SKEW_SECONDS = 30.0
_TOKEN_PREFIX = "covey-"  # noqa: S105 - how every join token begins
_TOKEN = re.compile(r"^covey-(?P<id>[0-9a-f]{1,64})\.[A-Za-z0-9_-]{1,128}\.(?P<digest>[0-9a-f]{64})$")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class _Token:
    text: str
    id: str
    """No secret."""
    authority_digest: str


@dataclass(frozen=True, slots=True)
class Admission:
    """By what a process joins: paths, read at each try, for both files are replaced while it runs."""

    token_file: Path | None = None
    authority_file: Path | None = None
    """PEM certificates to trust before the first join; needed with a pod's token."""

    def read_token(self) -> str | None:
        """None when there is none: once joined the certificate is enough, and the file may be gone."""
        if self.token_file is None:
            return None
        try:
            return self.token_file.read_text().strip() or None
        except (OSError, ValueError) as error:
            _log.debug("the token file can't be read: %s", error)
            return None

    def is_standing(self) -> bool:
        """The token is a pod's: it may be shown again."""
        token = self.read_token()
        return token is not None and not token.startswith(_TOKEN_PREFIX)

    def read_authorities(self) -> tuple[x509.Certificate, ...]:
        """FleetError names what must be there."""
        if self.authority_file is None:
            raise FleetError(
                FleetErrorKind.DENIED,
                f"'{self.token_file}' holds no join token of Covey's; to join by a ServiceAccount token, name the "
                "fleet's certificates with `--authority-file FILE`, mounted from ConfigMap 'covey-authority'. "
                "The token was not sent.",
            )
        try:
            return tuple(x509.load_pem_x509_certificates(self.authority_file.read_bytes()))
        except (OSError, ValueError) as error:
            raise FleetError(
                FleetErrorKind.DENIED,
                f"'{self.authority_file}' must hold the fleet's certificates in PEM; found: {error}. The controller "
                "writes them to ConfigMap 'covey-authority'. The token was not sent.",
            ) from None


async def ensure_joined(
    identity: Identity,
    controller_url: str,
    role: CertificateRole,
    name: str,
    token: str | None,
    *,
    takes_new_token: bool = False,
) -> Identity:
    """A valid identity for this role and name: the stored one, else a new one by the token. One try; raises FleetError.

    1. A stored certificate that is valid is used, unless the token is of an authority that isn't pinned: that is
       another fleet, or the same one made anew. `takes_new_token`: unless the token is another than it was joined by;
       the one it was joined by would let a member that was removed in again.
    2. Without a token there is nothing else to show: DENIED.
    3. Join with the token.

    Callers retry `FleetErrorKind.UNREACHABLE` with `Backoff`.
    """
    parsed = _parse_token(token) if token is not None else None
    url = parse_controller_url(controller_url)
    if identity.is_valid(role, name, time.time()) and (
        parsed is None
        or (_is_pinned(identity, parsed) and not (takes_new_token and identity.read_token_id() != parsed.id))
    ):
        identity.note_controller(url)
        return identity
    if parsed is None:
        is_late = identity.certificate is not None and time.time() >= identity.expires_at
        if_late = " It has expired by this machine's clock: if it can't be, set the clock." if is_late else ""
        raise FleetError(
            FleetErrorKind.DENIED,
            f"there is no valid certificate for {role} '{name}' in '{identity.folder}' and no token to join with."
            f"{if_late} Make one with `covey token create --role {role}`.",
        )
    authority = await _fetch_authority(url, parsed)
    return await _join(identity, url, role, name, parsed.text, (authority,), token_id=parsed.id)


async def ensure_admitted(
    identity: Identity,
    controller_url: str,
    role: CertificateRole,
    name: str,
    admission: Admission,
    *,
    is_refused: bool = False,
) -> Identity:
    """As `ensure_joined`, also by a pod's token. When the stored certificate `is_refused` a pod's token, or a new join
    token, joins anew; a pod's also when the certificate is of none of the authorities in the file."""
    token = admission.read_token()
    if token is None or token.startswith(_TOKEN_PREFIX):
        return await ensure_joined(identity, controller_url, role, name, token, takes_new_token=is_refused)
    if identity.is_valid(role, name, time.time()) and not is_refused and _is_of(identity, admission):
        return identity
    authorities = admission.read_authorities()
    return await _join(identity, parse_controller_url(controller_url), role, name, token, authorities)


async def _join(
    identity: Identity,
    url: str,
    role: CertificateRole,
    name: str,
    token: str,
    authorities: tuple[x509.Certificate, ...],
    *,
    token_id: str = "",
) -> Identity:
    """The token goes to a controller of one of these authorities, and to nobody else."""
    try:
        identity.ensure_room()
    except OSError as error:
        words = f"what a join brings can't be kept: {describe_refusal(error)} The token was not sent."
        raise FleetError(FleetErrorKind.INVALID, words) from error
    request = JoinRequest(role=role, name=name, signing_request=identity.render_signing_request())
    async with aclosing(open_client(url, trusting_context(authorities))) as client:
        content = await call(client, "POST", "join", body=request, bearer=token)
    answer = parse_answer(content, JoinAnswer, "join")
    now = time.time()
    log_skew(answer.now, now)
    # Before the certificate: a member whose end falls between the two must not come back by a token that it has used.
    try:
        identity.write_token_id(token_id)
        identity.note_controller(url)
        return identity.accept(answer, role, name, now)
    except OSError as error:
        words = f"the certificate came and can't be kept: {describe_refusal(error)} Join again, with a new token."
        raise FleetError(FleetErrorKind.INVALID, words) from error


def _is_of(identity: Identity, admission: Admission) -> bool:
    """Whether the identity is of the fleet whose authorities are mounted; also while they can't be read."""
    try:
        mounted = admission.read_authorities()
    except FleetError:
        return True
    return any(authority in mounted for authority in identity.authorities)


async def _fetch_authority(url: str, token: _Token) -> x509.Certificate:
    """The authority that the token names. Nothing secret is sent here, and nothing received is trusted unchecked."""
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    async with aclosing(open_client(url, unverified)) as client:
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


def log_skew(theirs: float, ours: float) -> None:
    """Both in seconds since the epoch."""
    if abs(skew := theirs - ours) > NOTABLE_SKEW_SECONDS:
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
    return _Token(text.strip(), match["id"], match["digest"])

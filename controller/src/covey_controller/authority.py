"""The fleet's own authority: who may speak as which agent or gateway, and who is the controller.

It owns the form of the authority's keys and certificates. It knows nothing of tokens, calls, or where they are kept
(`trust`). A certificate names its holder as the URI `covey://ROLE/NAME`; role and name are written here, from what the
caller established, never taken from a signing request.

The trust handed out is a bundle: the first certificate signs, more may follow to be trusted while an authority is
replaced. A public authority was no choice: agents on a laptop have no name that one would sign.
"""

import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from covey_api.messages import CertificateRole
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFETIME = timedelta(days=3650)
CERTIFICATE_LIFETIME = timedelta(days=90)
# Clocks of machines that just booted may be hours behind.
BACKDATED = timedelta(days=1)
# X.509 bounds a common name to 64 characters; the URI beside it carries the name whole.
_COMMON_NAME_LENGTH = 64
_KEYS = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.+?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)


class InvalidSigningRequest(Exception):
    """The signing request can't be used; the words say why."""


@dataclass(frozen=True, slots=True)
class Authority:
    """`bundle[0]` signs, with its key among `keys`, which are in the order in which they were made."""

    keys: tuple[ec.EllipticCurvePrivateKey, ...]
    bundle: tuple[x509.Certificate, ...]

    @property
    def key(self) -> ec.EllipticCurvePrivateKey:
        mine = self.certificate.public_key()
        return next(key for key in self.keys if key.public_key() == mine)

    @property
    def certificate(self) -> x509.Certificate:
        return self.bundle[0]

    @property
    def digest(self) -> str:
        """SHA-256 of the signing certificate's DER, in hex: what a join token pins."""
        return self.certificate.fingerprint(hashes.SHA256()).hex()

    @property
    def bundle_pem(self) -> str:
        return "".join(_to_pem(certificate) for certificate in self.bundle)

    @property
    def keys_pem(self) -> str:
        return "".join(render_key(key) for key in self.keys)

    def issue_client(self, public_key: ec.EllipticCurvePublicKey, role: CertificateRole, name: str, now: float) -> str:
        """PEM certificate of an agent or gateway whose key `parse_signing_request` proved."""
        uri = x509.UniformResourceIdentifier(f"covey://{role}/{name}")
        # An agent's is also what its keepers' fronts show to gateways.
        is_server = role is CertificateRole.AGENT
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if is_server else [])]
        return self._issue(public_key, name, [uri], usages, now)

    def issue_server(self, names: Iterable[str], now: float) -> str:
        """PEM key and certificate of a server that is reached under these host names and addresses."""
        key = make_key()
        alternatives = [_parse_host(name) for name in dict.fromkeys(names)]
        certificate = self._issue(
            key.public_key(), "covey-controller", alternatives, [ExtendedKeyUsageOID.SERVER_AUTH], now
        )
        return render_key(key) + certificate

    def _issue(
        self,
        public_key: ec.EllipticCurvePublicKey,
        common_name: str,
        alternatives: Iterable[x509.GeneralName],
        usages: list[x509.ObjectIdentifier],
        now: float,
    ) -> str:
        moment = datetime.fromtimestamp(now, UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(common_name))
            .issuer_name(self.certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(moment - BACKDATED)
            .not_valid_after(moment + CERTIFICATE_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        return _to_pem(builder.sign(self.key, hashes.SHA256()))


def derive_engine_key(fleet_secret: bytes, instance_id: str) -> str:
    """The key that the engines of one Instance ask for: the same after every restart, stored in no resource."""
    return hmac.digest(fleet_secret, instance_id.encode(), "sha256").hex()


def make_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def make_certificate(key: ec.EllipticCurvePrivateKey, now: float) -> x509.Certificate:
    """An authority's own, signed by itself."""
    moment = datetime.fromtimestamp(now, UTC)
    subject = _name(f"covey authority {secrets.token_hex(4)}")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - BACKDATED)
        .not_valid_after(moment + AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def parse_authority(certificates: bytes, keys: bytes) -> Authority:
    """ValueError unless these are certificates and P-256 keys, and one of the keys is the first certificate's."""
    bundle = tuple(x509.load_pem_x509_certificates(certificates))
    found = parse_keys(keys)
    if bundle[0].public_key() not in [key.public_key() for key in found]:
        raise ValueError("the key of the first certificate is missing")
    return Authority(found, bundle)


def parse_keys(content: bytes) -> tuple[ec.EllipticCurvePrivateKey, ...]:
    """The keys of a file of PEM blocks, at least one. ValueError otherwise."""
    keys = [serialization.load_pem_private_key(block, password=None) for block in _KEYS.findall(content)]
    found = tuple(key for key in keys if isinstance(key, ec.EllipticCurvePrivateKey))
    if not found or len(found) != len(keys):
        raise ValueError("there must be ECDSA keys in PEM")
    return found


def parse_signing_request(text: str) -> ec.EllipticCurvePublicKey:
    """The key of a PEM request. InvalidSigningRequest if its possession isn't proven, or it isn't ECDSA P-256."""
    try:
        request = x509.load_pem_x509_csr(text.encode())
        key = request.public_key()
        is_proven = request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidSigningRequest(f"`signingRequest` must be a PEM certificate signing request: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidSigningRequest("`signingRequest` must carry an ECDSA P-256 key")
    if not is_proven:
        raise InvalidSigningRequest("`signingRequest` must be signed by its own key")
    return key


def _parse_host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:_COMMON_NAME_LENGTH])])


def _key_usage(*, digital_signature: bool = False, signs_certificates: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def render_key(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _to_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()

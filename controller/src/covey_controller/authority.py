"""The fleet's own authority: who may speak as which agent or gateway, and who is the controller.

It owns the authority's key and certificate and the fleet secret, made once and kept beside each other. It knows nothing
of tokens or calls. A certificate names its holder as the URI `covey://ROLE/NAME`; role and name are written here, from
what the caller established, never taken from a signing request.

The trust handed out is a bundle: the first certificate of `authority.pem` signs, more may follow to be trusted while an
authority is replaced. A public authority was no choice: agents on a laptop have no name that one would sign.
"""

import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from covey_api.messages import CertificateRole
from covey_fleet_client.files import ensure_private_folder, write_private
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
_SECRET_BYTES = 32


class InvalidSigningRequest(Exception):
    """The signing request can't be used; the words say why."""


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs with `key`; `bundle[0]` is its certificate."""

    key: ec.EllipticCurvePrivateKey
    bundle: tuple[x509.Certificate, ...]

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

    def issue_client(self, public_key: ec.EllipticCurvePublicKey, role: CertificateRole, name: str, now: float) -> str:
        """PEM certificate of an agent or gateway whose key `parse_signing_request` proved."""
        uri = x509.UniformResourceIdentifier(f"covey://{role}/{name}")
        return self._issue(public_key, name, [uri], ExtendedKeyUsageOID.CLIENT_AUTH, now)

    def issue_server(self, names: Iterable[str], now: float) -> str:
        """PEM key and certificate of a server that is reached under these host names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = [_parse_host(name) for name in dict.fromkeys(names)]
        certificate = self._issue(
            key.public_key(), "covey-controller", alternatives, ExtendedKeyUsageOID.SERVER_AUTH, now
        )
        return _key_pem(key) + certificate

    def _issue(
        self,
        public_key: ec.EllipticCurvePublicKey,
        common_name: str,
        alternatives: Iterable[x509.GeneralName],
        usage: x509.ObjectIdentifier,
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
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        return _to_pem(builder.sign(self.key, hashes.SHA256()))


def ensure_authority(folder: Path, now: float) -> Authority:
    """The authority of this state folder, made at the first start.

    1. Certificate and key are there: loaded.
    2. No certificate: nothing was ever signed that anybody trusts, so a new pair is made (a key alone is what a start
       that was cut off leaves).
    3. A certificate without its key: ValueError. A new authority would lock out every agent; that is for a person.
    """
    ensure_private_folder(folder)
    certificate_path, key_path = folder / "authority.pem", folder / "authority.key"
    if not certificate_path.exists():
        return _make_authority(certificate_path, key_path, now)
    try:
        bundle = tuple(x509.load_pem_x509_certificates(certificate_path.read_bytes()))
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"'{certificate_path}' and '{key_path}' must be the fleet's authority and its key; found: {error}. "
            "Restore both, or remove both and join every agent and gateway again."
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or bundle[0].public_key() != key.public_key():
        raise ValueError(
            f"'{key_path}' must be the key of the first certificate in '{certificate_path}'; it isn't. "
            "Restore both, or remove both and join every agent and gateway again."
        )
    return Authority(key, bundle)


def ensure_fleet_secret(folder: Path) -> bytes:
    """The 32 bytes that engine keys and seals derive from, made at the first start. ValueError if the file is short."""
    ensure_private_folder(folder)
    path = folder / "fleet.secret"
    if not path.exists():
        write_private(path, secrets.token_hex(_SECRET_BYTES).encode())
    try:
        secret = bytes.fromhex(path.read_text())
    except ValueError:
        secret = b""
    if len(secret) != _SECRET_BYTES:
        raise ValueError(
            f"'{path}' must hold {2 * _SECRET_BYTES} hex digits; it doesn't. Restore it, or remove it: "
            "then engines get new keys as they are replaced, and an emptied store adopts nothing that runs already."
        )
    return secret


def derive_engine_key(fleet_secret: bytes, instance_id: str) -> str:
    """The key that the engines of one Instance ask for: the same after every restart, stored in no resource."""
    return hmac.digest(fleet_secret, instance_id.encode(), "sha256").hex()


def _make_authority(certificate_path: Path, key_path: Path, now: float) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    moment = datetime.fromtimestamp(now, UTC)
    subject = _name(f"covey authority {secrets.token_hex(4)}")
    certificate = (
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
    # The key first: a certificate on the disk promises that its key is there too.
    write_private(key_path, _key_pem(key).encode())
    write_private(certificate_path, _to_pem(certificate).encode())
    return Authority(key, (certificate,))


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


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def _to_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()

"""Who this process is to the fleet: name, key, certificate and pinned authorities, as files in one private folder.

The key is made here and never leaves; a renewal keeps it, so that key and certificate can't be torn apart by a power
cut between two writes.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from covey_api.messages import CertificateRole, JoinAnswer
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.files import ensure_private_folder, write_private

# A certificate is renewed when this share of its lifetime has passed: two more tries of the same length remain.
RENEWAL_SHARE = 1 / 3
_NAME_BYTES = 53
# A certificate, authorities and the small files beside them.
_ROOM_BYTES = 32 * 1024


@dataclass(frozen=True, slots=True)
class Identity:
    folder: Path
    name: str
    """Empty before the first join."""
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate | None
    authorities: tuple[x509.Certificate, ...]

    @property
    def key_path(self) -> Path:
        return self.folder / "key.pem"

    @property
    def certificate_path(self) -> Path:
        return self.folder / "certificate.pem"

    @property
    def authorities_path(self) -> Path:
        return self.folder / "authorities.pem"

    @property
    def role(self) -> CertificateRole:
        """What the certificate says. FleetError without one: nothing but a join may happen then."""
        if self.certificate is not None:
            for role in CertificateRole:
                if _is_for(self.certificate, role, self.name):
                    return role
        raise FleetError(FleetErrorKind.DENIED, f"'{self.folder}' holds no certificate for '{self.name}': join first")

    @property
    def expires_at(self) -> float:
        """Seconds since the epoch; 0 without a certificate."""
        return 0.0 if self.certificate is None else self.certificate.not_valid_after_utc.timestamp()

    @property
    def renew_at(self) -> float:
        """Seconds since the epoch at which a third of the lifetime has passed; 0 without a certificate."""
        if self.certificate is None:
            return 0.0
        begins_at = self.certificate.not_valid_before_utc.timestamp()
        return begins_at + (self.expires_at - begins_at) * RENEWAL_SHARE

    def is_valid(self, role: CertificateRole, name: str, now: float) -> bool:
        """The certificate is this key's, for this role and name, signed by a pinned authority, and not expired."""
        certificate = self.certificate
        return (
            certificate is not None
            and now < self.expires_at
            and certificate.public_key() == self.key.public_key()
            and _is_for(certificate, role, name)
            and _is_signed(certificate, self.authorities)
        )

    def read_token_id(self) -> str:
        """Of the join token that it was last joined by; empty when it was none."""
        return _read(self.folder / "token-id").decode(errors="replace").strip()

    def write_token_id(self, token_id: str) -> None:
        write_private(self.folder / "token-id", f"{token_id}\n")

    def note_controller(self, url: str) -> None:
        """Where its fleet was reached last, for whoever looks at this machine. No part depends on it."""
        with suppress(OSError):
            if read_controller_url(self.folder) != url:
                write_private(self.folder / "controller", f"{url}\n")

    def ensure_room(self) -> None:
        """OSError where what a join brings can't be kept: asked before a token is shown, which may be good but once."""
        trial = self.folder / "join-trial"
        try:
            write_private(trial, os.urandom(_ROOM_BYTES))
        finally:
            with suppress(OSError):
                trial.unlink(missing_ok=True)

    def render_signing_request(self) -> str:
        """PEM. It carries the key only: role and name are the controller's to write."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "covey")])
        request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(self.key, hashes.SHA256())
        return request.public_bytes(serialization.Encoding.PEM).decode()

    def accept(self, answer: JoinAnswer, role: CertificateRole, name: str, now: float) -> "Identity":
        """The identity with what the controller issued, checked and written down. FleetError if it isn't for us."""
        try:
            accepted = replace(
                self,
                name=name,
                certificate=x509.load_pem_x509_certificate(answer.certificate.encode()),
                authorities=tuple(x509.load_pem_x509_certificates(answer.authorities.encode())),
            )
        except ValueError as error:
            raise FleetError(FleetErrorKind.INVALID, f"the controller's certificate can't be read: {error}") from None
        if not accepted.is_valid(role, name, now):
            raise FleetError(
                FleetErrorKind.INVALID,
                f"the controller's certificate must be valid now for {role} '{name}' and this process's key; it isn't. "
                "Check that both clocks are right.",
            )
        # The name last: it says that the rest is whole.
        write_private(accepted.authorities_path, answer.authorities)
        write_private(accepted.certificate_path, answer.certificate)
        write_private(accepted.folder / "name", f"{name}\n")
        return accepted


def load_identity(folder: Path) -> Identity:
    """What the folder holds; the folder and the key are made when absent.

    A certificate or authority that can't be read counts as absent: the next join writes it anew.
    """
    ensure_private_folder(folder)
    return _load(folder, _read_key(folder / "key.pem") or _make_key(folder / "key.pem"))


def read_identity(folder: Path) -> Identity | None:
    """What the folder holds, for who only looks: nothing is made, mended or removed. None: it holds no key.

    OSError where this user may not read it.
    """
    key = _read_key(folder / "key.pem")
    return _load(folder, key) if key is not None else None


def _load(folder: Path, key: ec.EllipticCurvePrivateKey) -> Identity:
    return Identity(
        folder=folder,
        name=_read(folder / "name").decode(errors="replace").strip(),
        key=key,
        certificate=next(iter(_load_certificates(folder / "certificate.pem")), None),
        authorities=_load_certificates(folder / "authorities.pem"),
    )


def read_controller_url(folder: Path) -> str:
    """Where the fleet of the identity in this folder was reached last; empty while it never was."""
    return _read_word(folder / "controller")


def read_name(folder: Path) -> str:
    """The name that the identity in this folder was joined by; empty while it wasn't."""
    return _read_word(folder / "name")


def _read_word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


def render_name(hostname: str) -> str:
    """A valid node or gateway name from a machine's name: its first label in lower case, other characters as '-'."""
    label = re.sub(r"[^a-z0-9]+", "-", hostname.split(".")[0].lower()).strip("-")
    return label[:_NAME_BYTES].strip("-") or "localhost"


def _is_for(certificate: x509.Certificate, role: CertificateRole, name: str) -> bool:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    return f"covey://{role}/{name}" in names.get_values_for_type(x509.UniformResourceIdentifier)


def _is_signed(certificate: x509.Certificate, authorities: tuple[x509.Certificate, ...]) -> bool:
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey | None:
    """None: there is none, or what is there is none."""
    try:
        key = serialization.load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError):  # TypeError: it is encrypted
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _make_key(path: Path) -> ec.EllipticCurvePrivateKey:
    made = ec.generate_private_key(ec.SECP256R1())
    write_private(
        path,
        made.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    return made


def _load_certificates(path: Path) -> tuple[x509.Certificate, ...]:
    content = _read(path)
    try:
        return tuple(x509.load_pem_x509_certificates(content)) if content else ()
    except ValueError:
        return ()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""

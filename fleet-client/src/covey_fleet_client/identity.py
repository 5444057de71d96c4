"""Who this process is to the fleet: name, key, certificate and pinned authorities, as files in one private folder."""

from dataclasses import dataclass
from pathlib import Path

from covey_api.messages import CertificateRole
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True, slots=True)
class Identity:
    folder: Path
    name: str
    """Empty before the first join."""
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate | None
    authorities: tuple[x509.Certificate, ...]

    @property
    def expires_at(self) -> float:
        """Seconds since the epoch; 0 without a certificate."""
        raise NotImplementedError

    @property
    def renew_at(self) -> float:
        """A third of the lifetime has passed."""
        raise NotImplementedError

    def is_valid(self, role: CertificateRole, name: str, now: float) -> bool:
        """The certificate is this key's, for this role and name, signed by a pinned authority, and not expired."""
        raise NotImplementedError


def load_identity(folder: Path) -> Identity:
    """What the folder holds; the folder and the key are made when absent."""
    raise NotImplementedError


def render_name(hostname: str) -> str:
    """A valid node or gateway name from a machine's name: lower case, first label, other characters as '-'."""
    raise NotImplementedError

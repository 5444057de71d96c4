"""When a served certificate is read again."""

import datetime
import resource
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from covey_gateway.tls import ServedCertificate
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def write_pair(certificate_path: Path, key_path: Path) -> None:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(9))
    certificate_path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    encryption = serialization.NoEncryption()
    key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))


@contextmanager
def no_files_left() -> Generator[None]:
    """Nothing can be opened meanwhile; all that is open stays so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Served:
    now = 0.0

    def __init__(self, folder: Path) -> None:
        self.paths = (folder / "tls.crt", folder / "tls.key")
        write_pair(*self.paths)
        self.certificate = ServedCertificate(*self.paths, clock=lambda: self.now)

    def observe(self) -> ssl.SSLContext:
        return self.certificate.observe_context()


def test_a_pair_that_could_not_be_read_is_tried_again_though_its_files_stay_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(tmp_path)
    first = served.observe()
    write_pair(*served.paths)
    with no_files_left():
        assert served.observe() is first
        served.now = 60.0
        assert served.observe() is first
    assert len(caplog.messages) == 1, "the same is told once"
    assert served.observe() is first, "not with each connection"
    served.now = 120.0
    second = served.observe()
    assert second is not first
    served.now = 180.0
    assert served.observe() is second


def test_another_owner_or_mode_is_a_reason_to_read_a_pair_at_once(tmp_path: Path) -> None:
    served = Served(tmp_path)
    first = served.observe()
    write_pair(*served.paths)
    with no_files_left():
        assert served.observe() is first
    key = served.paths[1]
    before = key.stat().st_ctime_ns
    while key.stat().st_ctime_ns == before:  # a file system's clock may tick only each few milliseconds
        key.chmod(0o640)
    assert served.observe() is not first

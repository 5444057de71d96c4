import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest
from covey_api.messages import CertificateRole
from covey_controller.authority import (
    BACKDATED,
    CERTIFICATE_LIFETIME,
    InvalidSigningRequest,
    derive_engine_key,
    parse_signing_request,
)
from covey_controller.serving.protocol import Peer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store
from hypothesis import given
from hypothesis import strategies as st
from kit.vaults import authority_in, denials_in, finish, fleet_secret_in

NOW = time.time()
DAY = 24 * 3600
REQUEST = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))


def pem(request: x509.CertificateSigningRequest) -> str:
    return request.public_bytes(serialization.Encoding.PEM).decode()


def test_the_authority_is_made_once(tmp_path: Path) -> None:
    first = authority_in(tmp_path, NOW)
    again = authority_in(tmp_path, NOW + 1)
    assert again.bundle == first.bundle
    assert again.digest == first.digest
    assert again.key.public_key() == first.key.public_key()
    assert first.certificate.not_valid_after_utc.timestamp() > NOW + 3649 * DAY


def test_a_start_that_was_cut_off_before_the_certificate_makes_a_new_authority(tmp_path: Path) -> None:
    authority_in(tmp_path, NOW)
    (tmp_path / "authority.pem").unlink()
    assert authority_in(tmp_path, NOW).certificate


@pytest.mark.parametrize(("file", "content"), [("authority.key", None), ("authority.key", "x"), ("authority.pem", "x")])
def test_a_damaged_authority_is_for_a_person_to_repair(tmp_path: Path, file: str, content: str | None) -> None:
    authority_in(tmp_path, NOW)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match="Restore both"):
        authority_in(tmp_path, NOW)


def test_a_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    authority_in(tmp_path / "one", NOW)
    authority_in(tmp_path / "two", NOW)
    (tmp_path / "two" / "authority.key").replace(tmp_path / "one" / "authority.key")
    with pytest.raises(ValueError, match="key of the first certificate"):
        authority_in(tmp_path / "one", NOW)


def test_a_bundle_keeps_older_authorities_trusted_while_the_first_signs(tmp_path: Path) -> None:
    old, new = authority_in(tmp_path / "old", NOW), authority_in(tmp_path / "new", NOW)
    path = tmp_path / "new" / "authority.pem"
    path.write_text(new.bundle_pem + old.bundle_pem)
    both = authority_in(tmp_path / "new", NOW)
    assert both.bundle == (*new.bundle, *old.bundle)
    assert both.digest == new.digest
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    issued = both.issue_client(key, CertificateRole.AGENT, "a", NOW)
    x509.load_pem_x509_certificate(issued.encode()).verify_directly_issued_by(new.certificate)


def test_a_client_certificate_says_role_and_name_and_nothing_of_the_request(tmp_path: Path) -> None:
    authority = authority_in(tmp_path, NOW)
    key = ec.generate_private_key(ec.SECP256R1())
    key_asked = parse_signing_request(pem(REQUEST.sign(key, hashes.SHA256())))
    issued = authority.issue_client(key_asked, CertificateRole.GATEWAY, "g" * 253, NOW)
    certificate = x509.load_pem_x509_certificate(issued.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["covey://gateway/" + "g" * 253]
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert certificate.not_valid_before_utc.timestamp() == pytest.approx(NOW - DAY, abs=2)
    assert certificate.not_valid_after_utc.timestamp() == pytest.approx(NOW + 90 * DAY, abs=2)
    again = x509.load_pem_x509_certificate(
        authority.issue_client(key_asked, CertificateRole.GATEWAY, "g", NOW).encode()
    )
    assert again.serial_number != certificate.serial_number


def test_a_strict_verifier_takes_both_kinds_of_certificate(tmp_path: Path) -> None:
    authority = authority_in(tmp_path, NOW)
    policy = PolicyBuilder().store(Store(list(authority.bundle)))
    server = x509.load_pem_x509_certificates(authority.issue_server(["127.0.0.1", "host.local"], NOW).encode())[0]
    policy.build_server_verifier(x509.DNSName("host.local")).verify(server, [])
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    client = x509.load_pem_x509_certificate(authority.issue_client(key, CertificateRole.AGENT, "a", NOW).encode())
    policy.build_client_verifier().verify(client, [])


def test_a_signing_request_must_prove_a_p256_key() -> None:
    p384 = REQUEST.sign(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256())
    by_rsa = REQUEST.sign(rsa.generate_private_key(65537, 2048), hashes.SHA256())
    forged = bytearray(
        REQUEST.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    )
    forged[-1] ^= 1
    unproven = x509.load_der_x509_csr(bytes(forged))
    for request in (p384, by_rsa, unproven):
        with pytest.raises(InvalidSigningRequest):
            parse_signing_request(pem(request))


@given(st.text(max_size=200))
def test_no_text_gets_more_out_of_the_parser_than_a_refusal(text: str) -> None:
    for request in (
        text,
        f"-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n",
    ):
        with pytest.raises(InvalidSigningRequest):
            parse_signing_request(request)


def test_the_fleet_secret_is_made_once_and_engine_keys_derive_from_it(tmp_path: Path) -> None:
    secret = fleet_secret_in(tmp_path)
    assert fleet_secret_in(tmp_path) == secret
    assert derive_engine_key(secret, "i1") == derive_engine_key(secret, "i1")
    assert derive_engine_key(secret, "i1") != derive_engine_key(secret, "i2")
    (tmp_path / "fleet.secret").write_text("ab")
    with pytest.raises(ValueError, match="64 hex digits"):
        fleet_secret_in(tmp_path)


def peer(name: str, issued_at: float) -> Peer:
    return Peer(CertificateRole.AGENT, name, issued_at - BACKDATED.total_seconds())


def test_denials_are_kept_and_expired_ones_go_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "denials.json"
    first = peer("a", finish(denials_in(tmp_path).record_issue(CertificateRole.AGENT, "a", NOW)))
    finish(denials_in(tmp_path).deny(CertificateRole.AGENT, "a", NOW))
    assert denials_in(tmp_path).is_denied(first)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not denials_in(tmp_path).is_denied(peer("b", NOW))
    assert not denials_in(tmp_path).is_denied(replace(first, role=CertificateRole.GATEWAY))
    later = NOW + CERTIFICATE_LIFETIME.total_seconds() + 2
    finish(denials_in(tmp_path).deny(CertificateRole.AGENT, "b", later))
    assert '"agent/a"' not in path.read_text()


@pytest.mark.parametrize("moved_seconds", [0, -7200, 7200], ids=["same second", "clock went back", "later"])
def test_denial_refuses_every_certificate_before_it_and_none_after_it(tmp_path: Path, moved_seconds: float) -> None:
    denials = denials_in(tmp_path)
    before = [peer("a", finish(denials.record_issue(CertificateRole.AGENT, "a", NOW + second))) for second in range(20)]
    now = NOW + 19 + moved_seconds
    finish(denials.deny(CertificateRole.AGENT, "a", now))
    after = peer("a", finish(denials.record_issue(CertificateRole.AGENT, "a", now)))
    assert all(denials.is_denied(each) for each in before)
    assert not denials.is_denied(after)
    finish(denials.deny(CertificateRole.AGENT, "a", now))
    assert denials.is_denied(after)


def test_denials_that_cannot_be_read_let_nobody_back_in(tmp_path: Path) -> None:
    (tmp_path / "denials.json").write_text("{")
    with pytest.raises(ValueError, match="refused certificates"):
        denials_in(tmp_path)

import os
import re
import stat
import time
from pathlib import Path

import pytest
from covey_api.messages import CertificateRole, JoinAnswer
from covey_api.meta import NAME_PATTERN
from covey_controller.authority import CERTIFICATE_LIFETIME, Authority, parse_signing_request
from covey_fleet_client.calls import parse_controller_url
from covey_fleet_client.errors import FleetError, FleetErrorKind
from covey_fleet_client.identity import Identity, load_identity, read_identity, render_name
from hypothesis import given
from hypothesis import strategies as st
from kit.vaults import authority_in

AGENT, GATEWAY = CertificateRole.AGENT, CertificateRole.GATEWAY
NOW = time.time()
DAY = 24 * 3600


def answer_for(identity: Identity, authority: Authority, *, name: str = "a", now: float = NOW) -> JoinAnswer:
    key = parse_signing_request(identity.render_signing_request())
    certificate = authority.issue_client(key, AGENT, name, now)
    return JoinAnswer(certificate=certificate, authorities=authority.bundle_pem, now=now)


def test_an_identity_survives_a_restart_with_the_same_key(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "controller", NOW)
    fresh = load_identity(tmp_path / "agent")
    assert (fresh.name, fresh.certificate, fresh.authorities) == ("", None, ())
    assert not fresh.is_valid(AGENT, "a", NOW)
    joined = fresh.accept(answer_for(fresh, authority), AGENT, "a", NOW)
    again = load_identity(tmp_path / "agent")
    assert again.name == "a"
    assert again.role is AGENT
    assert again.certificate == joined.certificate
    assert again.key.public_key() == fresh.key.public_key()
    assert again.is_valid(AGENT, "a", NOW)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "agent").iterdir()} == {0o600}


def test_who_only_looks_at_an_identity_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    assert read_identity(folder) is None
    assert not folder.exists()
    authority = authority_in(tmp_path / "controller", NOW)
    fresh = load_identity(folder)
    joined = fresh.accept(answer_for(fresh, authority), AGENT, "a", NOW)
    seen = read_identity(folder)
    assert seen is not None
    assert (seen.name, seen.certificate, seen.authorities) == ("a", joined.certificate, joined.authorities)
    assert seen.is_valid(AGENT, "a", NOW)
    left = folder / ".name.0123456789abcdef.tmp"
    left.touch()
    os.utime(left, (NOW - DAY, NOW - DAY))
    (folder / "key.pem").write_text("nonsense")
    folder.chmod(0o755)
    assert read_identity(folder) is None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert (folder / "key.pem").read_text() == "nonsense"
    assert left.exists()


def test_a_certificate_is_due_after_a_third_of_its_life(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "controller", NOW)
    fresh = load_identity(tmp_path / "agent")
    assert (fresh.renew_at, fresh.expires_at) == (0, 0)
    joined = fresh.accept(answer_for(fresh, authority), AGENT, "a", NOW)
    assert joined.expires_at == pytest.approx(NOW + CERTIFICATE_LIFETIME.total_seconds(), abs=2)
    assert joined.renew_at == pytest.approx(NOW - DAY + 91 * DAY / 3, abs=2)


def test_an_identity_is_valid_for_its_own_role_name_and_time_only(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "controller", NOW)
    fresh = load_identity(tmp_path / "agent")
    joined = fresh.accept(answer_for(fresh, authority), AGENT, "a", NOW)
    assert not joined.is_valid(GATEWAY, "a", NOW)
    assert not joined.is_valid(AGENT, "b", NOW)
    assert not joined.is_valid(AGENT, "a", NOW + 91 * DAY)


def test_an_answer_that_is_not_for_us_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "controller", NOW)
    other_authority = authority_in(tmp_path / "other", NOW)
    ours, others = load_identity(tmp_path / "agent"), load_identity(tmp_path / "someone")
    good = answer_for(ours, authority)
    for answer in (
        answer_for(others, authority),
        answer_for(ours, authority, name="b"),
        answer_for(ours, authority, now=NOW - 91 * DAY),
        good.model_copy(update={"authorities": other_authority.bundle_pem}),
        good.model_copy(update={"certificate": "nonsense"}),
        good.model_copy(update={"authorities": ""}),
    ):
        with pytest.raises(FleetError) as caught:
            ours.accept(answer, AGENT, "a", NOW)
        assert caught.value.kind is FleetErrorKind.INVALID
    assert {path.name for path in (tmp_path / "agent").iterdir()} == {"key.pem"}


@pytest.mark.parametrize("file", ["key.pem", "certificate.pem", "authorities.pem"])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff\xfe"])
def test_a_damaged_file_means_joining_again_not_a_crash(tmp_path: Path, file: str, content: bytes) -> None:
    authority = authority_in(tmp_path / "controller", NOW)
    fresh = load_identity(tmp_path / "agent")
    fresh.accept(answer_for(fresh, authority), AGENT, "a", NOW)
    (tmp_path / "agent" / file).write_bytes(content)
    damaged = load_identity(tmp_path / "agent")
    assert not damaged.is_valid(AGENT, "a", NOW)
    assert damaged.accept(answer_for(damaged, authority), AGENT, "a", NOW).is_valid(AGENT, "a", NOW)


@given(st.text(max_size=300))
def test_every_hostname_renders_a_valid_name(hostname: str) -> None:
    name = render_name(hostname)
    assert re.fullmatch(NAME_PATTERN.strip("^$"), name)
    assert len(name) <= 53


def test_a_hostname_renders_as_its_first_label() -> None:
    assert render_name("Annes-MacBook_Pro.local") == "annes-macbook-pro"


@pytest.mark.parametrize("url", ["http://a:1", "a:1", "", "https://", "https://a/b", "https://u:p@a", "https://a:x"])
def test_a_controller_url_that_is_not_plain_https_is_refused_with_what_must_hold(url: str) -> None:
    with pytest.raises(FleetError):
        parse_controller_url(url)


@pytest.mark.parametrize(("url", "parsed"), [("https://a:1/", "https://a:1"), ("https://[::1]:1", "https://[::1]:1")])
def test_a_controller_url_loses_its_slash(url: str, parsed: str) -> None:
    assert parse_controller_url(url) == parsed

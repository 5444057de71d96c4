"""What `covey join` calls the agent and the gateway of a machine, and a state folder that it can't use."""

import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from covey.commands.join import join
from covey.errors import CommandError
from covey.up.joined import JoinSettings, has_joined
from covey_api.messages import CertificateRole, JoinAnswer
from covey_controller.authority import Authority, parse_signing_request
from covey_fleet_client.identity import load_identity
from kit.vaults import authority_in

DAY = 24 * 3600


def names(state: Path, name: str) -> list[str]:
    settings = JoinSettings(
        controller="https://c:1", state=state, cache=None, name=name, listen="127.0.0.1:1", is_open=False
    )
    return [each for _, _, each in settings.identities()]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of one of two machines of one host name."""
    monkeypatch.setattr(socket, "gethostname", lambda: "ubuntu")
    return tmp_path


def join_as(state: Path, agent: str, gateway: str) -> None:
    for part, name in (("agent", agent), ("gateway", gateway)):
        (state / part).mkdir(mode=0o700, exist_ok=True)
        (state / part / "name").write_text(f"{name}\n")


def test_the_given_name_is_that_of_both_parts(state: Path) -> None:
    assert names(state, "") == ["ubuntu", "ubuntu"]
    assert names(state, "attic") == ["attic", "attic"]


def test_another_name_takes_the_place_of_a_stored_one(state: Path) -> None:
    """As two machines need it whose disk was copied."""
    join_as(state, "ubuntu", "ubuntu")
    assert names(state, "") == ["ubuntu", "ubuntu"]
    assert names(state, "attic") == ["attic", "attic"]


def test_a_gateway_that_was_called_after_its_host_stays_it_until_a_new_name_is_given(state: Path) -> None:
    join_as(state, "attic", "ubuntu")
    assert names(state, "attic") == names(state, "") == ["attic", "ubuntu"]
    assert names(state, "cellar") == ["cellar", "cellar"]


def test_a_folder_that_cannot_be_used_is_said(state: Path) -> None:
    (state / "agent").write_text("a file in its place")
    answer = CliRunner().invoke(join, ["https://127.0.0.1:1", "--state", str(state)])
    assert isinstance(answer.exception, CommandError)
    assert "must be a folder; found a file" in str(answer.exception)


def certify(authority: Authority, state: Path, role: CertificateRole, name: str, at: float) -> None:
    identity = load_identity(state / role.value)
    key = parse_signing_request(identity.render_signing_request())
    certificate = authority.issue_client(key, role, name, at)
    answer = JoinAnswer(certificate=certificate, authorities=authority.bundle_pem, now=at)
    identity.accept(answer, role, name, at)


def test_a_service_needs_a_token_unless_each_certificate_is_valid_by_its_name(state: Path, tmp_path: Path) -> None:
    now = time.time()
    authority = authority_in(tmp_path / "controller", now)
    assert not has_joined(state, "", has_gateway=False)
    certify(authority, state, CertificateRole.AGENT, "attic", now)
    assert has_joined(state, "", has_gateway=False)
    assert has_joined(state, "attic", has_gateway=False)
    assert not has_joined(state, "cellar", has_gateway=False)
    assert not has_joined(state, "", has_gateway=True)
    certify(authority, state, CertificateRole.GATEWAY, "ubuntu", now)
    assert has_joined(state, "attic", has_gateway=True)
    assert not has_joined(state, "cellar", has_gateway=True)
    certify(authority, state, CertificateRole.AGENT, "attic", now - 365 * DAY)
    assert not has_joined(state, "attic", has_gateway=False)

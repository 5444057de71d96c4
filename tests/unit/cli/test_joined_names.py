"""What `covey join` calls the agent and the gateway of a machine, and a state folder that it can't use."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner
from covey.commands.join import join
from covey.errors import CommandError
from covey.up.joined import JoinSettings


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

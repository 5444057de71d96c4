"""Whether a `covey up` keeps a state folder: asked by commands, held by one parent."""

import fcntl
import resource
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner
from covey.errors import CommandError, ExitCode
from covey.main import cli
from covey.paths import SERVICE_VARIABLE, is_kept_up
from covey.up import group
from covey.up.group import AlreadyRunning, hold_state_folder


@dataclass(frozen=True)
class Settings:
    state: Path
    record: dict[str, str] = field(default_factory=lambda: {"source": "models"})


def test_a_folder_is_kept_up_while_its_parent_holds_it(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "state")
    assert not is_kept_up(settings.state)
    with hold_state_folder(settings):
        assert is_kept_up(settings.state)
        with pytest.raises(AlreadyRunning), hold_state_folder(settings):
            pass
    assert not is_kept_up(settings.state)


def test_a_service_that_finds_the_folder_held_has_failed_and_is_tried_again(tmp_path: Path) -> None:
    source = tmp_path / "models"
    source.mkdir()
    held = Settings(tmp_path / "state", {"source": str(source)})
    command = ["up", str(source), "--state", str(held.state)]
    with hold_state_folder(held):
        by_a_person = CliRunner().invoke(cli, command, standalone_mode=False)
        as_a_service = CliRunner().invoke(cli, command, env={SERVICE_VARIABLE: "up"}, standalone_mode=False)
    assert (by_a_person.exception, "already running here" in by_a_person.output) == (None, True)
    assert isinstance(as_a_service.exception, CommandError)
    assert as_a_service.exception.code is ExitCode.FAILED


def test_a_disk_that_refuses_the_record_keeps_no_parent_from_starting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(tmp_path / "state")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with hold_state_folder(settings) as was_killed:
            assert not was_killed
            with pytest.raises(AlreadyRunning), hold_state_folder(settings):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    words = capsys.readouterr().err
    assert words.count("WARNING") == 1
    assert f"'{settings.state}/up.json' can't be used: File too large" in words
    assert list(settings.state.glob("*up.json*")) == []


def test_a_command_that_just_looks_at_the_lock_keeps_no_parent_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(tmp_path / "state")
    with hold_state_folder(settings):
        pass
    monkeypatch.setattr(group, "_LOCK_TRIES", 3000)  # a busy machine lets the timer wait
    with (settings.state / "up.lock").open() as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        threading.Timer(0.05, fcntl.flock, (looked_at, fcntl.LOCK_UN)).start()
        with hold_state_folder(settings):
            assert is_kept_up(settings.state)

"""Whether a `covey up` keeps a state folder: asked by commands, held by one parent."""

import fcntl
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from covey.paths import is_kept_up
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


def test_a_command_that_just_looks_at_the_lock_keeps_no_parent_from_starting(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "state")
    with hold_state_folder(settings):
        pass
    with (settings.state / "up.lock").open() as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        threading.Timer(0.05, fcntl.flock, (looked_at, fcntl.LOCK_UN)).start()
        with hold_state_folder(settings):
            assert is_kept_up(settings.state)
